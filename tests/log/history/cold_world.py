"""A log in files whose older part is in a history, which the test writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.core.delivery.run import run_of
from penstock.log.files.commit import ThreadWorkers
from penstock.log.files.disk import RealDisk
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.store import EmbeddedStore
from penstock.log.format.batch import Batch
from penstock.log.history.files import encode_file
from penstock.log.history.manifest import (
    Manifest,
    TableFacts,
    create_manifest,
    file_facts,
    open_manifest,
)
from penstock.log.history.place import HistoryRoot
from penstock.log.history.reading.process import HistoryProcess
from penstock.log.history.storage import storage_of
from penstock.log.interface import LogIdentity, LogSettings
from penstock.model.clock import ManualClock
from penstock.model.record import Record
from tests.appends import append

TOPIC = "orders"
IDENTITY = LogIdentity("default", 7, TOPIC)
SEGMENT_BYTES = 4_096


class HistoryWorld:
    """A store with a history, one log of it, and what was appended to that."""

    def __init__(self, store: EmbeddedStore, clock: ManualClock, root: HistoryRoot) -> None:
        self.store = store
        self.clock = clock
        self.root = root
        self.settings = LogSettings(retention_age_s=None, segment_bytes=SEGMENT_BYTES)
        self.log: EmbeddedLog

    async def fill(self, count: int, size: int = 100) -> None:
        """Append so many records, a second apart, each in a batch of its own."""
        for number in range(count):
            self.clock.advance(1)
            name = f"n/{number % 3}"
            await append(self.log, run_of(name, [b"%d" % number + b"x" * size]))

    async def fill_fast(self, count: int, each: int = 100) -> None:
        """Append so many records of different sizes in batches of `each`, a second apart."""
        for first in range(0, count, each):
            self.clock.advance(1)
            payloads = [b"%d" % at + b"x" * (at % 13) for at in range(first, first + each)]
            await append(self.log, run_of(f"n/{first // each % 3}", payloads))

    async def records(self, start: int | None = None, end: int | None = None) -> list[Record]:
        """What readers find."""
        offset = self.log.bounds().first if start is None else start
        last = self.log.bounds().end if end is None else end
        found: list[Record] = []
        while offset < last:
            for batch in await self.log.read(offset):
                found += batch.records(TOPIC, offset, last)
                offset = max(offset, batch.end_offset)
        return found

    def manifest(self) -> Manifest:
        storage = storage_of(self.root.place(IDENTITY))
        return open_manifest(storage) or create_manifest(storage, TableFacts(TOPIC, 7, "life"))

    async def tier(self, end: int) -> None:
        """Write what the history lacks below `end` into one file of it."""
        manifest = self.manifest()
        batches: list[Batch] = []
        offset = manifest.end
        while offset < end:
            batches += await self.log.read(offset)
            offset = batches[-1].end_offset
        facts = file_facts(manifest, 1)
        manifest.add(encode_file(batches, manifest.end, end, facts), 1)
        assert self.log._cold is not None
        await self.log._cold.refresh()

    async def trim(self, before: int) -> int:
        """Drop the segments below the record; the first offset that is left in segments."""
        stamp = (await self.log.read(before))[0].timestamp(0)
        await self.log.trim(stamp, None)
        return self.log.hot_first


@asynccontextmanager
async def open_history(path: Path, answer_s_max: float = 30.0) -> AsyncIterator[HistoryWorld]:
    loop = asyncio.get_running_loop()
    clock = ManualClock()
    workers = ThreadWorkers(loop)
    root = HistoryRoot(str(path / "history"))
    process = HistoryProcess(loop, root, answer_s_max)
    store = EmbeddedStore(path / "data", RealDisk(), clock, loop, workers, history=process)
    world = HistoryWorld(store, clock, root)
    world.log = await store.create(IDENTITY, TOPIC, world.settings)
    try:
        yield world
    finally:
        await world.log.close()
        process.close()
        workers.close()
