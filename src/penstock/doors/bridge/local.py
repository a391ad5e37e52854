"""A bridge as a client of its own broker: a connection of the MQTT door without a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.exchange import Exchange
from penstock.broker.session.session import NEVER_EXPIRES, Session
from penstock.core.access import Principal
from penstock.core.naming.bridged_names import BridgeTopic
from penstock.doors.bridge.conversation import Conversation
from penstock.doors.bridge.link import BridgeLink
from penstock.doors.bridge.settings import BridgeSettings
from penstock.doors.mqtt.door import MqttDoor
from penstock.model.errors import UnavailableError
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Suback, Subscription
from penstock.mqtt.properties import Properties

WITH_RETAINED: Final = 0  # retain handling: retained messages come with the subscription
NO_RETAINED: Final = 2


class LocalSide:
    """From `connect` to `close` it has the session of the bridge."""

    def __init__(
        self,
        settings: BridgeSettings,
        door: MqttDoor,
        principal: Principal,
        want_read: Callable[[bool], None] = lambda wanted: None,
    ) -> None:
        self._settings = settings
        self.conversation = Conversation("this broker", MQTT_5, self._receive)
        self.link = BridgeLink(settings.name, self.conversation.feed, want_read, self._gone)
        self._connection = door.begin_known(self.link, principal)
        self.link.on_writable = self._connection.on_writable

    def _receive(self, data: bytes) -> None:
        if not self._connection.is_closed:
            self._connection.receive(data)

    def _gone(self) -> None:
        why = self._connection.end_reason or "the connection was closed"
        self.conversation.end(UnavailableError(f"this broker ended the session: {why}"))

    @property
    def session(self) -> Session:
        session = self._connection.session
        if session is None:
            raise self.conversation.ended.result()
        return session

    async def connect(self, window: int) -> Connack:
        """Go on with the session, of which at most `window` messages may be in flight."""
        is_clean = self._settings.clean_start
        expiry_s = 0 if is_clean else NEVER_EXPIRES
        asked = Properties(session_expiry_interval=expiry_s, receive_maximum=window)
        packet = Connect(self._settings.local_id, is_clean, properties=asked)
        return await self.conversation.connect(packet)

    async def subscribe(
        self, topics: tuple[BridgeTopic, ...], qos_max: int, retain_handling: int
    ) -> list[str]:
        """Have exactly these; the filters that were refused."""
        wanted = {one.local_filter: min(one.qos, qos_max) for one in topics if one.is_out}
        gone = [one for one in self.session.subscriptions if one not in wanted]
        if gone:
            await self.conversation.unsubscribe(gone)
        if not wanted:
            return []
        asked = [carried(filter, qos, retain_handling) for filter, qos in wanted.items()]
        return refused_filters(asked, await self.conversation.subscribe(asked))

    def close(self, why: str) -> None:
        if not self._connection.is_closed:
            self._connection.end_reason = why
            self._connection.close()


def carried(filter: str, qos: int, retain_handling: int) -> Subscription:
    """Messages as they were published, and none of the bridge's own."""
    return Subscription(
        filter, qos, no_local=True, retain_as_published=True, retain_handling=retain_handling
    )


def refused_filters(asked: list[Subscription], answer: Suback) -> list[str]:
    """Those that were not granted."""
    reasons = zip(asked, answer.reasons, strict=True)
    return [one.filter for one, reason in reasons if reason >= 0x80]


def positions(exchange: Exchange, session: Session) -> dict[int, int]:
    """Topic id -> the first record that the session has not passed."""
    return exchange.engine.topics.ends() | session.lags
