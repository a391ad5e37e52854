"""Dealing the parts of shares between nodes: this one gives out the parts that it owns.

A node that gets its first member of a share asks for its portion of the parts; the others stop
giving theirs out, wait until their members have answered, and release them. A node without members
releases everything at once. Who dies is recovered by another node, which frees its parts.

Invariant: a part is given out only between the claim and the release in the catalog, and its
position is never ahead of what this node has read from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from penstock.broker.cluster.node import Node
from penstock.broker.engine import Engine
from penstock.broker.share.registry import Shares
from penstock.broker.share.share import Share
from penstock.catalog.cluster.share_parts import PartCatalog, PartState, Seen, Wish
from penstock.core.dealing import NOBODY, deal_parts
from penstock.log.interface import SharedLog
from penstock.model.errors import PenstockError

LOG: Final = logging.getLogger("penstock.cluster")
TABLES: Final = frozenset(("share_members", "share_parts", "nodes", "topics"))
LOOK_S: Final = 1.0
LEAVING_LOOK_S: Final = 0.05  # while members are to answer what they have of a part that goes
ANSWER_S_MAX: Final = 3.0  # then others get it as well
REACH_S_MAX: Final = 5.0  # until this node has read what the last owner of a part had read
TIDY_S: Final = 30.0


class Outlet(Protocol):
    """Where messages flow to members."""

    def stop_parts(self, share: Share, topic_ids: Iterable[int]) -> None:
        """Give out nothing more of these parts."""
        ...

    def refresh(self, share: Share) -> None:
        """The parts that are given out are others now."""
        ...


class Dealing:
    """The parts of a tenant's shares that this node has. Used on the event loop."""

    def __init__(
        self,
        engine: Engine,
        node: Node,
        shares: Shares,
        catalog: PartCatalog,
        *,
        keeps_qos0: bool = False,
    ) -> None:
        self.outlets: list[Outlet] = []
        self.keeps_qos0 = keeps_qos0
        self._topics = engine.topics
        self._node = node
        self._shares = shares
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._turn = asyncio.Lock()
        self._until_s: dict[tuple[Share, int], float] = {}  # how long members may answer
        self._tidy_s = self._loop.time() + TIDY_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._node.on_changed.append(self._changed)
        self._task = self._loop.create_task(self._run(), name="penstock-dealing")

    async def close(self) -> None:
        """Release everything, after the members are gone; what cannot be is recovered."""
        task, self._task = self._task, None
        if task is None:
            return
        self._node.on_changed.remove(self._changed)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with suppress(PenstockError):
            async with self._turn:
                for share in self._shares.all():
                    self._stop(share, list(share.owned or ()))
                    await self._release(share, list(share.leaving))

    def tell(self) -> None:
        """Members came or went."""
        self._woken.set()

    def _changed(self, tables: frozenset[str]) -> None:
        if tables & TABLES:
            self._woken.set()

    async def begin(self, ids: dict[str, int]) -> None:
        """The catalog knows that sessions hold these shares; take the parts that nobody has."""
        async with self._turn:
            for key, share_id in ids.items():
                share = self._shares.find(key)
                if share is not None:  # else its session has ended meanwhile
                    share.id = share_id
                    await self._deal(share)

    async def _run(self) -> None:
        while True:
            is_leaving = any(share.leaving for share in self._shares.all())
            with suppress(TimeoutError):
                wait_s = LEAVING_LOOK_S if is_leaving else LOOK_S
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._look()
            except PenstockError as failed:
                if not self._node.ended:
                    values = {"event": "dealing failed", "reason": str(failed)}
                    LOG.warning("shares are not dealt yet: %(reason)s", values)
                await asyncio.sleep(LEAVING_LOOK_S)

    async def _look(self) -> None:
        async with self._turn:
            shares = self._shares.all()
            seen = await self._catalog.see() if shares else {}
            for share in shares:
                if not share.id and share.members:
                    share.id = await self._catalog.attach(share.key, self._shares.ends())
                if share.id and self._is_to_deal(share, seen.get(share.id, Seen())):
                    await self._deal(share)
                await self._release(share, self._ready(share))
                self._shares.drop_unused(share)
            if self._loop.time() >= self._tidy_s:
                self._tidy_s = self._loop.time() + TIDY_S
                await self._catalog.remove_unused()

    def _parts(self) -> dict[int, int]:
        """The topic of each part; the ids of its parts follow its own."""
        return {part.id: part.id - part.partition for part in self._topics.working()}

    def _is_to_deal(self, share: Share, seen: Seen) -> bool:
        assert share.owned is not None
        inc, topics = self._node.inc, self._parts()
        if bool(share.members) != (inc in seen.members):
            return True
        owners = {part: seen.owners.get(part, NOBODY) for part in topics}
        plan = deal_parts(owners, topics, seen.members)
        for part, owner in owners.items():
            is_ours = plan.get(part) == inc
            if part in share.owned:
                is_settled = is_ours
            elif part in share.leaving:
                is_settled = not is_ours
            else:
                is_settled = owner != inc and not (is_ours and owner == NOBODY)
            if not is_settled:
                return True
        return False

    async def _deal(self, share: Share) -> None:
        assert share.owned is not None
        wish = Wish(
            share_id=share.id,
            inc=self._node.inc,
            is_member=bool(share.members),
            topics=self._parts(),
            held=frozenset(share.owned | share.leaving.keys()),
            ends=() if self.keeps_qos0 else self._shares.ends(),
        )
        dealt = await self._catalog.deal(wish)
        if not dealt.is_known:
            share.id = 0  # it is looked for by what clients write
            self.tell()
            return
        offsets = await asyncio.gather(*[self._reach(part) for part in dealt.claimed])
        for part, offset in zip(dealt.claimed, offsets, strict=True):
            rows = [(row.offset, row.qos) for row in part.rows]
            share.take_part(part.topic_id, offset, rows)
        staying = dealt.kept | {part.topic_id for part in dealt.claimed}
        for topic_id in staying & share.leaving.keys() if share.members else ():
            self._until_s.pop((share, topic_id), None)
            share.go_on(topic_id)
        self._stop(share, [one for one in dealt.left if one in share.owned])
        for outlet in self.outlets:
            outlet.refresh(share)
        if share.leaving:
            self.tell()

    async def _reach(self, part: PartState) -> int:
        """Where to go on in a part, once this node has read the log as far as its last owner."""
        topic = self._topics.by_id(part.topic_id)
        if topic is None:
            return part.offset
        if isinstance(topic.log, SharedLog):
            with suppress(TimeoutError):  # then it is given out again
                await asyncio.wait_for(topic.log.wait_followed(part.offset), REACH_S_MAX)
        return await topic.log.clamp(part.epoch, part.offset)

    def _stop(self, share: Share, topic_ids: Sequence[int]) -> None:
        until_s = self._loop.time() + ANSWER_S_MAX
        self._until_s.update({(share, topic_id): until_s for topic_id in topic_ids})
        for outlet in self.outlets:
            outlet.stop_parts(share, topic_ids)

    def _ready(self, share: Share) -> list[int]:
        """The parts that go, and whose messages are answered, or have been out for too long."""
        now_s = self._loop.time()
        return [
            topic_id
            for topic_id in share.leaving
            if share.is_answered(topic_id) or now_s >= self._until_s.get((share, topic_id), 0.0)
        ]

    async def _release(self, share: Share, topic_ids: Sequence[int]) -> None:
        if not topic_ids:
            return
        await self._catalog.release(self._shares.owned_parts(share, topic_ids))
        for topic_id in topic_ids:
            self._until_s.pop((share, topic_id), None)
            share.forget_topic(topic_id)
