"""Group commit to files: a round's batches are written, then synced.

A round runs on the writer thread, off the event loop; logs that are dirty together are synced in
parallel. A small batch may be written on the event loop, and a lone message be synced there while
syncs are short and nobody else is active. At most one batch per log is on its way, so a failed
write can always be cut back.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from mypy_extensions import mypyc_attr

from penstock.core.erasure import Erasure
from penstock.log.files.active import ActiveSegment, create_segment
from penstock.log.files.disk import Disk, File, SyncError
from penstock.log.files.endfile import End
from penstock.log.files.segment import Segment, SegmentHeader
from penstock.log.files.upkeep.erasing import count_erasable, erase_segment
from penstock.log.files.upkeep.seal import seal_segment
from penstock.log.format.batch import Batch
from penstock.log.format.end_bytes import FENCED, LOOSE, pack_end
from penstock.model.clock import Clock, SystemClock
from penstock.model.limits import KIB

T = TypeVar("T")

INLINE_BYTES_MAX: Final = 64 * KIB  # level `os`: a write this small costs less than a thread switch
COMPRESS_BYTES_MIN: Final = 64 * KIB  # a smaller batch takes as long to sync whatever its size
SHORT_SYNC_S: Final = 0.000_3  # a few times what handing a batch to a thread and back costs
SHORT_SYNCS_MIN = 32  # in a row, until the next one is expected to be short, too
# (Not Final, which the compiler would write into the code: simulations make it small.)
SYNC_THREADS: Final = 4
READ_THREADS: Final = 2


class SyncPace:
    """How long the syncs of a log took lately: may the event loop wait for one (decision 0030)?"""

    def __init__(self) -> None:
        self._short_count = 0  # since the last one that was not

    @property
    def is_short(self) -> bool:
        return self._short_count >= SHORT_SYNCS_MIN

    def note(self, sync_s: float) -> None:
        """A sync took this long."""
        if sync_s > SHORT_SYNC_S:
            self._short_count = 0
        else:
            self._short_count += 1


class CommitJob:
    """One batch on its way into one log; `write`, then `sync`, both off the event loop."""

    def __init__(
        self,
        disk: Disk,
        active: ActiveSegment,
        end_file: File,
        batch: Batch,
        segment_bytes: int,
        needs_sync: bool,
        is_loose: bool,
    ) -> None:
        self.disk = disk
        self.active = active
        self.end_file = end_file
        self.batch = batch
        self.segment_bytes = segment_bytes
        self.needs_sync = needs_sync
        self.is_loose = is_loose  # `end` says on disk that records may not have been synced
        # It is the first at level `os`: `end` has to say so, durably, before it counts.
        self.loosens = not needs_sync and not is_loose
        self.roll_to: SegmentHeader | None = None  # begin this segment first
        self.rolled: ActiveSegment | None = None  # the segment that was begun
        self.error: OSError | None = None
        self.sync_s = 0.0  # how long its round took to sync
        self.clock: Clock | None = None  # measures that, when it is run on the event loop
        self.is_lone = False  # one message that somebody waits for, and syncs were short lately
        self.length = batch.header.stored_length  # less once it is written compressed

    @property
    def is_quick(self) -> bool:
        """It syncs nothing and writes little: done sooner than handed to a thread."""
        syncs = self.needs_sync or self.loosens or self.roll_to is not None
        return not syncs and self.length <= INLINE_BYTES_MAX

    @property
    def is_short(self) -> bool:
        """It writes and syncs one small message, and nothing else."""
        if not self.is_lone or self.roll_to is not None or self.length > INLINE_BYTES_MAX:
            return False
        return self.needs_sync and not self.active.needs_zeros(self.length)

    def run(self) -> None:
        """Do it here and now."""
        run_jobs([self], None, self.clock)

    def write(self) -> None:
        """Write the batch, after rolling to a new segment if asked to."""
        try:
            if self.loosens:
                self.end_file.write(0, [self._end_before().with_flags(LOOSE).pack()])
                self.end_file.sync()
            if self.roll_to is not None:
                self.active.finish()
                directory: Path = self.active.path.parent
                self.rolled = create_segment(self.disk, directory, self.roll_to)
                self.active.close_file()
                self.active = self.rolled
                # The batch may yet fail and the old segment be trimmed: `end` must not name it.
                self._write_end(self.batch.base_offset)
            if self.batch.header.blob_length >= COMPRESS_BYTES_MIN:
                self.batch.compress()
                self.length = self.batch.header.stored_length
            self.active.write(self.batch.to_bytes(), self.length, self.segment_bytes)
        except OSError as failed:
            self._fail(failed)

    def sync(self) -> None:
        """Make what was written durable, then say so in the file `end`."""
        if self.error is not None:
            return
        if self.needs_sync:
            try:
                self.active.sync()
            except OSError as failed:
                self._fail(failed)
                return
        self.active.position += self.length  # the batch just written is committed
        self._write_end(self.batch.end_offset)

    def _write_end(self, offset: int) -> None:
        header = self.active.header
        flags = 0 if self.needs_sync else LOOSE
        end = pack_end(header.epoch, offset, header.base_offset, self.active.position, flags)
        try:  # noqa: SIM105 (an object for each message)
            self.end_file.write(0, [end])
        except OSError:  # a stale end is only lower; the next commit writes it again
            pass

    def _end_before(self) -> End:
        """How far the log was durable before this batch; until that is committed."""
        header = self.active.header
        flags = LOOSE if self.is_loose else 0
        base = self.batch.base_offset
        return End(header.epoch, base, header.base_offset, self.active.position, flags)

    def _fail(self, failed: OSError) -> None:
        if not isinstance(failed, SyncError):
            try:
                self.active.cut_back()
            except OSError as worse:  # the batch may be there and must not count: fence
                failed = SyncError(worse.errno, worse.strerror)
        self.error = failed
        if isinstance(failed, SyncError):
            with suppress(OSError):
                self.end_file.write(0, [self._end_before().with_flags(FENCED).pack()])
                self.end_file.sync()


class Workers(Protocol):
    """Where blocking work runs: threads, or at once in a simulation."""

    def commit(self, jobs: list[CommitJob], done: Callable[[], None]) -> None:
        """Write and sync the jobs elsewhere, then call `done` on the event loop."""
        ...

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run blocking work elsewhere."""
        ...

    def seal(self, segment: Segment) -> Awaitable[Segment]:
        """Put a closed segment's sealed form in its place, elsewhere."""
        ...

    def erase(
        self, segment: Segment, erasure: Erasure, *, dry_run: bool
    ) -> Awaitable[tuple[Segment, int]]:
        """Put a closed segment without these records in its place, elsewhere; how many.

        A dry run only counts.
        """
        ...

    def close(self) -> None: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class ThreadWorkers:
    """The writer thread, its pool for parallel syncs, and a pool for cold reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock | None = None) -> None:
        self._loop = loop
        # A loop may have a shorter way from another thread than asyncio's own.
        self._call_on_loop: Callable[[Callable[[], None]], object]
        self._call_on_loop = getattr(loop, "call_from_thread", loop.call_soon_threadsafe)
        self._clock = clock or SystemClock()
        self._rounds: queue.SimpleQueue[tuple[list[CommitJob], Callable[[], None]] | None]
        self._rounds = queue.SimpleQueue()
        self._syncers = ThreadPoolExecutor(SYNC_THREADS, "penstock-sync")
        self._readers = ThreadPoolExecutor(READ_THREADS, "penstock-read")
        self._writer = threading.Thread(target=self._write, name="penstock-writer", daemon=True)
        self._writer.start()

    def commit(self, jobs: list[CommitJob], done: Callable[[], None]) -> None:
        self._rounds.put((jobs, done))

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._loop.run_in_executor(self._readers, work)

    def seal(self, segment: Segment) -> Awaitable[Segment]:
        return self.run(partial(seal_segment, segment))

    def erase(
        self, segment: Segment, erasure: Erasure, *, dry_run: bool
    ) -> Awaitable[tuple[Segment, int]]:
        if dry_run:
            return self.run(lambda: (segment, count_erasable(segment, erasure)))
        return self.run(partial(erase_segment, segment, erasure))

    def close(self) -> None:
        self._rounds.put(None)
        self._writer.join()
        self._syncers.shutdown()
        self._readers.shutdown()

    def _write(self) -> None:
        while (item := self._rounds.get()) is not None:
            jobs, done = item
            run_jobs(jobs, self._syncers, self._clock)
            self._call_on_loop(done)


def run_jobs(
    jobs: list[CommitJob], pool: ThreadPoolExecutor | None = None, clock: Clock | None = None
) -> None:
    """Write all, then sync all: what one sync waits for, the others share."""
    for job in jobs:
        job.write()
    started_s = clock.monotonic_s() if clock is not None else 0.0
    if pool is None or len(jobs) == 1:
        for job in jobs:
            job.sync()
    else:
        list(pool.map(CommitJob.sync, jobs))
    if clock is not None:
        sync_s = clock.monotonic_s() - started_s
        for job in jobs:
            job.sync_s = sync_s
