"""Publishing: runs are stored; their commit delivers them.

A message above QoS 0 is delivered after its commit. One of QoS 0 is forwarded in the tick it
arrived, but only while everything published before it in its topic has been handed on; else it
waits for the commit like the others (the fast lane, docs/ARCHITECTURE.md). With `keeps_qos0` it
always waits: what is kept for sessions is known by its offset.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.deliver.retained import Retained
from penstock.broker.deliver.routes import Route, Router, forward, spread
from penstock.broker.engine import Engine
from penstock.broker.figures.metrics import Metrics
from penstock.broker.session.inbound_qos2 import InboundQos2, opened_mark
from penstock.broker.session.session import Session
from penstock.broker.states import States
from penstock.broker.topic.topics import Topic
from penstock.broker.trace.watch import Watched
from penstock.core.delivery.fast_lane import may_go_ahead
from penstock.core.delivery.run import MixedRun, Run
from penstock.core.naming.names import quoted
from penstock.log.format.marks import Mark
from penstock.log.interface import Waiter
from penstock.model.errors import (
    InDoubt,
    NotAuthorized,
    PenstockError,
    QuotaExceeded,
    UnavailableError,
)


class Opening:
    """Implements Waiter for messages of QoS 2: their packet ids are taken once they are stored."""

    __slots__ = ("_inbound", "_is_kept", "_packet_ids", "_session", "_topic", "_waiter")

    def __init__(
        self,
        inbound: InboundQos2,
        session: Session,
        topic: Topic,
        packet_ids: list[int],
        waiter: Waiter,
    ) -> None:
        self._inbound = inbound
        self._session = session
        self._topic = topic
        self._packet_ids = packet_ids
        self._waiter = waiter
        self._is_kept = session.vault is not None

    @property
    def has_given_up(self) -> bool:
        return False

    def committed(self, offset: int) -> None:
        self._end(is_open=True)
        self._waiter.committed(offset)

    def refused(self, error: Exception) -> None:
        for packet_id in self._packet_ids:
            self._session.opened.pop(packet_id, None)
        if isinstance(error, InDoubt) and self._is_kept:
            self._inbound.doubt(self._session)
        self._end(is_open=False)
        self._waiter.refused(error)

    def _end(self, *, is_open: bool) -> None:
        if self._is_kept:
            session, packet_ids = self._session, self._packet_ids
            self._inbound.end_opening(session, self._topic, packet_ids, is_open=is_open)


class Unheard:
    """Implements Waiter for messages of QoS 0 that were not forwarded: a loss is counted."""

    __slots__ = ("_count", "_metrics")

    def __init__(self, metrics: Metrics, count: int) -> None:
        self._metrics = metrics
        self._count = count

    @property
    def has_given_up(self) -> bool:
        return False

    def committed(self, offset: int) -> None:
        """Nobody waits to hear of it."""

    def refused(self, error: Exception) -> None:
        self._metrics.dropped["log_unavailable"] += self._count


class Publisher:
    """Takes what clients publish, on the event loop."""

    def __init__(
        self,
        engine: Engine,
        router: Router,
        inbound: InboundQos2,
        retained: Retained,
        *,
        keeps_qos0: bool = False,
    ) -> None:
        self.router = router
        self.states = States(router)
        self.clock = engine.clock
        self.metrics = engine.metrics
        self.payload_bytes_max = engine.settings.payload_bytes_max
        self._engine = engine
        self._inbound = inbound
        self._keeps_qos0 = keeps_qos0
        self._upkeep = engine.upkeep
        self.quotas = engine.quotas
        self._retained = retained

    def publish(
        self,
        route: Route,
        run: Run,
        waiter: Waiter | None,
        marks: Sequence[Mark] = (),
        owner: str | None = None,
    ) -> bool:
        """Store a run, whose commit delivers it; the waiter hears when it is durable, or why not.

        `owner` is the user whose quotas count what is retained.
        True when so much waits for its commit that the caller should stop reading for a while.
        """
        if self._upkeep.refusal or not route.may_publish:
            self._refuse(route.topic, run, waiter)
            return False
        if run.retain:
            exceeded = self._retained.exceeded(self.quotas, run, owner)
            if exceeded is not None:
                self._refuse_for(run, exceeded, "quota", waiter)
                return False
        log = route.log
        if run.until_us:
            run.expires_at = self.clock.expires_at(run.until_us)
        if (
            run.qos == 0
            and waiter is None
            and may_go_ahead(run.retain, log.is_level, self._keeps_qos0)
        ):
            run.is_forwarded = True
            log.append([run], None, marks)
            self.metrics.records_delivered += forward(route.lanes, run)
            if route.shares:
                spread(route.shares, run, self.metrics)
        else:
            heard = waiter or Unheard(self.metrics, run.count)
            if self._engine.watch is not None:
                heard = Watched(self._engine.watch, [run], heard)
            log.append([run], heard, marks)
        return log.is_congested or (run.retain and self._retained.is_congested)

    @property
    def is_congested(self) -> bool:
        """Do retained messages wait for the checkpoint, so many that publishers should wait?"""
        return self._retained.is_congested

    def publish_mixed(self, topic: Topic, mixed: MixedRun) -> bool:
        """As `publish`, for plain messages of a topic that is level; the caller forwards them."""
        topic.log.append(mixed)
        return topic.log.is_congested

    def is_level(self, topic: Topic) -> bool:
        """May plain messages of QoS 0 go ahead of their commit in this topic?"""
        return not self._upkeep.refusal and may_go_ahead(
            False, topic.log.is_level, self._keeps_qos0
        )

    def publish_once(
        self,
        route: Route,
        run: Run,
        session: Session,
        packet_ids: list[int],
        waiter: Waiter,
        owner: str | None = None,
    ) -> bool:
        """As `publish`, for QoS 2: what was taken before is answered and not stored again."""
        opened = session.opened
        topic = route.topic
        fresh = []
        for at, packet_id in enumerate(packet_ids):
            if packet_id not in opened:
                opened[packet_id] = topic.id
                fresh.append(at)
        taken = [packet_ids[at] for at in fresh]
        if len(fresh) < run.count:
            run = run.pick(fresh)
        if not run.count:
            waiter.committed(0)
            return False
        marks: list[Mark] = []
        if session.vault is not None:
            self._inbound.begin_opening(session, taken)
            marks = [opened_mark(session, packet_id, at) for at, packet_id in enumerate(taken)]
        opening = Opening(self._inbound, session, topic, taken, waiter)
        return self.publish(route, run, opening, marks, owner)

    def release(self, session: Session, packet_ids: list[int], waiter: Waiter) -> None:
        """The client will not send these QoS 2 messages again; heard once that is durable."""
        if session.vault is not None:
            self._inbound.close_opened(session, packet_ids, waiter)
            return
        for packet_id in packet_ids:
            session.opened.pop(packet_id, None)
        waiter.committed(0)

    def _refuse(self, topic: Topic, run: Run, waiter: Waiter | None) -> None:
        error = self._upkeep.refused(topic)
        if isinstance(error, QuotaExceeded):
            self.quotas.count(error.kind)
            self._refuse_for(run, error, "quota", waiter)
        elif error is not None or topic.refusal:
            unavailable = error or UnavailableError(topic.refusal)
            self._refuse_for(run, unavailable, "log_unavailable", waiter)
        elif self.states.take(run):
            if waiter is not None:
                waiter.committed(0)
        else:
            denied = NotAuthorized(f"publishing to {quoted(run.name)} is not allowed")
            self._refuse_for(run, denied, "not_authorized", waiter)

    def _refuse_for(
        self, run: Run, error: PenstockError, reason: str, waiter: Waiter | None
    ) -> None:
        self.metrics.dropped[reason] += run.count
        if self._engine.watch is not None:
            self._engine.watch.refused(run.publisher, run, reason, error)
        if waiter is not None:
            waiter.refused(error)
