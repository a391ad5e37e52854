"""The sessions that are connected: they come and go, subscribe, and catch up from the logs.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.deliver.catchup import CatchUp, SessionCatchUp
from penstock.broker.deliver.history import Feeds
from penstock.broker.deliver.routes import Router
from penstock.broker.engine import Engine
from penstock.broker.session.session import Session, Subscription
from penstock.broker.session.store import SessionStore
from penstock.broker.share.delivery import Sharing
from penstock.core.naming.names import SHARE_PREFIX, split_share
from penstock.core.naming.overlaps import OVERLAPS_MAX, Overlaps
from penstock.core.quotas import SUBSCRIPTIONS


class Sessions:
    """Connected sessions by client id, and what their messages flow through."""

    def __init__(
        self,
        engine: Engine,
        store: SessionStore,
        router: Router,
        feeds: Feeds,
        sharing: Sharing,
        on_trouble: Callable[[str], None],
        *,
        keeps_qos0: bool = False,
    ) -> None:
        self.connected: dict[str, Session] = {}
        self._engine = engine
        self._store = store
        self._router = router
        self._feeds = feeds
        self._sharing = sharing
        self._on_trouble = on_trouble
        self._keeps_qos0 = keeps_qos0
        self._catchups: dict[int, CatchUp[Session]] = {}  # by topic id
        self._filters: dict[str, int] = {}  # how many of connected sessions, by user
        self._filter_count = 0

    # Coming and going

    def attach(self, session: Session) -> None:
        """A session is connected; the older connection with this client id was closed."""
        assert session.client_id not in self.connected, "taken over first"
        self.connected[session.client_id] = session
        traffic = self._engine.metrics.traffic
        traffic.clients_max = max(traffic.clients_max, len(self.connected))
        self._count(session, len(session.subscriptions))
        self._store.stored.weigh(session.client_id, 0)  # counted as connected from now on
        for subscription in session.subscriptions.values():
            self._connect(subscription)
        if any(one.is_plain for one in session.subscriptions.values()):
            for topic in self._engine.topics.all():
                offset = session.from_offsets.get(topic.id)
                if offset is not None and offset < topic.log.bounds().end:
                    session.lags[topic.id] = offset
        if session.lags:
            self._store.touch(session)

    def detach(self, session: Session) -> None:
        """The connection is gone; a session that ends with it leaves nothing behind."""
        if self.connected.get(session.client_id) is session:
            del self.connected[session.client_id]
            self._count(session, -len(session.subscriptions))
        for subscription in session.subscriptions.values():
            self._disconnect(subscription)
        self._sharing.detach(session)
        for catchup in self._catchups.values():
            catchup.leave(session)
        if session.vault is not None:
            self._store.end(session)
        session.outbox = None
        session.wake()

    # Subscriptions

    def check_room(self, user: str) -> None:
        """QuotaExceeded if this user's sessions, or all sessions, have too many subscriptions."""
        quotas, kept = self._engine.quotas, self._store.stored
        if quotas.cluster is not None:
            return  # all nodes together have been asked
        quotas.check(SUBSCRIPTIONS, self._filter_count + kept.weight)
        quotas.check_user(SUBSCRIPTIONS, self._filters.get(user, 0) + kept.weight_of(user))

    def _count(self, session: Session, more: int) -> None:
        """A connected session has more subscriptions, or fewer."""
        outbox = session.outbox
        if not more or outbox is None:
            return
        user = outbox.principal.user
        self._engine.quotas.note(SUBSCRIPTIONS, user, more)
        self._filter_count += more
        count = self._filters.get(user, 0) + more
        if count:
            self._filters[user] = count
        else:
            self._filters.pop(user, None)

    def may_overlap(self, session: Session, filter: str) -> bool:
        """May the session have this filter, or would too many of its filters match one name?

        One that it may have is counted: call `subscribe` next.
        """
        known = session.subscriptions
        if filter in known:
            return True
        overlaps = session.overlaps
        if overlaps is None:
            if len(known) < OVERLAPS_MAX:
                return True
            overlaps = session.overlaps = Overlaps()
            for one in known:
                overlaps.add(split_share(one)[1])
        return overlaps.add(split_share(filter)[1])

    def subscribe(self, subscription: Subscription) -> bool:
        """Add or replace a filter of a session; True if it is new."""
        session = subscription.session
        existing = session.subscriptions.get(subscription.filter)
        if existing is None:
            self._count(session, 1)
        if subscription.filter.startswith(SHARE_PREFIX):
            session.subscriptions[subscription.filter] = subscription
            self._sharing.subscribe(subscription)
            return existing is None
        if existing is not None:
            self._disconnect(existing)
        if existing is not None and existing.feed is None and subscription.feed is None:
            subscription.since = existing.since
            if subscription.qos == 0:  # nothing that waits may be lost [MQTT-3.8.4-4]
                subscription.owed = existing.owed if existing.qos == 0 else self._behind(session)
        else:
            subscription.since = self._engine.topics.ends()
        session.subscriptions[subscription.filter] = subscription
        if subscription.feed is None:  # a feed begins later: see `begin_feed`
            self._connect(subscription)
        return existing is None

    def _behind(self, session: Session) -> dict[int, int] | None:
        """The ends of the topics in which it lags; None if it lags in none."""
        lags = session.lags
        if not lags:
            return None
        return {one: end for one, end in self._engine.topics.ends().items() if one in lags}

    def _connect(self, subscription: Subscription) -> None:
        """Let messages flow: by routes, by its share, or by its own feed."""
        if subscription.share is not None:
            self._sharing.join(subscription)
        elif subscription.feed is None:
            self._router.add(subscription)
        else:
            self._feeds.start(subscription.feed)

    def _disconnect(self, subscription: Subscription) -> None:
        if subscription.share is not None:
            self._sharing.part(subscription)
        elif subscription.feed is None:
            self._router.remove(subscription)
        else:
            self._feeds.stop(subscription.feed)

    @property
    def subscription_count(self) -> int:
        """How many filters of connected sessions messages flow through, shared ones aside."""
        return len(self._router) + len(self._feeds)

    @property
    def away_count(self) -> int:
        """How many sessions are kept for clients that are not connected."""
        return len(self._store.stored.keys() - self.connected.keys())

    def unsubscribe(self, session: Session, filter: str) -> bool:
        """Take a filter back; False if the session did not have it."""
        subscription = session.subscriptions.pop(filter, None)
        if subscription is None:
            return False
        self._count(session, -1)
        self._disconnect(subscription)
        if subscription.share is not None:
            self._sharing.let_go(subscription)
        if session.overlaps is not None:
            session.overlaps.remove(split_share(filter)[1])
        return True

    # Catching up

    def resume(self, session: Session) -> None:
        """The session may have room again: wake everyone who waits for it, and the logs."""
        if session.room_waiters is not None:
            session.wake()
        if session.shares:
            self._sharing.resume(session)
        if session.stalled:
            self._feeds.resume(session)
        if not session.has_room:
            return
        for topic_id in list(session.lags):
            topic = self._engine.topics.by_id(topic_id)
            if topic is None:
                del session.lags[topic_id]
                continue
            if topic.refusal:
                continue
            catchup = self._catchups.get(topic_id)
            if catchup is None:
                engine = self._engine
                serving = SessionCatchUp(
                    topic,
                    self._router,
                    engine.metrics,
                    clock=engine.clock,
                    on_trouble=self._on_trouble,
                    keeps_qos0=self._keeps_qos0,
                )
                catchup = self._catchups[topic_id] = serving.catchup
            catchup.join(session)
