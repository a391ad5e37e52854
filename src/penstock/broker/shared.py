"""What all tenants of a broker share: the catalog, the logs' store, the clock, users, the disk.

Made once, opened before the tenants' engines and closed after them. Bounds of memory that belong to
the process, not to a tenant, are here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.broker.access import Access
from penstock.broker.cluster.node import Node
from penstock.broker.deliver.decoded import Decoded
from penstock.broker.deliver.routes import RouteMemory
from penstock.broker.deliver.streams import Backlogs
from penstock.broker.figures.caches import Caches
from penstock.broker.figures.metrics import Metrics
from penstock.broker.limited_log import LimitedLog
from penstock.broker.settings import BrokerSettings
from penstock.broker.topic.strays import settle_strays
from penstock.broker.upkeep.space import FreeSpace, Space
from penstock.broker.upkeep.timekeeping import Timekeeping
from penstock.catalog.catalog import Catalog
from penstock.log.interface import LogStore
from penstock.model.timeline import Timeline

LOOK_AGAIN_S: Final = 0.2  # while space is short, so that publishing resumes soon


class Shared:
    """Used on the event loop that opened it."""

    def __init__(
        self,
        settings: BrokerSettings,
        catalog: Catalog,
        store: LogStore,
        clock: Timeline,
        free_space: FreeSpace,
        directory: Path | None = None,
        node: Node | None = None,
    ) -> None:
        self.settings = settings
        self.catalog = catalog
        self.store = store
        self.clock = clock
        self.directory = directory  # of the data; None in memory
        self.node = node  # where several share one catalog; None: this broker has it for itself
        self.started_us = clock.now_us()
        # Also those of the default tenant: who has not logged in yet is counted with it.
        self.metrics = Metrics()
        self.log = LimitedLog("penstock.broker", asyncio.get_running_loop())
        self.access = Access(catalog.credentials, self.metrics)
        self.space = Space(free_space, settings.disk_free_percent_min, self.log)
        self.decoded = Decoded()
        self.backlogs = Backlogs()
        self.route_memory = RouteMemory()
        self.caches = Caches(clock)
        self.caches.by_name |= {"chunks": store.cache, "decoded": self.decoded}
        self.notes: list[str] = []  # what was found at the start, for people
        self._timekeeping = Timekeeping(clock, catalog.clock)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Before any engine: the time, who may log in, and which logs there are."""
        await self._timekeeping.open()
        if self.node is None or len(await self.node.nodes()) == 1:  # else another may be at it
            self.notes += await settle_strays(self.catalog, self.store, self.clock)
        await self.access.load()
        self.space.look()
        self._task = asyncio.create_task(self._run(), name="penstock-space")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN_S if self.space.refusal else self.settings.upkeep_s)
            self.space.look()
            await self.caches.look()

    async def close(self) -> None:
        """After the last engine."""
        self.log.close()
        self.access.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._timekeeping.close()
        if self.node is not None:
            await self.node.close()
        await self.catalog.close()
