"""Recovery of dead nodes: this node claims one, fences it in every log, and gives back what it had.

Another node may do the same at any time, because the first fence of an incarnation counts and what
the dead node had is given back in one transaction, which only one node commits.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.broker.cluster.following import Following
from penstock.broker.cluster.node import Node
from penstock.broker.publish.used_keys import key_row
from penstock.broker.tenants import Tenants
from penstock.broker.topic.topics import Topic
from penstock.catalog.cluster.recovering import FoundMarks
from penstock.log.fencing import fence_dead
from penstock.log.format.batch import Batch
from penstock.log.format.marks import (
    MARK_IDEMPOTENCY_KEY,
    MARK_QOS2_OPENED,
    MARK_QOS2_RELEASED,
    MARK_WILL,
)
from penstock.log.interface import SharedLog
from penstock.model.errors import PenstockError
from penstock.model.record import TenantId

LOG: Final = logging.getLogger("penstock.cluster")
RECOVERY_LEASES: Final = 2  # so long a node may take to recover another one
_PACKET_ID: Final = struct.Struct(">QH")
_WILL: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Overdue:
    """Since when a dead node waits to be recovered, and after how long another node tries."""

    since_s: float
    after_s: float


class Recovery:
    """Follows the deaths that the heartbeat finds."""

    def __init__(self, node: Node, tenants: Tenants, following: Following) -> None:
        self._node = node
        self._tenants = tenants
        self._following = following
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the incarnation of the dead
        self._overdue: dict[int, Overdue] = {}  # the same, while another node is at it
        node.on_died.append(self._died)

    def _died(self, inc: int) -> None:
        """Told again and again until somebody has recovered it."""
        if inc not in self._tasks and not self._node.ended:
            task = asyncio.get_running_loop().create_task(self._recover(inc))
            self._tasks[inc] = task
            task.add_done_callback(lambda done: self._tasks.pop(inc, None))

    async def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _recover(self, inc: int) -> None:
        try:
            if await self._claim(inc):
                await self._recover_claimed(inc)
        except PenstockError as failed:
            values = {"event": "recovery failed", "inc": inc, "reason": str(failed)}
            LOG.warning("node %(inc)d is not recovered yet: %(reason)s", values)

    async def _claim(self, inc: int) -> bool:
        """Whether this node recovers the dead one; another may have been at it for too long."""
        now_s = asyncio.get_running_loop().time()
        known = self._overdue.setdefault(inc, Overdue(now_s, RECOVERY_LEASES * self._node.lease_s))
        is_overdue = now_s - known.since_s >= known.after_s
        if not await self._node.catalog.claim_recovery(inc, self._node.inc, is_overdue=is_overdue):
            return False
        if is_overdue:  # nodes that reach Kafka slowly must not take it from each other for ever
            self._overdue[inc] = Overdue(now_s, known.after_s * 2)
        return True

    async def _recover_claimed(self, inc: int) -> None:
        began_s = asyncio.get_running_loop().time()
        await self._following.look()  # it may have made topics that are not known here
        levels = await self._node.catalog.levels(inc)
        found = FoundMarks()
        fences: dict[int, int] = {}
        clock = self._tenants.shared.clock
        parts = [
            (tenant, part)
            for tenant, engine in self._tenants.engines.items()
            for part in engine.topics.working()
        ]
        offsets = await asyncio.gather(
            *[self._fence(inc, tenant, part, levels.get(part.id), found) for tenant, part in parts]
        )
        for (_, part), offset in zip(parts, offsets, strict=True):
            fences[part.id] = offset
        if await self._node.catalog.give_back(
            inc, self._node.inc, fences, found, clock.steady_us()
        ):
            took_s = asyncio.get_running_loop().time() - began_s
            values = {"event": "node recovered", "inc": inc, "took_s": took_s}
            LOG.warning("node %(inc)d was recovered in %(took_s).2f s", values)
            self._overdue.pop(inc, None)
            for listener in self._node.on_recovered:
                listener()

    async def _fence(
        self,
        inc: int,
        tenant: TenantId,
        part: Topic,
        level: tuple[int, int] | None,
        found: FoundMarks,
    ) -> int:
        log = part.log
        assert isinstance(log, SharedLog), "nodes write to logs that several may write to"
        offset = 0 if level is None else await log.clamp(*level)
        take = partial(self._take, inc, tenant, part.id, found)
        return await fence_dead(log, offset, inc, take)

    def _take(
        self, inc: int, tenant: TenantId, topic_id: int, found: FoundMarks, batch: Batch
    ) -> None:
        clock = self._tenants.shared.clock
        is_its_own = batch.incarnation == inc
        for mark in batch.marks():
            if mark.kind in (MARK_QOS2_OPENED, MARK_QOS2_RELEASED):
                incarnation, packet_id = _PACKET_ID.unpack(mark.key)
                is_open = mark.kind == MARK_QOS2_OPENED
                found.packet_ids[incarnation, topic_id, packet_id] = is_open
            elif mark.kind == MARK_WILL and is_its_own:
                found.wills.update(_WILL.unpack(mark.key))
            elif mark.kind == MARK_IDEMPOTENCY_KEY and is_its_own:
                rows = found.keys.setdefault(tenant, [])
                rows.append(key_row(topic_id, batch, mark, clock))
