"""A log in segment files: the loop's side of appending, and reading.

Invariant: offsets [first, end) are durable at the log's level and readable; what is pending or on
its way to the disk is visible to nobody. All methods are called on the event loop; blocking work
runs on the Workers, one commit at a time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.log.batch import Batch, up_to
from penstock.log.builder import BatchBuilder
from penstock.log.cache import WHOLE, ChunkCache
from penstock.log.commit import CommitJob, Workers
from penstock.log.endfile import CLEAN, End
from penstock.log.files import Disk, File, SyncError
from penstock.log.interface import (
    FSYNC,
    OS,
    Bounds,
    Draft,
    LogSettings,
    OnCommit,
    Waiter,
    add_draft,
)
from penstock.log.loading import ChunkLoader
from penstock.log.marks import Mark
from penstock.log.placing import Placing, place
from penstock.log.recovery import Recovered
from penstock.log.retention import first_to_keep
from penstock.log.rounds import Committer
from penstock.log.segment import (
    CHUNK_BYTES,
    HEADER_BYTES,
    ChunkIndex,
    Segment,
    SegmentBody,
    SegmentHeader,
    StaleSegment,
    segment_of,
    segment_path,
)
from penstock.log.survey import Damage, body_of, first_after, seal_oldest, segment_at, survey
from penstock.log.tail import Tail
from penstock.log.waiting import EndWaiters, FutureWaiter, settle, write_refusal
from penstock.log.walk import walk_batches
from penstock.model.clock import Clock
from penstock.model.errors import Gap, UnavailableError
from penstock.model.limits import KIB, MIB

LINGER_BYTES_MAX: Final = 64 * KIB  # what nobody waits for is written once this much has come
PENDING_BYTES_MAX: Final = 8 * MIB  # what one commit takes; publishers beyond it wait
TAIL_BYTES_MAX: Final = 4 * MIB  # per log; ~20,000 small records for readers that are almost live
READ_BYTES_MAX: Final = 8 * MIB  # of memory for one read; a single batch may take more


class EmbeddedLog:
    """Implements `Log` on files."""

    def __init__(
        self,
        recovered: Recovered,
        settings: LogSettings,
        disk: Disk,
        end_file: File,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        committer: Committer[CommitJob],
        workers: Workers,
        cache: ChunkCache,
    ) -> None:
        self.settings = settings
        self.epoch = recovered.epoch
        self.on_commit: OnCommit | None = None
        self.is_watched = False
        self.last_sync_s = 0.0
        self._disk = disk
        self._end_file = end_file
        self._clock = clock
        self._loop = loop
        self._committer = committer
        self._workers = workers
        self._loader = ChunkLoader(cache, loop)
        self._segments = recovered.segments
        self._active = recovered.active
        self._checksum = recovered.checksum
        self._end = recovered.segments[-1].end_offset
        self._tail = Tail(self._end, TAIL_BYTES_MAX)
        self._pending = BatchBuilder(recovered.segments[-1].body.last_timestamp)
        self._publishers: list[tuple[Waiter, int]] = []
        self._in_flight: list[tuple[Waiter, int]] = []
        self._placing = Placing()
        self._queue: deque[tuple[Draft, Sequence[Mark], asyncio.Future[int]]] = deque()
        self._is_committing = False
        self._is_loose = settings.durability == OS  # as `end` says on disk
        self._wants_roll = False
        self._fence: str = ""
        self._is_closed = False
        self._end_waiters = EndWaiters()
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._doomed: deque[Segment] = deque()  # trimmed; the file may still be there
        self._damage = Damage()
        self._upkeep: asyncio.Lock = asyncio.Lock()

    # Appending

    def append(self, draft: Draft, marks: Sequence[Mark] = ()) -> Awaitable[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        if self._fence or self._is_closed:
            settle(future, self._refusal())
        elif not draft.payloads and not marks:
            settle(future, self._end)
        elif self._queue or self._pending.bytes >= PENDING_BYTES_MAX:
            self._queue.append((draft, marks, future))
        else:
            self._accept(draft, marks, future)
        return future

    def _accept(self, draft: Draft, marks: Sequence[Mark], future: asyncio.Future[int]) -> None:
        index = add_draft(self._pending, draft, marks, self._clock.now_us())
        self._publishers.append((FutureWaiter(future), index))
        self._committer.touch(self)

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
        if self._fence or self._is_closed:
            if waiter is not None:
                waiter.refused(self._refusal())
            return
        pending = self._pending
        index = pending.add_gapped(
            name,
            data,
            starts,
            lengths,
            self._clock.now_us(),
            flags,
            publisher,
            expires_at,
            headers,
        )
        for mark in marks:
            pending.add_mark(mark.kind, mark.key, index + mark.index)
        if waiter is not None:
            self._publishers.append((waiter, index))
        self._touch(is_urgent)

    def append_names(
        self,
        names: list[str],
        counts: list[int],
        data: bytes,
        starts: list[int],
        lengths: list[int],
        publisher: str,
    ) -> None:
        if not self._fence and not self._is_closed:
            now_us = self._clock.now_us()
            self._pending.add_names(names, counts, data, starts, lengths, now_us, publisher)
            self._touch(is_urgent=False)

    def _touch(self, is_urgent: bool) -> None:
        """Something is pending: it is committed at once, or after more of it gathered."""
        if is_urgent or self._pending.bytes >= LINGER_BYTES_MAX:
            self._committer.touch(self)
        else:
            is_watched = self.is_watched or not self._end_waiters.is_empty
            self._committer.touch_soon(self, is_watched)

    def append_batch(self, batch: Batch, waiter: Waiter | None = None) -> Awaitable[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        outcome = FutureWaiter(future, waiter)
        if self._fence or self._is_closed:
            outcome.refused(self._refusal())
        else:
            self._placing.add(batch, outcome)
            self._committer.touch(self)
        return future

    @property
    def is_congested(self) -> bool:
        return self._pending.bytes >= PENDING_BYTES_MAX

    def begin_commit(self) -> CommitJob | None:
        """Take what is pending into a batch (called by the Committer)."""
        if self._is_committing or self._fence:
            return None
        if self._placing.is_due(self._pending):
            return self._begin_placing()
        if self._pending.is_empty and not self._wants_roll:
            return None
        pending = self._pending
        self._pending = BatchBuilder(pending.last_timestamp)
        self._in_flight, self._publishers = self._publishers, []
        roll_to = self._roll_header(pending.bytes, pending.last_timestamp)
        prev = roll_to.checksum if roll_to is not None else self._checksum
        return self._job(pending.encode(self.epoch, self._end, prev), roll_to)

    def _begin_placing(self) -> CommitJob:
        """The next batch that was encoded elsewhere; what is pending comes after it."""
        batch, waiter = self._placing.take()
        stamp = self._pending.stamp_before(self._clock.now_us())
        self._in_flight = [(waiter, 0)]
        roll_to = self._roll_header(batch.header.stored_length, stamp)
        prev = roll_to.checksum if roll_to is not None else self._checksum
        place(batch, self.epoch, self._end, prev, stamp)
        return self._job(batch, roll_to)

    def _job(self, batch: Batch, roll_to: SegmentHeader | None) -> CommitJob:
        job = CommitJob(
            self._disk,
            self._active,
            self._end_file,
            batch,
            self.settings.segment_bytes,
            self.settings.durability == FSYNC,
            self._is_loose,
        )
        job.roll_to = roll_to
        self._is_committing = True
        return job

    def _roll_header(self, size: int, stamp: int) -> SegmentHeader | None:
        """The header of the segment to begin with this batch, if the active one is full or old."""
        segment = self._segments[-1]
        if segment.end_offset == segment.base_offset:
            return None  # it holds no record: a new one would have the same name
        header = segment.body.header
        is_full = segment.body.length + size > self.settings.segment_bytes
        is_old = (stamp - header.created_at) / 1_000_000 > self.settings.segment_age_s
        if not (is_full or is_old or self._wants_roll):
            return None
        return SegmentHeader(0, self.epoch, self._end, stamp, header.topic_id)

    def finish_commit(self, job: CommitJob) -> None:
        """The batch is durable, or was refused (called by the Committer)."""
        self._is_committing = self._wants_roll = False
        waiters, self._in_flight = self._in_flight, []
        if job.rolled is not None:
            self._adopt(job.rolled.header)
            self._active = job.rolled
        if job.error is None:
            self.last_sync_s = job.sync_s
            self._publish_batch(job)
            base = job.batch.base_offset
            for waiter, index in waiters:
                waiter.committed(base + index)
        else:
            refusal = self._refuse(job.error)
            for waiter, _ in waiters:
                waiter.refused(refusal)
        self._admit_queued()
        if self._placing.leaves_work(self._pending):
            self._committer.touch(self)
        elif self._pending.is_empty and self._idle_waiters:
            idle, self._idle_waiters = self._idle_waiters, []
            for one in idle:
                if not one.done():
                    one.set_result(None)

    def _publish_batch(self, job: CommitJob) -> None:
        batch = job.batch
        segment = self._segments[-1]
        body = segment.body
        body.index.note(body.length, batch.base_offset, batch.header.base_timestamp)
        body.length += job.length
        body.last_timestamp = batch.header.last_timestamp
        segment.end_offset = self._end = batch.end_offset
        self._is_loose = not job.needs_sync
        self._checksum = batch.header.checksum
        self._tail.append(batch)
        self._end_waiters.wake(self._end)
        if self.on_commit is not None:
            self.on_commit(batch)

    def _adopt(self, header: SegmentHeader) -> None:
        """A new segment was begun; the one before it is closed now."""
        path = segment_path(self._active.path.parent, header.base_offset)
        body = SegmentBody(header, ChunkIndex(), HEADER_BYTES, header.created_at)
        self._checksum = header.checksum
        self._segments.append(
            Segment(self._disk, path, header.base_offset, header.base_offset, body)
        )

    def _refuse(self, failed: OSError) -> UnavailableError:
        if isinstance(failed, SyncError):
            self._fence = f"a sync failed ({failed.strerror}): the log is fenced at {self._end}"
            while self._queue:
                settle(self._queue.popleft()[2], self._refusal())
            for waiter in [*(one for one, _ in self._publishers), *self._placing.give_up()]:
                waiter.refused(self._refusal())
            self._publishers = []
            self._pending = BatchBuilder(self._pending.last_timestamp)
            return self._refusal()
        return write_refusal(failed)

    def _refusal(self) -> UnavailableError:
        fenced = f"{self._fence}; reading goes on, a restart verifies it"
        return UnavailableError(fenced if self._fence else "the log is closed")

    def _admit_queued(self) -> None:
        while self._queue and self._pending.bytes < PENDING_BYTES_MAX:
            draft, marks, future = self._queue.popleft()
            if not future.done():
                self._accept(draft, marks, future)

    # Reading

    @property
    def loads(self) -> int:
        return self._loader.loads

    def bounds(self) -> Bounds:
        return Bounds(self._segments[0].base_offset, self._end)

    def wait_past(self, offset: int) -> Awaitable[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        if self._is_closed:
            future.set_exception(self._refusal())
        elif offset < self._end:
            future.set_result(None)
        else:
            self._end_waiters.add(offset, future)
            if not self._pending.is_empty:
                self._committer.touch_soon(self, is_watched=True)
        return future

    async def read(self, offset: int) -> list[Batch]:
        if offset >= self._end:
            return []
        if offset >= self._tail.first_offset:
            return self._tail.read(offset, CHUNK_BYTES)
        for attempt in (1, 2, 3):  # it may have been sealed, and then trimmed
            segment = segment_of(self._segments, offset)
            try:
                body = await body_of(segment, self._workers)
                number = body.index.find(offset)
                is_whole = segment is not self._segments[-1] or body.index.has_after(number)
                batches = await self._load(segment, number, is_whole=is_whole)
                # What compressed very well is not unpacked all at once.
                rest = [batch for batch in batches if batch.end_offset > offset]
                return up_to(rest, READ_BYTES_MAX)
            except StaleSegment:
                if attempt == 3:
                    raise
                async with self._upkeep:
                    pass  # sealing has put the new file in place, and says so before it lets go
        raise AssertionError("unreachable")

    def _load(self, segment: Segment, number: int, *, is_whole: bool) -> Awaitable[list[Batch]]:
        def read() -> Awaitable[list[Batch]]:
            return self._workers.run(lambda: segment.read_chunk(number))

        length = WHOLE if is_whole else segment.body.length
        return self._loader.load(segment, number, read, length)

    def batches_since(self, offset: int) -> AsyncIterator[Batch]:
        return walk_batches(self._segments, offset, self._workers, self._damage)

    async def offset_at(self, timestamp: int) -> int:
        async with self._upkeep:  # no segment goes while they are looked at
            segment = await segment_at(self._segments, timestamp, self._workers, self._damage)
            offset = segment.base_offset
            index = (await body_of(segment, self._workers)).index
        chunk = bisect_right(index.times, timestamp - 1) - 1
        if chunk > 0:
            offset = index.offsets[chunk]
        while offset < self._end:
            offset = max(offset, self._segments[0].base_offset)
            try:
                batches = await self.read(offset)
            except Gap:  # trimmed meanwhile
                continue
            for batch in batches:
                if batch.header.last_timestamp >= timestamp:
                    at = batch.index_at(timestamp)
                    if at < batch.header.count:
                        return batch.base_offset + at
                offset = batch.end_offset
        return self._end

    # Keeping house

    async def trim(self, before_us: int | None, bytes_max: int | None) -> int:
        async with self._upkeep:
            newest = self._segments[-1]
            if before_us is not None and newest.body.last_timestamp < before_us:
                await self._roll_now()
            facts = await survey(self._segments, self._workers, self._damage)
            first = self._segments[0].base_offset
            count = first_to_keep(facts, before_us, bytes_max)
            self._doomed += self._segments[:count]
            self._segments = self._segments[count:]
            self._tail.drop_before(self._segments[0].base_offset)
            while self._doomed:  # one that cannot be removed stays first: no hole comes behind it
                self._loader.forget(self._doomed[0])
                await self._workers.run(partial(self._remove, self._doomed[0]))
                self._damage.forget(self._doomed.popleft())
            return self._segments[0].base_offset - first

    async def _roll_now(self) -> None:
        """Close the active segment although nothing is appended, so that retention can take it."""
        segment = self._segments[-1]
        if segment.end_offset == segment.base_offset or self._fence or self._is_closed:
            return
        self._wants_roll = True
        self._committer.touch(self)
        rolled: asyncio.Future[None] = self._loop.create_future()
        self._idle_waiters.append(rolled)
        await rolled

    def _remove(self, segment: Segment) -> None:
        # One at a time and each synced: power loss never leaves a hole between segments.
        with suppress(FileNotFoundError):  # the last attempt got as far as the sync
            self._disk.remove(segment.path)
        self._disk.sync_dir(segment.path.parent)

    async def seal_closed(self) -> int:
        """Rewrite closed segments into their final, indexed form; how many there were."""
        sealed = 0
        while await self._seal_oldest():
            sealed += 1
        return sealed

    async def _seal_oldest(self) -> bool:
        """Seal one segment, if one is closed and not sealed; readers may wait for the lock."""
        async with self._upkeep:
            old = await seal_oldest(self._segments, self._workers, self._damage)
            if old is not None:
                self._loader.forget(old)
            return old is not None

    async def stored_bytes(self) -> int:
        """What the segments take on disk, preallocated space aside."""
        async with self._upkeep:
            facts = await survey(self._segments, self._workers, self._damage)
            return sum([one.bytes for one in facts])

    @property
    def fence(self) -> str:
        """Why the log takes no appends; empty while it does."""
        return self._fence

    @property
    def damage(self) -> list[str]:
        return self._damage.texts

    async def clamp(self, epoch: int, offset: int) -> int:
        """Where a position of `epoch` stands now: records lost since then move it back."""
        if epoch < self.epoch:
            async with self._upkeep:
                before = [one for one in self._segments if one.base_offset < offset]
                newer = await first_after(before, epoch, self._workers, self._damage)
                if newer is not None:
                    return newer.base_offset
        return min(offset, self._end)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        while self._is_committing or self._placing.is_waiting or not self._pending.is_empty:
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(idle)
            await idle
        self._end_waiters.fail(self._refusal())
        async with self._upkeep:
            await self._workers.run(self._close_files)

    def _close_files(self) -> None:
        try:
            if not self._fence:
                self._active.finish()
                header = self._active.header
                end = End(header.epoch, self._end, header.base_offset, self._active.position, CLEAN)
                self._end_file.write(0, [end.pack()])
                self._end_file.sync()
        finally:
            self._active.close_file()
            self._end_file.close()
