"""A log in one partition of Kafka: what a commit is there, following other producers, and reading.

Invariant: offsets [first, end) are stored as safely as Kafka's settings say, and readable; what is
pending or on its way is visible to nobody. Batches are shown in Kafka's order, whoever wrote them:
one of ours that Kafka has confirmed waits until the records before it have been shown. All methods
are called on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from penstock.core.delivery.run import MixedRun, Run
from penstock.core.fences import Fences
from penstock.log.appending import AppendingLog
from penstock.log.cache import ChunkCache
from penstock.log.fencing import fences_in
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import Mark, fence_mark
from penstock.log.interface import Bounds, LogSettings, Waiter
from penstock.log.kafka.ahead import AheadChunks
from penstock.log.kafka.asking import fetch_patiently
from penstock.log.kafka.client import BACKOFF_S, EARLIEST, LATEST, Fetched
from penstock.log.kafka.counts import Counts
from penstock.log.kafka.fetched import decode_fetched, follow_stored, kept_batches
from penstock.log.kafka.records.mapping import encode_batch, own_stamp, record_count
from penstock.log.kafka.records.record_batch import RecordBatch
from penstock.log.kafka.requests import Partition
from penstock.log.kafka.sizes import Sizes, names_bytes
from penstock.log.kafka.work import KafkaJob, KafkaWork
from penstock.log.placing import place
from penstock.log.refusing import find_refusal, tell_fenced
from penstock.log.rounds import Committer
from penstock.log.tail import Tail
from penstock.log.waiting import append_durably
from penstock.model.clock import Clock
from penstock.model.errors import Gap, PenstockError, TooLarge, UnavailableError
from penstock.model.limits import KIB, MIB

TAIL_BYTES_MAX: Final = 4 * MIB  # per log; readers that are almost live ask no server
WRITING_S: Final = 0.05  # so long after a commit a log counts as writing
NAMES_BYTES_MAX: Final = 32 * MIB  # of one append: every record carries its name
INLINE_BYTES_MAX: Final = 32 * KIB  # what is decoded on the event loop


class KafkaLog(AppendingLog[KafkaJob]):
    """Implements `KeptLog` on a partition."""

    def __init__(
        self,
        partition: Partition,
        declared: str,
        settings: LogSettings,
        state: tuple[Bounds, int, int],
        clock: Clock,
        work: KafkaWork,
        cache: ChunkCache,
    ) -> None:
        bounds, epoch, stored_bytes = state
        loop = asyncio.get_running_loop()
        committer: Committer[KafkaJob] = Committer(loop, self)
        super().__init__(
            settings, epoch, bounds.end, 0, clock=clock, loop=loop, committer=committer
        )
        self.partition = partition
        self._declared = declared
        self._first = bounds.first
        self._work = work
        self._tail = Tail(bounds.end, TAIL_BYTES_MAX)
        self._sizes = Sizes(bounds.first, bounds.end, stored_bytes)
        self._counts = Counts(bounds.first, bounds.end)
        self._counting = asyncio.Lock()
        self._chunks = AheadChunks(cache, self._fetch_batches, work.read_ahead)
        self._upkeep = asyncio.Lock()
        self._batch: Batch | None = None  # on its way
        self._job: KafkaJob | None = None
        self._done: Callable[[], None] | None = None
        self._sent_s = 0.0
        self._wrote_s = -WRITING_S  # when our newest batch was shown
        self._catching_up: asyncio.Task[None] | None = None
        self._incarnation = work.incarnation
        self._guarded: list[tuple[int, int]] = []  # pending records that share a fate with marks
        self.fences = Fences()  # those of the catalog, and what was seen since
        self._is_fencing = False  # a fence of ours is pending or on its way

    # Committing

    def append(
        self,
        messages: Sequence[Run] | MixedRun,
        waiter: Waiter | None = None,
        marks: Sequence[Mark] = (),
    ) -> None:
        size = names_bytes(messages)
        if size <= NAMES_BYTES_MAX:
            super().append(messages, waiter, marks)
        elif waiter is not None:
            waiter.refused(
                TooLarge(
                    f"the names of these messages take {size} bytes in Kafka, which stores the "
                    f"name with each message, and at most {NAMES_BYTES_MAX} are accepted at once: "
                    "publish fewer messages at a time, or use shorter names"
                )
            )

    def _accept(
        self,
        messages: Sequence[Run] | MixedRun,
        waiter: Waiter | None,
        marks: Sequence[Mark],
    ) -> None:
        first = self._pending.count
        super()._accept(messages, waiter, marks)
        self._pending.bytes += names_bytes(messages)  # sent with every record
        if marks and self._pending.count > first:
            self._guarded.append((first, self._pending.count))

    def begin_commit(self) -> KafkaJob | None:
        if self._is_committing or self._fence:
            return None
        pending = self._pending
        guarded: list[tuple[int, int]] = []
        if self._placing.is_due(pending):
            batch = self._take_placed()
            place(batch, self.epoch, self._end, 0, pending.stamp_before(self._clock.stamp_us()))
            if batch.header.marks_length:
                guarded = [(0, batch.header.count)]
        elif not pending.is_empty:
            guarded, self._guarded = self._guarded, []
            batch = self._take_pending().encode(self.epoch, self._end, 0)
        else:
            return None
        self._is_committing = True
        self._batch = batch
        batch.incarnation = self._incarnation
        self._job = KafkaJob(self.partition, self._encode(batch, guarded))
        return self._job

    def _encode(self, batch: Batch, guarded: list[tuple[int, int]]) -> bytes:
        producer, sequence = self._work.producer, self._work.sequence(self.partition)
        if not self._incarnation:  # nobody else writes marks, so no fence will make them void
            return encode_batch(batch, producer, sequence)
        return encode_batch(batch, producer, sequence, self._incarnation, guarded)

    def commit(self, jobs: list[KafkaJob], done: Callable[[], None]) -> None:
        """Implements `Rounds`: send the batch, and call `done` once it can be shown."""
        self._done = done
        self._sent_s = self._loop.time()
        self._work.send(jobs[0], self._answered)

    def _answered(self) -> None:
        """Kafka has stored the batch, or refuses it."""
        job = self._job
        assert job is not None
        self.last_sync_s = self._loop.time() - self._sent_s
        if job.is_lost:
            self._fence_lost("it no longer has the newest ones")
        if self._fence and job.error is None:  # what lies before it may have made it void
            job.error = tell_fenced(self._fence)
        if job.error is not None or (job.base_offset == self._end and not job.sent_count):
            self._complete()
        elif self._catching_up is None:  # others wrote before it, or the leader may be another
            self._begin_catching_up(job)

    def _complete(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()

    def _begin_catching_up(self, job: KafkaJob) -> None:
        self._catching_up = self._loop.create_task(self._catch_up(job))
        self._work.insist(self._catching_up, partial(self._begin_catching_up, job))

    async def _catch_up(self, job: KafkaJob) -> None:
        """Show what lies before our batch; note under which leader it was stored."""
        try:
            while self._end < job.base_offset and not self._is_stuck:
                try:
                    fetched = await self._fetch(self._end)
                    if fetched.error:
                        await self.look_at_bounds()
                    else:
                        self.take(fetched)
                except PenstockError:
                    await asyncio.sleep(BACKOFF_S)
            if job.sent_count and not self._is_stuck:
                await self._learn_epoch()
        finally:
            self._catching_up = None
        if self._is_stuck:
            job.error = self._refusal() or UnavailableError("the broker was stopped")
        self._complete()

    @property
    def _is_stuck(self) -> bool:
        return bool(self._fence) or self._work.is_giving_up

    async def _learn_epoch(self) -> None:
        while not self._is_stuck:
            try:
                _, epoch = await self._work.client.offset(self.partition, LATEST)
            except PenstockError:
                await asyncio.sleep(BACKOFF_S)
                continue
            self.epoch = max(self.epoch, epoch + 1)
            return

    def finish_commit(self, job: KafkaJob) -> None:
        self._is_committing = False
        batch, self._batch, self._job = self._batch, None, None
        assert batch is not None
        if job.error is None:
            batch.header.epoch = self.epoch
            batch.move_to(job.base_offset)
            count = record_count(batch, is_shared=bool(self._incarnation))
            batch.end_offset = job.base_offset + count
            self._work.count_stored(self.partition, count)
            self._wrote_s = self._loop.time()
            self._keep(batch, len(job.data))
            if self._is_fencing:
                self._note_fences(batch)
            self._show(batch)
        else:
            self._refuse(job.error)
        self._go_on()

    def _keep(self, batch: Batch, size: int) -> None:
        self._sizes.add(batch.end_offset, size)
        self._counts.add(batch)
        self._tail.append(batch)

    # Following other producers

    @property
    def next_offset(self) -> int:
        return self._end

    @property
    def is_level(self) -> bool:
        """Where several nodes write, nothing goes ahead of its commit."""
        return not self._incarnation and super().is_level

    @property
    def is_writing(self) -> bool:
        return self._is_committing or self._loop.time() - self._wrote_s < WRITING_S

    def take(self, fetched: Fetched) -> None:
        """Show records of others; ours are shown when Kafka has confirmed them."""
        if self._fence:
            return
        self._first = max(self._first, fetched.log_start)
        try:
            self._take(fetched)
        except PenstockError as broken:  # nothing after it can be shown in order
            self.fence_off(f"topic {self.partition.topic!r} cannot be followed: {broken}")

    def _take(self, fetched: Fetched) -> None:
        for stored, is_aborted in kept_batches(fetched, self._end):
            self.epoch = max(self.epoch, stored.leader_epoch + 1)
            if self._is_ours(stored):
                return
            if stored.end_offset <= self._end:
                continue
            size = stored.stored_length
            shown = follow_stored(stored, is_aborted, self._end, self._declared, self.fences)
            for batch in shown:
                self._keep(batch, size)
                size = 0
                if batch.incarnation:
                    self._note_fences(batch)
                self._show_others(batch)
            if self._fence:
                return

    def _is_ours(self, stored: RecordBatch) -> bool:
        """Whether it is the batch on its way."""
        return (
            self._job is not None
            and (stored.producer_id, stored.producer_epoch) == self._work.producer
            and stored.base_sequence == self._work.sequence(self.partition)
        )

    def _show_others(self, batch: Batch) -> None:
        """As `_show`, for a batch that nobody waits for."""
        self._end = batch.end_offset
        if self._end_waiters.waiting:
            self._end_waiters.wake(self._end)
        if self.on_commit is not None:
            self.is_awaited = False
            self.on_commit(batch, None)

    async def look_at_bounds(self) -> None:
        """Kafka has no record at our end, and will not have one: see what happened."""
        client = self._work.client
        first, _ = await client.offset(self.partition, EARLIEST)
        end, _ = await client.offset(self.partition, LATEST)
        self._first = max(self._first, first)
        if self._end > end and not self._fence:
            self._fence_lost(
                f"the partition ends at offset {end} there, but readers have seen records before "
                f"offset {self._end}"
            )
        elif self._end < self._first:  # somebody deleted what we had not seen yet
            self._tail = Tail(self._first, TAIL_BYTES_MAX)
            self._counts = Counts(self._first, self._first)
            self._end = self._first

    def _fence_lost(self, how: str) -> None:
        self.fence_off(f"Kafka lost records of topic {self.partition.topic!r}: {how}")

    def refuse_waiting(self, error: Exception) -> None:
        self._guarded = []
        super().refuse_waiting(error)

    def fence_off(self, reason: str) -> None:
        """What is in Kafka cannot be continued."""
        self._fence = reason
        self._chunks.forget()
        self.refuse_waiting(tell_fenced(self._fence))

    def _refusal(self) -> UnavailableError | None:
        return find_refusal(self._fence, self._is_closed, self._work.trouble)

    @property
    def loads(self) -> int:
        return self._chunks.loads

    @property
    def tail_bytes(self) -> int:
        return self._tail.bytes

    @property
    def damage(self) -> list[str]:
        return []

    # Fences

    async def append_fence(self, incarnation: int) -> int:
        """Marked records of a dead node that come later are void; the offset of its first fence."""
        self._is_fencing = True
        await append_durably(self, [], [fence_mark(incarnation)])
        offset = self.fences.offset_of(incarnation)
        assert offset is not None, "it was shown before it was confirmed"
        return offset

    def learn_fences(self, known: Mapping[int, int]) -> None:
        """Fences that lie before the end and were not seen here: this node opened the log later."""
        news = [self.fences.note(incarnation, offset) for incarnation, offset in known.items()]
        if any(news):
            self._tail = Tail(self._end, TAIL_BYTES_MAX)  # it may hold what is void
            self._chunks.forget()

    def _note_fences(self, batch: Batch) -> None:
        for incarnation, offset in fences_in(batch):
            self.fences.note(incarnation, offset)
            if incarnation == self._incarnation:
                self.fence_off("other nodes have declared this node dead")
                self._work.declare_dead()

    async def wait_followed(self, offset: int) -> None:
        """Suspends until the records before `offset`, which another node has seen, are here.

        Kafka may have lost them since: then it is enough to be where it ends.
        """
        if self._end >= offset:
            return
        end, _ = await self._work.client.offset(self.partition, LATEST)
        if self._end < min(offset, end):
            await self.wait_past(min(offset, end) - 1)

    # Reading

    def bounds(self) -> Bounds:
        return Bounds(self._first, self._end)

    def count_from(self, offset: int) -> int:
        return self._counts.between(max(offset, self._first), self._end)

    async def learn_count(self) -> None:
        async with self._counting:
            start = self._counts.look_back_from(self._first)
            if start < self._counts.known_from:
                await self._counts.look_back(start, self.batches_since(start))

    @property
    def hot_first(self) -> int:
        return self._first

    async def read(self, offset: int) -> list[Batch]:
        if offset >= self._end:
            return []
        self._check_kept(offset)
        if offset >= self._tail.first_offset:
            return self._tail.read(offset, MIB)
        found = await self._chunks.read(offset, self._tail.first_offset)
        self._check_kept(offset)  # trimmed meanwhile
        if not found:
            raise UnavailableError(
                f"Kafka did not give the record at offset {offset} of {self.partition.topic!r}: "
                "try again"
            )
        return found

    def _check_kept(self, offset: int) -> None:
        if offset < self._first:
            raise Gap(f"offset {offset} is no longer kept: the first record is {self._first}")

    async def _fetch_batches(self, offset: int) -> list[Batch]:
        fetched = await self._fetch(offset)
        self._first = max(self._first, fetched.log_start)
        end = self._end
        if len(fetched.data) <= INLINE_BYTES_MAX:
            return decode_fetched(fetched, offset, end, self._declared, self.fences)
        return await self._loop.run_in_executor(
            None, decode_fetched, fetched, offset, end, self._declared, self.fences
        )

    async def _fetch(self, offset: int) -> Fetched:
        return await fetch_patiently(self._work.client, self.partition, offset)

    async def batches_since(self, offset: int) -> AsyncIterator[Batch]:
        offset = max(offset, self._first)
        while offset < self._end:
            try:
                found = await self.read(offset)
            except Gap:
                offset = self._first
                continue
            for batch in found:
                yield batch
                offset = batch.end_offset

    async def offset_at(self, timestamp: int) -> int:
        first, end = self.bounds()
        found, _ = await self._work.client.offset(self.partition, max(timestamp // 1_000, 0))
        offset = end if found < 0 else max(found, first)
        while offset < end:  # Kafka knows milliseconds
            for batch in await self.read(offset):
                index = batch.index_at(timestamp)
                if index < batch.header.count:
                    return min(max(batch.base_offset + index, offset), end)
                offset = batch.end_offset
        return end

    async def learn_last_stamp(self) -> None:
        """What is appended next is not stamped before the newest record."""
        first, end = self.bounds()
        offset = max(first, end - 1)
        if offset < end:
            newest = kept_batches(await self._fetch(offset), offset)
            self._pending = BatchBuilder(
                max([own_stamp(stored) for stored, _ in newest], default=0)
            )

    # Keeping house

    async def trim(self, before_us: int | None, bytes_max: int | None) -> int:
        async with self._upkeep:
            was_first = first = self._first
            if before_us is not None and first < self._end:
                first = await self.offset_at(before_us)
            if bytes_max is not None and self._sizes.kept(self._first) > bytes_max:
                first = max(first, self._sizes.first_within(bytes_max))
            if first > was_first:
                self._first = await self._work.client.delete_before(self.partition, first)
                self._tail.drop_before(self._first)
            return self._first - was_first

    async def tier(self, before_us: int | None, bytes_max: int | None) -> None:
        return

    async def seal_closed(self) -> int:
        return 0

    async def stored_bytes(self) -> int:
        """What the records take, about; copies on other brokers not counted."""
        return self._sizes.kept(self._first)

    async def clamp(self, epoch: int, offset: int) -> int:
        """Where a position of `epoch` stands now: records lost since then move it back."""
        offset = min(offset, self._end)
        if epoch <= 0 or epoch >= self.epoch:
            return offset
        end = await self._work.client.end_of_epoch(self.partition, epoch - 1)
        return offset if end < 0 else min(offset, end)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        while self._is_busy:
            await self._next_idle()
        self._work.leave(self)
        self._end_waiters.fail(UnavailableError("the log is closed"))
        self._chunks.close()
