"""What a new subscription is given first: retained messages, a part at a time.

They are owed at the moment of subscribing and are no part of a session: what had not been sent when
the client went is not sent when it comes back (docs/MQTT.md). What was sent and not acknowledged is
sent again like any other message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Any, Final

from penstock.broker.deliver.history import Feeds, feed_run, retained_record, send_one
from penstock.broker.deliver.retained import Retained
from penstock.broker.engine import Engine
from penstock.broker.session.session import (
    OwnFeed,
    Session,
    Subscription,
)
from penstock.broker.tasks import Tasks
from penstock.catalog.session.retained import RetainedHead, RetainedRow
from penstock.core.access import RECEIVE, Authorise
from penstock.core.delivery.run import Run, record_flags
from penstock.core.delivery.tags import retained_place
from penstock.model.errors import PenstockError

RETAINED_AT_ONCE: Final = 500  # names looked at before others get their turn
WAITING_MAX: Final = 100  # subscriptions of a session that wait for what is retained for them
FILTERS_AT_ONCE: Final = 50  # the same for subscriptions
NAMES_AHEAD: Final = 100  # whose payloads are read from the catalog together

Work = Callable[[], Coroutine[Any, Any, None]]


class RetainedDelivery:
    """Runs as a task of its own on the event loop; ends with the connection."""

    def __init__(
        self, engine: Engine, retained: Retained, authorise: Authorise, feeds: Feeds
    ) -> None:
        self._clock = engine.clock
        self._topics = engine.topics
        self._retained = retained
        self._authorise = authorise
        self._feeds = feeds
        self._tasks = Tasks(asyncio.get_running_loop())
        self._waiting: dict[Session, deque[Work]] = {}  # of each session, in order

    def send_retained(self, subscription: Subscription, ends: dict[int, int]) -> None:
        """Hand over what is retained under the names a filter matches, a part at a time.

        `ends` are the topics' when the client asked: what came later, comes or came by itself.
        """
        self._spawn(subscription.session, partial(self._send_retained, subscription, ends))

    def begin_feed(self, subscription: Subscription, *, with_retained: bool) -> None:
        """Deliver from the positions of its feed on; first what is retained from before them."""
        self._spawn(subscription.session, partial(self._begin_feed, subscription, with_retained))

    async def _begin_feed(self, subscription: Subscription, with_retained: bool) -> None:
        session, feed = subscription.session, subscription.feed
        assert feed is not None
        if with_retained:
            await self._send_retained(subscription, dict(feed.lags))
        if session.outbox and session.subscriptions.get(subscription.filter) is subscription:
            self._feeds.start(feed)

    def is_behind(self, session: Session) -> bool:
        """Do so many subscriptions of a session wait for their turn that it should ask no more?"""
        return len(self._waiting.get(session, ())) >= WAITING_MAX

    async def wait_ahead(self, session: Session) -> None:
        """Suspends while `is_behind`."""
        while self.is_behind(session):
            await session.wait_room()

    def _spawn(self, session: Session, work: Work) -> None:
        """One subscription after the other, so that a session costs what one of them costs."""
        if session in self._waiting:
            self._waiting[session].append(work)
        else:
            self._waiting[session] = deque([work])
            self._tasks.spawn(self._work(session))

    async def _work(self, session: Session) -> None:
        waiting = self._waiting[session]
        count = 0
        while waiting:
            await self._finish(session, waiting[0])
            waiting.popleft()
            session.wake()
            count += 1
            if count % FILTERS_AT_ONCE == 0:
                await asyncio.sleep(0)
        del self._waiting[session]

    async def _finish(self, session: Session, work: Work) -> None:
        """A mistake of our own costs this client its connection, and nobody else anything."""
        outbox = session.outbox
        try:
            await work()
        except PenstockError:  # the catalog does not answer: the client comes back and asks again
            if outbox is not None:
                outbox.close()
        except Exception as mistake:
            context = {"message": "a connection was closed", "exception": mistake}
            asyncio.get_running_loop().call_exception_handler(context)
            if outbox is not None:
                outbox.close()

    async def _send_retained(self, subscription: Subscription, ends: dict[int, int]) -> None:
        session = subscription.session
        names = self._retained.matching(subscription.filter)
        while part := list(islice(names, RETAINED_AT_ONCE)):
            for at, name in enumerate(part, 1):
                await self._send_name(subscription, name, ends, part[at : at + NAMES_AHEAD])
                if session.outbox is None:
                    return
            if len(part) == RETAINED_AT_ONCE:
                await asyncio.sleep(0)

    async def _send_name(
        self, subscription: Subscription, name: str, ends: dict[int, int], next_names: list[str]
    ) -> None:
        """Send what is retained under a name when there is room; it may be another by then."""
        session = subscription.session
        head = self._owed(subscription, name, ends)
        while head is not None:
            row = self._retained.held(head)
            outbox = session.outbox
            if row is None and outbox is not None and outbox.has_room:
                row = await self._retained.fetch(head, next_names)
                if row is None:  # deleted or replaced meanwhile
                    again = self._owed(subscription, name, ends)
                    head = None if again is head else again
                    continue
            if row is not None and self._hand_retained(subscription, row):
                return
            await session.wait_room()
            head = self._owed(subscription, name, ends)

    def _owed(
        self, subscription: Subscription, name: str, ends: dict[int, int]
    ) -> RetainedHead | None:
        """What the subscriber is owed of a name now; None as well if it has gone since."""
        session = subscription.session
        outbox = session.outbox
        if outbox is None or subscription.filter not in session.subscriptions:
            return None
        head = self._retained.get(name)
        if head is None or head.offset >= ends.get(head.topic_id, 0):
            return None
        topic = self._topics.by_id(head.topic_id)
        key = "" if topic is None else topic.key
        if not self._authorise(outbox.principal, RECEIVE, name, key):
            return None
        is_own = subscription.no_local and head.publisher == session.client_id
        return None if is_own else head

    def _hand_retained(self, subscription: Subscription, row: RetainedRow) -> bool:
        """Send one retained message; False if there is no room for it now."""
        session = subscription.session
        outbox = session.outbox
        if outbox is None:
            return True
        if subscription.feed is not None:
            return self._hand_feed_retained(subscription.feed, row)
        flags = record_flags(row.qos, True, row.kind)
        run = Run(row.name, row.payload, [0], [len(row.payload)], flags)
        run.headers = row.headers
        if row.expires_at:
            run.until_us = self._clock.until_us(row.timestamp, row.expires_at)
        run.publisher = row.publisher
        qos = min(row.qos, subscription.qos)
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        encoding = outbox.encoding(qos, True, identifiers)  # retained ones always say so
        if not outbox.has_room or (qos and not session.has_room):
            return False
        if qos == 0:
            outbox.forward(run.name, 1, encoding.forward_bytes(run))
        else:
            session.send(retained_place(row.topic_id), row.offset, run, encoding)
        return True

    def _hand_feed_retained(self, feed: OwnFeed, row: RetainedRow) -> bool:
        topic = self._topics.by_id(row.topic_id)
        if topic is None:
            return True
        record = retained_record(row, topic)
        if feed.where is not None and not feed.where.passes(record):
            return True
        place = retained_place(feed.place(topic.id))
        return send_one(feed, place, row.offset, feed_run(record, topic, self._clock), True)
