"""The MQTT door: listeners, the connections they took, and packets that are no messages.

Everything runs on the event loop. Sockets are served by the DoorSelector, without asyncio
transports, which keeps an idle connection small and a message cheap.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final
from uuid import uuid4

from penstock.broker.exchange import Exchange
from penstock.broker.sessions import NEVER_EXPIRES, Session, Subscription
from penstock.core.access import SUBSCRIBE
from penstock.core.names import check_filter
from penstock.doors.mqtt.connection import PACKET_BYTES_MAX, Connection
from penstock.doors.mqtt.encoding import Encodings
from penstock.doors.mqtt.limits import DEFAULT_LIMITS, MqttLimits
from penstock.doors.mqtt.login import Logins
from penstock.doors.mqtt.tcp import SocketLink, serve
from penstock.doors.mqtt.tls import TlsLink, TlsListener
from penstock.doors.selector import DoorSelector
from penstock.model.errors import InvalidFilter, PenstockError
from penstock.mqtt.kinds import MQTT_5, Role
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

ACCEPTS_MAX: Final = 64  # of one event: others get their turn
BACKLOG: Final = 1024
WINDOW_MAX: Final = 1_000  # messages out to one client, whatever it allows
HOLD_S: Final = 0.002  # a client that brings more than the disk takes is read again after it
SUBSCRIPTIONS_MAX: Final = 10_000  # of one session


class MqttDoor:
    """Implements the connections' Host."""

    def __init__(
        self,
        exchange: Exchange,
        selector: DoorSelector,
        loop: asyncio.AbstractEventLoop,
        limits: MqttLimits = DEFAULT_LIMITS,
    ) -> None:
        self.exchange = exchange
        self.encodings = Encodings(exchange.engine.clock)
        self.tick = 0
        self._selector = selector
        self._loop = loop
        self._limits = limits
        self._listeners: list[socket.socket] = []
        self._tls_listeners: list[TlsListener] = []
        self._connections: set[Connection] = set()
        self._dirty: list[Connection] = []
        self._is_serving = False  # the selector calls handlers, and will have all flushed
        self._held: list[Connection] = []
        self._arriving: dict[str, Connection] = {}  # by client id: their session is being loaded
        self._tasks: set[asyncio.Task[None]] = set()
        self._logins = Logins(exchange.engine.access, loop, self.admit, self._refuse)
        self._timer = loop.call_later(1.0, self._each_second)
        selector.after_handlers(self._flush)

    # Listening

    def listen(
        self, host: str, port: int, context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Take connections on an address, with TLS if told how; the address that was bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        self._listeners.append(listener)
        begin = self._begin
        if context is not None:
            refused = self.exchange.engine.metrics.refused
            tls = TlsListener(context, self._loop, self._begin_tls, refused)
            self._tls_listeners.append(tls)
            begin = tls.take
        self._selector.serve(listener.fileno(), partial(self._accept, listener, begin))
        bound = listener.getsockname()
        return bound[0], bound[1]

    def _accept(
        self, listener: socket.socket, begin: Callable[[socket.socket], None], events: int
    ) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _ = listener.accept()
            except OSError:  # nobody waits, or no descriptor is left: the others are served on
                return
            if self._is_full():
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            begin(sock)

    def _is_full(self) -> bool:
        if len(self._connections) < self._limits.connections_max:
            return False
        self.exchange.engine.metrics.refused["connections"] += 1
        return True

    def _begin(self, sock: socket.socket) -> None:
        link = SocketLink(sock, self._selector)
        connection = Connection(self, link)
        self._connections.add(connection)
        self._selector.serve(link.fd, partial(self._serve, connection, link))

    def _serve(self, connection: Connection, link: SocketLink, events: int) -> None:
        self._is_serving = True
        try:
            serve(connection, link, events)
        except Exception as mistake:
            self._give_up(connection, mistake)

    def _give_up(self, connection: Connection, mistake: Exception) -> None:
        """A mistake of our own costs this client its connection, and nobody else anything."""
        context = {"message": "a connection was closed", "exception": mistake}
        self._loop.call_exception_handler(context)
        connection.close()

    def _begin_tls(self, link: TlsLink) -> Connection | None:
        if self._is_full():
            return None
        connection = Connection(self, link)
        self._connections.add(connection)
        return connection

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What connections ask for

    def mark_dirty(self, connection: Connection) -> None:
        if not self._dirty and not self._is_serving:
            self._loop.call_soon(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        self._is_serving = False
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            try:
                connection.flush()
            except Exception as mistake:
                self._give_up(connection, mistake)

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
        self._logins.forget(connection)
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
        self._logins.ask(connection, packet)

    def admit(self, connection: Connection, packet: Connect) -> None:
        """Open the session of a client that may come in."""
        client_id = packet.client_id or f"auto-{uuid4().hex}"
        holder = self.exchange.sessions.get(client_id)
        owner = self.exchange.keeper.stored.get(
            client_id, ""
        )  # nobody's: whoever comes may have it
        if owner and owner != connection.principal.user:
            self._refuse(connection, Reason.NOT_AUTHORIZED)  # somebody else's session
            return
        if holder is not None and isinstance(holder.outbox, Connection):
            if holder.outbox.principal is not connection.principal:
                self._refuse(connection, Reason.NOT_AUTHORIZED)
                return
            holder.outbox.end(Reason.SESSION_TAKEN_OVER)
        asked = packet.properties
        window = min(asked.receive_maximum or WINDOW_MAX, WINDOW_MAX)
        session = Session(client_id, connection, window)
        if asked.maximum_packet_size is not None:
            connection.packet_bytes_max = asked.maximum_packet_size
        connection.keep_alive_s = self._limits.keep_alive_s(packet.version, packet.keep_alive_s)
        session.expiry_s = _expiry_s(packet)
        is_stored = client_id in self.exchange.keeper.stored or client_id in self._arriving
        if session.expiry_s or is_stored:
            work = self._admit_kept(connection, packet, session)
            self._arriving[client_id] = connection
            self._spawn(work)
        else:
            self._welcome(connection, packet, session, is_present=False)

    async def _admit_kept(self, connection: Connection, packet: Connect, session: Session) -> None:
        """Open a session that outlives its connection, or ends one that did."""
        exchange = self.exchange
        try:
            stored, is_present = await exchange.keeper.begin(session, is_clean=packet.clean_start)
            if is_present:
                await exchange.restore(session, stored)
        except PenstockError:
            self._arrived(session.client_id, connection)
            self._refuse(connection, Reason.SERVER_UNAVAILABLE)
            return
        if not self._arrived(session.client_id, connection):
            connection.close()  # the session belongs to who came later
            return
        if connection.is_closed:
            if session.vault is not None:
                (exchange.keeper.leave if is_present else exchange.keeper.end)(session)
            return
        holder = exchange.sessions.get(session.client_id)
        if holder is not None and holder.outbox is not None:
            holder.outbox.close()
        self._welcome(connection, packet, session, is_present=is_present)
        if is_present:
            await exchange.go_on(session)

    def _arrived(self, client_id: str, connection: Connection) -> bool:
        """The session has been looked up; False if another connection asked for it meanwhile."""
        if self._arriving.get(client_id) is not connection:
            return False
        del self._arriving[client_id]
        return True

    def _welcome(
        self, connection: Connection, packet: Connect, session: Session, *, is_present: bool
    ) -> None:
        connection.begin(packet.version, session)
        self.exchange.attach(session)
        assigned = None if packet.client_id else session.client_id
        keep_alive_s = connection.keep_alive_s
        given_s = keep_alive_s if keep_alive_s != packet.keep_alive_s else None
        answer = Connack(is_present, properties=_offers(assigned, given_s))
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

    def ping(self, connection: Connection, packet: Pingreq) -> None:
        connection.put_packet(Pingresp())

    def disconnect(self, connection: Connection, packet: Disconnect) -> None:
        session = connection.session
        expiry_s = packet.properties.session_expiry_interval
        if session is not None and expiry_s is not None:
            if session.expiry_s == 0 and expiry_s:  # [MQTT 5 §3.14.2.2.2]
                connection.end(Reason.PROTOCOL_ERROR)
                return
            session.expiry_s = expiry_s
        connection.close()

    def authenticate(self, connection: Connection, packet: Auth) -> None:
        connection.end(Reason.PROTOCOL_ERROR)

    def acknowledge(self, connection: Connection, packet: Puback | Pubcomp) -> None:
        """An acknowledgement with a reason; without one they come in runs."""
        session = connection.session
        assert session is not None
        session.acknowledge([packet.packet_id])
        self.exchange.resume(session)

    def received(self, connection: Connection, packet: Pubrec) -> None:
        session = connection.session
        assert session is not None
        if packet.reason >= FAILURE:
            session.acknowledge([packet.packet_id])
            self.exchange.resume(session)
        else:
            session.received([packet.packet_id])

    def release(self, connection: Connection, packet: Pubrel) -> None:
        connection.release_opened([packet.packet_id])

    # Time

    def _each_second(self) -> None:
        self._timer = self._loop.call_later(1.0, self._each_second)
        self.tick += 1
        for connection in list(self._connections):
            silent_s = self.tick - connection.last_seen
            if connection.session is None:
                if silent_s > self._limits.connect_s_max:
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
        for tls in self._tls_listeners:
            tls.close()
        for connection in list(self._connections):
            connection.end(Reason.SERVER_SHUTTING_DOWN)


def _offers(assigned: str | None, keep_alive_s: int | None) -> Properties:
    """What an MQTT 5 client is told about this broker."""
    return Properties(
        assigned_client_identifier=assigned,
        server_keep_alive=keep_alive_s,
        maximum_packet_size=PACKET_BYTES_MAX,
        shared_subscription_available=0,
    )


def _expiry_s(packet: Connect) -> int:
    """How long the session outlives its connection; before MQTT 5 for ever, or not at all."""
    if packet.version == MQTT_5:
        return packet.properties.session_expiry_interval or 0
    return 0 if packet.clean_start else NEVER_EXPIRES


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
