"""The exchange: publishing runs, and delivering them to connected sessions.

A message above QoS 0 is delivered after its commit. One of QoS 0 is forwarded in the tick it
arrived, but only while everything published before it in its topic has been handed on; else it
waits for the commit like the others (the fast lane, docs/ARCHITECTURE.md). With `keeps_qos0` it
always waits: what is kept for sessions is known by its offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.broker.deliver.history import Feeds
from penstock.broker.deliver.retained_delivery import Handover
from penstock.broker.deliver.routes import (
    Route,
    Router,
    forward,
    offer_kept,
    offer_selected,
    spread,
)
from penstock.broker.deliver.stored_runs import stored_runs
from penstock.broker.deliver.sweep import Sweep
from penstock.broker.engine import Engine, Runs
from penstock.broker.metrics import Metrics
from penstock.broker.session.session import (
    Session,
    Subscription,
)
from penstock.broker.session.store import Keeper, opened_mark
from penstock.broker.share.delivery import Sharing
from penstock.broker.states import States
from penstock.broker.topics import Topic
from penstock.core.access import RECEIVE, Authorise, Principal, authorise
from penstock.core.fast_lane import may_go_ahead
from penstock.core.names import SHARE_PREFIX, quoted
from penstock.core.run import MixedRun, Run
from penstock.log.format.batch import Batch
from penstock.log.format.marks import Mark
from penstock.log.interface import Waiter
from penstock.log.waiting import append_durably
from penstock.model.errors import NotAuthorized, PenstockError, UnavailableError


class Opening:
    """Implements Waiter for messages of QoS 2: their packet ids are taken once they are stored."""

    __slots__ = ("_exchange", "_is_kept", "_packet_ids", "_session", "_topic", "_waiter")

    def __init__(
        self,
        exchange: Exchange,
        session: Session,
        topic: Topic,
        packet_ids: list[int],
        waiter: Waiter,
    ) -> None:
        self._exchange = exchange
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
        self._end(is_open=False)
        self._waiter.refused(error)

    def _end(self, *, is_open: bool) -> None:
        if self._is_kept:
            keeper = self._exchange.keeper
            keeper.end_opening(self._session, self._topic, self._packet_ids, is_open=is_open)


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


def _is_told_elsewhere(error: Exception | None) -> None:
    """For a publication whose publisher awaits the log's own answer."""


class Exchange:
    """Connected sessions, and the way of messages between them and the logs."""

    def __init__(
        self,
        engine: Engine,
        keeper: Keeper,
        authorise: Authorise = authorise,
        *,
        keeps_qos0: bool = False,
    ) -> None:
        self.engine = engine
        self.keeps_qos0 = keeps_qos0
        self.keeper = keeper
        self.authorise = authorise
        self.router = Router(engine.topics, authorise, keeps_qos0=keeps_qos0)
        self.states = States(self.router)
        engine.caches.by_name["routes"] = self.router
        engine.caches.by_name["retained"] = keeper.retained
        self.payload_bytes_max = engine.settings.payload_bytes_max
        self._upkeep = engine.upkeep
        self._metrics = engine.metrics
        self.sessions: dict[str, Session] = {}  # connected ones, by client id
        self._sweeps: dict[int, Sweep] = {}  # by topic id
        self.feeds = Feeds(engine, authorise, self._on_trouble)
        self.sharing = Sharing(engine, self.router, keeper.shares, self._on_trouble, keeps_qos0)
        self._handover = Handover(engine, keeper.retained, self._may_receive, self.feeds)
        engine.followers.append(self._committed)
        if keeps_qos0:
            engine.watch_all()

    # Publishing

    def publish(
        self, route: Route, run: Run, waiter: Waiter | None, marks: Sequence[Mark] = ()
    ) -> bool:
        """Store a run, whose commit delivers it; the waiter hears when it is durable, or why not.

        True when so much waits for its commit that the caller should stop reading for a while.
        """
        refusal = self._upkeep.refusal
        if refusal or not route.may_publish:
            self._refuse(run, refusal or route.topic.refusal, waiter)
            return False
        log = route.topic.log
        if run.until_us:
            run.expires_at = self.engine.clock.expires_at(run.until_us)
        if (
            run.qos == 0
            and waiter is None
            and may_go_ahead(run.retain, log.is_level, self.keeps_qos0)
        ):
            run.is_forwarded = True
            log.append([run], None, marks)
            self._metrics.records_delivered += forward(route.lanes, run)
            if route.shares:
                spread(route.shares, run, self._metrics)
        else:
            log.append([run], waiter or Unheard(self._metrics, run.count), marks)
        return log.is_congested

    def publish_mixed(self, topic: Topic, mixed: MixedRun) -> bool:
        """As `publish`, for plain messages of a topic that is level; the caller forwards them."""
        topic.log.append(mixed)
        return topic.log.is_congested

    def is_level(self, topic: Topic) -> bool:
        """May plain messages of QoS 0 go ahead of their commit in this topic?"""
        return not self._upkeep.refusal and may_go_ahead(False, topic.log.is_level, self.keeps_qos0)

    def publish_once(
        self, route: Route, run: Run, session: Session, packet_ids: list[int], waiter: Waiter
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
            self.keeper.begin_opening(session, taken)
            marks = [opened_mark(session, packet_id, at) for at, packet_id in enumerate(taken)]
        return self.publish(route, run, Opening(self, session, topic, taken, waiter), marks)

    def release(self, session: Session, packet_ids: list[int], waiter: Waiter) -> None:
        """The client will not send these QoS 2 messages again; heard once that is durable."""
        if session.vault is not None:
            self.keeper.close_opened(session, packet_ids, waiter)
            return
        for packet_id in packet_ids:
            session.opened.pop(packet_id, None)
        waiter.committed(0)

    def _refuse(self, run: Run, refusal: str, waiter: Waiter | None) -> None:
        error: PenstockError = UnavailableError(refusal)
        reason = "log_unavailable"
        if not refusal:
            if self.states.take(run):
                if waiter is not None:
                    waiter.committed(0)
                return
            error = NotAuthorized(f"publishing to {quoted(run.name)} is not allowed")
            reason = "not_authorized"
        self.engine.metrics.dropped[reason] += run.count
        if waiter is not None:
            waiter.refused(error)

    # Delivering

    def _committed(self, topic: Topic, batch: Batch, runs: Runs) -> None:
        """A batch is durable: keep what it retains, hand it to those who read its names."""
        base = batch.base_offset
        if runs is not None:
            is_heard = not self.router.is_empty
            is_retained = False
            for index, run in runs:
                if is_heard:
                    self._deliver(topic, run, base + index)
                if run.retain:
                    is_retained = True
            if is_retained:
                self.keeper.retained.follow(topic.id, batch)
            return
        self.keeper.retained.follow(topic.id, batch)
        if self.router.is_empty:
            return
        wanted = {
            number
            for number, name in enumerate(batch.strings)
            if self.router.find(name).has_readers
        }
        if wanted:
            for offset, run in stored_runs(batch, base, self.engine.clock, wanted):
                self._deliver(topic, run, offset)

    def _deliver(self, topic: Topic, run: Run, offset: int) -> None:
        route = self.router.find(run.name)
        lanes = route.lanes_weak if run.qos else route.lanes_later
        delivered = forward(lanes, run) if lanes else 0
        if run.qos > 0:
            for member in route.strong:
                if member.no_local:
                    delivered += offer_selected(member, topic.id, offset, run)
                    continue
                qos = run.qos if run.qos < member.qos else member.qos
                member.session.offer(topic.id, offset, run, member.encodings[qos])
                delivered += run.count
            for one in route.shares:
                delivered += one.share.offer(topic.id, offset, run, one.members)
        elif route.shares:
            if self.keeps_qos0:
                for one in route.shares:
                    delivered += one.share.offer(topic.id, offset, run, one.members)
            else:
                spread(route.shares, run, self._metrics)
        if route.kept:
            delivered += offer_kept(route, topic.id, offset, run)
        self._metrics.records_delivered += delivered

    @property
    def is_retaining(self) -> bool:
        """Is a retained message on its way to the disk?"""
        return any(topic.log.is_retaining for topic in self.engine.topics.all())

    async def wait_retained(self) -> None:
        """Suspends until every retained message that is on its way now is durable, or refused.

        A subscriber is given what is retained when it subscribes (MQTT 5 §3.3.1.3), and a message
        is in that view from its commit on. Later ones hold nobody up.
        """
        logs = [topic.log for topic in self.engine.topics.all() if topic.log.is_retaining]
        await asyncio.gather(*[append_durably(log, []) for log in logs], return_exceptions=True)

    # Sessions

    def attach(self, session: Session) -> None:
        """A session's connection is up; whoever had the client id before was closed."""
        assert session.client_id not in self.sessions, "taken over first"
        self.sessions[session.client_id] = session
        traffic = self.engine.metrics.traffic
        traffic.clients_max = max(traffic.clients_max, len(self.sessions))
        for subscription in session.subscriptions.values():
            self._connect(subscription)
        if any(one.is_plain for one in session.subscriptions.values()):
            for topic in self.engine.topics.all():
                offset = session.from_offsets.get(topic.id)
                if offset is not None and offset < topic.log.bounds().end:
                    session.lags[topic.id] = offset
        if session.lags:
            self.keeper.touch(session)

    def detach(self, session: Session) -> None:
        """The connection is gone; a session that ends with it leaves nothing behind."""
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        for subscription in session.subscriptions.values():
            self._disconnect(subscription)
        self.sharing.detach(session)
        for sweep in self._sweeps.values():
            sweep.lift.leave(session)
        if session.vault is not None:
            self.keeper.end(session)
        session.outbox = None

    def subscribe(self, subscription: Subscription) -> bool:
        """Add or replace a filter of a session; True if it is new."""
        session = subscription.session
        existing = session.subscriptions.get(subscription.filter)
        if subscription.filter.startswith(SHARE_PREFIX):
            session.subscriptions[subscription.filter] = subscription
            self.sharing.subscribe(subscription)
            return existing is None
        if existing is not None:
            self._disconnect(existing)
        if existing is not None and existing.feed is None and subscription.feed is None:
            subscription.since = existing.since
            if subscription.qos == 0:  # nothing that waits may be lost [MQTT-3.8.4-4]
                subscription.owed = existing.owed if existing.qos == 0 else self._behind(session)
        else:
            subscription.since = self.ends()
        session.subscriptions[subscription.filter] = subscription
        if subscription.feed is None:  # a feed begins later: see `begin_feed`
            self._connect(subscription)
        return existing is None

    def _behind(self, session: Session) -> dict[int, int] | None:
        """The ends of the topics in which it lags; None if it lags in none."""
        lags = session.lags
        return {one: end for one, end in self.ends().items() if one in lags} if lags else None

    def _connect(self, subscription: Subscription) -> None:
        """Let messages flow: by routes, by its share, or by its own feed."""
        if subscription.share is not None:
            self.sharing.join(subscription)
        elif subscription.feed is None:
            self.router.add(subscription)
        else:
            self.feeds.start(subscription.feed)

    def _disconnect(self, subscription: Subscription) -> None:
        if subscription.share is not None:
            self.sharing.part(subscription)
        elif subscription.feed is None:
            self.router.remove(subscription)
        else:
            self.feeds.stop(subscription.feed)

    @property
    def subscription_count(self) -> int:
        """How many filters of connected sessions messages flow through, shared ones aside."""
        return len(self.router) + len(self.feeds)

    @property
    def away_count(self) -> int:
        """How many sessions are kept for clients that are not connected."""
        return len(self.keeper.stored.keys() - self.sessions.keys())

    def _may_receive(self, principal: Principal, name: str) -> bool:
        return self.authorise(principal, RECEIVE, name)

    def ends(self) -> dict[int, int]:
        """The end of every topic, by its id."""
        return {topic.id: topic.log.bounds().end for topic in self.engine.topics.all()}

    def unsubscribe(self, session: Session, filter: str) -> bool:
        """Take a filter back; False if the session did not have it."""
        subscription = session.subscriptions.pop(filter, None)
        if subscription is None:
            return False
        self._disconnect(subscription)
        if subscription.share is not None:
            self.sharing.let_go(subscription)
        return True

    def send_retained(self, subscription: Subscription, ends: dict[int, int]) -> None:
        """Hand over what is retained under the names a filter matches; see Handover."""
        self._handover.send_retained(subscription, ends)

    def begin_feed(self, subscription: Subscription, *, with_retained: bool) -> None:
        """Deliver from the positions of its feed on; first what is retained from before them."""
        self._handover.begin_feed(subscription, with_retained=with_retained)

    # Catching up

    def resume(self, session: Session) -> None:
        """The session has room again: go on from the logs where it lags."""
        if session.shares:
            self.sharing.resume(session)
        if session.stalled:
            self.feeds.resume(session)
        if not session.has_room:
            return
        for topic_id in list(session.lags):
            topic = self.engine.topics.by_id(topic_id)
            if topic is None:
                del session.lags[topic_id]
                continue
            if topic.refusal:
                continue
            sweep = self._sweeps.get(topic_id)
            if sweep is None:
                engine = self.engine
                sweep = self._sweeps[topic_id] = Sweep(
                    topic,
                    self.router,
                    engine.metrics,
                    engine.clock,
                    self._on_trouble,
                    self.keeps_qos0,
                )
            sweep.lift.board(session)

    def _on_trouble(self, text: str) -> None:
        self.engine.upkeep.note_trouble(-1, text)
