"""SUBSCRIBE and UNSUBSCRIBE: checked, made durable where the session is, then answered."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from penstock.broker.exchange import Exchange
from penstock.broker.sessions import Session, Subscription
from penstock.core.access import SUBSCRIBE
from penstock.core.names import check_filter
from penstock.doors.mqtt.arrivals import Spawn
from penstock.doors.mqtt.connection import Connection
from penstock.model.errors import InvalidFilter, PenstockError
from penstock.mqtt.packets import Packet, Suback, Subscribe, Unsuback, Unsubscribe
from penstock.mqtt.packets import Subscription as Wanted
from penstock.mqtt.reasons import FAILURE, Reason

SUBSCRIPTIONS_MAX: Final = 10_000  # of one session


class Subscribing:
    """What clients ask to receive."""

    def __init__(self, exchange: Exchange, spawn: Spawn) -> None:
        self.exchange = exchange
        self._spawn = spawn

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        session = connection.session
        assert session is not None
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        ends = self.exchange.ends()
        reasons: list[Reason] = []
        made: list[Subscription] = []
        retained: list[Subscription] = []
        for wanted in packet.subscriptions:
            reason = self._check(session, wanted)
            reasons.append(reason)
            if reason >= FAILURE:
                continue
            subscription = Subscription(
                session,
                wanted.filter,
                wanted.qos,
                wanted.no_local,
                wanted.retain_as_published,
                identifier,
            )
            is_new = self.exchange.subscribe(subscription)
            made.append(subscription)
            if wanted.retain_handling == 0 or (wanted.retain_handling == 1 and is_new):
                retained.append(subscription)
        answer = Suback(packet.packet_id, tuple(reasons))
        if session.vault is None:
            self._confirm(connection, answer, retained, ends)
        else:
            work = self.exchange.keeper.subscribe(session, made)
            self._spawn(self._confirm_kept(connection, work, answer, retained, ends))

    def _confirm(
        self,
        connection: Connection,
        answer: Packet,
        retained: list[Subscription],
        ends: dict[int, int],
    ) -> None:
        if connection.is_closed:
            return
        connection.put_packet(answer)
        for subscription in retained:
            self.exchange.send_retained(subscription, ends)

    async def _confirm_kept(
        self,
        connection: Connection,
        work: Awaitable[None],
        answer: Packet,
        retained: list[Subscription],
        ends: dict[int, int],
    ) -> None:
        """Answer once it is durable; a client that cannot be told so is let go."""
        try:
            await work
        except PenstockError:
            connection.end(Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        else:
            self._confirm(connection, answer, retained, ends)

    def _check(self, session: Session, wanted: Wanted) -> Reason:
        """The granted QoS, or why the filter is refused."""
        try:
            check_filter(wanted.filter)
        except InvalidFilter:
            return Reason.TOPIC_FILTER_INVALID
        outbox = session.outbox
        if outbox is None or not self.exchange.authorise(
            outbox.principal, SUBSCRIBE, wanted.filter
        ):
            return Reason.NOT_AUTHORIZED
        if wanted.filter.startswith("$share/"):
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        known = session.subscriptions
        if len(known) >= SUBSCRIPTIONS_MAX and wanted.filter not in known:
            return Reason.QUOTA_EXCEEDED
        return Reason(wanted.qos)

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        session = connection.session
        assert session is not None
        reasons = [
            Reason.SUCCESS
            if self.exchange.unsubscribe(session, filter)
            else Reason.NO_SUBSCRIPTION_EXISTED
            for filter in packet.filters
        ]
        answer = Unsuback(packet.packet_id, tuple(reasons))
        if session.vault is None:
            connection.put_packet(answer)
        else:
            work = self.exchange.keeper.unsubscribe(session, list(packet.filters))
            self._spawn(self._confirm_kept(connection, work, answer, [], {}))
