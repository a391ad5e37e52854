"""The exchange: publishing runs, and delivering them to connected sessions.

A message above QoS 0 is delivered after its commit. One of QoS 0 is forwarded in the tick it
arrived, but only while everything published before it in its topic has been handed on; else it
waits for the commit like the others (the fast lane, docs/ARCHITECTURE.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.broker.engine import Engine
from penstock.broker.routes import Route, Router, forward
from penstock.broker.runs import Run
from penstock.broker.sessions import Session, Subscription
from penstock.broker.stored import stored_runs
from penstock.broker.topics import Topic
from penstock.log.batch import Batch
from penstock.log.format import KIND_SHIFT, RETAIN
from penstock.log.marks import encode_headers
from penstock.model.errors import Gap, PenstockError, UnavailableError

OnDone = Callable[[Exception | None], None]


class Publication:
    """A run on its way to the disk; delivered and answered when it is there."""

    __slots__ = ("_exchange", "_on_done", "_run", "_topic")

    def __init__(self, exchange: Exchange, topic: Topic, run: Run, on_done: OnDone | None) -> None:
        self._exchange = exchange
        self._topic = topic
        self._run = run
        self._on_done = on_done

    def committed(self, offset: int) -> None:
        self._exchange.deliver(self._topic, self._run, offset)
        if self._on_done is not None:
            self._on_done(None)

    def refused(self, error: Exception) -> None:
        self._exchange.withdraw(self._topic)
        if self._on_done is not None:
            self._on_done(error)


class Exchange:
    """Connected sessions, and the way of messages between them and the logs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.router = Router(engine.topics)
        self.sessions: dict[str, Session] = {}  # connected ones, by client id
        self._waiting: dict[int, int] = {}  # topic id -> runs that wait for their commit
        self._resuming: dict[Session, asyncio.Task[None]] = {}

    # Publishing

    def publish(self, route: Route, run: Run, on_done: OnDone | None) -> bool:
        """Store a run and hand it on; `on_done` hears when it is durable, or why not.

        True when so much waits for its commit that the caller should stop reading for a while.
        """
        topic = route.topic
        refusal = self.engine.upkeep.refusal
        if refusal:
            self.engine.metrics.refused["disk"] += run.count
            if on_done is not None:
                on_done(UnavailableError(refusal))
            return False
        waiting = self._waiting.get(topic.id, 0)
        is_early = run.qos == 0 and waiting == 0 and on_done is None
        publication = None
        if not is_early:
            self._waiting[topic.id] = waiting + 1
            publication = Publication(self, topic, run, on_done)
        topic.log.append_run(
            run.name,
            run.data,
            run.starts,
            run.lengths,
            run.qos | (RETAIN if run.retain else 0) | run.kind << KIND_SHIFT,
            run.publisher,
            run.expires_at,
            encode_headers(run.headers) if run.headers else b"",
            publication,
            is_urgent=run.qos > 0,
        )
        if is_early:
            self.engine.metrics.records_delivered += forward(route.lanes, run)
        return topic.log.is_congested

    def deliver(self, topic: Topic, run: Run, offset: int) -> None:
        """A run that waited is durable: hand it to those who read its name now."""
        self.withdraw(topic)
        route = self.router.find(run.name)
        delivered = forward(route.lanes if run.qos == 0 else route.lanes_weak, run)
        if run.qos > 0:
            for member in route.strong:
                if member.no_local and member.session is run.source:
                    continue
                qos = run.qos if run.qos < member.qos else member.qos
                member.session.offer(topic.id, offset, run, member.encodings[qos])
                delivered += run.count
        self.engine.metrics.records_delivered += delivered

    def withdraw(self, topic: Topic) -> None:
        """One run less waits in this topic."""
        self._waiting[topic.id] -= 1

    # Sessions

    def attach(self, session: Session) -> None:
        """A session's connection is up; whoever had the client id before was closed."""
        assert session.client_id not in self.sessions, "taken over first"
        self.sessions[session.client_id] = session

    def detach(self, session: Session) -> None:
        """The connection is gone; a session that ends with it leaves nothing behind."""
        session.outbox = None
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        for subscription in session.subscriptions.values():
            self.router.remove(subscription)
        task = self._resuming.pop(session, None)
        if task is not None:
            task.cancel()

    def subscribe(self, subscription: Subscription) -> bool:
        """Add or replace a filter of a session; True if it is new."""
        session = subscription.session
        existing = session.subscriptions.get(subscription.filter)
        if existing is not None:
            self.router.remove(existing)
        session.subscriptions[subscription.filter] = subscription
        self.router.add(subscription)
        return existing is None

    def unsubscribe(self, session: Session, filter: str) -> bool:
        """Take a filter back; False if the session did not have it."""
        subscription = session.subscriptions.pop(filter, None)
        if subscription is None:
            return False
        self.router.remove(subscription)
        return True

    # Catching up

    def resume(self, session: Session) -> None:
        """The session has room again: go on from the log where it lags."""
        if session.lags and session.has_room and session not in self._resuming:
            task = asyncio.get_running_loop().create_task(self._catch_up(session))
            self._resuming[session] = task

    async def _catch_up(self, session: Session) -> None:
        try:
            while session.lags and session.has_room:
                topic_id, offset = next(iter(session.lags.items()))
                topic = self.engine.topics.by_id(topic_id)
                if topic is None:
                    del session.lags[topic_id]
                    continue
                try:
                    batches = await topic.log.read(offset)
                except Gap:
                    first = topic.log.bounds().first
                    self.engine.metrics.dropped["retention"] += first - offset
                    session.lags[topic_id] = first
                    continue
                if not batches:
                    del session.lags[topic_id]  # level: commits are handed to it again
                for batch in batches:
                    offset = self._send_stored(session, topic, batch, offset)
                    session.lags[topic_id] = offset
                    if offset < batch.end_offset:
                        break
        except PenstockError as trouble:
            self.engine.upkeep.troubles[-1] = f"session {session.client_id}: {trouble}"
        finally:
            self._resuming.pop(session, None)

    def _send_stored(self, session: Session, topic: Topic, batch: Batch, offset: int) -> int:
        """Send what matches of a batch from `offset` on; the offset to go on at."""
        for base, run in stored_runs(batch, offset):
            member = self.router.find(run.name).members.get(session)
            if member is None or min(run.qos, member.qos) == 0:
                offset = base + run.count  # not its own, or forwarded when it was published
                continue
            if member.no_local and run.publisher == session.client_id:
                offset = base + run.count
                continue
            if not session.has_room:
                return base
            encoding = member.encodings[min(run.qos, member.qos)]
            sent = session.send(topic.id, base, run, 0, encoding)
            offset = base + sent
            if sent < run.count:
                return offset
        return max(offset, batch.end_offset)
