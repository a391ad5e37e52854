"""A log in memory: the promises of files until the process ends; for tests and scratch work."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Sequence

from penstock.log.batch import Batch
from penstock.log.builder import BatchBuilder
from penstock.log.interface import (
    Bounds,
    Draft,
    LogIdentity,
    LogSettings,
    OnCommit,
    Waiter,
    add_draft,
)
from penstock.log.marks import Mark
from penstock.log.placing import place
from penstock.log.segment import CHUNK_BYTES
from penstock.log.waiting import EndWaiters, FutureWaiter, settle
from penstock.model.clock import Clock
from penstock.model.errors import Gap, TopicNotFound, UnavailableError


class MemoryLog:
    """Implements `Log` on a list of batches; an append is visible in the next tick of the loop."""

    def __init__(
        self, settings: LogSettings, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.settings = settings
        self.epoch = 1
        self.on_commit: OnCommit | None = None
        self.is_watched = False
        self.last_sync_s = 0.0
        self._clock = clock
        self._loop = loop
        self._batches: list[Batch] = []
        self._first = self._end = 0
        self._checksum = 0
        self._pending = BatchBuilder(0)
        self._publishers: list[tuple[Waiter, int]] = []
        self._end_waiters = EndWaiters()
        self._is_closed = False

    def append(self, draft: Draft, marks: Sequence[Mark] = ()) -> Awaitable[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        if self._is_closed:
            settle(future, UnavailableError("the log is closed"))
            return future
        if not draft.payloads and not marks:
            settle(future, self._end)
            return future
        self._schedule()
        index = add_draft(self._pending, draft, marks, self._clock.now_us())
        self._publishers.append((FutureWaiter(future), index))
        return future

    def append_run(
        self,
        name: str,
        data: bytes,
        starts: list[int],
        lengths: list[int],
        flags: int,
        publisher: str,
        expires_at: int,
        headers: bytes,
        waiter: Waiter | None,
        is_urgent: bool,
        marks: Sequence[Mark] = (),
    ) -> None:
        if self._is_closed:
            if waiter is not None:
                waiter.refused(UnavailableError("the log is closed"))
            return
        self._schedule()
        now_us = self._clock.now_us()
        index = self._pending.add_gapped(
            name, data, starts, lengths, now_us, flags, publisher, expires_at, headers
        )
        for mark in marks:
            self._pending.add_mark(mark.kind, mark.key, index + mark.index)
        if waiter is not None:
            self._publishers.append((waiter, index))

    def append_names(
        self,
        names: list[str],
        counts: list[int],
        data: bytes,
        starts: list[int],
        lengths: list[int],
        publisher: str,
    ) -> None:
        if not self._is_closed:
            self._schedule()
            now_us = self._clock.now_us()
            self._pending.add_names(names, counts, data, starts, lengths, now_us, publisher)

    def append_batch(self, batch: Batch, waiter: Waiter | None = None) -> Awaitable[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        outcome = FutureWaiter(future, waiter)
        if self._is_closed:
            outcome.refused(UnavailableError("the log is closed"))
        else:
            self._loop.call_soon(self._place, batch, outcome)
        return future

    def _place(self, batch: Batch, waiter: Waiter) -> None:
        stamp = self._pending.stamp_before(self._clock.now_us())
        place(batch, self.epoch, self._end, self._checksum, stamp)
        self._store(batch, [(waiter, 0)])

    @property
    def is_congested(self) -> bool:
        return False

    def _schedule(self) -> None:
        if self._pending.is_empty and not self._publishers:
            self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        batch = self._pending.encode(self.epoch, self._end, self._checksum)
        self._pending = BatchBuilder(self._pending.last_timestamp)
        waiters, self._publishers = self._publishers, []
        self._store(batch, waiters)

    def _store(self, batch: Batch, waiters: list[tuple[Waiter, int]]) -> None:
        batch.to_bytes()  # sets the checksum that the next batch chains to
        self._checksum = batch.header.checksum
        self._batches.append(batch)
        self._end = batch.end_offset
        for waiter, index in waiters:
            waiter.committed(batch.base_offset + index)
        self._end_waiters.wake(self._end)
        if self.on_commit is not None:
            self.on_commit(batch)

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

    async def offset_at(self, timestamp: int) -> int:
        for batch in self._batches:
            if batch.header.count and batch.header.last_timestamp >= timestamp:
                return batch.base_offset + batch.index_at(timestamp)
        return self._end

    def wait_past(self, offset: int) -> Awaitable[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        if self._is_closed:
            future.set_exception(UnavailableError("the log is closed"))
        elif offset < self._end:
            future.set_result(None)
        else:
            self._end_waiters.add(offset, future)
        return future

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
    def fence(self) -> str:
        return ""

    @property
    def damage(self) -> list[str]:
        return []


class MemoryStore:
    """Implements `LogStore`; the logs live as long as the store."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._logs: dict[LogIdentity, MemoryLog] = {}
        self._declared: dict[LogIdentity, tuple[str, LogSettings]] = {}

    async def create(
        self, identity: LogIdentity, declared: str, settings: LogSettings
    ) -> MemoryLog:
        log = self._logs[identity] = MemoryLog(settings, self._clock, self._loop)
        await self.declare(identity, declared, settings)
        return log

    async def open(self, identity: LogIdentity, settings: LogSettings) -> MemoryLog:
        if identity not in self._logs:
            raise TopicNotFound(f"no log {identity.slug}-{identity.topic_id} in this store")
        return self._logs[identity]

    async def delete(self, identity: LogIdentity) -> None:
        del self._logs[identity], self._declared[identity]

    async def declare(self, identity: LogIdentity, declared: str, settings: LogSettings) -> None:
        self._declared[identity] = (declared, settings)

    async def describe(self, identity: LogIdentity) -> tuple[str, LogSettings]:
        return self._declared[identity]

    def list(self) -> list[LogIdentity]:
        return list(self._logs)
