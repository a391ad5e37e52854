"""The exchange: publishing runs, and delivering them to connected sessions.

A message above QoS 0 is delivered after its commit. One of QoS 0 is forwarded in the tick it
arrived, but only while everything published before it in its topic has been handed on; else it
waits for the commit like the others (the fast lane, docs/ARCHITECTURE.md). With `keeps_qos0` it
always waits: what is kept for sessions is known by its offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from penstock.broker.deliver.sweep import Sweep
from penstock.broker.engine import Engine
from penstock.broker.publish.retaining import Retaining
from penstock.broker.publish.run import Run, draft_run
from penstock.broker.session.session import (
    Session,
    Subscription,
)
from penstock.broker.session.store import Keeper, opened_mark
from penstock.broker.share.delivery import Sharing
from penstock.broker.states import States
from penstock.broker.topics import Topic
from penstock.core.access import RECEIVE, Authorise, Principal, authorise
from penstock.core.names import SHARE_PREFIX, quoted
from penstock.log.format.batch_bytes import KIND_SHIFT, RETAIN
from penstock.log.format.marks import Mark, encode_headers
from penstock.log.interface import Draft, Waiter
from penstock.model.errors import NotAuthorized, PenstockError, UnavailableError

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
        self._exchange.withdraw(self._topic, self._run)
        if self._on_done is not None:
            self._on_done(error)
        else:  # of QoS 0: nobody else hears of it
            self._exchange.engine.metrics.dropped["log_unavailable"] += self._run.count


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
        self._waiting: dict[int, int] = {}  # topic id -> runs that wait for their commit
        self.retaining = Retaining()
        self._sweeps: dict[int, Sweep] = {}  # by topic id
        self.feeds = Feeds(engine, authorise, self._on_trouble)
        self.sharing = Sharing(engine, self.router, keeper.shares, self._on_trouble, keeps_qos0)
        engine.expect_delivery = self.expect
        self._handover = Handover(engine, keeper.retained, self._may_receive, self.feeds)
        if keeps_qos0:
            engine.watch_all(self._never_level)

    def _never_level(self, topic: Topic) -> None:
        """As if something of the topic always waited: nothing of it is forwarded early."""
        self._waiting[topic.id] = 1

    # Publishing

    def publish(
        self, route: Route, run: Run, on_done: OnDone | None, marks: Sequence[Mark] = ()
    ) -> bool:
        """Store a run and hand it on; `on_done` hears when it is durable, or why not.

        True when so much waits for its commit that the caller should stop reading for a while.
        """
        topic = route.topic
        log = topic.log
        refusal = self._upkeep.refusal
        if refusal or not route.may_publish:
            self._refuse(run, refusal or topic.refusal, on_done)
            return False
        waiting = self._waiting.get(route.topic_id, 0)
        # A retained message waits, and so does who subscribes before its commit.
        is_early = run.qos == 0 and waiting == 0 and on_done is None and not run.retain
        publication = None
        if not is_early:
            self._waiting[route.topic_id] = waiting + 1
            if run.retain:
                self.retaining.enter(run)
            publication = Publication(self, topic, run, on_done)
        log.append_run(
            run.name,
            run.data,
            run.starts,
            run.lengths,
            run.qos | (RETAIN if run.retain else 0) | run.kind << KIND_SHIFT,
            run.publisher,
            self.engine.clock.expires_at(run.until_us) if run.until_us else 0,
            encode_headers(run.headers) if run.headers else b"",
            publication,
            is_urgent=run.qos > 0 or run.retain,
            marks=marks,
        )
        if is_early:
            self._metrics.records_delivered += forward(route.lanes, run)
            if route.shares:
                spread(route.shares, run, self._metrics)
        return log.is_congested

    def is_level(self, topic: Topic) -> bool:
        """Nothing of the topic waits for its commit, and it takes messages: QoS 0 may go ahead."""
        return not self._upkeep.refusal and not self._waiting.get(topic.id, 0)

    def publish_once(
        self, route: Route, run: Run, session: Session, packet_ids: list[int], on_done: OnDone
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
            on_done(None)
            return False
        is_kept = session.vault is not None
        if is_kept:
            self.keeper.begin_opening(session, taken)

        def done(error: Exception | None) -> None:
            if error is not None:
                for packet_id in taken:
                    opened.pop(packet_id, None)
            if is_kept:
                self.keeper.end_opening(session, topic, taken, is_open=error is None)
            on_done(error)

        marks = [opened_mark(session, packet_id, at) for at, packet_id in enumerate(taken)]
        return self.publish(route, run, done, marks if is_kept else ())

    def release(self, session: Session, packet_ids: list[int], on_done: OnDone) -> None:
        """The client will not send these QoS 2 messages again; `on_done` once that is durable."""
        if session.vault is not None:
            self.keeper.close_opened(session, packet_ids, on_done)
            return
        for packet_id in packet_ids:
            session.opened.pop(packet_id, None)
        on_done(None)

    def _refuse(self, run: Run, refusal: str, on_done: OnDone | None) -> None:
        error: PenstockError = UnavailableError(refusal)
        reason = "log_unavailable"
        if not refusal:
            if self.states.take(run):
                if on_done is not None:
                    on_done(None)
                return
            error = NotAuthorized(f"publishing to {quoted(run.name)} is not allowed")
            reason = "not_authorized"
        self.engine.metrics.dropped[reason] += run.count
        if on_done is not None:
            on_done(error)

    def deliver(self, topic: Topic, run: Run, offset: int) -> None:
        """A run that waited is durable: hand it to those who read its name now."""
        self.withdraw(topic, run)
        if self.router.is_empty:
            return
        route = self.router.find(run.name)
        delivered = forward(route.lanes_later if run.qos == 0 else route.lanes_weak, run)
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

    def expect(self, topic: Topic, draft: Draft) -> Waiter:
        """The engine itself publishes: delivered at its commit, and not overtaken until then."""
        run = draft_run(draft, self.engine.clock)
        self.enter(topic, run)
        return Publication(self, topic, run, _is_told_elsewhere)

    def enter(self, topic: Topic, run: Run | None = None) -> None:
        """One run more waits in this topic for its commit, and is delivered or withdrawn then.

        None: a whole batch, of which nothing is retained.
        """
        self._waiting[topic.id] = self._waiting.get(topic.id, 0) + 1
        if run is not None and run.retain:
            self.retaining.enter(run)

    def withdraw(self, topic: Topic, run: Run | None = None) -> None:
        """One run less waits in this topic."""
        self._waiting[topic.id] -= 1
        if run is not None and run.retain:
            self.retaining.leave(run)

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
