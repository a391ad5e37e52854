"""Which node serves the consumers, the groups and the idempotency keys of a tenant: one at a time.

Positions and leases of a tenant are in the memory of that node. The first one claims them and keeps
them until it ends or is drained; then another one has them, and reads what was saved. Nodes that do
not have them know the address of the one that does.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from penstock.broker.cluster.node import LIVE, Node, NodeRow
from penstock.broker.engine import Engine
from penstock.broker.queue.readers import ReaderPlace
from penstock.broker.tenants import Tenants
from penstock.model.errors import PenstockError
from penstock.model.record import TenantId

LOG: Final = logging.getLogger("penstock.cluster")
READERS: Final = "readers"
LOOK_S: Final = 1.0  # at the latest; changes of nodes are told
LOOK_S_MIN: Final = 0.05  # between two looks
NOBODY: Final = "no node serves consumers and groups at the moment"
LEAVING: Final = "another node is about to serve consumers and groups"


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
        """Another node has handed a tenant over to this one."""
        self._woken.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), LOOK_S)
            self._woken.clear()
            try:
                await self._look()
            except PenstockError as failed:  # the next look tries again
                values = {"event": "readers not taken", "reason": str(failed)}
                LOG.warning("consumers and groups have no node yet: %(reason)s", values)
            await asyncio.sleep(LOOK_S_MIN)

    async def _look(self) -> None:
        engines = list(self._tenants.engines.values())
        if not self._node.is_draining and all(engine.readers.is_here for engine in engines):
            return
        rows = [row for row in await self._node.nodes() if row.state == LIVE]
        target = self._target(rows) if self._node.is_draining else None
        for engine in engines:
            if target is not None:
                await self._give(engine, target, rows)
            elif not engine.readers.is_here:
                await self._claim(engine, rows)

    def _target(self, rows: list[NodeRow]) -> NodeRow | None:
        """Who is to have what a draining node has: the one with the fewest clients."""
        others = [row for row in rows if row.inc != self._node.inc and not row.is_draining]
        return min(others, key=lambda row: (not row.http_address, row.clients), default=None)

    async def _give(self, engine: Engine, target: NodeRow, rows: list[NodeRow]) -> None:
        node = self._node
        owner = await node.catalog.claimed(engine.tenant, READERS, READERS)
        if owner == node.inc:
            await engine.leave_readers(LEAVING)
            if await node.catalog.hand_over(
                engine.tenant, READERS, READERS, node.inc, target_inc=target.inc
            ):
                owner = target.inc
                await node.ask(target.inc, READERS, engine.tenant, READERS)
        self._note(engine, owner, rows)

    async def _claim(self, engine: Engine, rows: list[NodeRow]) -> None:
        node = self._node
        owner = await node.catalog.claim(engine.tenant, READERS, READERS, node.inc)
        if owner == node.inc:
            await engine.take_readers()
        else:
            self._note(engine, owner, rows)

    def _note(self, engine: Engine, owner: int | None, rows: list[NodeRow]) -> None:
        for row in rows:
            if row.inc == owner and row.inc != self._node.inc:
                engine.readers.found(ReaderPlace(row.inc, row.name, row.http_address))
                return
        engine.readers.lost(NOBODY)
