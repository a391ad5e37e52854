"""One bridge: connects to the other broker, again and again, and relays while both sides are there.

What waits to be forwarded waits in the log: the bridge is a persistent session of this broker, and
connects to it only while the other broker is connected. What waits to be received waits in the
bridge's session at the other broker.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from dataclasses import dataclass
from typing import Final

from penstock.broker.access import BRIDGE, Identity
from penstock.broker.exchange import Exchange
from penstock.broker.limited_log import LimitedLog
from penstock.broker.session.session import NEVER_EXPIRES, Session
from penstock.core.access import Principal
from penstock.core.naming.names import quoted
from penstock.doors.bridge.conversation import Conversation
from penstock.doors.bridge.local import (
    NO_RETAINED,
    WITH_RETAINED,
    LocalSide,
    carried,
    positions,
    refused_filters,
)
from penstock.doors.bridge.relay import Counts, Relay
from penstock.doors.bridge.settings import BridgeSettings
from penstock.doors.bridge.wire import Wire, dial
from penstock.doors.mqtt.connection import PACKET_BYTES_MAX
from penstock.doors.mqtt.door import MqttDoor
from penstock.doors.mqtt.receive.publishing import RECEIVE_MAX
from penstock.doors.selector import DoorSelector
from penstock.model.errors import PenstockError, RefusedError, UnavailableError
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.offers import Offers
from penstock.mqtt.packets import Connack, Connect, Disconnect, Pingreq
from penstock.mqtt.properties import NO_PROPERTIES, Properties

RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0
SETTLED_S: Final = 60.0  # a connection that lasted so long has brought all retained messages
STOPPED: Final = "the broker is stopping"

CONNECTED: Final = "connected"
CONNECTING: Final = "connecting"
WAITING: Final = "waiting"  # until the next attempt


@dataclass(slots=True)
class State:
    """How a bridge is doing."""

    word: str = WAITING
    since_us: int = 0  # of this word
    error: str = ""  # why it is not connected, or what is wrong although it is


class Bridge:
    """Runs on the event loop from `start` to `stop`."""

    def __init__(
        self,
        settings: BridgeSettings,
        door: MqttDoor,
        log: LimitedLog,
        context: ssl.SSLContext | None,
        password: bytes | None,
        selector: DoorSelector,
    ) -> None:
        self.settings = settings
        self.counts = Counts()
        self.state = State()
        self._door = door
        self._log = log
        self._context = context
        self._password = password
        self._selector = selector
        self._clock = door.exchange.engine.clock
        self._is_new = False  # the other broker may remember a session that this one does not
        self._wants_retained = True
        self._failures = 0  # attempts in a row
        self._left_at: dict[int, int] = {}  # topic id -> position when it was connected last
        self._session: Session | None = None  # while it is connected
        self._running: asyncio.Task[None] | None = None

    @property
    def exchange(self) -> Exchange:
        """Of its tenant."""
        world = self._door.worlds.get(self.settings.tenant)
        if world is None:
            raise RefusedError(
                f"tenant {quoted(self.settings.tenant)} does not exist: add it with "
                "`penstock tenant add`"
            )
        return world.exchange

    @property
    def lag(self) -> int:
        """Records behind its position in all topics, whether it forwards them or not."""
        try:
            ends = self.exchange.engine.topics.ends()
        except RefusedError:
            return 0
        at = self._left_at if self._session is None else self._session.lags
        return sum(max(0, ends[topic_id] - at[topic_id]) for topic_id in at.keys() & ends.keys())

    def _principal(self) -> Principal:
        tenant, role = self.settings.tenant, self.settings.role
        access = self.exchange.engine.access
        access.roles.check(role, tenant)
        return access.get(Identity(tenant, self.settings.local_id, BRIDGE, (role,)))

    # Life

    async def prepare(self) -> None:
        """From now on the log keeps what is to be forwarded; before any client is served."""
        self._note(WAITING)
        if self.settings.clean_start:
            return
        try:
            self._is_new = self.settings.local_id not in self.exchange.store.stored
            local = LocalSide(self.settings, self._door, self._principal())
            try:
                await local.connect(self.settings.in_flight_max)
                await local.subscribe(self.settings.topics, 2, NO_RETAINED)
                self._left_at = positions(self.exchange, local.session)
            finally:
                local.close(STOPPED)
        except PenstockError as failed:
            self._fail(failed)

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._note(CONNECTING, self.state.error)
            started_s = loop.time()
            try:
                await self._attempt()
            except PenstockError as failed:
                self._fail(failed)
            except Exception as mistake:  # of ours; the next attempt may not meet it
                said = {"message": "a bridge was disconnected", "exception": mistake}
                loop.call_exception_handler(said)
                self._fail(UnavailableError("internal server error; see the server log"))
            if loop.time() - started_s > RETRY_S_MAX:
                self._failures = 0
            longest_s = min(RETRY_S_MAX, RETRY_S_MIN * 2**self._failures)
            self._failures = min(self._failures + 1, 16)
            await asyncio.sleep(longest_s * random.uniform(0.5, 1.0))

    def _note(self, word: str, error: str = "") -> None:
        self.state = State(word, self._clock.now_us(), error)

    def _fail(self, failed: PenstockError) -> None:
        was_connected = self.state.word == CONNECTED
        self._note(WAITING, str(failed))
        values = {"bridge": self.settings.name, "reason": str(failed)}
        if was_connected:
            self._log.warning(
                "bridge disconnected", "bridge %(bridge)s disconnected: %(reason)s", values
            )
        else:
            self._log.warning(
                "bridge failed", "bridge %(bridge)s cannot connect: %(reason)s", values
            )

    def _refused(self, whom: str, why: str) -> None:
        values = {"bridge": self.settings.name, "by": whom, "reason": why}
        text = "bridge %(bridge)s dropped a message: %(by)s does not accept it: %(reason)s"
        self._log.warning("bridge refused", text, values)

    # One connection

    async def _attempt(self) -> None:
        """Connect, and relay until one side ends; always raises."""
        wire = await dial(self.settings, self._context, self._selector)
        remote = Conversation(self.settings.address, self.settings.version, wire.write)
        wire.on_data, wire.on_lost = remote.feed, remote.end
        local: LocalSide | None = None
        why = STOPPED
        try:
            answer = await remote.connect(self._connect_packet())
            wire.want_read(False)  # until this broker takes what comes
            local = LocalSide(self.settings, self._door, self._principal(), wire.want_read)
            await self._relay(wire, remote, local, answer)
        except PenstockError as failed:
            why = str(failed)
            raise
        finally:
            self._session = None
            if local is not None:
                local.close(why)
            if not remote.ended.done():
                wire.write(encode(Disconnect(), remote.version))
                remote.end(UnavailableError(why))
            wire.close()

    def _connect_packet(self) -> Connect:
        settings = self.settings
        is_kept = not settings.clean_start
        is_known = settings.local_id in self.exchange.store.stored and not self._is_new
        properties = NO_PROPERTIES
        if settings.version == MQTT_5:
            properties = Properties(
                session_expiry_interval=NEVER_EXPIRES if is_kept else 0,
                receive_maximum=RECEIVE_MAX,
                maximum_packet_size=PACKET_BYTES_MAX,
            )
        return Connect(
            client_id=settings.client_id,
            # A session of which only the other broker knows has packet ids that mean nothing here.
            clean_start=not (is_kept and is_known),
            keep_alive_s=settings.keep_alive_s,
            will=None,
            username=settings.user or None,
            password=self._password,
            version=settings.version,
            properties=properties,
            is_bridge=settings.version != MQTT_5 and settings.bridge_bit,
        )

    async def _relay(
        self,
        wire: Wire,
        remote: Conversation,
        local: LocalSide,
        answer: Connack,
    ) -> None:
        offers = Offers(answer.properties)
        topics = self.settings.topics
        relay = Relay(
            topics,
            local.conversation,
            remote,
            offers=offers,
            counts=self.counts,
            on_refused=self._refused,
        )
        local.conversation.begin(relay.from_local)
        wire.on_blocked = local.link.block
        here = await local.connect(min(offers.receive_max, self.settings.in_flight_max))
        self._is_new = False
        if not answer.session_present:
            await relay.release(list(local.session.opened))
        remote.begin(relay.from_remote)
        wire.want_read(True)
        refused: list[str] = []
        if self._wants_retained or not (answer.session_present and here.session_present):
            refused = await local.subscribe(topics, offers.qos_max, WITH_RETAINED)
            refused += await self._subscribe_remote(remote)
        session = self._session = local.session
        self._connected(refused)
        pinging = [
            asyncio.ensure_future(_ping(wire, remote, _keep_alive_s(answer, self.settings))),
            asyncio.ensure_future(_ping_local(local.conversation, here)),
        ]
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            ends = [local.conversation.ended, remote.ended]
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            raise done.pop().result()
        finally:
            for ping in pinging:
                ping.cancel()
            self._left_at = positions(self.exchange, session)
            if loop.time() - started_s >= SETTLED_S:
                self._wants_retained = False

    async def _subscribe_remote(self, remote: Conversation) -> list[str]:
        wanted = {one.remote_filter: one.qos for one in self.settings.topics if one.is_in}
        if not wanted:
            return []
        asked = [carried(filter, qos, WITH_RETAINED) for filter, qos in wanted.items()]
        return refused_filters(asked, await remote.subscribe(asked))

    def _connected(self, refused: list[str]) -> None:
        shown = ", ".join(map(quoted, refused))
        self._note(CONNECTED, f"these filters were refused: {shown}" if refused else "")
        values = {"bridge": self.settings.name, "address": self.settings.address}
        text = "bridge %(bridge)s connected to %(address)s"
        self._log.info("bridge connected", text, values)
        if refused:
            values["filters"] = shown
            text = "bridge %(bridge)s may not subscribe to %(filters)s"
            self._log.warning("bridge filters refused", text, values)


def _keep_alive_s(answer: Connack, settings: BridgeSettings) -> int:
    given_s = answer.properties.server_keep_alive
    return settings.keep_alive_s if given_s is None else given_s


async def _ping(wire: Wire, remote: Conversation, keep_alive_s: int) -> None:
    """Show the other broker that we are alive, and notice when it is not."""
    now_s = asyncio.get_running_loop().time
    while keep_alive_s and now_s() < wire.seen_s + keep_alive_s * 1.5:
        await asyncio.sleep(keep_alive_s / 4)
        if now_s() >= min(wire.sent_s, wire.seen_s) + keep_alive_s / 2:
            remote.send(Pingreq())
    if keep_alive_s:
        silent_s = keep_alive_s * 1.5
        remote.end(UnavailableError(f"{remote.whom} sent nothing for {silent_s:g} s"))
        wire.abort()


async def _ping_local(local: Conversation, answer: Connack) -> None:
    """Only where the settings of this broker demand it."""
    keep_alive_s = answer.properties.server_keep_alive
    while keep_alive_s:
        await asyncio.sleep(keep_alive_s / 2)
        local.send(Pingreq())
