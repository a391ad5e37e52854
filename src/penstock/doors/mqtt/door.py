"""The MQTT door: listeners, the connections they took, and packets that are no messages.

Everything runs on the event loop. Sockets are served by the DoorSelector, without asyncio
transports, which keeps an idle connection small and a message cheap.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from penstock.broker.deliver.routes import MustWait, TopicWanted
from penstock.broker.limited_log import LimitedLog
from penstock.broker.world import World
from penstock.core.access import Principal
from penstock.core.proxies import NO_PROXIES, TrustedProxies
from penstock.doors.budget import Budget
from penstock.doors.descriptors import Descriptors
from penstock.doors.lingering import STOP_LINGER_S_MAX, Lingering
from penstock.doors.link import Link
from penstock.doors.listening import Listeners
from penstock.doors.mqtt.answers import moved, reason_of
from penstock.doors.mqtt.arrive.arrivals import DRAINING, Arrivals
from penstock.doors.mqtt.connection import Connection
from penstock.doors.mqtt.encoding import Encodings
from penstock.doors.mqtt.events import ClientEvents
from penstock.doors.mqtt.limits import DEFAULT_LIMITS, MqttLimits
from penstock.doors.mqtt.receive.acks import check_refused, take_acks
from penstock.doors.mqtt.receive.publishing import PUBREC
from penstock.doors.mqtt.unsent import Unsent
from penstock.doors.mqtt.world import MqttWorld
from penstock.doors.selector import DoorSelector
from penstock.doors.serving import Serving
from penstock.doors.strangers import Stranger, Strangers
from penstock.doors.tls.context import TlsContext
from penstock.model.errors import PenstockError
from penstock.model.limits import KIB
from penstock.model.record import TenantId
from penstock.mqtt.errors import ProtocolViolation
from penstock.mqtt.kinds import MQTT_5, Role, first_byte
from penstock.mqtt.packets import (
    PACKET_TYPES,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from penstock.mqtt.reasons import FAILURE, Reason
from penstock.mqtt.scanner import Chunk, PublishRun
from penstock.mqtt.state import event_of, next_state

HOLD_S: Final = 0.002  # a client that brings more than the disk takes is read again after it
LINGER_FREE_BYTES: Final = 64 * KIB  # the last words of a connection; more counts as unread
TURN_S: Final = 0.002  # between two turns of a client that brings more than enough for one
TURNS_AT_ONCE: Final = 4  # clients that go on in one tick
SENT_AWAY: Final = 200  # clients of a node that is drained, at a time
SENT_AWAY_S: Final = 0.1

Handler = Callable[[Connection, Any], None]


class MqttDoor:
    """Implements the connections' Host."""

    def __init__(
        self,
        world: World,
        selector: DoorSelector,
        loop: asyncio.AbstractEventLoop,
        descriptors: Descriptors,
        limits: MqttLimits = DEFAULT_LIMITS,
        proxies: TrustedProxies = NO_PROXIES,
        *,
        strangers_budget: Budget,
    ) -> None:
        exchange = world.exchange
        self.exchange = exchange  # of the default tenant
        self.worlds: dict[TenantId, MqttWorld] = {}
        self.encodings = Encodings(exchange.engine.clock)
        self.serving = Serving(selector, loop)
        self.early_budget = strangers_budget
        self.unsent = Unsent(on_exceeded=self._relieve_soon)
        self._is_relieving = False
        self.ports: dict[str, int] = {}  # by scheme, as bound
        self._loop = loop
        self._limits = limits
        refused = exchange.engine.metrics.refused
        self._lingering = Lingering(selector, loop, limits)
        self._log = LimitedLog("penstock.mqtt", loop)
        self._events = ClientEvents(exchange.engine.metrics, self._log, self.worlds)
        self._strangers = Strangers(loop.time, on_evict=self._events.evicted)
        self._unknown: dict[Connection, Stranger] = {}  # have not logged in
        self._listeners = Listeners(
            selector,
            loop,
            refused,
            make=self.begin,
            serving=self.serving,
            lingering=self._lingering,
            log=self._log,
            descriptors=descriptors,
            may_use_reserve=False,
            proxies=proxies if limits.proxy_protocol else NO_PROXIES,
            note_certificate=self._events.certificate_refused,
        )
        descriptors.watch(self._strangers, self._lingering)
        self._connections: set[Connection] = set()
        self._held: list[Connection] = []
        self._turns: deque[Connection] = deque()  # paused until their next turn
        self._turn_timer: asyncio.TimerHandle | None = None
        self.add_world(world)
        self._arrivals = Arrivals(
            self.worlds,
            loop,
            limits,
            spawn=self.serving.spawn,
            events=self._events,
            on_known=self._know,
        )
        self._handlers = self._handlers_by_packet()
        self._timer = loop.call_later(1.0, self._each_second)
        access = exchange.engine.access
        access.on_change.append(self._end_revoked)
        access.known.in_use.append(lambda: [one.principal for one in self._connections])

    def _handlers_by_packet(self) -> dict[type[Packet], Handler]:
        return {
            Connect: self._arrivals.connect,
            Subscribe: self.subscribe,
            Unsubscribe: self.unsubscribe,
            Pingreq: self.ping,
            Disconnect: self.disconnect,
            Auth: self.authenticate,
            Puback: self.acknowledge,
            Pubcomp: self.acknowledge,
            Pubrec: self.received,
            Pubrel: self.acknowledge,
        }

    # Tenants

    def add_world(self, world: World) -> None:
        """Let clients of a tenant in from now on."""
        spawn = self.serving.spawn
        self.worlds[world.tenant] = MqttWorld(world, self._loop, self._limits.sys_interval_s, spawn)

    def end_world(self, tenant: TenantId) -> None:
        """A tenant is being removed: nobody of it is let in any more, and all have to go."""
        for connection in list(self._connections):
            if connection.principal.tenant == tenant:
                connection.end(Reason.NOT_AUTHORIZED, f"tenant {tenant!r} was removed")
        self.worlds.pop(tenant).dollar_sys.close()

    def release(self, tenant: TenantId, client_id: str) -> None:
        """Another node asks for the session of a client, which has connected there."""
        self._arrivals.release(tenant, client_id)

    def send_away(self) -> None:
        """The node is drained: clients are sent to other nodes, some at a time."""
        node = self.exchange.engine.shared.node
        if node is None or not node.is_draining:
            return
        known = [one for one in self._connections if one.session is not None]
        for connection in known[:SENT_AWAY]:
            if connection.version == MQTT_5:
                told = moved(DRAINING, node.elsewhere)
                connection.put_packet(Disconnect(Reason.USE_ANOTHER_SERVER, told))
            connection.end_reason = DRAINING
            connection.leave()
        self._loop.call_later(SENT_AWAY_S, self.send_away)

    def drain(self, is_draining: bool) -> None:
        """As a node: send all clients away and take no more on shared ports, or take them again.

        Who connects to a port of this node alone is told where to go.
        """
        if is_draining:
            self._listeners.leave_shared()
            self.send_away()
        else:
            self._listeners.join_shared()

    def _world_of(self, connection: Connection) -> MqttWorld:
        return self.worlds[connection.principal.tenant]

    # Listening

    def listen(
        self, host: str, port: int, context: TlsContext | None = None, *, is_shared: bool = False
    ) -> tuple[str, int]:
        """Take connections on an address, with TLS if told how; the address that was bound."""
        bound = self._listeners.listen(host, port, context, is_shared=is_shared)
        self.ports["mqtt" if context is None else "mqtts"] = bound[1]
        return bound

    def begin(self, link: Link, stranger: Stranger | None = None) -> Connection | None:
        """A client on a link of any kind; None when there is no room for another.

        A link that another door took comes with the stranger that its client is there.
        """
        source = link.source
        count = len(self._connections) + len(self._lingering)
        room = self._limits.connections_max - count + len(self._strangers)
        if not self._strangers.has_room(source, room):
            self._events.too_many(link, is_full=count >= self._limits.connections_max)
            return None
        self.exchange.engine.metrics.traffic.sockets += 1
        connection = Connection(self, link)
        self._connections.add(connection)
        self._unknown[connection] = stranger or self._strangers.enter(source, connection.close)
        return connection

    def begin_known(self, link: Link, principal: Principal) -> Connection:
        """A client of ours inside this process: it does not log in."""
        connection = Connection(self, link)
        connection.principal = principal
        self._connections.add(connection)
        return connection

    def _know(self, connection: Connection) -> None:
        """Its client has logged in."""
        stranger = self._unknown.pop(connection, None)
        if stranger is not None:
            stranger.leave()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    # What connections ask for

    def hold(self, connection: Connection, wait_s: float) -> None:
        if wait_s > 0:
            self._loop.call_later(wait_s, self._wake, connection)
            return
        if not self._held:
            self._loop.call_later(HOLD_S, self._unhold)
        self._held.append(connection)

    def _unhold(self) -> None:
        """Continue reading; clients that still send too much are paused again."""
        held, self._held = self._held, []
        for connection in held:
            self._wake(connection)

    def _wake(self, connection: Connection) -> None:
        if connection.is_overdue:
            self.hold(connection, 0.0)
        else:
            connection.gate.unhold()

    def wait_turn(self, connection: Connection) -> None:
        self._turns.append(connection)
        self._time_turns()

    def _give_turns(self) -> None:
        """The others were served since these clients brought much: they go on for one turn."""
        self._turn_timer = None
        for _ in range(min(TURNS_AT_ONCE, len(self._turns))):
            self._turns.popleft().unpause()
        if self._turns:
            self._time_turns()

    def _time_turns(self) -> None:
        # A method of its own: compiled code that has just assigned None takes it for None.
        if self._turn_timer is None:
            self._turn_timer = self._loop.call_later(TURN_S, self._give_turns)

    def linger(self, size: int) -> None:
        if size > LINGER_FREE_BYTES:
            self.unsent.count(size)
            self._loop.call_later(self._limits.linger_s_max, self.unsent.count, -size)

    def _relieve_soon(self) -> None:
        if not self._is_relieving:
            self._is_relieving = True
            self._loop.call_soon(self._relieve)

    def _relieve(self) -> None:
        """Close those that took nothing for longest; their sessions go on from the log."""
        self._is_relieving = False
        stuck = [one for one in self._connections if one.stuck_since >= 0]
        for connection in sorted(stuck, key=lambda one: one.stuck_since):
            if not self.unsent.is_exceeded:
                return
            self._events.unread(connection)
            connection.close()

    def refuse_stranger(self, connection: Connection) -> None:
        self._events.too_much(connection)
        connection.close()

    def wait(
        self,
        connection: Connection,
        chunk: Chunk,
        run: PublishRun | None,
        last: PublishRun,
        wait: MustWait,
    ) -> None:
        assert run is not None
        traffic = self._world_of(connection).exchange.engine.metrics.traffic
        traffic.publishes_received -= last.end_message - run.first_message
        traffic.publish_bytes_received -= last.end - run.start
        connection.gate.pause(chunk, chunk.items.index(run))
        if isinstance(wait, TopicWanted):
            self.serving.spawn(connection, self._create_topic(connection, wait.topic))
        else:
            self.wait_turn(connection)

    async def _create_topic(self, connection: Connection, topic: str) -> None:
        try:
            engine = self._world_of(connection).exchange.engine
            await engine.create_wanted(topic, connection.principal.owner)
        except PenstockError as failed:  # nothing was acknowledged: the client sends it again
            connection.end(reason_of(failed), str(failed))
        else:
            connection.unpause()

    def fail(self, connection: Connection, error: Exception) -> None:
        if isinstance(error, ProtocolViolation):
            self.end_violator(connection, error.reason, str(error))
        else:
            self.serving.give_up(connection, error)

    def end_violator(self, connection: Connection, reason: Reason, why: str) -> None:
        self._events.violated(connection, why)
        connection.end(reason, why)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._know(connection)
        self._arrivals.forget(connection)
        session, connection.session = connection.session, None
        if session is not None:
            self._events.disconnected(connection, session)
        if session is not None and session.outbox is connection:
            world = self._world_of(connection)
            world.exchange.store.clients.leave(session.client_id)
            world.exchange.sessions.detach(session)
            world.wills.end(session, connection.principal.user)

    def _end_revoked(self, concerned: set[Principal]) -> None:
        """Clients whose user is gone, or whose password or key is no longer good, have to go."""
        if any(one.is_revoked for one in concerned):
            for connection in list(self._connections):
                if connection.principal.is_revoked:
                    connection.end(Reason.NOT_AUTHORIZED, connection.principal.revocation)

    def renew_meters(self) -> None:
        """The quotas have changed, and with them how fast clients may publish."""
        for connection in self._connections:
            if connection.begun is not None:
                connection.begun.renew_meter()

    def handle(self, connection: Connection, packet: Packet) -> None:
        connection.state = next_state(connection.state, Role.CLIENT, event_of(packet))
        self._handlers[type(packet)](connection, packet)

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        self._world_of(connection).subscribing.subscribe(connection, packet)

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        self._world_of(connection).subscribing.unsubscribe(connection, packet)

    def ping(self, connection: Connection, packet: Pingreq) -> None:
        connection.put_packet(Pingresp())

    def disconnect(self, connection: Connection, packet: Disconnect) -> None:
        session = connection.session
        expiry_s = packet.properties.session_expiry_interval
        if session is not None and expiry_s is not None:
            if session.expiry_s == 0 and expiry_s:  # [MQTT 5 §3.14.2.2.2]
                why = (
                    "a session with expiry interval 0 cannot get another expiry interval at "
                    "DISCONNECT"
                )
                self.end_violator(connection, Reason.PROTOCOL_ERROR, why)
                return
            session.expiry_s = self._limits.session_expiry_s(expiry_s)
        connection.end_reason = "the client disconnected"
        if packet.reason != Reason.NORMAL_DISCONNECTION:
            connection.end_reason += f" with reason 0x{packet.reason:02x}"
        if session is not None and packet.reason == Reason.NORMAL_DISCONNECTION:
            # [MQTT-3.14.4-3]; who sees the connection closed has left no will, also after a kill.
            self._world_of(connection).wills.withdraw(session, connection.close)
        else:
            connection.close()

    def authenticate(self, connection: Connection, packet: Auth) -> None:
        why = "AUTH without extended authentication"
        self.end_violator(connection, Reason.PROTOCOL_ERROR, why)

    def acknowledge(self, connection: Connection, packet: Puback | Pubcomp | Pubrel) -> None:
        """An acknowledgement with a reason; without one they come in runs."""
        take_acks(connection, first_byte(PACKET_TYPES[type(packet)]), [packet.packet_id])

    def received(self, connection: Connection, packet: Pubrec) -> None:
        session = connection.session
        assert session is not None
        if packet.reason < FAILURE:
            take_acks(connection, PUBREC, [packet.packet_id])
            return
        check_refused(session, packet.packet_id)
        if connection.watch is not None:
            connection.watch.rejected(session, packet.packet_id)
        session.acknowledge([packet.packet_id])
        self._world_of(connection).exchange.sessions.resume(session)

    # Time

    def _each_second(self) -> None:
        self._timer = self._loop.call_later(1.0, self._each_second)
        self.serving.tick += 1
        for world in self.worlds.values():
            world.dollar_sys.each_second()
        for connection in list(self._connections):
            # At the least: it may have been heard at the end of its tick [MQTT-3.1.2-22].
            silent_s = self.serving.tick - connection.last_seen - 1
            if connection.session is None:
                if silent_s >= self._limits.connect_s_max:
                    self._events.timed_out(connection)
                    connection.close()
            elif connection.keep_alive_s and silent_s >= connection.keep_alive_s * 1.5:
                why = (
                    "no packet arrived within one and a half times the keep alive of "
                    f"{connection.keep_alive_s} s"
                )
                connection.end(Reason.KEEP_ALIVE_TIMEOUT, why)

    def close(self) -> None:
        """Stop listening, tell the clients, end their connections; see `wait_gone`."""
        self._timer.cancel()
        self.exchange.engine.access.on_change.remove(self._end_revoked)
        for world in self.worlds.values():
            world.dollar_sys.close()
        self._listeners.close()
        self._lingering.is_stopping = True
        for connection in list(self._connections):
            connection.end(
                Reason.SERVER_SHUTTING_DOWN, "the broker is stopping: connect again later"
            )
        self._log.close()

    async def wait_gone(self) -> None:
        """Suspends until the clients have read that the broker stops, at most for a moment."""
        await self._lingering.close(STOP_LINGER_S_MAX)
