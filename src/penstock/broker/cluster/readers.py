"""Which node serves the consumers, groups and idempotency keys of a slot of topics: one at a time.

Positions and leases of a slot are in the memory of its node. All nodes compute the same plan from
who is there and who has what (core/dealing.py), each gives what another one is to have to it, and
claims what nobody has. So slots move when a node joins, leaves, dies or is drained, and as few as
possible. A node that takes a slot reads what was saved of it.

While a node is there that does not know of slots, one node serves all, as such nodes expect it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.broker.cluster.node import LIVE, Node, NodeRow
from penstock.broker.engine import Engine
from penstock.broker.queue.readers import SLOTS, ReaderPlace
from penstock.broker.tenants import Tenants
from penstock.core.dealing import NOBODY, deal_parts
from penstock.model.errors import PenstockError
from penstock.model.record import TenantId

LOG: Final = logging.getLogger("penstock.cluster")
READERS: Final = "readers"
WHOLE: Final = "readers"  # claimed by nodes of versions that do not know of slots
LOOK_S: Final = 1.0  # at the latest; changes of nodes are told
LOOK_S_MIN: Final = 0.05  # between two looks
UNSERVED: Final = "no node serves consumers and groups of this topic at the moment"
LEAVING: Final = "another node is about to serve consumers and groups of this topic"


Owners = dict[int, int]  # incarnations, by the number of what is claimed


@dataclass(frozen=True, slots=True)
class Deck:
    """What nodes claim: the slots, or all of them as one while a node does not know of slots."""

    names: list[str]
    slots: list[list[int]]  # of each name

    def slots_of(self, numbers: list[int]) -> list[int]:
        return [slot for at in numbers for slot in self.slots[at]]


class ReaderDuty:
    """Used on the event loop."""

    def __init__(self, node: Node, tenants: Tenants) -> None:
        self._node = node
        self._tenants = tenants
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        node.on_changed.append(self._changed)
        node.on_draining.append(lambda is_draining: self._woken.set())
        node.on_unreached.append(self._woken.set)
        node.on_asked[READERS] = self._asked

    async def start(self) -> None:
        await self._look()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="penstock-readers")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _changed(self, tables: frozenset[str]) -> None:
        if "nodes" in tables:
            self._woken.set()

    def _asked(self, tenant: TenantId, name: str) -> None:
        """Another node has handed slots over to this one."""
        self._woken.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._look()
            except PenstockError as failed:  # the next look tries again
                values = {"event": "readers not taken", "reason": str(failed)}
                LOG.warning("consumers and groups have no node yet: %(reason)s", values)
            await asyncio.sleep(LOOK_S_MIN)

    async def _look(self) -> None:
        rows = [row for row in await self._node.nodes() if row.state == LIVE]
        claims = await self._node.catalog.claims(READERS)
        is_mixed = not all(row.has_slots for row in rows)
        for engine in list(self._tenants.engines.values()):
            if (engine.tenant, WHOLE) in claims or is_mixed:
                deck = Deck([WHOLE], [list(range(SLOTS))])
            else:
                deck = Deck([str(slot) for slot in range(SLOTS)], [[slot] for slot in range(SLOTS)])
            owners = {
                at: claims.get((engine.tenant, name), NOBODY) for at, name in enumerate(deck.names)
            }
            plan = deal_parts(owners, dict.fromkeys(owners, 0), _serving(rows))
            await self._give(engine, deck, owners, plan)
            await self._take(engine, deck, owners, plan)
            self._note(engine, deck, owners, rows)
            if deck.names == [WHOLE] and owners[0] == self._node.inc and not is_mixed:
                names = [str(slot) for slot in range(SLOTS)]
                await self._node.catalog.split(engine.tenant, READERS, WHOLE, names, self._node.inc)
                self._woken.set()

    async def _give(self, engine: Engine, deck: Deck, owners: Owners, plan: Owners) -> None:
        """Hand what another node is to have over to it."""
        node = self._node
        given = [at for at, owner in owners.items() if owner == node.inc != plan[at]]
        if not given:
            return
        await engine.leave_readers(deck.slots_of(given), LEAVING)
        targets: set[int] = set()
        for at in given:
            if await node.catalog.hand_over(
                engine.tenant, READERS, deck.names[at], node.inc, target_inc=plan[at]
            ):
                owners[at] = plan[at]
                targets.add(plan[at])
        for target in targets:
            await node.ask(target, READERS, engine.tenant, READERS)

    async def _take(self, engine: Engine, deck: Deck, owners: Owners, plan: Owners) -> None:
        """Claim what nobody has and this node is to have; serve what is its own."""
        node = self._node
        for at, owner in owners.items():
            if owner == NOBODY and plan[at] == node.inc:
                owners[at] = await node.catalog.claim(
                    engine.tenant, READERS, deck.names[at], node.inc
                )
        own = deck.slots_of([at for at, owner in owners.items() if owner == node.inc])
        taken = [slot for slot in own if not engine.readers.slots[slot].is_here]
        if taken:
            await engine.take_readers(taken)

    def _note(self, engine: Engine, deck: Deck, owners: Owners, rows: list[NodeRow]) -> None:
        """Requests for the other slots are passed on to their nodes."""
        places = {row.inc: ReaderPlace(row.inc, row.name, row.http_address) for row in rows}
        for at, owner in owners.items():
            if owner == self._node.inc:
                continue
            for slot in deck.slots[at]:
                if owner in places:
                    engine.readers.slots[slot].found(places[owner])
                else:
                    engine.readers.slots[slot].lost(UNSERVED)


def _serving(rows: list[NodeRow]) -> list[int]:
    """The nodes that are to serve: those that others reach, unless there is none.

    A node that has just joined is reached once its doors are open.
    """
    staying = [row for row in rows if not row.is_draining] or rows
    reached = [row for row in staying if row.http_address] or staying
    return [row.inc for row in reached]
