"""This process as a node: its incarnation, what other nodes ask it for, and when it has to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.catalog.cluster.cluster import ClusterCatalog
from penstock.catalog.cluster.nodes import LIVE as LIVE
from penstock.catalog.cluster.nodes import NodeRow as NodeRow
from penstock.catalog.cluster.triggers import ASK, channel
from penstock.model.errors import UnavailableError
from penstock.model.record import TenantId

if TYPE_CHECKING:
    from penstock.catalog.cluster.heartbeat import Heartbeat

SETTLE_S_MAX: Final = 30.0  # a start waits so long for nodes that died to be recovered
LOOK_S: Final = 0.05
SHORT_MAX: Final = 500  # characters of a name that fit into a notification
SESSION: Final = "session"  # what a node can be asked to release
KICK: Final = "kick"  # a node can be asked to close the connection of a client
FORGET: Final = "forget"  # the same, and to delete its session
TOPICS: Final = "topics"  # a node can be asked to end if it cannot reach them

OnAsk = Callable[[TenantId, str], None]
ReachesTopics = Callable[[float], Awaitable[bool]]


async def _reaches_all(wait_s: float) -> bool:
    return True


class Node:
    """Used on the event loop."""

    def __init__(
        self,
        inc: int,
        name: str,
        schema: str,
        heartbeat: Heartbeat,
        catalog: ClusterCatalog,
        *,
        secret: bytes,
    ) -> None:
        self.inc = inc
        self.name = name
        self.catalog = catalog
        self.secret = secret  # what nodes sign with for each other; shown to nobody
        self.ended = ""  # why this node may serve nobody any more
        self.is_draining = False
        self.elsewhere = ""  # where clients can go: the advertised addresses of other nodes
        self.on_ended: list[Callable[[str], None]] = []
        self.on_draining: list[Callable[[bool], None]] = []
        self.on_changed: list[Callable[[frozenset[str]], None]] = []
        self.on_died: list[Callable[[int], None]] = []
        self.on_live: list[Callable[[frozenset[int]], None]] = []  # these nodes are live
        self.on_unreached: list[Callable[[], None]] = []  # the place of readers may be another
        self.on_behind: list[Callable[[], Awaitable[None]]] = []  # another node knows more
        self.on_recovered: list[Callable[[], None]] = []  # it may have wills of a dead node now
        self.on_asked: dict[str, OnAsk] = {}  # by what another node asks for
        self.count_clients: Callable[[], int] = lambda: 0
        self.reaches_topics: ReachesTopics = _reaches_all  # within so many seconds
        self.is_in_doubt: Callable[[], bool] = lambda: False  # what it wrote last may be stored
        self._looking: asyncio.Task[None] | None = None  # whether it does
        self._is_closed = False
        self._channel = channel(schema)
        self._heartbeat = heartbeat
        listeners = heartbeat.listeners
        listeners.ended.append(self.end)
        listeners.draining.append(self._drain)
        listeners.changed.append(self._changed)
        listeners.died.append(self._died)
        listeners.asked.append(self._asked)

    @property
    def lease_s(self) -> float:
        return self._heartbeat.lease_s

    def end(self, reason: str) -> None:
        """Other nodes may have what this one has: nothing is acknowledged from now on."""
        if not self.ended:
            self.ended = reason
            for listener in self.on_ended:
                listener(reason)

    def _drain(self, is_draining: bool) -> None:
        self.is_draining = is_draining
        for listener in self.on_draining:
            listener(is_draining)

    def _changed(self, tables: frozenset[str]) -> None:
        for listener in self.on_changed:
            listener(tables)

    def _died(self, inc: int) -> None:
        for listener in self.on_died:
            listener(inc)

    async def nodes(self) -> list[NodeRow]:
        """All that are live, or dead and not yet recovered."""
        rows = await self.catalog.list()
        live = frozenset(row.inc for row in rows if row.state == LIVE)
        others = [row for row in rows if row.inc in live and row.inc != self.inc]
        # Who advertises nothing has a list of URLs there, which may not be reached by clients.
        told = [row.address for row in others if not row.is_draining and "://" not in row.address]
        self.elsewhere = " ".join(filter(None, told))
        for listener in self.on_live:
            listener(live)
        return rows

    def unreached(self) -> None:
        """A node did not answer, or does not serve what it was asked for."""
        for listener in self.on_unreached:
            listener()

    async def learn(self) -> None:
        """Another node knows of topics or users that are not known here: take them over."""
        for listener in self.on_behind:
            await listener()

    async def wait_settled(self) -> None:
        """Suspends until no node is left that died and was not recovered.

        Only then the fences of all of them are known.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SETTLE_S_MAX
        while self._heartbeat.unsettled is None or self._heartbeat.unsettled:
            if self.ended or loop.time() >= until_s:
                return
            await asyncio.sleep(LOOK_S)

    # What nodes ask each other for

    async def ask(self, inc: int, kind: str, tenant: TenantId, name: str) -> None:
        """Ask another node to release something."""
        question = msgspec.json.encode((inc, kind, tenant, short_name(name))).decode()
        await self.catalog.ask(self._channel, ASK + question)

    def _asked(self, question: bytes) -> None:
        inc, kind, tenant, name = msgspec.json.decode(question, type=tuple[int, str, str, str])
        if inc != self.inc:
            return
        listener = self.on_asked.get(kind)
        if listener is not None:
            listener(TenantId(tenant), name)
        elif kind == TOPICS and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_at_topics())

    async def _look_at_topics(self) -> None:
        """Another node reaches the topics and waits for a session that this one cannot release."""
        reaches = await self.reaches_topics(self.lease_s)
        self._looking = None
        if not reaches:
            self.end(f"Kafka does not answer here for {self.lease_s:g} seconds, but elsewhere")

    async def close(self) -> None:
        """Leave the other nodes; what could not be saved is recovered by one of them."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
        await self._heartbeat.close()  # it would take leaving for dying
        if not self.ended:
            with suppress(UnavailableError):  # then others find it dead
                await self.catalog.leave(self.inc, is_in_doubt=self.is_in_doubt())


def short_name(name: str) -> str:
    """A name as it fits into a notification; who is asked compares it with names in this form."""
    if len(name) <= SHORT_MAX:
        return name
    return f"{name[:SHORT_MAX]}#{blake2b(name.encode(), digest_size=16).hexdigest()}"
