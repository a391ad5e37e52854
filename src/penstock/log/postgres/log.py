"""A log in a table of PostgreSQL: what a commit takes there, and reading.

Invariant: offsets [first, end) are stored at the log's level and readable; what is pending or on
its way is visible to nobody. All methods are called on the event loop; statements run on the
threads of PostgresWork, one round at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Final

from penstock.log.appending import AppendingLog
from penstock.log.cache import ChunkCache
from penstock.log.format.batch import Batch
from penstock.log.interface import (
    FSYNC,
    Bounds,
    LogSettings,
)
from penstock.log.loading import ChunkLoader
from penstock.log.placing import place
from penstock.log.postgres.tables import (
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
from penstock.log.postgres.work import PostgresJob, PostgresWork
from penstock.log.refusing import find_refusal, tell_fenced
from penstock.log.rounds import Committer
from penstock.log.tail import Tail
from penstock.model.clock import Clock
from penstock.model.errors import CorruptError, Gap, UnavailableError
from penstock.model.limits import MIB

TAIL_BYTES_MAX: Final = 4 * MIB  # per log; readers that are almost live ask no server


class PostgresLog(AppendingLog[PostgresJob]):
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
        end, stamp = state.end_offset, state.last_timestamp
        super().__init__(
            settings, state.epoch, end, stamp, clock=clock, loop=loop, committer=committer
        )
        self._state = state
        self._work = work
        self._tail = Tail(end, TAIL_BYTES_MAX)
        self._damage: list[str] = []
        self._loader = ChunkLoader(cache, loop)
        self._upkeep = asyncio.Lock()

    @property
    def topic_id(self) -> int:
        return self._state.topic_id

    # Committing

    def begin_commit(self) -> PostgresJob | None:
        if self._is_committing or self._fence:
            return None
        state, pending = self._state, self._pending
        if self._placing.is_due(pending):
            batch = self._take_placed()
            stamp = pending.stamp_before(self._clock.stamp_us())
            place(batch, self.epoch, state.end_offset, 0, stamp)
        elif not pending.is_empty:
            batch = self._take_pending().encode(self.epoch, state.end_offset, 0)
        else:
            return None
        is_strict = self.settings.durability == FSYNC
        # That commits are confirmed early is synced first, with the batch that begins it.
        move = Move(state.topic_id, batch, state.end_bytes, state.is_loose or not is_strict)
        self._is_committing = True
        return PostgresJob(move, needs_sync=is_strict or not state.is_loose)

    def finish_commit(self, job: PostgresJob) -> None:
        self._is_committing = False
        if job.error is None:
            self.last_sync_s = job.sync_s
            self._keep(job.move)
            self._show(job.move.batch)
        else:
            self._refuse(job.error)
        self._go_on()

    def _keep(self, move: Move) -> None:
        """Know of the batch what later reads and commits need."""
        state, batch = self._state, move.batch
        state.end_offset = batch.end_offset
        state.end_bytes = move.end_bytes
        state.last_timestamp = batch.header.last_timestamp
        state.is_loose = move.is_loose
        self._tail.append(batch)

    def fence_off(self, end_offset: int) -> None:
        """The server has fewer records than it had confirmed."""
        self._fence = (
            f"the database lost records of this topic: it ends at offset {end_offset} there, but "
            f"readers have seen records before offset {self._state.end_offset}"
        )
        self._loader.forget(self)
        self.refuse_waiting(tell_fenced(self._fence))

    def _refusal(self) -> UnavailableError | None:
        return find_refusal(self._fence, self._is_closed, self._work.trouble)

    @property
    def loads(self) -> int:
        return self._loader.loads

    @property
    def tail_bytes(self) -> int:
        return self._tail.bytes

    @property
    def damage(self) -> list[str]:
        return self._damage

    # Reading

    def bounds(self) -> Bounds:
        return Bounds(self._state.first_offset, self._state.end_offset)

    @property
    def hot_first(self) -> int:
        return self._state.first_offset

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
            f"table {topic_table(self.topic_id)} lacks row {offset}: somebody deleted it; restore "
            "it from a backup"
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
        return await self._work.read(find_first, self.topic_id, column, value, first=first, end=end)

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

    async def tier(self, before_us: int | None, bytes_max: int | None) -> None:
        return

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
            await self._next_idle()
        self._end_waiters.fail(UnavailableError("the log is closed"))
        self._loader.forget(self)
        if self._state.is_loose and not self._fence:
            with suppress(UnavailableError):  # then the next opening takes it as lost: an epoch
                await self._tighten()

    async def _tighten(self) -> None:
        """Everything is synced with this commit: no visible record can be lost."""
        await self._work.change(set_loose, self.topic_id, is_loose=False)
        self._state.is_loose = False
