"""SUBSCRIBE and UNSUBSCRIBE: checked, made durable where the session is, then answered.

What a client asks for is done in the order in which it asked: while one SUBSCRIBE has to look up
where its feeds begin, or waits for retained messages that came before it and are not durable yet,
its connection is paused, and everything behind it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from penstock.broker.deliver.history import FEEDS_MAX
from penstock.broker.exchange import Exchange
from penstock.broker.session.session import OwnFeed, Session, Subscription
from penstock.core.naming.names import SHARE_PREFIX, quoted, split_share
from penstock.core.naming.overlaps import OVERLAPS_MAX
from penstock.core.quotas import SUBSCRIPTIONS
from penstock.doors.mqtt.answers import explained
from penstock.doors.mqtt.connection import Connection
from penstock.doors.mqtt.dollar_sys import DollarSys, is_own
from penstock.doors.mqtt.host import Spawn
from penstock.doors.mqtt.receive.asked import Asked, read_asked
from penstock.model.errors import InvalidFilter, PenstockError, QuotaExceeded, RefusedError
from penstock.mqtt.packets import Packet, Suback, Subscribe, Unsuback, Unsubscribe
from penstock.mqtt.packets import Subscription as Wanted
from penstock.mqtt.reasons import FAILURE, Reason

SUBSCRIPTIONS_MAX: Final = 10_000  # of one session
FILTERS_AT_ONCE: Final = 250  # of one SUBSCRIBE, before others have their turn
TURN_S: Final = 0.002  # until the next part of it


class Made:
    """What one SUBSCRIBE brought about, and what is still to be done for it."""

    def __init__(self, packet: Subscribe, ends: dict[int, int]) -> None:
        self.packet = packet
        self.ends = ends  # of the topics, when it was asked for
        self.reasons: list[Reason] = []
        self.why = ""  # the first refusal, in words
        self.subscriptions: list[Subscription] = []
        self.with_retained: set[Subscription] = set()

    def refuse(self, reason: Reason, why: str) -> None:
        self.reasons.append(reason)
        self.why = self.why or why

    def answer(self) -> Suback:
        return Suback(self.packet.packet_id, tuple(self.reasons), explained(self.why))


class Subscribing:
    """What clients ask to receive."""

    def __init__(self, exchange: Exchange, dollar_sys: DollarSys, spawn: Spawn) -> None:
        self.exchange = exchange
        self._dollar_sys = dollar_sys
        self._spawn = spawn

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        session = connection.session
        assert session is not None
        try:
            asked = read_asked(packet.properties, self.exchange.engine.clock.now_us())
        except RefusedError as refused:
            self._refuse_all(connection, session, packet, str(refused))
            return
        is_long = len(packet.subscriptions) > FILTERS_AT_ONCE
        is_behind = self.exchange.retained_delivery.is_behind(session)
        is_slow = is_long or is_behind or self.exchange.delivery.is_retaining
        if asked is None and not (is_slow or self._is_limited):
            made = self._begin_plain(packet)
            self._install_plain(connection, session, made, packet.subscriptions)
            self._finish(connection, session, made)
        else:
            connection.gate.pause()
            self._spawn(connection, self._subscribe_slowly(connection, session, packet, asked))

    async def _subscribe_slowly(
        self, connection: Connection, session: Session, packet: Subscribe, asked: Asked | None
    ) -> None:
        """After the retained messages that came before it; then whatever waited behind it."""
        try:
            await self.exchange.retained_delivery.wait_ahead(session)
            await self.exchange.delivery.wait_retained()
            if connection.is_closed:
                return
            async with self._room(connection, session, packet) as full:
                if full:
                    self._refuse_all(connection, session, packet, full, Reason.QUOTA_EXCEEDED)
                elif asked is None:
                    await self._subscribe_parts(connection, session, packet)
                else:
                    await self._subscribe_feeds(connection, session, packet, asked)
        finally:
            connection.unpause()

    @property
    def _is_limited(self) -> bool:
        """Whether other nodes have to be asked, too, before a client may have a filter more."""
        quotas = self.exchange.engine.quotas.cluster
        return quotas is not None and quotas.is_limited(SUBSCRIPTIONS)

    @asynccontextmanager
    async def _room(
        self, connection: Connection, session: Session, packet: Subscribe
    ) -> AsyncIterator[str]:
        """Around subscribing: as a node, the new filters are counted for all nodes first.

        Why they may not be, if there are too many; then none of them is subscribed to.
        """
        quotas = self.exchange.engine.quotas.cluster
        asked = {one.filter for one in packet.subscriptions}
        count = len(asked.difference(session.subscriptions))
        if quotas is None or not count or not self._is_limited:
            yield ""
            return
        user = connection.principal.user
        try:
            await quotas.take(SUBSCRIPTIONS, user, count)
        except PenstockError as refused:
            yield str(refused)
            return
        try:
            yield ""
        finally:
            quotas.give(SUBSCRIPTIONS, user, count)  # each that was made counts by itself now

    async def _subscribe_parts(
        self, connection: Connection, session: Session, packet: Subscribe
    ) -> None:
        """Many filters, a part at a time: the others have their turn between."""
        made = self._begin_plain(packet)
        wanted = packet.subscriptions
        for start in range(0, len(wanted), FILTERS_AT_ONCE):
            if start:
                await asyncio.sleep(TURN_S)
            if connection.is_closed:
                return
            part = wanted[start : start + FILTERS_AT_ONCE]
            self._install_plain(connection, session, made, part)
        self._finish(connection, session, made)

    def _begin_plain(self, packet: Subscribe) -> Made:
        if any(is_own(wanted.filter) for wanted in packet.subscriptions):
            self._dollar_sys.refresh()
        return Made(packet, self.exchange.engine.topics.ends())

    def _install_plain(
        self, connection: Connection, session: Session, made: Made, part: Sequence[Wanted]
    ) -> None:
        for wanted in part:
            reason, why = self._check(session, wanted)
            if reason >= FAILURE:
                made.refuse(reason, why)
            else:
                if connection.is_bridge:
                    wanted = _of_bridge(wanted)
                self._install(made, wanted, _subscription(session, wanted, made.packet))

    def _refuse_all(
        self,
        connection: Connection,
        session: Session,
        packet: Subscribe,
        why: str,
        refusal: Reason = Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    ) -> None:
        made = Made(packet, {})
        for wanted in packet.subscriptions:
            reason, own = self._check(session, wanted)
            if reason >= FAILURE:
                made.refuse(reason, own)
            else:
                made.refuse(refusal, why)
        connection.put_packet(made.answer())

    def _install(self, made: Made, wanted: Wanted, subscription: Subscription) -> None:
        if not self.exchange.sessions.may_overlap(subscription.session, wanted.filter):
            made.refuse(
                Reason.QUOTA_EXCEEDED,
                f"{quoted(wanted.filter)} overlaps too many filters of this session: at most "
                f"{OVERLAPS_MAX} may match one name; use fewer and wider filters",
            )
            return
        is_new = self.exchange.sessions.subscribe(subscription)
        made.reasons.append(Reason(wanted.qos))
        made.subscriptions.append(subscription)
        if subscription.share is not None:
            return  # nobody is given retained messages (MQTT 5 §4.8.2)
        if wanted.retain_handling == 0 or (wanted.retain_handling == 1 and is_new):
            made.with_retained.add(subscription)

    # Feeds

    async def _subscribe_feeds(
        self, connection: Connection, session: Session, packet: Subscribe, asked: Asked
    ) -> None:
        """Subscriptions with `from` or `where`."""
        made = Made(packet, self.exchange.engine.topics.ends())
        for wanted in packet.subscriptions:
            await self._subscribe_feed(session, made, wanted, asked)
        if not connection.is_closed:
            self._finish(connection, session, made)

    async def _subscribe_feed(
        self, session: Session, made: Made, wanted: Wanted, asked: Asked
    ) -> None:
        reason, why = self._check_feed(session, wanted)
        if reason >= FAILURE:
            made.refuse(reason, why)
            return
        try:
            offsets = await self.exchange.feeds.locate(wanted.filter, asked.position)
        except PenstockError as refused:
            made.refuse(Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(refused))
            return
        if session.outbox is None:
            return  # the client went meanwhile
        subscription = _subscription(session, wanted, made.packet)
        subscription.feed = OwnFeed(subscription, session.take_feed_id(), asked.where)
        subscription.feed.lags = offsets
        self._install(made, wanted, subscription)

    def _check_feed(self, session: Session, wanted: Wanted) -> tuple[Reason, str]:
        """As `_check`, for a subscription with a feed of its own."""
        if wanted.filter.startswith(SHARE_PREFIX):
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR, (
                f"{quoted(wanted.filter)} is a shared subscription, whose members have one "
                "position: omit from and where"
            )
        reason, why = self._check(session, wanted)
        if reason >= FAILURE:
            return reason, why
        if is_own(wanted.filter):
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR, (
                f"{quoted(wanted.filter)} has no history, because the statistics of the broker "
                "are not stored: omit from and where"
            )
        known = session.subscriptions.get(wanted.filter)
        is_replaced = known is not None and known.feed is not None
        if len(session.feeds) >= FEEDS_MAX and not is_replaced:
            return Reason.QUOTA_EXCEEDED, (
                f"more than {FEEDS_MAX} subscriptions with from or where: use wider filters, or "
                "another client"
            )
        return reason, ""

    # Answers

    def _finish(self, connection: Connection, session: Session, made: Made) -> None:
        """Answer, once it is durable where the session is."""
        if session.vault is None:
            self._confirm(connection, made)
        else:
            work = self.exchange.store.subscribe(session, made.subscriptions)
            self._spawn(connection, self._confirm_kept(connection, work, made))

    def _confirm(self, connection: Connection, made: Made) -> None:
        if connection.is_closed:
            return
        connection.put_packet(made.answer())
        for subscription in made.subscriptions:
            is_wanted = subscription in made.with_retained
            if subscription.feed is not None:
                self.exchange.retained_delivery.begin_feed(subscription, with_retained=is_wanted)
            elif is_wanted:
                self.exchange.retained_delivery.send_retained(subscription, made.ends)
                self._dollar_sys.greet(subscription)

    async def _confirm_kept(
        self, connection: Connection, work: Awaitable[None], made: Made
    ) -> None:
        if await self._is_stored(connection, work):
            self._confirm(connection, made)

    async def _is_stored(self, connection: Connection, work: Awaitable[None]) -> bool:
        """Wait until it is durable; if it cannot be stored, close the connection."""
        try:
            await work
        except PenstockError as refused:
            connection.end(Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(refused))
            return False
        return True

    def _check(self, session: Session, wanted: Wanted) -> tuple[Reason, str]:
        """The granted QoS, or why the filter is refused."""
        try:
            _, filter = split_share(wanted.filter)
        except InvalidFilter as invalid:
            return Reason.TOPIC_FILTER_INVALID, str(invalid)
        outbox = session.outbox
        if outbox is None or not self.exchange.router.may_subscribe(outbox.principal, filter):
            return Reason.NOT_AUTHORIZED, f"subscribing to {quoted(filter)} is not allowed"
        known = session.subscriptions
        if len(known) >= SUBSCRIPTIONS_MAX and wanted.filter not in known:
            why = f"a session may have at most {SUBSCRIPTIONS_MAX} subscriptions"
            return Reason.QUOTA_EXCEEDED, why
        if wanted.filter not in known:
            try:
                self.exchange.sessions.check_room(outbox.principal.user)
            except QuotaExceeded as exceeded:
                return Reason.QUOTA_EXCEEDED, str(exceeded)
        return Reason(wanted.qos), ""

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        session = connection.session
        assert session is not None
        reasons = [
            Reason.SUCCESS
            if self.exchange.sessions.unsubscribe(session, filter)
            else Reason.NO_SUBSCRIPTION_EXISTED
            for filter in packet.filters
        ]
        answer = Unsuback(packet.packet_id, tuple(reasons))
        if session.vault is None:
            connection.put_packet(answer)
        else:
            work = self.exchange.store.unsubscribe(session, list(packet.filters))
            self._spawn(connection, self._answer_kept(connection, work, answer))

    async def _answer_kept(
        self, connection: Connection, work: Awaitable[None], answer: Packet
    ) -> None:
        if await self._is_stored(connection, work) and not connection.is_closed:
            connection.put_packet(answer)


def _of_bridge(wanted: Wanted) -> Wanted:
    """What a bridge subscribes to: it wants none of its own messages back, and retain as it was.

    Before MQTT 5 no subscription can say so; the bridge bit of the CONNECT does.
    """
    is_shared = wanted.filter.startswith(SHARE_PREFIX)  # nobody's own: No Local is not for them
    return replace(wanted, no_local=not is_shared, retain_as_published=True)


def _subscription(session: Session, wanted: Wanted, packet: Subscribe) -> Subscription:
    identifiers = packet.properties.subscription_identifiers
    return Subscription(
        session,
        wanted.filter,
        wanted.qos,
        no_local=wanted.no_local,
        retain_as_published=wanted.retain_as_published,
        identifier=identifiers[0] if identifiers else 0,
    )
