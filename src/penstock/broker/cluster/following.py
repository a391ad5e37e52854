"""What other nodes changed in the catalog, taken over: tenants, topics, bindings and access."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.broker.cluster.node import Node
from penstock.broker.tenants import Tenants
from penstock.catalog.cluster.cluster import ClusterCatalog
from penstock.catalog.cluster.nodes import DEAD
from penstock.log.fencing import find_fence
from penstock.log.interface import LogIdentity, SharedLog
from penstock.model.errors import PenstockError

LOG: Final = logging.getLogger("penstock.cluster")
ACCESS: Final = frozenset(("credentials", "access_keys", "roles", "rules", "user_roles"))
TOPICS: Final = frozenset(("tenants", "topics", "bindings"))
NODES: Final = "nodes"
RETRY_S: Final = 0.2


async def learn_earlier_fences(
    catalog: ClusterCatalog, identity: LogIdentity, log: SharedLog
) -> None:
    """A log was opened: the fences before its end, which nobody will show it, are known on return.

    The catalog has those of nodes that were recovered. Of a node that waits to be recovered one may
    be in the log already, and a node that is live now has none before that end.
    """
    part_id = identity.topic_id + identity.partition
    dead = [row.inc for row in await catalog.list() if row.state == DEAD]
    log.learn_fences((await catalog.fences()).get(part_id, {}))
    for inc in dead:
        epoch, offset = (await catalog.levels(inc)).get(part_id, (0, 0))
        await find_fence(log, await log.clamp(epoch, offset), inc)


class Following:
    """Used on the event loop."""

    def __init__(self, node: Node, tenants: Tenants) -> None:
        self._node = node
        self._tenants = tenants
        self._changed: set[str] = set()
        self._woken = asyncio.Event()
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        node.on_changed.append(self._tell)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="penstock-following")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _tell(self, tables: frozenset[str]) -> None:
        self._changed |= tables
        self._woken.set()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            changed, self._changed = self._changed, set()
            try:
                await self._follow(frozenset(changed))
            except PenstockError as failed:
                self._changed |= changed
                self._woken.set()
                values = {"event": "following failed", "reason": str(failed)}
                LOG.warning("changes of other nodes are not here yet: %(reason)s", values)
                await asyncio.sleep(RETRY_S)

    async def look(self) -> None:
        """Everything that other nodes changed before this call is here on return."""
        await self._follow(ACCESS | TOPICS | {NODES})

    async def _follow(self, tables: frozenset[str]) -> None:
        async with self._turn:
            if tables & ACCESS:
                await self._tenants.shared.access.load()
            if tables & TOPICS:
                await self._tenants.follow()
            if NODES in tables:
                await self.learn_fences()

    async def learn_fences(self) -> None:
        """Those that other nodes wrote; a log that was opened since may not have seen them."""
        known = await self._node.catalog.fences()
        for engine in self._tenants.engines.values():
            engine.topics.learn_fences(known)
