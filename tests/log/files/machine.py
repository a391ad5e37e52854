"""A machine in memory with one log on its disk: processes live and die on it, nothing is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.layout import log_directory
from penstock.log.files.store import EmbeddedStore
from penstock.log.interface import LogIdentity, LogSettings
from penstock.model.clock import ManualClock
from tests.sim.fake_disk import FakeDisk
from tests.sim.workers import SimWorkers, VirtualLoop, bury_task

T = TypeVar("T")

ROOT = Path("/data")
IDENTITY = LogIdentity("default", 1, "orders")
DIRECTORY = log_directory(ROOT, IDENTITY)
SMALL = LogSettings(segment_bytes=300)  # two records of 100 bytes make a segment


class Machine:
    """A disk and one log; each `live` is a process that ends without closing anything."""

    def __init__(self) -> None:
        self.disk = FakeDisk(Random(1))
        self.clock = ManualClock()

    def live(
        self,
        scenario: Callable[[EmbeddedLog], Awaitable[T]],
        settings: LogSettings = SMALL,
        workers: type[SimWorkers] = SimWorkers,
    ) -> T | None:
        """Open the log and run the scenario; None if the disk crashed in it."""
        loop = VirtualLoop()
        self.disk.on_crash = loop.stop
        loop.set_exception_handler(lambda loop, context: None)
        store = EmbeddedStore(ROOT, self.disk, self.clock, loop, workers(loop, Random(2)))

        async def main() -> T:
            is_new = IDENTITY not in store.list()
            opening = store.create(IDENTITY, "Orders", settings) if is_new else None
            return await scenario(await (opening or store.open(IDENTITY, settings)))

        task = loop.create_task(main())
        task.add_done_callback(lambda _: loop.stop())
        try:
            loop.run_forever()
            return task.result() if task.done() and not self.disk.is_dead else None
        finally:
            for left in asyncio.all_tasks(loop):
                bury_task(left)
            loop.close()

    def kill(self) -> None:
        self.disk.restart(power_lost=False)

    def lose_power(self) -> None:
        """Nothing that was not synced survives."""
        self.disk.restart(power_lost=True, pick=lambda count: 0)
