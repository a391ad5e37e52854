"""Sweeps: sessions that lag in a topic go through its log together.

A batch is decoded once for all riders, and only if some rider wants a name in it. A rider whose
window is full gets off and joins a later pass, so a storm of returning clients costs what matches,
not sessions times records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.deliver.lift import Lift
from penstock.broker.deliver.routes import Member, Router
from penstock.broker.deliver.stored_runs import stored_runs
from penstock.broker.metrics import Metrics
from penstock.broker.session.session import Session
from penstock.broker.topics import Topic
from penstock.core.delivery_rule import is_from, qos_from_log
from penstock.core.run import Encoding, Run
from penstock.log.format.batch import Batch
from penstock.model.timeline import Timeline

WHOLE_BATCH: Final = 1 << 32  # runs are handed on without being taken apart: no need to divide


class Sweep:
    """The sessions' pass through one topic."""

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
        self.lift: Lift[Session] = Lift(topic, self._serve, WHOLE_BATCH, metrics, on_trouble)

    def _serve(self, batch: Batch, start: int, end: int, here: set[Session]) -> None:
        riders = self.lift.riders
        wanted = {
            number
            for number, name in enumerate(batch.strings)
            if not here.isdisjoint(self._router.find(name).members)
        }
        if not wanted:
            return
        start = min(riders[session] for session in here)
        for base, run in stored_runs(batch, start, self._clock, wanted):
            for session, member in self._router.find(run.name).members.items():
                if session in here and session in riders:
                    self._hand(session, member, base, run)

    def _hand(self, session: Session, member: Member, base: int, run: Run) -> None:
        """Hand on what the rider has not passed and the delivery rule gives it from the log."""
        riders = self.lift.riders
        end = base + run.count
        is_own = run.publisher == session.client_id
        keeps_qos0 = self._keeps_qos0 and session.vault is not None
        for stretch in member.stretches(self._topic.id):
            if session not in riders:
                return
            start, until = max(riders[session], base, stretch.start), min(end, stretch.end)
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
        """The rider was sent that many of a run; with a full window it gets off."""
        self._metrics.records_delivered += sent
        self.lift.move(session, base + sent)
        if sent < count:
            self.lift.leave(session)
