"""What appending to a log is, wherever its records are kept: gather, commit in rounds, show.

Invariant: what is pending or on its way is visible to nobody; offsets below `_end` are kept at the
log's level and readable, and whoever waits for a commit hears of it after its readers.
All methods are called on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Final, Generic

from mypy_extensions import mypyc_attr

from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import Mark
from penstock.log.interface import Draft, LogSettings, OnCommit, Waiter, add_draft
from penstock.log.placing import Placing
from penstock.log.rounds import Committer, J
from penstock.log.waiting import EndWaiters, FutureWaiter
from penstock.model.clock import Clock
from penstock.model.errors import UnavailableError
from penstock.model.limits import KIB, MIB

LINGER_BYTES_MAX: Final = 64 * KIB  # what nobody waits for is written once this much has come
PENDING_BYTES_MAX = 8 * MIB  # what one commit takes; publishers beyond it wait
# (Not Final, which the compiler would write into the code: simulations make it small.)


@mypyc_attr(allow_interpreted_subclasses=True)
class AppendingLog(Generic[J]):
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
        self.is_watched = False
        self.last_sync_s = 0.0
        self._clock = clock
        self._loop = loop
        self._committer = committer
        self._end = end
        self._pending = BatchBuilder(last_timestamp)
        self._publishers: list[tuple[Waiter, int]] = []
        self._in_flight: list[tuple[Waiter, int]] = []
        self._queue: deque[tuple[Draft, Sequence[Mark], FutureWaiter]] = deque()
        self._placing = Placing()
        self._is_committing = False
        self._fence = ""
        self._is_closed = False
        self._end_waiters = EndWaiters()
        self._idle_waiters: list[asyncio.Future[None]] = []

    # What a backend does

    def begin_commit(self) -> J | None:
        """Take what is next into a batch, if nothing is on its way (called by the Committer)."""
        raise NotImplementedError

    def finish_commit(self, job: J) -> None:
        """The batch is stored, or was refused (called by the Committer)."""
        raise NotImplementedError

    def _refusal(self) -> UnavailableError | None:
        """Why nothing can be appended, if so."""
        raise NotImplementedError

    # What publishers and doors do

    def append(
        self, draft: Draft, marks: Sequence[Mark] = (), waiter: Waiter | None = None
    ) -> Awaitable[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        outcome = FutureWaiter(future, waiter)
        refusal = self._refusal()
        if refusal is not None:
            outcome.refused(refusal)
        elif not draft.payloads and not marks:
            outcome.committed(self._end)
        elif self._queue or self._pending.bytes >= PENDING_BYTES_MAX:
            self._queue.append((draft, marks, outcome))
        else:
            self._accept(draft, marks, outcome)
        return future

    def _accept(self, draft: Draft, marks: Sequence[Mark], outcome: FutureWaiter) -> None:
        index = add_draft(self._pending, draft, marks, self._clock.stamp_us())
        self._publishers.append((outcome, index))
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
        now_us = self._clock.stamp_us()
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
            now_us = self._clock.stamp_us()
            self._pending.add_names(names, counts, data, starts, lengths, now_us, publisher)
            self._touch(False)

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
        return pending

    def _take_placed(self) -> Batch:
        """The next batch that was encoded elsewhere; what is pending comes after it."""
        batch, waiter = self._placing.take()
        self._in_flight = [(waiter, 0)]
        return batch

    def _show(self, batch: Batch) -> None:
        """The batch is stored: readers see it, then its publishers hear of it."""
        self._end = batch.end_offset
        self._end_waiters.wake(self._end)
        if self.on_commit is not None:
            self.on_commit(batch)
        base = batch.base_offset
        waiters, self._in_flight = self._in_flight, []
        for waiter, index in waiters:
            waiter.committed(base + index)

    def _refuse(self, error: Exception) -> None:
        """Nothing of the batch was stored."""
        waiters, self._in_flight = self._in_flight, []
        for waiter, _ in waiters:
            waiter.refused(error)

    def _go_on(self) -> None:
        """A commit is over: let in who had to wait, announce what is left, or be idle."""
        while self._queue and self._pending.bytes < PENDING_BYTES_MAX:
            draft, marks, outcome = self._queue.popleft()
            if outcome.is_given_up:
                outcome.refused(UnavailableError("its publisher gave up: nothing was stored"))
            else:
                self._accept(draft, marks, outcome)
        if self._placing.leaves_work(self._pending):
            self._committer.touch(self)
        self._tell_idle()

    def refuse_waiting(self, error: Exception) -> None:
        """Refuse what was handed over and is not on its way yet."""
        waiters, self._publishers = self._publishers, []
        self._pending = BatchBuilder(self._pending.last_timestamp)
        for waiter, _ in waiters:
            waiter.refused(error)
        for waiter in self._placing.give_up():
            waiter.refused(error)
        while self._queue:
            self._queue.popleft()[2].refused(error)
        self._tell_idle()

    # Coming to rest

    @property
    def _is_busy(self) -> bool:
        return self._is_committing or self._placing.is_waiting or not self._pending.is_empty

    def _tell_idle(self) -> None:
        if self._idle_waiters and not self._is_busy:
            idle, self._idle_waiters = self._idle_waiters, []
            for one in idle:
                if not one.done():
                    one.set_result(None)

    def _next_idle(self) -> asyncio.Future[None]:
        """Resolves when nothing is pending or on its way."""
        idle: asyncio.Future[None] = self._loop.create_future()
        self._idle_waiters.append(idle)
        return idle
