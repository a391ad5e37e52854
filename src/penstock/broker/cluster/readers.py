"""Which node serves the consumers, the groups and the seed's queue of a tenant: one at a time.

Positions and leases of a tenant are in the memory of that node. The first one claims them and keeps
them as long as it lives; then another one claims them, and reads what was saved.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from penstock.broker.cluster.node import Node
from penstock.broker.engine import Engine
from penstock.broker.tenants import Tenants
from penstock.model.errors import PenstockError

LOG: Final = logging.getLogger("penstock.cluster")
READERS: Final = "readers"
LOOK_S: Final = 1.0


class ReaderDuty:
    """Used on the event loop."""

    def __init__(self, node: Node, tenants: Tenants) -> None:
        self._node = node
        self._tenants = tenants
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._look()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="penstock-readers")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(PenstockError):  # the next look tries again
                await self._look()

    async def _look(self) -> None:
        for engine in list(self._tenants.engines.values()):
            if engine.readers_elsewhere:
                await self._claim(engine)

    async def _claim(self, engine: Engine) -> None:
        node = self._node
        owner = await node.catalog.claim(engine.tenant, READERS, READERS, node.inc)
        if owner == node.inc:
            await engine.take_readers()
            return
        for row in await node.nodes():
            if row.inc == owner:
                engine.readers_elsewhere = (
                    "consumers, groups and the queue are served by one node at a time, now by "
                    f"{row.name!r} at {row.address or 'an address that is not known yet'}: send "
                    "this request there"
                )
