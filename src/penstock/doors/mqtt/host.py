"""The MQTT door, as its connections see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker.exchange import Exchange
from penstock.doors.mqtt.encoding import Encodings
from penstock.doors.serving import Serving
from penstock.mqtt.packets import Packet
from penstock.mqtt.reasons import Reason

if TYPE_CHECKING:
    from penstock.doors.mqtt.connection import Connection


class Host(Protocol):
    """What a connection asks of its door."""

    exchange: Exchange
    encodings: Encodings
    serving: Serving
    tick: int  # seconds, coarse

    def handle(self, connection: Connection, packet: Packet) -> None:
        """A packet that is no PUBLISH and no plain acknowledgement."""
        ...

    def hold(self, connection: Connection, wait_s: float) -> None:
        """Stop reading from this client for so long; 0: until less waits to be written."""
        ...

    def create_topic(self, connection: Connection, topic: str) -> None:
        """Create a topic for a paused connection, then have it go on."""
        ...

    def end_violator(self, connection: Connection, reason: Reason, why: str) -> None:
        """The client broke a rule: count it, log it, end its connection."""
        ...

    def forget(self, connection: Connection) -> None: ...
