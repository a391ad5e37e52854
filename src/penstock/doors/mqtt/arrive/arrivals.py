"""Clients that come in: their login, their session, and what they are told about this broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import uuid4

from penstock.broker.cluster.claiming import Arrival
from penstock.broker.cluster.node import Node, short_name
from penstock.broker.exchange import Exchange
from penstock.broker.session.known_clients import ASSIGNED_PREFIX
from penstock.broker.session.resume import go_on, restore
from penstock.broker.session.session import NEVER_EXPIRES, Session
from penstock.broker.settings import topic_settings
from penstock.core.naming.names import quoted
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.core.quotas import CONNECTIONS
from penstock.doors.mqtt.aliases import ALIASES_MAX
from penstock.doors.mqtt.answers import explained, moved
from penstock.doors.mqtt.arrive.login import Logins, credential_of
from penstock.doors.mqtt.arrive.wills import check_will, read_will
from penstock.doors.mqtt.connection import PACKET_BYTES_MAX, Connection
from penstock.doors.mqtt.events import ClientEvents
from penstock.doors.mqtt.host import Spawn
from penstock.doors.mqtt.limits import MqttLimits
from penstock.doors.mqtt.receive.publishing import RECEIVE_MAX
from penstock.doors.mqtt.world import MqttWorld
from penstock.model.errors import NotAuthorized, PenstockError, QuotaExceeded
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.model.will import Will
from penstock.mqtt.encode import encode_within
from penstock.mqtt.kinds import MQTT_5, Role
from penstock.mqtt.packets import Connack, Connect
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from penstock.mqtt.state import event_of, next_state

WINDOW_MAX: Final = 1_000  # messages out to one client, whatever it allows
NOT_EXTENDED: Final = (
    "extended authentication is not offered: log in with a user name and password, or a certificate"
)
TOO_SMALL: Final = "the CONNACK is larger than the maximum packet size: allow larger packets"
DRAINING: Final = "this node sends its clients to other nodes: connect to another one"
TAKEN_OVER: Final = "another client connected with the same client id: give each client its own id"


Key = tuple[TenantId, str]  # tenant and client id
Behind = tuple[Connection, Connect]


class Arrivals:
    """From a CONNECT to its CONNACK. At most one connection is given a client's session.

    CONNECTs with one client id are decided one after the other. So each finds what the one before
    it has left: nothing, or a connection that it takes over, with its place in every quota.
    """

    def __init__(
        self,
        worlds: dict[TenantId, MqttWorld],
        loop: asyncio.AbstractEventLoop,
        limits: MqttLimits,
        spawn: Spawn,
        events: ClientEvents,
        on_known: Callable[[Connection], None],
    ) -> None:
        self._events = events
        self._on_known = on_known  # a client has logged in
        self._worlds = worlds
        self._limits = limits
        self._spawn = spawn
        self._counted: set[Connection] = set()  # those that the quota of connections knows
        self._taken: set[Connection] = set()  # those of them that the other nodes know
        self._arriving: dict[Key, Connection] = {}  # their session is being loaded
        self._behind: dict[Key, list[Behind]] = {}  # who comes next with the same client id
        default = worlds[DEFAULT_TENANT].exchange.engine
        self._traffic = default.metrics.traffic
        self._logins = Logins(default.access, default.clock, loop, self.admit, self._refuse_login)

    def forget(self, connection: Connection) -> None:
        """The connection was closed; nobody waits for its login."""
        self._logins.forget(connection)
        if connection in self._counted:
            self._counted.discard(connection)
            engine = self._worlds[connection.principal.tenant].exchange.engine
            engine.quotas.leave(connection.principal.user)
            if connection in self._taken and engine.quotas.cluster is not None:
                self._taken.discard(connection)
                engine.quotas.cluster.give(CONNECTIONS, connection.principal.user)

    def connect(self, connection: Connection, packet: Connect) -> None:
        self._traffic.connects += 1
        connection.version = packet.version
        connection.is_bridge = packet.is_bridge
        if packet.properties.maximum_packet_size is not None:  # of a refusal, too [MQTT-3.1.2-24]
            connection.packet_bytes_max = packet.properties.maximum_packet_size
        if packet.properties.authentication_method is not None:
            reason = Reason.BAD_AUTHENTICATION_METHOD
            self._refuse(connection, packet, "authentication", reason, NOT_EXTENDED)
            return
        self._logins.ask(connection, packet)

    def admit(self, connection: Connection, packet: Connect) -> None:
        """Open the session of a client that may come in, with the tenant it logged in to."""
        tenant = connection.principal.tenant
        world = self._worlds.get(tenant)
        if world is None:
            why = f"tenant {quoted(tenant)} was removed"
            self._refuse(connection, packet, "login", Reason.NOT_AUTHORIZED, why)
            return
        exchange = world.exchange
        node = exchange.engine.shared.node
        if self._is_sent_away(node, connection, packet):
            return
        if not exchange.engine.topics.has_default:
            self._spawn(connection, self._make_default(exchange, connection, packet))
            return
        client_id = packet.client_id or f"{ASSIGNED_PREFIX}{uuid4().hex}"
        if (tenant, client_id) in self._arriving:
            self._wait_behind((tenant, client_id), connection, packet)
            return
        connection.keep_alive_s = self._limits.keep_alive_s(packet.version, packet.keep_alive_s)
        expiry_s = self._limits.session_expiry_s(_asked_expiry_s(packet))
        if packet.properties.maximum_packet_size is not None:
            answer = _answer(connection, packet, client_id, expiry_s, is_present=False)
            if not encode_within(answer, packet.version, connection.packet_bytes_max):
                reason = Reason.PACKET_TOO_LARGE
                self._refuse(connection, packet, "packet_size", reason, TOO_SMALL)
                return
        connection.principal = connection.principal.for_client(client_id)
        if node is None and not self._may_have(exchange, connection, client_id):
            self._refuse_taken(connection, packet, client_id)
            return
        will = None if packet.will is None else read_will(packet.will)
        if will is not None:
            reason, why = check_will(exchange, connection.principal, client_id, will)
            if reason != Reason.SUCCESS:
                self._refuse(connection, packet, "will", reason, why)
                return
        if not self._take_over(exchange, connection, client_id):
            self._refuse_taken(connection, packet, client_id)
            return
        try:
            exchange.engine.quotas.enter(connection.principal.user)
        except QuotaExceeded as exceeded:
            self._answer_no(connection, Reason.QUOTA_EXCEEDED, str(exceeded))
            return
        self._counted.add(connection)
        asked = packet.properties
        window = min(asked.receive_maximum or WINDOW_MAX, WINDOW_MAX)
        session = Session(client_id, connection, window)
        connection.take_aliases(asked.topic_alias_maximum or 0)
        connection.wants_reasons = asked.request_problem_information != 0
        session.expiry_s = expiry_s
        is_stored = client_id in exchange.store.stored
        is_kept = session.expiry_s > 0 or node is not None or is_stored
        if is_kept or will or world.wills.concerns(client_id, connection.principal.user):
            work = self._admit_slowly(world, connection, packet, session, will, is_kept=is_kept)
            self._arriving[tenant, client_id] = connection
            self._spawn(connection, work)
        else:
            self._welcome(exchange, connection, packet, session, is_present=False)

    def _wait_behind(self, key: Key, connection: Connection, packet: Connect) -> None:
        """Another connection is being given this session: decide about this one after it.

        Of one user only the newest waits: it would take over the others anyway.
        """
        behind = self._behind.setdefault(key, [])
        for one in [one for one in behind if one[0].principal.is_same_user(connection.principal)]:
            behind.remove(one)
            one[0].close()
        behind.append((connection, packet))

    def _end_turn(self, key: Key) -> None:
        """A connection was given its session, or was refused: the next one behind it follows."""
        del self._arriving[key]
        self._give_turn(key)

    def _give_turn(self, key: Key) -> None:
        """To the next one at once: who connects before its task runs comes behind it."""
        behind = self._behind.get(key, [])
        while behind and key not in self._arriving:
            connection, packet = behind.pop(0)
            if not connection.is_closed:
                self._arriving[key] = connection
                self._spawn(connection, self._admit_behind(key, connection, packet))
        if not behind:
            self._behind.pop(key, None)

    async def _admit_behind(self, key: Key, connection: Connection, packet: Connect) -> None:
        del self._arriving[key]
        try:
            if not connection.is_closed:
                self.admit(connection, packet)
        finally:
            if key not in self._arriving:  # decided already
                self._give_turn(key)

    def _is_wanted(self, key: Key, connection: Connection) -> bool:
        """Whether a client still waits for its session; not if it has connected once more."""
        return not connection.is_closed and not any(
            newer.principal.is_same_user(connection.principal)
            for newer, _ in self._behind.get(key, ())
        )

    def _is_sent_away(self, node: Node | None, connection: Connection, packet: Connect) -> bool:
        """Whether a client was rejected because the node is being drained."""
        if node is None or not node.is_draining:
            return False
        self._events.refused(connection, packet, "unavailable", DRAINING)
        told = moved(DRAINING, node.elsewhere)
        connection.put_packet(Connack(reason=Reason.USE_ANOTHER_SERVER, properties=told))
        connection.leave()
        return True

    def _take_over(self, exchange: Exchange, connection: Connection, client_id: str) -> bool:
        """End the older connection with this client id; False if it is another user's."""
        holder = exchange.sessions.connected.get(client_id)
        if holder is None or not isinstance(holder.outbox, Connection):
            return True
        if not holder.outbox.principal.is_same_user(connection.principal):
            return False
        holder.outbox.end(Reason.SESSION_TAKEN_OVER, TAKEN_OVER)
        return True

    def _may_have(self, exchange: Exchange, connection: Connection, client_id: str) -> bool:
        """Is the stored session of this client the connection's, if there is one?"""
        stored = exchange.store.stored
        return client_id not in stored or self._may_have_of(
            exchange, connection, stored.get(client_id, "")
        )

    def _may_have_of(self, exchange: Exchange, connection: Connection, owner: str) -> bool:
        """May the connection have a session of this user?

        Those of anonymous clients belong to nobody once such clients are not let in any more.
        """
        if owner == connection.principal.user:
            return True
        return not owner and exchange.engine.access.anonymous(connection.source) is None

    def _arrival(self, world: MqttWorld, connection: Connection, client_id: str) -> Arrival | None:
        """What a node has to know before it claims a session; None for a broker alone."""
        if world.exchange.engine.shared.node is None:
            return None
        return Arrival(
            partial(self._may_have_of, world.exchange, connection),
            partial(self._is_wanted, (world.tenant, client_id), connection),
        )

    def release(self, tenant: TenantId, client_id: str) -> None:
        """Another node asks for the session of a client, which has connected there."""
        world = self._worlds.get(tenant)
        if world is None:
            return
        sessions = world.exchange.sessions.connected
        for one in [client_id] if client_id in sessions else list(sessions):
            if short_name(one) == client_id:
                outbox = sessions[one].outbox
                if isinstance(outbox, Connection):
                    outbox.end(Reason.SESSION_TAKEN_OVER, TAKEN_OVER)
                    return
        arriving = [
            key for key in self._arriving if key[0] == tenant and short_name(key[1]) == client_id
        ]
        for key in arriving:
            self._arriving[key].close()
            for connection, _ in self._behind.pop(key, ()):
                connection.close()
        if not arriving:  # it was loaded for a client that went, while something else failed
            world.exchange.store.give_up(client_id)

    async def _make_default(
        self, exchange: Exchange, connection: Connection, packet: Connect
    ) -> None:
        """The first MQTT client of a tenant: from now on every name has a place."""
        engine = exchange.engine
        settings = topic_settings(engine.settings, {})
        try:
            await engine.topics.create(DEFAULT_TOPIC, settings, exist_ok=True)
        except PenstockError as refused:
            reason = Reason.SERVER_UNAVAILABLE
            self._refuse(connection, packet, "unavailable", reason, str(refused))
            return
        if not connection.is_closed:
            self.admit(connection, packet)

    async def _admit_slowly(
        self,
        world: MqttWorld,
        connection: Connection,
        packet: Connect,
        session: Session,
        will: Will | None,
        *,
        is_kept: bool,
    ) -> None:
        """Open a session that has to do with the catalog: what it keeps, or a will."""
        try:
            is_present = await self._open(world, connection, packet, session, will, is_kept=is_kept)
        finally:
            self._end_turn((world.tenant, session.client_id))
        if is_present:
            await go_on(world.exchange, session)

    async def _open(
        self,
        world: MqttWorld,
        connection: Connection,
        packet: Connect,
        session: Session,
        will: Will | None,
        *,
        is_kept: bool,
    ) -> bool:
        """Let the client in or refuse it; True if it is in and has its last session back."""
        exchange = world.exchange
        owner = connection.principal.user
        is_present = False
        is_clean = packet.clean_start
        try:
            await self._take_place(exchange, connection)
            if is_kept:
                arrival = self._arrival(world, connection, session.client_id)
                stored, is_present = await exchange.store.begin(
                    session, is_clean=is_clean, arrival=arrival
                )
                if is_present:
                    await restore(exchange, session, stored)
            await world.wills.begin(session, owner, will, is_clean=is_clean)
        except PenstockError as refused:
            self._leave(exchange, session, is_present=is_present)
            if isinstance(refused, NotAuthorized):
                self._refuse_taken(connection, packet, session.client_id)
                return False
            is_quota = isinstance(refused, QuotaExceeded)
            reason = Reason.QUOTA_EXCEEDED if is_quota else Reason.SERVER_UNAVAILABLE
            self._refuse(connection, packet, "unavailable", reason, str(refused))
            return False
        if connection.is_closed:
            self._leave(exchange, session, is_present=is_present)
            world.wills.end(session, owner)
            return False
        self._welcome(exchange, connection, packet, session, is_present=is_present)
        return is_present

    async def _take_place(self, exchange: Exchange, connection: Connection) -> None:
        """As a node: QuotaExceeded if all nodes together have too many connections."""
        quotas = exchange.engine.quotas.cluster
        if quotas is None:
            return
        user = connection.principal.user
        await quotas.take(CONNECTIONS, user)
        if connection in self._counted:
            self._taken.add(connection)
        else:  # it was closed meanwhile
            quotas.give(CONNECTIONS, user)

    def _leave(self, exchange: Exchange, session: Session, *, is_present: bool) -> None:
        """The client is rejected after all, or has already disconnected."""
        if session.vault is not None:
            store = exchange.store
            (store.leave if is_present else store.end)(session)

    def _welcome(
        self,
        exchange: Exchange,
        connection: Connection,
        packet: Connect,
        session: Session,
        *,
        is_present: bool,
    ) -> None:
        self._on_known(connection)
        connection.begin(packet.version, session, exchange)
        exchange.sessions.attach(session)
        exchange.store.clients.arrive(
            session.client_id,
            connection.principal.user,
            credential_of(connection, packet),
            connection.source,
        )
        expiry_s = session.expiry_s
        answer = _answer(connection, packet, session.client_id, expiry_s, is_present=is_present)
        connection.put_packet(answer)
        connection.state = next_state(connection.state, Role.SERVER, event_of(answer))
        self._events.connected(connection, session, is_present=is_present)
        connection.go_on()

    def _refuse_login(
        self, connection: Connection, packet: Connect, reason: Reason, why: str
    ) -> None:
        self._events.login_refused(connection, packet, why)
        self._answer_no(connection, reason, why)

    def _refuse(
        self, connection: Connection, packet: Connect, counted_as: str, reason: Reason, why: str
    ) -> None:
        self._events.refused(connection, packet, counted_as, why)
        self._answer_no(connection, reason, why)

    def _refuse_taken(self, connection: Connection, packet: Connect, client_id: str) -> None:
        why = f"client id {quoted(client_id)} belongs to another user: choose another one"
        self._refuse(connection, packet, "client_id", Reason.NOT_AUTHORIZED, why)

    def _answer_no(self, connection: Connection, reason: Reason, why: str) -> None:
        connection.put_packet(Connack(reason=reason, properties=explained(why)))
        connection.leave()


def _answer(
    connection: Connection, packet: Connect, client_id: str, expiry_s: int, *, is_present: bool
) -> Connack:
    """The CONNACK that lets a client in; its size does not depend on the session."""
    assigned = None if packet.client_id else client_id
    keep_alive_s = connection.keep_alive_s
    given_s = keep_alive_s if keep_alive_s != packet.keep_alive_s else None
    kept_s = expiry_s if expiry_s != _asked_expiry_s(packet) else None
    return Connack(is_present, properties=_offers(assigned, given_s, kept_s))


def _offers(
    assigned: str | None, keep_alive_s: int | None, session_expiry_s: int | None
) -> Properties:
    """What an MQTT 5 client is told about this broker."""
    return Properties(
        session_expiry_interval=session_expiry_s,
        assigned_client_identifier=assigned,
        server_keep_alive=keep_alive_s,
        maximum_packet_size=PACKET_BYTES_MAX,
        receive_maximum=RECEIVE_MAX,
        topic_alias_maximum=ALIASES_MAX,
        shared_subscription_available=1,
    )


def _asked_expiry_s(packet: Connect) -> int:
    """How long the session is to outlive its connection; before MQTT 5 for ever, or not at all."""
    if packet.version == MQTT_5:
        return packet.properties.session_expiry_interval or 0
    return 0 if packet.clean_start else NEVER_EXPIRES
