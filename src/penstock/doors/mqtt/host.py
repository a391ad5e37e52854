"""The MQTT door, as its connections see it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.deliver.routes import MustWait
from penstock.broker.exchange import Exchange
from penstock.doors.budget import Budget
from penstock.doors.mqtt.encoding import Encodings
from penstock.doors.mqtt.unsent import Unsent
from penstock.doors.serving import Serving
from penstock.mqtt.packets import Packet
from penstock.mqtt.scanner import Chunk, PublishRun

if TYPE_CHECKING:
    from penstock.doors.mqtt.connection import Connection


# Goes on in the background; a mistake in it costs this client its connection.
Spawn = Callable[["Connection", Coroutine[Any, Any, None]], None]


class Host(Protocol):
    """What a connection asks of its door."""

    exchange: Exchange  # of the default tenant, with which strangers are counted
    encodings: Encodings
    serving: Serving
    unsent: Unsent  # of what clients do not read
    early_budget: Budget  # of what is held for clients that are not let in yet

    def handle(self, connection: Connection, packet: Packet) -> None:
        """A packet that is no PUBLISH and no plain acknowledgement."""
        ...

    def hold(self, connection: Connection, wait_s: float) -> None:
        """Stop reading from this client for so long; 0: until less waits to be written."""
        ...

    def wait_turn(self, connection: Connection) -> None:
        """Have a paused connection go on in the next tick."""
        ...

    def linger(self, size: int) -> None:
        """So much is still to be sent to a connection that is over: it counts for a while."""
        ...

    def refuse_stranger(self, connection: Connection) -> None:
        """Those who are not let in yet hold too much together: end this one."""
        ...

    def wait(
        self,
        connection: Connection,
        chunk: Chunk,
        run: PublishRun | None,
        last: PublishRun,
        wait: MustWait,
    ) -> None:
        """Of the runs up to `last`, `run` has to wait, and so has everything behind it."""
        ...

    def fail(self, connection: Connection, error: Exception) -> None:
        """End the connection: its client broke a rule, or we made a mistake."""
        ...

    def forget(self, connection: Connection) -> None: ...
