"""A log in segment files: what a commit takes there, and reading.

Invariant: offsets [first, end) are durable at the log's level and readable; what is pending or on
its way to the disk is visible to nobody. All methods are called on the event loop; blocking work
runs on the Workers, one commit at a time.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial
from typing import Final

from penstock.core.erasure import Erasure
from penstock.log.appending import AppendingLog
from penstock.log.cache import WHOLE, ChunkCache
from penstock.log.files.active import finish_log
from penstock.log.files.commit import CommitJob, SyncPace, Workers
from penstock.log.files.disk import Disk, File, SyncError
from penstock.log.files.endfile import End
from penstock.log.files.recovery import Recovered
from penstock.log.files.segment import (
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
from penstock.log.files.upkeep.moment import LogFiles
from penstock.log.files.upkeep.ordered import write_erasures
from penstock.log.files.upkeep.survey import (
    Damage,
    body_of,
    erase_all,
    first_after,
    remove_segment,
    seal_oldest,
    sealed_after,
    segment_at,
    survey,
    up_to_bytes,
)
from penstock.log.files.upkeep.walk import walk_batches
from penstock.log.format.batch import Batch, up_to
from penstock.log.history.reading.cold import ColdRecords
from penstock.log.history.reading.process import HistoryProcess
from penstock.log.history.tier import WRITE_BYTES, refuse_known
from penstock.log.interface import FSYNC, OS, Bounds, LogIdentity, LogSettings
from penstock.log.loading import ChunkLoader
from penstock.log.placing import place
from penstock.log.retention import first_to_keep
from penstock.log.rounds import Committer
from penstock.log.tail import Tail
from penstock.log.waiting import write_refusal
from penstock.model.clock import Clock
from penstock.model.errors import Gap, RefusedError, UnavailableError
from penstock.model.limits import MIB

# Not Final, which the compiler would write into the code: simulations change them.
TAIL_BYTES_MAX = 4 * MIB  # per log; ~20,000 small records for readers that are almost live
TAIL_READ_BYTES_MAX = CHUNK_BYTES  # of one read from there
LONE_RECORDS_MAX = 1  # of a batch synced on the loop; the loop should receive what follows more
READ_BYTES_MAX: Final = 8 * MIB  # of memory for one read; a single batch may take more
LOG: Final = logging.getLogger("penstock.log")


class EmbeddedLog(AppendingLog[CommitJob]):
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
        newest = recovered.segments[-1]
        epoch, end, stamp = recovered.epoch, newest.end_offset, newest.body.last_timestamp
        super().__init__(settings, epoch, end, stamp, clock=clock, loop=loop, committer=committer)
        self._disk = disk
        self._end_file = end_file
        self._workers = workers
        self._loader = ChunkLoader(cache, loop)
        self._segments = recovered.segments
        self._newest = newest.body  # of the last segment, which is always loaded
        self._active = recovered.active
        self._checksum = recovered.checksum
        self._tail = Tail(end, TAIL_BYTES_MAX)
        self._pace = SyncPace()
        self._is_loose = settings.durability == OS  # as `end` says on disk
        self._wants_roll = False
        self._roll_waiters: list[asyncio.Future[None]] = []
        self._is_failing = False  # the last write failed
        self._doomed: deque[Segment] = deque()  # trimmed; the file may still be there
        self._damage = Damage()
        self._upkeep: asyncio.Lock = asyncio.Lock()
        self._cold: ColdRecords | None = None

    # Committing

    def begin_commit(self) -> CommitJob | None:
        if self._is_committing or self._fence:
            return None
        if self._placing.waiting and self._placing.is_due(self._pending):
            return self._begin_placing()
        if self._pending.is_empty and not self._wants_roll:
            return None
        pending = self._take_pending()
        roll_to = self._roll_header(pending.bytes, pending.last_timestamp)
        prev = roll_to.checksum if roll_to is not None else self._checksum
        return self._job(pending.encode(self.epoch, self._end, prev), roll_to)

    def _begin_placing(self) -> CommitJob:
        batch = self._take_placed()
        stamp = self._pending.stamp_before(self._clock.stamp_us())
        roll_to = self._roll_header(batch.header.stored_length, stamp)
        prev = roll_to.checksum if roll_to is not None else self._checksum
        place(batch, self.epoch, self._end, prev, stamp)
        return self._job(batch, roll_to)

    def _job(self, batch: Batch, roll_to: SegmentHeader | None) -> CommitJob:
        job = CommitJob(
            self._disk,
            self._active,
            self._end_file,
            batch=batch,
            segment_bytes=self.settings.segment_bytes,
            needs_sync=self.settings.durability == FSYNC,
            is_loose=self._is_loose,
        )
        job.roll_to = roll_to
        if batch.header.count <= LONE_RECORDS_MAX and len(self._in_flight) == 1:
            job.is_lone, job.clock = self._pace.is_short, self._clock
        self._is_committing = True
        return job

    def _roll_header(self, size: int, stamp: int) -> SegmentHeader | None:
        """The header of the segment to begin with this batch, if the active one is full or old."""
        segment = self._segments[-1]
        if segment.end_offset == segment.base_offset:
            return None  # it holds no record: a new one would have the same name
        header = self._newest.header
        is_full = self._newest.length + size > self.settings.segment_bytes
        is_old = (stamp - header.created_at) / 1_000_000 > self.settings.segment_age_s
        if not (is_full or is_old or self._wants_roll):
            return None
        return SegmentHeader(0, self.epoch, self._end, stamp, header.topic_id)

    def finish_commit(self, job: CommitJob) -> None:
        self._is_committing = False
        if self._wants_roll:
            self._settle_roll(job)
        if job.rolled is not None:
            self._adopt(job.rolled.header)
            self._active = job.rolled
        if job.error is None:
            if self._is_failing:
                self._note_failing("")
            self.last_sync_s = job.sync_s
            self._pace.note(job.sync_s)
            self._keep(job)
            self._show(job.batch)
        elif isinstance(job.error, SyncError):
            self._fence = f"a sync failed ({job.error.strerror}): the log is fenced at {self._end}"
            fenced = self._fenced()
            self._refuse(fenced)
            self.refuse_waiting(fenced)
            values = {"event": "log fenced", "log": self._shown, "problem": str(fenced)}
            LOG.error("%(log)s rejects publishes from now on: %(problem)s", values)
        else:
            refusal = write_refusal(job.error)
            self._refuse(refusal)
            if not self._is_failing:
                self._note_failing(str(refusal))
        self._go_on()

    def _settle_roll(self, job: CommitJob) -> None:
        """The segment was closed or could not be; a commit that was on its way did not try."""
        if job.roll_to is None and job.error is None:
            self._committer.touch(self)
            return
        self._wants_roll = False
        waiting, self._roll_waiters = self._roll_waiters, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def _note_failing(self, problem: str) -> None:
        """Writes begin to fail, or succeed again: each is logged once."""
        self._is_failing = bool(problem)
        if problem:
            values = {"event": "write refusal begins", "log": self._shown, "problem": problem}
            LOG.error("%(log)s: %(problem)s", values)
        else:
            values = {"event": "write refusal ends", "log": self._shown}
            LOG.info("%(log)s: writing works again", values)

    @property
    def _shown(self) -> str:
        """The directory of the log, as people know it: tenant, topic and id."""
        return "/".join(self._active.path.parent.parts[-2:])

    def _keep(self, job: CommitJob) -> None:
        """Know of the batch what later reads and commits need."""
        batch = job.batch
        segment = self._segments[-1]
        body = self._newest
        if body.length >= body.index.next_position:
            body.index.note(body.length, batch.base_offset, batch.header.base_timestamp)
        body.length += job.length
        body.last_timestamp = batch.header.last_timestamp
        segment.end_offset = batch.end_offset
        self._is_loose = not job.needs_sync
        self._checksum = batch.header.checksum
        self._tail.append(batch)

    def _adopt(self, header: SegmentHeader) -> None:
        """A new segment was begun; the one before it is closed now."""
        path = segment_path(self._active.path.parent, header.base_offset)
        body = SegmentBody(header, ChunkIndex(), HEADER_BYTES, header.created_at)
        self._newest = body
        self._checksum = header.checksum
        self._segments.append(
            Segment(self._disk, path, header.base_offset, header.base_offset, body)
        )

    def _refusal(self) -> UnavailableError | None:
        if self._fence:
            return self._fenced()
        return UnavailableError("the log is closed") if self._is_closed else None

    def _fenced(self) -> UnavailableError:
        return UnavailableError(f"{self._fence}; reads still work, and a restart verifies the log")

    # Reading

    @property
    def loads(self) -> int:
        return self._loader.loads

    @property
    def tail_bytes(self) -> int:
        return self._tail.bytes

    def bounds(self) -> Bounds:
        first = self._segments[0].base_offset
        if self._cold is not None and first > 0:
            first = self._cold.first_before(first)
        return Bounds(first, self._end)

    @property
    def hot_first(self) -> int:
        return self._segments[0].base_offset

    def attach_history(self, identity: LogIdentity, process: HistoryProcess) -> ColdRecords:
        """Read what lies before the first segment from the table of this log."""
        self._cold = ColdRecords(identity, process, self._loader, self.history)
        return self._cold

    async def read(self, offset: int) -> list[Batch]:
        if offset >= self._end:
            return []
        if offset >= self._tail.first_offset:
            return self._tail.read(offset, TAIL_READ_BYTES_MAX)
        for _ in range(2):  # it may have been sealed, and then trimmed
            try:
                return await self._read_stored(offset)
            except StaleSegment:
                pass
            # Not in the handler: compiled code that waits in one never lets go of its exception.
            async with self._upkeep:
                pass  # sealing has put the new file in place, and says so before it lets go
        return await self._read_stored(offset)

    async def _read_stored(self, offset: int) -> list[Batch]:
        hot_first = self._segments[0].base_offset
        if self._cold is not None and offset < hot_first:
            return await self._cold.read(offset, hot_first)
        segment = segment_of(self._segments, offset)
        body = await body_of(segment, self._workers)
        number = body.index.find(offset)
        is_whole = segment is not self._segments[-1] or body.index.has_after(number)
        batches = await self._load(segment, number, is_whole=is_whole)
        # What compressed very well is not unpacked all at once.
        rest = [batch for batch in batches if batch.end_offset > offset]
        return up_to(rest, READ_BYTES_MAX)

    def _load(self, segment: Segment, number: int, *, is_whole: bool) -> Awaitable[list[Batch]]:
        def read() -> Awaitable[list[Batch]]:
            return self._workers.run(lambda: segment.read_chunk(number))

        length = WHOLE if is_whole else segment.body.length
        return self._loader.load(segment, number, read, length)

    def batches_since(self, offset: int) -> AsyncIterator[Batch]:
        return walk_batches(self._segments, offset, self._workers, self._damage)

    async def offset_at(self, timestamp: int) -> int:
        oldest = self._segments[0]
        if self._cold is not None and self.bounds().first < oldest.base_offset:
            # Records of the oldest segment may be stamped a little before it was created.
            created_at = (await body_of(oldest, self._workers)).header.created_at
            if timestamp <= created_at:
                offset = await self._cold.offset_at(timestamp)
                if offset < self._segments[0].base_offset:
                    return offset
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
            if self.settings.history:  # without its history nothing may go
                count = self.history.may_go(self._segments, count) if self.history else 0
                if self._cold is not None:  # and readers have to find it there
                    cold_end = self._cold.end
                    count = min(count, len([s for s in self._segments if s.end_offset <= cold_end]))
            self._doomed += self._segments[:count]
            self._segments = self._segments[count:]
            self._tail.drop_before(self._segments[0].base_offset)
            while self._doomed:  # one that cannot be removed stays first: no hole comes behind it
                self._loader.forget(self._doomed[0])
                await self._workers.run(partial(remove_segment, self._doomed[0]))
                self._damage.forget(self._doomed.popleft())
            return self._segments[0].base_offset - first

    async def _roll_now(self) -> None:
        """Close the active segment although it is not full, so that it can go or be rewritten."""
        segment = self._segments[-1]
        if segment.end_offset == segment.base_offset or self._fence or self._is_closed:
            return
        self._wants_roll = True
        rolled: asyncio.Future[None] = self._loop.create_future()
        self._roll_waiters.append(rolled)
        self._committer.touch(self)
        await rolled

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

    async def tier(self, before_us: int | None, bytes_max: int | None) -> None:
        history = self.history
        if history is None or not self.settings.history:
            return
        if not history.is_known:
            await history.look(self._segments)
            if history.end > self._end:
                raise RefusedError(
                    f"history {history.place.uri!r} goes up to offset {history.end} and the "
                    f"log to {self._end}: restart the broker, and the log goes on behind it"
                )
        async with self._upkeep:
            segments = self._segments[:-1]
            facts = await survey(self._segments, self._workers, self._damage)
            due = first_to_keep(facts, before_us, bytes_max)
            waiting = await sealed_after(segments, history.end, self._workers, self._damage)
        history.waiting_bytes = sum([one.body.length for one in waiting])
        is_due = due > 0 and facts[due - 1].end_offset > history.end
        # Sealed segments stay as they are until `trim`, which waits for the history.
        while waiting and (is_due or history.waiting_bytes >= WRITE_BYTES):
            part = up_to_bytes(waiting, WRITE_BYTES)
            await history.write(part)
            waiting = waiting[len(part) :]
            history.waiting_bytes = sum([one.body.length for one in waiting])
            is_due = is_due and facts[due - 1].end_offset > history.end
        if self._cold is not None and self._cold.end < history.end:
            await self._cold.refresh()

    def standing_still(self) -> asyncio.Lock:
        """While it is held nothing is sealed, removed or erased; messages are appended."""
        return self._upkeep

    def files(self) -> LogFiles:
        """The segments and the end of this moment."""
        bases = [segment.base_offset for segment in self._segments]
        end = End(self.epoch, self._end, bases[-1], self._newest.length)
        return LogFiles(self._active.path.parent, bases, end)

    async def keep_erasures(self, erasures: Sequence[Erasure]) -> None:
        directory = self._active.path.parent
        if erasures and self.history is None:
            await self._workers.run(partial(refuse_known, self._disk, directory))
        await self._workers.run(partial(write_erasures, self._disk, directory, erasures))
        self.erasures = erasures

    async def erase(self, erasure: Erasure, *, dry_run: bool) -> int:
        if not dry_run:
            async with self._upkeep:
                if self._segments[-1].base_offset < erasure.end:
                    await self._roll_now()
                if self._segments[-1].base_offset < erasure.end:
                    raise UnavailableError(
                        "the newest segment cannot be closed, and so nothing of it erased: "
                        + (self._fence or "the disk refused to write")
                    )
            self._tail.drop_before(erasure.end)
        return await erase_all(
            self._current,
            self._upkeep,
            self._loader.forget,
            erasure=erasure,
            workers=self._workers,
            damage=self._damage,
            dry_run=dry_run,
        )

    def _current(self) -> list[Segment]:
        return self._segments

    async def erase_history(self, erasure: Erasure, *, dry_run: bool) -> int:
        if self.history is None:
            await self._workers.run(partial(refuse_known, self._disk, self._active.path.parent))
            return 0
        found = await self.history.erase(erasure, dry_run=dry_run)
        if not dry_run and self._cold is not None and self._cold.is_known:
            await self._cold.refresh()
        return found

    async def stored_bytes(self) -> int:
        """What the segments take on disk, preallocated space aside."""
        async with self._upkeep:
            parts = await survey(self._segments, self._workers, self._damage)
        return sum([one.bytes for one in parts])

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
        while self._is_busy:
            await self._next_idle()
        self._end_waiters.fail(UnavailableError("the log is closed"))
        async with self._upkeep:
            end, is_fenced = self._end, bool(self._fence)
            work = partial(finish_log, self._active, self._end_file, end, is_fenced)
            await self._workers.run(work)
