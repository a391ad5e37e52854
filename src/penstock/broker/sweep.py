"""Sweeps: sessions that lag in a topic go through its log together.

One pass in offset order serves all riders: each batch is read, checked and decoded once, and only
if some rider wants a name in it. A rider whose window is full gets off and joins a later pass, so a
storm of returning clients costs what matches, not sessions times records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.broker.metrics import Metrics
from penstock.broker.routes import Member, Router
from penstock.broker.runs import Run
from penstock.broker.sessions import Session
from penstock.broker.stored import stored_runs
from penstock.broker.topics import Topic
from penstock.log.batch import Batch
from penstock.model.clock import Clock
from penstock.model.errors import CorruptError, Gap, UnavailableError


class Sweep:
    """The pass through one topic. Ends by itself when nobody rides any more."""

    def __init__(
        self,
        topic: Topic,
        router: Router,
        metrics: Metrics,
        clock: Clock,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._topic = topic
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._on_trouble = on_trouble
        self._riders: dict[Session, int] = {}  # where each goes on
        self._cursor = 0  # where the pass is
        self._task: asyncio.Task[None] | None = None

    def board(self, session: Session) -> None:
        """Ride along from where the session lags."""
        offset = session.lags.get(self._topic.id)
        if offset is None or session in self._riders:
            return
        self._riders[session] = offset
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self, session: Session) -> None:
        """Get off; where it goes on stays in the session's lags."""
        self._riders.pop(session, None)

    async def _run(self) -> None:
        try:
            while self._riders:
                await self._step()
        except (OSError, CorruptError, UnavailableError) as trouble:
            self._on_trouble(f"{self._topic.declared}: {trouble}")
            self._riders.clear()
        finally:
            self._task = None

    async def _step(self) -> None:
        """Read on from where the pass is to the next rider; from the back when nobody is ahead.

        Like a lift: whoever boards behind it waits for the next pass, so newcomers never hold up
        those who are almost there.
        """
        ahead = [offset for offset in self._riders.values() if offset >= self._cursor]
        offset = self._cursor = min(ahead or self._riders.values())
        log = self._topic.log
        try:
            batches = await log.read(offset)
        except Gap:
            self._skip(log.bounds().first)
            return
        if not batches:
            self._arrive(log.bounds().end)
            return
        for batch in batches:
            self._serve(batch)
        self._cursor = max(offset, batches[-1].end_offset)
        await asyncio.sleep(0)  # a long pass leaves room for everybody else

    def _skip(self, first: int) -> None:
        """Retention was faster."""
        for session, offset in self._riders.items():
            if offset < first:
                self._metrics.dropped["retention"] += first - offset
                self._move(session, first)

    def _arrive(self, end: int) -> None:
        """Riders at the end are level: commits are handed to them again."""
        for session in [one for one, offset in self._riders.items() if offset >= end]:
            self.leave(session)
            session.lags.pop(self._topic.id, None)

    def _move(self, session: Session, offset: int) -> None:
        self._riders[session] = offset
        session.lags[self._topic.id] = offset

    def _serve(self, batch: Batch) -> None:
        """Hand a batch to the riders that have come to it; others boarded further back."""
        here = {
            session
            for session, offset in self._riders.items()
            if batch.base_offset <= offset < batch.end_offset
        }
        if not here:
            return
        wanted = {
            number
            for number, name in enumerate(batch.strings)
            if not here.isdisjoint(self._router.find(name).members)
        }
        if wanted:
            start = min(self._riders[session] for session in here)
            for base, run in stored_runs(batch, start, wanted):
                for session, member in self._router.find(run.name).members.items():
                    if session in here and session in self._riders:
                        self._hand(session, member, base, run)
        for session in here:
            if session in self._riders:
                self._move(session, batch.end_offset)

    def _hand(self, session: Session, member: Member, base: int, run: Run) -> None:
        """Hand on what the rider has not passed, as its subscriptions were at each offset."""
        start = max(self._riders[session], base)
        end = base + run.count
        while start < end and session in self._riders:
            then, until = member.as_of(self._topic.id, start)
            until = min(until, end)
            if then is not None:
                part = run
                if start > base or until < end:
                    part = run.pick(list(range(start - base, until - base)))
                self._hand_part(session, then, start, part)
            start = until

    def _hand_part(self, session: Session, member: Member, base: int, run: Run) -> None:
        topic_id = self._topic.id
        qos = min(run.qos, member.qos)
        if qos == 0:  # not kept for those away, and already forwarded to those who are not
            return
        if member.no_local and run.publisher == session.client_id:
            return
        if run.expires_at and run.expires_at <= self._clock.now_us():
            self._metrics.dropped["expired"] += run.count
            return
        while run.count and session.is_sent(topic_id, base):
            run = run.part(1)  # out already, from before a crash
            base += 1
        if not run.count:
            return
        sent = session.send(topic_id, base, run, member.encodings[qos]) if session.has_room else 0
        self._metrics.records_delivered += sent
        self._move(session, base + sent)
        if sent < run.count:
            self.leave(session)
