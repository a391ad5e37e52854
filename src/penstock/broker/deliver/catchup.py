"""Catching up: readers that lag in a topic go through its log together.

One pass in offset order serves all of them: each batch is read once, and for sessions decoded once,
and only if one of them wants a name in it. Who joins behind the pass waits for the next one, so
newcomers never hold up those who are almost there. A reader whose window is full leaves and joins a
later pass: a storm of returning clients costs what matches, not sessions times records. A reader
that is level with the durable end leaves by itself: from then on commits are handed to it.

Readers of what only the history holds have a pass of their own: its store may be slow or away, and
those who read the log do not wait for it.

Invariant: everything below `lags[topic id]` was served to the reader. A slice is served to those
whose position is inside it at that moment, in one call without a suspension, so nobody is served a
record twice and nobody is moved past one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from penstock.broker.deliver.routes import Member, Router
from penstock.broker.deliver.stored_runs import stored_runs
from penstock.broker.figures.metrics import Metrics
from penstock.broker.queue.consumers import read_batches
from penstock.broker.session.session import Session
from penstock.broker.topic.topics import Topic
from penstock.core.delivery.rule import is_from, qos_from_log
from penstock.core.delivery.run import Encoding, Run
from penstock.log.format.batch import Batch
from penstock.model.errors import CorruptError, Gap, UnavailableError
from penstock.model.timeline import Timeline

WHOLE_BATCH: Final = 1 << 32  # runs are handed on without being taken apart: no need to divide


class Lagging(Protocol):
    """A reader that may lag behind the durable end of a topic."""

    lags: dict[int, int]  # topic id -> the offset to go on at


R = TypeVar("R", bound=Lagging)
# Hand [start, end) of a batch to readers whose position is in it. A reader that cannot take all of
# it is moved to what comes next for it, and leaves; the others are moved to the end.
Serve = Callable[[Batch, int, int, set[R]], None]


class _Pass:
    """Where a pass is, and the task that goes on with it."""

    def __init__(self, *, is_cold: bool) -> None:
        self.is_cold = is_cold  # through the history
        self.cursor = 0
        self.task: asyncio.Task[None] | None = None


class CatchUp(Generic[R]):
    """The passes through one topic. They end by themselves when all readers have left."""

    def __init__(
        self,
        topic: Topic,
        serve: Serve[R],
        slice_max: int,
        metrics: Metrics,
        on_trouble: Callable[[str], None],
    ) -> None:
        self.topic = topic
        self.readers: dict[R, int] = {}  # where each goes on
        self._serve = serve
        self._slice_max = slice_max  # records served before others get their turn
        self._metrics = metrics
        self._on_trouble = on_trouble
        self._passes = (_Pass(is_cold=False), _Pass(is_cold=True))

    @property
    def is_running(self) -> bool:
        return any(one.task is not None for one in self._passes)

    def join(self, reader: R) -> None:
        """Take part from where the reader lags."""
        offset = reader.lags.get(self.topic.id)
        if offset is None or reader in self.readers:
            return
        self.readers[reader] = offset
        self._go_on()

    def leave(self, reader: R) -> None:
        """Stop catching up; the reader's lags still say where it continues."""
        self.readers.pop(reader, None)

    def move(self, reader: R, offset: int) -> None:
        """The reader has been served everything below `offset`."""
        self.readers[reader] = offset
        reader.lags[self.topic.id] = offset

    async def wait_done(self) -> None:
        """Suspends until all readers have left."""
        while running := [one.task for one in self._passes if one.task is not None]:
            await asyncio.wait(running)

    def _go_on(self) -> None:
        """Begin the passes that have readers."""
        for one in self._passes:
            if one.task is None and self._offsets(one):
                one.task = asyncio.get_running_loop().create_task(self._run(one))

    def _offsets(self, one: _Pass) -> list[int]:
        """Where the readers of a pass are; one that crosses the border is in the other pass."""
        border = self.topic.log.hot_first
        return [offset for offset in self.readers.values() if (offset < border) == one.is_cold]

    async def _run(self, one: _Pass) -> None:
        try:
            while offsets := self._offsets(one):
                await self._step(one, offsets)
                self._go_on()
        except (CorruptError, UnavailableError) as trouble:
            self._on_trouble(f"{self.topic.declared}: {trouble}")
            border = self.topic.log.hot_first
            for reader, offset in list(self.readers.items()):
                if (offset < border) == one.is_cold:
                    self.leave(reader)
        finally:
            one.task = None
        self._go_on()

    async def _step(self, one: _Pass, offsets: list[int]) -> None:
        """Read on from where the pass is to the next reader; from the back when nobody is ahead."""
        ahead = [offset for offset in offsets if offset >= one.cursor]
        offset = one.cursor = min(ahead or offsets)
        log = self.topic.log
        try:
            batches = await read_batches(self.topic, offset, is_patient=True)
        except Gap:
            self._skip(log.bounds().first)
            return
        if not batches:
            self._arrive(log.bounds().end)
            return
        for batch in batches:
            await self._serve_batch(batch)
        one.cursor = max(offset, batches[-1].end_offset)
        await asyncio.sleep(0)  # a long pass leaves room for everybody else

    async def _serve_batch(self, batch: Batch) -> None:
        start = batch.base_offset
        while start < batch.end_offset:
            end = min(start + self._slice_max, batch.end_offset)
            here = {reader for reader, offset in self.readers.items() if start <= offset < end}
            if here:
                self._serve(batch, start, end, here)
                for reader in here:
                    if reader in self.readers:
                        self.move(reader, end)
                if end < batch.end_offset:
                    await asyncio.sleep(0)
            start = end

    def _skip(self, first: int) -> None:
        """Retention was faster."""
        for reader, offset in list(self.readers.items()):
            if offset < first:
                self._metrics.dropped["retention"] += first - offset
                self.move(reader, first)

    def _arrive(self, end: int) -> None:
        """Readers at the end are level: commits are handed to them again."""
        for reader in [one for one, offset in self.readers.items() if offset >= end]:
            self.leave(reader)
            reader.lags.pop(self.topic.id, None)


class SessionCatchUp:
    """Sessions that catch up with one topic: `catchup` is their pass."""

    def __init__(
        self,
        topic: Topic,
        router: Router,
        metrics: Metrics,
        clock: Timeline,
        on_trouble: Callable[[str], None],
        keeps_qos0: bool = False,
    ) -> None:
        self._topic = topic
        self._keeps_qos0 = keeps_qos0
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self.catchup: CatchUp[Session] = CatchUp(
            topic, self._serve, WHOLE_BATCH, metrics, on_trouble
        )

    def _serve(self, batch: Batch, start: int, end: int, here: set[Session]) -> None:
        readers = self.catchup.readers
        wanted = {
            number
            for number, name in enumerate(batch.strings)
            if not here.isdisjoint(self._router.find_in(self._topic, name).members)
        }
        if not wanted:
            return
        start = min(readers[session] for session in here)
        for base, run in stored_runs(batch, start, self._clock, wanted):
            for session, member in self._router.find_in(self._topic, run.name).members.items():
                if session in here and session in readers:
                    self._hand(session, member, base, run)

    def _hand(self, session: Session, member: Member, base: int, run: Run) -> None:
        """Hand on what the reader has not passed and the delivery rule gives it from the log."""
        readers = self.catchup.readers
        end = base + run.count
        is_own = run.publisher == session.client_id
        keeps_qos0 = self._keeps_qos0 and session.vault is not None
        for stretch in member.stretches(self._topic.id):
            if session not in readers:
                return
            start, until = max(readers[session], base, stretch.start), min(end, stretch.end)
            if start >= until or not is_from(stretch.publishers, is_own=is_own):
                continue
            qos = qos_from_log(run.qos, stretch.reading, keeps_qos0=keeps_qos0)
            if qos is None:
                continue
            part = run
            if start > base or until < end:
                part = run.pick(list(range(start - base, until - base)))
            self._hand_part(session, start, part, member.encoding_then(stretch.reading, qos))

    def _hand_part(self, session: Session, base: int, run: Run, encoding: Encoding) -> None:
        topic_id = self._topic.id
        if run.until_us and run.until_us <= self._clock.steady_us():
            self._metrics.dropped["expired"] += run.count
            if session.outbox is not None and session.outbox.watch is not None:
                session.outbox.watch.dropped(session, run.name, run.count, "expired", base)
            return
        while run.count and session.is_sent(topic_id, base):
            run = run.part(1)  # out already, from before a crash
            base += 1
        if not run.count:
            return
        if encoding.qos == 0:
            self._note(session, base, session.forward(run, encoding), run.count)
            return
        sent = session.send(topic_id, base, run, encoding) if session.has_room else 0
        self._note(session, base, sent, run.count)

    def _note(self, session: Session, base: int, sent: int, count: int) -> None:
        """The reader was sent that many of a run; with a full window it leaves."""
        self._metrics.records_delivered += sent
        self.catchup.move(session, base + sent)
        if sent < count:
            self.catchup.leave(session)
