"""An embedded store on a real directory, with the threads it runs on and a disk that may fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from penstock.core.erasure import Erasure
from penstock.log.files.commit import CommitJob, ThreadWorkers
from penstock.log.files.disk import RealDisk
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.layout import log_directory
from penstock.log.files.segment import Segment
from penstock.log.files.store import EmbeddedStore
from penstock.log.files.upkeep.verify import verify_log
from penstock.log.interface import KeptLog, LogIdentity, LogSettings
from penstock.model.clock import ManualClock
from penstock.model.record import Record
from tests.log.files.faulty_disk import FaultyDisk, Gate

T = TypeVar("T")

IDENTITY = LogIdentity("default", 1, "orders")


class CountingWorkers:
    """Real threads; notes how many jobs each round had."""

    def __init__(self, workers: ThreadWorkers) -> None:
        self.workers = workers
        self.rounds: list[int] = []

    def commit(self, jobs: list[CommitJob], done: Callable[[], None]) -> None:
        self.rounds.append(len(jobs))
        self.workers.commit(jobs, done)

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        return self.workers.run(work)

    def seal(self, segment: Segment) -> Awaitable[Segment]:
        return self.workers.seal(segment)

    def erase(
        self, segment: Segment, erasure: Erasure, *, dry_run: bool
    ) -> Awaitable[tuple[Segment, int]]:
        return self.workers.erase(segment, erasure, dry_run=dry_run)

    def close(self) -> None:
        self.workers.close()


class StoreWorld:
    """One store, its disk and its clock."""

    def __init__(self, root: Path, workers: ThreadWorkers) -> None:
        self.root = root
        self.directory = log_directory(root, IDENTITY)
        self.disk = FaultyDisk(RealDisk())
        self.clock = ManualClock()
        self.workers = CountingWorkers(workers)
        loop = asyncio.get_running_loop()
        self.store = EmbeddedStore(root, self.disk, self.clock, loop, self.workers)
        self._open: list[EmbeddedLog] = []

    async def create(
        self, settings: LogSettings | None = None, identity: LogIdentity = IDENTITY
    ) -> EmbeddedLog:
        log = await self.store.create(identity, "Orders", settings or LogSettings())
        self._open.append(log)
        return log

    async def reopen(self, log: EmbeddedLog) -> EmbeddedLog:
        await log.close()
        opened = await self.store.open(IDENTITY, log.settings)
        self._open.append(opened)
        return opened

    async def close(self) -> None:
        self.disk.heal()
        for log in self._open:
            await log.close()

    def problems(self) -> list[str]:
        return [str(finding) for finding in verify_log(RealDisk(), self.directory).problems]


@asynccontextmanager
async def open_world(root: Path) -> AsyncIterator[StoreWorld]:
    workers = ThreadWorkers(asyncio.get_running_loop())
    world = StoreWorld(root, workers)
    try:
        yield world
    finally:
        await world.close()
        workers.close()


async def arrived(gate: Gate) -> None:
    """Suspends until a call waits at the gate."""
    await asyncio.get_running_loop().run_in_executor(None, wait_for, gate.arrived)


def wait_for(event: threading.Event) -> None:
    assert event.wait(60), "it never happened"


async def until(is_true: Callable[[], bool]) -> None:
    """Suspends until something becomes true that nothing announces."""
    for _ in range(20_000):
        if is_true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never became true")


async def read_all(log: KeptLog, offset: int | None = None) -> list[Record]:
    first, end = log.bounds()
    offset = first if offset is None else offset
    records: list[Record] = []
    while offset < end:
        batches = await log.read(offset)
        assert batches, f"nothing at {offset}, although the end is {end}"
        for batch in batches:
            records += batch.records("orders", offset, end)
            offset = max(offset, batch.end_offset)
    return records
