"""A log in memory: the promises of files until the process ends; for tests and scratch work."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from penstock.core.erasure import Erasure
from penstock.log.appending import AppendingLog
from penstock.log.cache import ChunkCache
from penstock.log.erasing import erase, find
from penstock.log.files.segment import CHUNK_BYTES
from penstock.log.format.batch import Batch
from penstock.log.interface import (
    FSYNC,
    OS,
    Bounds,
    LogIdentity,
    LogSettings,
)
from penstock.log.placing import place
from penstock.log.rounds import Committer
from penstock.model.clock import Clock
from penstock.model.errors import Gap, TopicNotFound, UnavailableError


class MemoryJob:
    """A batch that is stored as soon as it is made."""

    is_quick = True
    is_short = False

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def run(self) -> None:
        self.batch.to_bytes()  # sets the checksum that the next batch chains to


class NoRounds:
    """What `Committer` needs for slow jobs; jobs in memory are never slow."""

    def commit(self, jobs: list[MemoryJob], done: Callable[[], None]) -> None:
        raise AssertionError("a job in memory is quick")


class MemoryLog(AppendingLog[MemoryJob]):
    """Implements `Log` on a list of batches; an append is visible in the next tick of the loop."""

    def __init__(
        self, settings: LogSettings, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        committer: Committer[MemoryJob] = Committer(loop, NoRounds())
        super().__init__(settings, 1, 0, 0, clock=clock, loop=loop, committer=committer)
        self._batches: list[Batch] = []
        self._first = 0
        self._checksum = 0

    def _refusal(self) -> UnavailableError | None:
        return UnavailableError("the log is closed") if self._is_closed else None

    def _touch_soon(self) -> None:
        self._committer.touch(self)

    def begin_commit(self) -> MemoryJob | None:
        if self._placing.is_due(self._pending):
            batch = self._take_placed()
            stamp = self._pending.stamp_before(self._clock.stamp_us())
            place(batch, self.epoch, self._end, self._checksum, stamp)
        elif not self._pending.is_empty:
            batch = self._take_pending().encode(self.epoch, self._end, self._checksum)
        else:
            return None
        return MemoryJob(batch)

    def finish_commit(self, job: MemoryJob) -> None:
        self._checksum = job.batch.header.checksum
        self._batches.append(job.batch)
        self._show(job.batch)
        self._go_on()

    async def read(self, offset: int) -> list[Batch]:
        if offset >= self._end:
            return []
        if offset < self._first:
            raise Gap(f"offset {offset} is no longer kept: the first record is {self._first}")
        at = bisect_right(self._batches, offset, key=lambda batch: batch.base_offset) - 1
        found = []
        size = 0
        for batch in self._batches[at:]:
            found.append(batch)
            size += batch.header.stored_length
            if size >= CHUNK_BYTES:
                break
        return found

    async def batches_since(self, offset: int) -> AsyncIterator[Batch]:
        for batch in list(self._batches):
            is_marks = batch.header.count == 0 and batch.base_offset >= offset
            if batch.end_offset > offset or is_marks:
                yield batch

    def bounds(self) -> Bounds:
        return Bounds(self._first, self._end)

    @property
    def hot_first(self) -> int:
        return self._first

    async def offset_at(self, timestamp: int) -> int:
        for batch in self._batches:
            if batch.header.count and batch.header.last_timestamp >= timestamp:
                return batch.base_offset + batch.index_at(timestamp)
        return self._end

    async def trim(self, before_us: int | None, bytes_max: int | None) -> int:
        first = self._first
        size = sum(batch.header.stored_length for batch in self._batches)
        while self._batches:
            header = self._batches[0].header
            is_old = before_us is not None and header.last_timestamp < before_us
            is_beyond = bytes_max is not None and size - header.stored_length >= bytes_max
            if not is_old and not is_beyond:
                break
            size -= header.stored_length
            self._first = self._batches.pop(0).end_offset
        return self._first - first

    async def close(self) -> None:
        self._is_closed = True
        self._end_waiters.fail(UnavailableError("the log is closed"))

    async def tier(self, before_us: int | None, bytes_max: int | None) -> None:
        return

    async def keep_erasures(self, erasures: Sequence[Erasure]) -> None:
        self.erasures = erasures

    async def erase(self, erasure: Erasure, *, dry_run: bool) -> int:
        count = sum([len(find(batch, erasure)) for batch in self._batches])
        if count and not dry_run:
            self._batches = [erase(batch, erasure) for batch in self._batches]
        return count

    async def stored_bytes(self) -> int:
        return sum(batch.header.stored_length for batch in self._batches)

    async def clamp(self, epoch: int, offset: int) -> int:
        return min(offset, self._end)

    async def seal_closed(self) -> int:
        return 0

    @property
    def loads(self) -> int:
        return 0

    @property
    def tail_bytes(self) -> int:
        return sum([batch.memory_bytes for batch in self._batches])

    @property
    def damage(self) -> list[str]:
        return []


class MemoryStore:
    """Implements `LogStore`; the logs live as long as the store."""

    durabilities = (FSYNC, OS)

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.has_history = False
        self.partitions_max = 1
        self.cache = ChunkCache(0)  # everything is in memory anyway
        self._clock = clock
        self._loop = loop
        self._logs: dict[LogIdentity, MemoryLog] = {}
        self._declared: dict[LogIdentity, tuple[str, LogSettings]] = {}

    async def create(
        self, identity: LogIdentity, declared: str, settings: LogSettings
    ) -> MemoryLog:
        for number in range(settings.partitions):
            part = replace(identity, partition=number)
            self._logs[part] = MemoryLog(settings, self._clock, self._loop)
        await self.declare(identity, declared, settings)
        return self._logs[identity]

    async def open(self, identity: LogIdentity, settings: LogSettings) -> MemoryLog:
        if identity not in self._logs:
            raise TopicNotFound(f"no log {identity.slug}-{identity.topic_id} in this store")
        return self._logs[identity]

    async def delete(self, identity: LogIdentity) -> None:
        del self._declared[identity]
        for part in [one for one in self._logs if replace(one, partition=0) == identity]:
            del self._logs[part]

    async def declare(self, identity: LogIdentity, declared: str, settings: LogSettings) -> None:
        self._declared[identity] = (declared, settings)

    async def describe(self, identity: LogIdentity) -> tuple[str, LogSettings]:
        return self._declared[identity]

    def list(self) -> list[LogIdentity]:
        return list(self._logs)
