"""The MQTT door, as its connections see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker.exchange import Exchange
from penstock.doors.mqtt.encoding import Encodings
from penstock.mqtt.packets import Packet
from penstock.mqtt.reasons import Reason

if TYPE_CHECKING:
    from penstock.doors.mqtt.connection import Connection


class Host(Protocol):
    """What a connection asks of its door."""

    exchange: Exchange
    encodings: Encodings
    tick: int  # seconds, coarse

    def handle(self, connection: Connection, packet: Packet) -> None:
        """A packet that is no PUBLISH and no plain acknowledgement."""
        ...

    def mark_dirty(self, connection: Connection) -> None:
        """Call `flush` at the end of this tick."""
        ...

    def hold(self, connection: Connection) -> None:
        """Too much waits to be written: stop reading from this client for a moment."""
        ...

    def create_topic(self, connection: Connection, topic: str) -> None:
        """Create a topic for a paused connection, then have it go on."""
        ...

    def end_violator(self, connection: Connection, reason: Reason, why: str) -> None:
        """The client broke a rule: count it, log it, end its connection."""
        ...

    def give_up(self, connection: Connection, mistake: Exception) -> None:
        """A mistake of our own costs this client its connection, and nobody else anything."""
        ...

    def forget(self, connection: Connection) -> None: ...
