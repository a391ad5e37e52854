"""What appending to a log is, wherever its records are kept: gather, commit in rounds, show.

Invariant: what is pending or on its way is visible to nobody; offsets below `_end` are kept at the
log's level and readable, and callers that wait for a commit are told after its readers.
All methods are called on the event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Final, Generic

from mypy_extensions import mypyc_attr

from penstock.core.delivery.run import MixedRun, Run
from penstock.core.erasure import Erasure
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import NO_RECORD, Mark
from penstock.log.history.tier import LogHistory
from penstock.log.interface import Bounds, LogSettings, OnCommit, OnLost, Waiter
from penstock.log.placing import Placing
from penstock.log.rounds import Committer, J
from penstock.log.waiting import EndWaiters
from penstock.model.clock import Clock
from penstock.model.errors import RefusedError, UnavailableError
from penstock.model.limits import KIB, MIB

LINGER_BYTES_MAX: Final = 64 * KIB  # what nobody waits for is written once this much has come
PENDING_BYTES_MAX = 8 * MIB  # what one commit takes; publishers beyond it wait
# (Not Final, which the compiler would write into the code: simulations make it small.)


@mypyc_attr(allow_interpreted_subclasses=True)
class AppendingLog(ABC, Generic[J]):
    """The half of a `KeptLog` that takes messages; `J` is how its backend stores a batch."""

    def __init__(
        self,
        settings: LogSettings,
        epoch: int,
        end: int,
        last_timestamp: int,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        committer: Committer[J],
    ) -> None:
        self.settings = settings
        self.epoch = epoch
        self.on_commit: OnCommit | None = None
        self.on_lost: OnLost | None = None
        self.is_watched = False
        self.last_sync_s = 0.0
        self.is_awaited = False
        self.history: LogHistory | None = None
        self.erasures: Sequence[Erasure] = ()
        self._clock = clock
        self._loop = loop
        self._committer = committer
        self._end = end
        self._pending = BatchBuilder(last_timestamp)
        self._pending_bytes_max: int = PENDING_BYTES_MAX
        self._publishers: list[tuple[Waiter, int]] = []
        self._in_flight: list[tuple[Waiter, int]] = []
        # What is to be delivered once it is visible: pending, and on its way. The latter is None
        # for a batch that was encoded elsewhere.
        self._runs: list[tuple[int, Run]] = []
        self._runs_in_flight: list[tuple[int, Run]] | None = []
        self._in_flight_count = 0  # records on their way
        self._unawaited = 0  # pending messages whose loss no waiter hears of
        self._unawaited_in_flight = 0
        self._queue: deque[tuple[Sequence[Run] | MixedRun, Waiter | None, Sequence[Mark]]]
        self._queue = deque()  # came while too much was pending
        self._is_retaining = False  # a retained message is pending
        self._is_retaining_in_flight = False  # or on its way
        self._placing = Placing()
        self._is_committing = False
        self._fence = ""
        self._is_closed = False
        self._end_waiters = EndWaiters()
        self._idle_waiters: list[asyncio.Future[None]] = []

    # What a backend does

    @abstractmethod
    def begin_commit(self) -> J | None:
        """Take what is next into a batch, if nothing is on its way (called by the Committer)."""

    @abstractmethod
    def finish_commit(self, job: J) -> None:
        """The batch is stored, or was refused (called by the Committer)."""

    @abstractmethod
    def bounds(self) -> Bounds:
        """The offsets a reader may ask for."""

    @abstractmethod
    def _refusal(self) -> UnavailableError | None:
        """Why nothing can be appended, if so."""

    def count_from(self, offset: int) -> int:
        first, end = self.bounds()
        return max(end - max(offset, first), 0)

    async def learn_count(self) -> None:
        return

    async def keep_erasures(self, erasures: Sequence[Erasure]) -> None:
        raise _not_erasable()

    async def erase(self, erasure: Erasure, *, dry_run: bool) -> int:
        raise _not_erasable()

    async def erase_history(self, erasure: Erasure, *, dry_run: bool) -> int:
        return 0

    # What publishers and doors do

    def append(
        self,
        messages: Sequence[Run] | MixedRun,
        waiter: Waiter | None = None,
        marks: Sequence[Mark] = (),
    ) -> None:
        refusal = self._refusal()
        if refusal is not None:
            if waiter is not None:
                waiter.refused(refusal)
            else:
                self._lose(count_of(messages))
        elif self._queue or self._pending.bytes >= self._pending_bytes_max:
            self._queue.append((messages, waiter, marks))
        else:
            self._accept(messages, waiter, marks)

    def _accept(
        self,
        messages: Sequence[Run] | MixedRun,
        waiter: Waiter | None,
        marks: Sequence[Mark],
    ) -> None:
        pending = self._pending
        now_us = self._clock.stamp_us()
        index = pending.count
        is_urgent = False
        if isinstance(messages, MixedRun):
            pending.add_mixed(messages, now_us)
        else:
            for run in messages:
                if run.count:
                    at = pending.add(run, now_us)
                    if not run.is_forwarded:
                        self._runs.append((at, run))
                    if run.qos:
                        is_urgent = True
                    if run.retain:
                        is_urgent = self._is_retaining = True
        if marks:
            for mark in marks:
                at = mark.index if mark.index == NO_RECORD else index + mark.index
                pending.add_mark(mark.kind, mark.key, at)
            is_urgent = True
        if waiter is not None:
            if not pending.is_empty:
                self._publishers.append((waiter, index))
            elif self._is_committing:  # nothing at all: durable with what is before it
                self._in_flight.append((waiter, self._in_flight_count))
            else:
                waiter.committed(self._end)
        else:
            self._unawaited += pending.count - index
        if is_urgent:
            self._committer.touch(self)
        elif pending.count > index:
            self._touch_soon()

    def _touch_soon(self) -> None:
        """Something is pending that may gather: it is committed after more of it came."""
        if self._pending.bytes >= LINGER_BYTES_MAX:
            self._committer.touch(self)
        else:
            is_watched = self.is_watched or bool(self._end_waiters.waiting)
            self._committer.touch_soon(self, is_watched)

    def append_batch(self, batch: Batch, waiter: Waiter | None = None) -> None:
        refusal = self._refusal()
        if refusal is None:
            self._placing.add(batch, waiter, self._pending)
            self._committer.touch(self)
        elif waiter is not None:
            waiter.refused(refusal)

    @property
    def is_congested(self) -> bool:
        return bool(self._queue) or self._pending.bytes >= self._pending_bytes_max

    @property
    def is_level(self) -> bool:
        if self._runs or self._placing.waiting or self.is_congested:
            return False  # what finds no room waits in a queue, where a placed batch overtakes it
        return self._runs_in_flight is not None and not self._runs_in_flight

    @property
    def is_retaining(self) -> bool:
        # What is queued may be. A batch that was encoded elsewhere never retains (log/staging).
        return self._is_retaining or self._is_retaining_in_flight or bool(self._queue)

    @property
    def fence(self) -> str:
        """Why the log takes no appends; empty while it does."""
        return self._fence

    def wait_past(self, offset: int) -> Awaitable[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        if self._is_closed:
            future.set_exception(UnavailableError("the log is closed"))
        elif offset < self._end:
            future.set_result(None)
        else:
            self._end_waiters.add(offset, future)
            if not self._pending.is_empty:
                self._committer.touch_soon(self, True)
        return future

    # The steps of a commit

    def _take_pending(self) -> BatchBuilder:
        """What publishers appended, on its way from now on; the next ones begin anew."""
        pending = self._pending
        self._pending = BatchBuilder(pending.last_timestamp)
        self._in_flight, self._publishers = self._publishers, []
        self._unawaited_in_flight, self._unawaited = self._unawaited, 0
        self._runs_in_flight, self._runs = self._runs, []
        self._is_retaining_in_flight, self._is_retaining = self._is_retaining, False
        self._in_flight_count = pending.count
        return pending

    def _take_placed(self) -> Batch:
        """The next batch that was encoded elsewhere; what is pending comes after it."""
        batch, waiter = self._placing.take()
        self._in_flight = [] if waiter is None else [(waiter, 0)]
        self._unawaited_in_flight = 0
        self._runs_in_flight = None
        self._in_flight_count = batch.header.count
        return batch

    def _show(self, batch: Batch) -> None:
        """The batch is stored: readers are given it, then its publishers hear of it."""
        self._end = batch.end_offset
        if self._end_waiters.waiting:
            self._end_waiters.wake(self._end)
        runs, self._runs_in_flight = self._runs_in_flight, []
        self._is_retaining_in_flight = False
        if self.on_commit is not None:
            self.is_awaited = bool(self._in_flight)
            self.on_commit(batch, runs)
        base = batch.base_offset
        waiters, self._in_flight = self._in_flight, []
        for waiter, index in waiters:
            waiter.committed(base + index)

    def _refuse(self, error: Exception) -> None:
        """Nothing of the batch was stored."""
        self._lose(self._unawaited_in_flight)
        self._runs_in_flight = []
        self._is_retaining_in_flight = False
        waiters, self._in_flight = self._in_flight, []
        for waiter, _ in waiters:
            waiter.refused(error)

    def _go_on(self) -> None:
        """A commit is over: admit waiting publishers, announce what is left, or be idle."""
        while self._queue and self._pending.bytes < self._pending_bytes_max:
            messages, waiter, marks = self._queue.popleft()
            if waiter is None or not waiter.has_given_up:
                self._accept(messages, waiter, marks)
        # What nobody else announces: batches encoded elsewhere, and who waited for their turn.
        placing = self._placing
        if placing.waiting or (placing.had_last_turn and not self._pending.is_empty):
            self._committer.touch(self)
        if self._idle_waiters:
            self._tell_idle()

    def refuse_waiting(self, error: Exception) -> None:
        """Refuse what was handed over and is not on its way yet."""
        publishers, self._publishers = self._publishers, []
        unawaited, self._unawaited = self._unawaited, 0
        self._pending = BatchBuilder(self._pending.last_timestamp)
        self._runs = []
        self._is_retaining = False
        refused: list[Waiter | None] = [waiter for waiter, _ in publishers]
        refused += self._placing.give_up()
        refused += [waiter for _, waiter, _ in self._queue]
        for messages, waiter, _ in self._queue:
            if waiter is None:
                unawaited += count_of(messages)
        self._queue.clear()
        for waiter in refused:
            if waiter is not None:
                waiter.refused(error)
        self._lose(unawaited)
        self._tell_idle()

    def _lose(self, count: int) -> None:
        """So many messages were not stored, and no waiter hears of that."""
        if count and self.on_lost is not None:
            self.on_lost(count)

    # Coming to rest

    @property
    def _is_busy(self) -> bool:
        return self._is_committing or bool(self._placing.waiting) or not self._pending.is_empty

    def _tell_idle(self) -> None:
        if not self._is_busy:
            idle, self._idle_waiters = self._idle_waiters, []
            for one in idle:
                if not one.done():
                    one.set_result(None)

    def _next_idle(self) -> asyncio.Future[None]:
        """Resolves when nothing is pending or on its way."""
        idle: asyncio.Future[None] = self._loop.create_future()
        self._idle_waiters.append(idle)
        return idle


def count_of(messages: Sequence[Run] | MixedRun) -> int:
    """How many messages they are."""
    if isinstance(messages, MixedRun):
        return sum(messages.counts)
    return sum([run.count for run in messages])


def _not_erasable() -> RefusedError:
    return RefusedError(
        "records can be erased only from topics that are stored in files: delete them where this "
        "topic is stored, or delete the topic"
    )
