"""A log in a table of PostgreSQL: the loop's side of appending, and reading.

Invariant: offsets [first, end) are stored at the log's level and readable; what is pending or on
its way is visible to nobody. All methods are called on the event loop; statements run on the
threads of PostgresWork, one round at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from typing import Final

from penstock.log.batch import Batch
from penstock.log.builder import BatchBuilder
from penstock.log.cache import ChunkCache
from penstock.log.interface import (
    FSYNC,
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
from penstock.log.postgres_tables import (
    READ_BYTES_MAX,
    LogState,
    Move,
    build_batch,
    delete_before,
    find_first,
    move_first,
    next_row,
    read_batch,
    set_loose,
    topic_table,
)
from penstock.log.postgres_work import PostgresJob, PostgresWork
from penstock.log.rounds import Committer
from penstock.log.tail import Tail
from penstock.log.waiting import EndWaiters, FutureWaiter, settle
from penstock.model.clock import Clock
from penstock.model.errors import CorruptError, Gap, PenstockError, UnavailableError
from penstock.model.limits import KIB, MIB

LINGER_BYTES_MAX: Final = 64 * KIB  # what nobody waits for is stored once this much has come
PENDING_BYTES_MAX: Final = 8 * MIB  # what one commit takes; publishers beyond it wait
TAIL_BYTES_MAX: Final = 4 * MIB  # per log; readers that are almost live ask no server


class PostgresLog:
    """Implements `KeptLog` on a table."""

    def __init__(
        self,
        state: LogState,
        settings: LogSettings,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        committer: Committer[PostgresJob],
        work: PostgresWork,
        cache: ChunkCache,
    ) -> None:
        self.settings = settings
        self.epoch = state.epoch
        self.on_commit: OnCommit | None = None
        self.is_watched = False
        self.last_sync_s = 0.0
        self._state = state
        self._clock = clock
        self._loop = loop
        self._committer = committer
        self._work = work
        self._tail = Tail(state.end_offset, TAIL_BYTES_MAX)
        self._pending = BatchBuilder(state.last_timestamp)
        self._publishers: list[tuple[Waiter, int]] = []
        self._in_flight: list[tuple[Waiter, int]] = []
        self._queue: deque[tuple[Draft, Sequence[Mark], asyncio.Future[int]]] = deque()
        self._placing = Placing()
        self._is_committing = False
        self._fence = ""
        self._damage: list[str] = []
        self._loader = ChunkLoader(cache, loop)
        self._is_closed = False
        self._end_waiters = EndWaiters()
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._upkeep = asyncio.Lock()

    @property
    def topic_id(self) -> int:
        return self._state.topic_id

    # Appending

    def append(self, draft: Draft, marks: Sequence[Mark] = ()) -> Awaitable[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        refusal = self._refusal()
        if refusal is not None:
            settle(future, refusal)
        elif not draft.payloads and not marks:
            settle(future, self._state.end_offset)
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
        refusal = self._refusal()
        if refusal is not None:
            if waiter is not None:
                waiter.refused(refusal)
            return
        pending = self._pending
        now_us = self._clock.now_us()
        index = pending.add_gapped(
            name, data, starts, lengths, now_us, flags, publisher, expires_at, headers
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
        if self._refusal() is None:
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
        refusal = self._refusal()
        if refusal is not None:
            outcome.refused(refusal)
        else:
            self._placing.add(batch, outcome)
            self._committer.touch(self)
        return future

    @property
    def is_congested(self) -> bool:
        return self._pending.bytes >= PENDING_BYTES_MAX

    def begin_commit(self) -> PostgresJob | None:
        """Take what is pending into a batch (called by the Committer)."""
        if self._is_committing or self._fence:
            return None
        state, pending = self._state, self._pending
        if self._placing.is_due(pending):
            batch, waiter = self._placing.take()
            self._in_flight = [(waiter, 0)]
            stamp = pending.stamp_before(self._clock.now_us())
            place(batch, self.epoch, state.end_offset, 0, stamp)
        elif not pending.is_empty:
            self._pending = BatchBuilder(pending.last_timestamp)
            self._in_flight, self._publishers = self._publishers, []
            batch = pending.encode(self.epoch, state.end_offset, 0)
        else:
            return None
        is_strict = self.settings.durability == FSYNC
        # That commits are confirmed early is synced first, with the batch that begins it.
        move = Move(state.topic_id, batch, state.end_bytes, state.is_loose or not is_strict)
        self._is_committing = True
        return PostgresJob(move, needs_sync=is_strict or not state.is_loose)

    def finish_commit(self, job: PostgresJob) -> None:
        """The batch is stored, or was refused (called by the Committer)."""
        self._is_committing = False
        waiters, self._in_flight = self._in_flight, []
        if job.error is None:
            self.last_sync_s = job.sync_s
            self._publish_batch(job.move)
            base = job.move.batch.base_offset
            for waiter, index in waiters:
                waiter.committed(base + index)
        else:
            for waiter, _ in waiters:
                waiter.refused(job.error)
        while self._queue and self._pending.bytes < PENDING_BYTES_MAX:
            draft, marks, future = self._queue.popleft()
            if not future.done():
                self._accept(draft, marks, future)
        if self._placing.leaves_work(self._pending):
            self._committer.touch(self)
        self._tell_idle()

    def _publish_batch(self, move: Move) -> None:
        state, batch = self._state, move.batch
        state.end_offset = batch.end_offset
        state.end_bytes = move.end_bytes
        state.last_timestamp = batch.header.last_timestamp
        state.is_loose = move.is_loose
        self._tail.append(batch)
        self._end_waiters.wake(state.end_offset)
        if self.on_commit is not None:
            self.on_commit(batch)

    def _tell_idle(self) -> None:
        if not self._is_busy:
            idle, self._idle_waiters = self._idle_waiters, []
            for one in idle:
                if not one.done():
                    one.set_result(None)

    @property
    def _is_busy(self) -> bool:
        return self._is_committing or self._placing.is_waiting or not self._pending.is_empty

    def refuse_waiting(self, error: PenstockError) -> None:
        """Refuse what was handed over and is not on its way yet."""
        waiters, self._publishers = self._publishers, []
        self._pending = BatchBuilder(self._pending.last_timestamp)
        for waiter in [*(one for one, _ in waiters), *self._placing.give_up()]:
            waiter.refused(error)
        while self._queue:
            settle(self._queue.popleft()[2], error)
        self._tell_idle()

    def fence_off(self, end_offset: int) -> None:
        """The server has fewer records than it had confirmed."""
        self._fence = (
            f"the database lost records of this topic: it ends at {end_offset} there, and records"
            f" up to {self._state.end_offset} had been shown"
        )
        self._loader.forget(self)
        error = self._refusal()
        assert error is not None
        self.refuse_waiting(error)

    def _refusal(self) -> UnavailableError | None:
        if self._fence:
            return UnavailableError(
                f"{self._fence}; what is there can be read, a restart goes on from it"
            )
        if self._is_closed:
            return UnavailableError("the log is closed")
        if self._work.trouble:
            return UnavailableError(self._work.trouble)
        return None

    @property
    def loads(self) -> int:
        return self._loader.loads

    @property
    def fence(self) -> str:
        return self._fence

    @property
    def damage(self) -> list[str]:
        return self._damage

    # Reading

    def bounds(self) -> Bounds:
        return Bounds(self._state.first_offset, self._state.end_offset)

    def wait_past(self, offset: int) -> Awaitable[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        if self._is_closed:
            future.set_exception(UnavailableError("the log is closed"))
        elif offset < self._state.end_offset:
            future.set_result(None)
        else:
            self._end_waiters.add(offset, future)
            if not self._pending.is_empty:
                self._committer.touch_soon(self, is_watched=True)
        return future

    async def read(self, offset: int) -> list[Batch]:
        if offset >= self._state.end_offset:
            return []
        if offset >= self._tail.first_offset:
            return self._tail.read(offset, READ_BYTES_MAX)
        self._check_kept(offset)
        found = await self._loader.load(self, offset, lambda: self._fetch_one(offset))
        if not found:
            self._check_kept(offset)  # trimmed meanwhile
            raise CorruptError(self._missing(offset))
        return found

    async def _fetch_one(self, offset: int) -> list[Batch]:
        batch = await self._fetch(offset)
        return [] if batch is None else [batch]

    def _missing(self, offset: int) -> str:
        return (
            f"table {topic_table(self.topic_id)} has no row {offset}, which it must have: somebody"
            " deleted it; put it back from a backup"
        )

    def _check_kept(self, offset: int) -> None:
        first = self._state.first_offset
        if offset < first:
            raise Gap(f"offset {offset} is no longer kept: the first record is {first}")

    def _fetch(self, offset: int) -> Awaitable[Batch | None]:
        end = self._state.end_offset
        return self._work.read(read_batch, self.topic_id, self.epoch, offset, end)

    async def batches_since(self, offset: int) -> AsyncIterator[Batch]:
        offset = max(offset, self._state.first_offset)
        while offset < self._state.end_offset:
            batch = await self._fetch(offset)
            if batch is not None:
                yield batch
                offset = batch.end_offset
                continue
            if offset >= self._state.first_offset:  # else it was trimmed meanwhile
                self._damage.append(self._missing(offset))
            end = self._state.end_offset
            offset = await self._work.read(next_row, self.topic_id, offset, end)
        rest = await self._work.read(build_batch, self.topic_id, self.epoch, offset, [])
        if rest.marks():
            yield rest

    async def offset_at(self, timestamp: int) -> int:
        return await self._find("received_at", timestamp)

    async def _find(self, column: str, value: int) -> int:
        first, end = self.bounds()
        return await self._work.read(find_first, self.topic_id, column, value, first, end)

    # Keeping house

    async def trim(self, before_us: int | None, bytes_max: int | None) -> int:
        async with self._upkeep:
            state = self._state
            was_first = first = state.first_offset
            if before_us is not None and first < state.end_offset:
                first = await self._find("received_at", before_us)
            if bytes_max is not None and state.end_bytes - state.first_bytes > bytes_max:
                # The last one that has at least so much from it on.
                fitting = await self._find("bytes_before", state.end_bytes - bytes_max + 1) - 1
                first = max(first, fitting)
            if first > was_first:
                await self._move_first(first)
            await self._delete_trimmed()
            return first - was_first

    async def _move_first(self, first: int) -> None:
        """From here on nobody reads what lies before; the rows themselves go afterwards."""
        state = self._state
        state.first_bytes = await self._work.change(
            move_first, state.topic_id, first, state.end_bytes
        )
        state.first_offset = first
        self._tail.drop_before(first)

    async def _delete_trimmed(self) -> None:
        while await self._work.read(delete_before, self.topic_id, self._state.first_offset):
            pass

    async def seal_closed(self) -> int:
        return 0

    async def stored_bytes(self) -> int:
        """What the records take, about; the server's own housekeeping aside."""
        return self._state.end_bytes - self._state.first_bytes

    async def clamp(self, epoch: int, offset: int) -> int:
        """Where a position of `epoch` stands now: records lost since then move it back."""
        later = self._state.epoch_starts[epoch:]
        return min([offset, self._state.end_offset, *later])

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        while self._is_busy:
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(idle)
            await idle
        self._end_waiters.fail(UnavailableError("the log is closed"))
        self._loader.forget(self)
        if self._state.is_loose and not self._fence:
            with suppress(UnavailableError):  # then the next opening takes it as lost: an epoch
                await self._tighten()

    async def _tighten(self) -> None:
        """Everything is synced with this commit: nothing that was shown can be lost any more."""
        await self._work.change(set_loose, self.topic_id, is_loose=False)
        self._state.is_loose = False
