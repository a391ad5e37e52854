"""The MQTT door: listeners, the connections they took, and packets that are no messages.

Everything runs on the event loop. Sockets are served by the DoorSelector, without asyncio
transports, which keeps an idle connection small and a message cheap.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final
from uuid import uuid4

from penstock.broker.exchange import Exchange
from penstock.broker.sessions import Session, Subscription
from penstock.core.names import check_filter
from penstock.doors.mqtt.connection import PACKET_BYTES_MAX, Connection
from penstock.doors.mqtt.encoding import Encodings
from penstock.doors.selector import GONE, READABLE, WRITABLE, DoorSelector
from penstock.model.errors import InvalidFilter
from penstock.model.limits import KIB
from penstock.mqtt.kinds import Role
from penstock.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.packets import Subscription as Wanted
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import FAILURE, Reason
from penstock.mqtt.state import event_of, next_state

READ_BYTES: Final = 64 * KIB
ACCEPTS_MAX: Final = 64  # of one event: others get their turn
BACKLOG: Final = 1024
CONNECT_S_MAX: Final = 10  # from the connection to its CONNECT
WINDOW_MAX: Final = 1_000  # messages out to one client, whatever it allows
HOLD_S: Final = 0.002  # a client that brings more than the disk takes is read again after it
CONNECTIONS_MAX: Final = 100_000
SUBSCRIPTIONS_MAX: Final = 10_000  # of one session


class SocketLink:
    """A non-blocking TCP socket, served by the selector."""

    __slots__ = ("_events", "_selector", "_socket")

    def __init__(self, sock: socket.socket, selector: DoorSelector) -> None:
        self._socket = sock
        self._selector = selector
        self._events: int = READABLE

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def receive(self) -> bytes:
        return self._socket.recv(READ_BYTES)

    def send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def want_write(self, wanted: bool) -> None:
        self._change(self._events | WRITABLE if wanted else self._events & ~WRITABLE)

    def want_read(self, wanted: bool) -> None:
        self._change(self._events | READABLE if wanted else self._events & ~READABLE)

    def _change(self, events: int) -> None:
        if events != self._events:
            self._events = events
            self._selector.change(self._socket.fileno(), events)

    def close(self) -> None:
        with suppress(OSError, KeyError):
            self._selector.leave(self._socket.fileno())
        self._socket.close()


class MqttDoor:
    """Implements the connections' Host."""

    def __init__(
        self, exchange: Exchange, selector: DoorSelector, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.exchange = exchange
        self.encodings = Encodings(exchange.engine.clock)
        self.tick = 0
        self._selector = selector
        self._loop = loop
        self._listeners: list[socket.socket] = []
        self._connections: set[Connection] = set()
        self._dirty: list[Connection] = []
        self._held: list[Connection] = []
        self._timer = loop.call_later(1.0, self._each_second)

    # Listening

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Take connections on an address; the address that was bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.serve(listener.fileno(), partial(self._accept, listener))
        bound = listener.getsockname()
        return bound[0], bound[1]

    def _accept(self, listener: socket.socket, events: int) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _ = listener.accept()
            except OSError:  # nobody waits, or no descriptor is left: the others are served on
                return
            if len(self._connections) >= CONNECTIONS_MAX:
                self.exchange.engine.metrics.refused["connections"] += 1
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = SocketLink(sock, self._selector)
            connection = Connection(self, link)
            self._connections.add(connection)
            self._selector.serve(link.fd, partial(_serve, connection, link))

    # What connections ask for

    def mark_dirty(self, connection: Connection) -> None:
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    def hold(self, connection: Connection) -> None:
        connection.read_on(False)
        if not self._held:
            self._loop.call_later(HOLD_S, self._unhold)
        self._held.append(connection)

    def _unhold(self) -> None:
        """Read on; whoever still brings too much is held again."""
        held, self._held = self._held, []
        for connection in held:
            if connection.is_overdue:
                self.hold(connection)
            else:
                connection.read_on(True)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        session, connection.session = connection.session, None
        if session is not None and session.outbox is connection:
            self.exchange.detach(session)

    def handle(self, connection: Connection, packet: Packet) -> None:
        connection.state = next_state(connection.state, Role.CLIENT, event_of(packet))
        _HANDLERS[type(packet)](self, connection, packet)

    def connect(self, connection: Connection, packet: Connect) -> None:
        connection.version = packet.version
        if packet.properties.authentication_method is not None:
            self._refuse(connection, Reason.BAD_AUTHENTICATION_METHOD)
            return
        client_id = packet.client_id or f"auto-{uuid4().hex}"
        holder = self.exchange.sessions.get(client_id)
        if holder is not None and isinstance(holder.outbox, Connection):
            holder.outbox.end(Reason.SESSION_TAKEN_OVER)
        asked = packet.properties
        window = min(asked.receive_maximum or WINDOW_MAX, WINDOW_MAX)
        session = Session(client_id, connection, window)
        if asked.maximum_packet_size is not None:
            connection.packet_bytes_max = asked.maximum_packet_size
        connection.keep_alive_s = packet.keep_alive_s
        connection.begin(packet.version, session)
        self.exchange.attach(session)
        answer = Connack(properties=_offers(client_id if not packet.client_id else None))
        connection.put_packet(answer)
        connection.state = next_state(connection.state, Role.SERVER, event_of(answer))
        connection.go_on()

    def _refuse(self, connection: Connection, reason: Reason) -> None:
        connection.put_packet(Connack(reason=reason))
        connection.flush()
        connection.close()

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        session = connection.session
        assert session is not None
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        reasons = [self._subscribe(session, wanted, identifier) for wanted in packet.subscriptions]
        connection.put_packet(Suback(packet.packet_id, tuple(reasons)))

    def _subscribe(self, session: Session, wanted: Wanted, identifier: int) -> Reason:
        try:
            check_filter(wanted.filter)
        except InvalidFilter:
            return Reason.TOPIC_FILTER_INVALID
        if wanted.filter.startswith("$share/"):
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        known = session.subscriptions
        if len(known) >= SUBSCRIPTIONS_MAX and wanted.filter not in known:
            return Reason.QUOTA_EXCEEDED
        self.exchange.subscribe(
            Subscription(
                session,
                wanted.filter,
                wanted.qos,
                wanted.no_local,
                wanted.retain_as_published,
                identifier,
            )
        )
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
        connection.put_packet(Unsuback(packet.packet_id, tuple(reasons)))

    def ping(self, connection: Connection, packet: Pingreq) -> None:
        connection.put_packet(Pingresp())

    def disconnect(self, connection: Connection, packet: Disconnect) -> None:
        connection.close()

    def authenticate(self, connection: Connection, packet: Auth) -> None:
        connection.end(Reason.PROTOCOL_ERROR)

    def acknowledge(self, connection: Connection, packet: Puback | Pubcomp) -> None:
        """An acknowledgement with a reason; without one they come in runs."""
        session = connection.session
        assert session is not None
        session.window.release(packet.packet_id)
        self.exchange.resume(session)

    def received(self, connection: Connection, packet: Pubrec) -> None:
        session = connection.session
        assert session is not None
        if packet.reason >= FAILURE:
            session.window.release(packet.packet_id)
            self.exchange.resume(session)
        else:
            connection.put_packet(Pubrel(packet.packet_id))

    def release(self, connection: Connection, packet: Pubrel) -> None:
        connection.release_incoming(packet.packet_id)
        connection.put_packet(Pubcomp(packet.packet_id))

    # Time

    def _each_second(self) -> None:
        self._timer = self._loop.call_later(1.0, self._each_second)
        self.tick += 1
        for connection in list(self._connections):
            silent_s = self.tick - connection.last_seen
            if connection.session is None:
                if silent_s > CONNECT_S_MAX:
                    connection.close()
            elif connection.keep_alive_s and silent_s > connection.keep_alive_s * 1.5:
                connection.end(Reason.KEEP_ALIVE_TIMEOUT)

    def close(self) -> None:
        """Stop listening, tell the clients, close their connections."""
        self._timer.cancel()
        for listener in self._listeners:
            self._selector.leave(listener.fileno())
            listener.close()
        self._listeners = []
        for connection in list(self._connections):
            connection.end(Reason.SERVER_SHUTTING_DOWN)


def _serve(connection: Connection, link: SocketLink, events: int) -> None:
    """Something happened on a connection's socket."""
    if events & WRITABLE:
        connection.on_writable()
    if events & (READABLE | GONE) and not connection.is_closed:
        try:
            data = link.receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            connection.receive(data)
        else:
            connection.close()


def _offers(assigned: str | None) -> Properties:
    """What an MQTT 5 client is told about this broker."""
    return Properties(
        assigned_client_identifier=assigned,
        session_expiry_interval=0,
        receive_maximum=None,
        maximum_packet_size=PACKET_BYTES_MAX,
        retain_available=0,
        shared_subscription_available=0,
    )


_HANDLERS: Final[dict[type[Packet], Callable[[MqttDoor, Connection, Any], None]]] = {
    Connect: MqttDoor.connect,
    Subscribe: MqttDoor.subscribe,
    Unsubscribe: MqttDoor.unsubscribe,
    Pingreq: MqttDoor.ping,
    Disconnect: MqttDoor.disconnect,
    Auth: MqttDoor.authenticate,
    Puback: MqttDoor.acknowledge,
    Pubcomp: MqttDoor.acknowledge,
    Pubrec: MqttDoor.received,
    Pubrel: MqttDoor.release,
}
