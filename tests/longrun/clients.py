"""MQTT clients that never wait: each says something when told to, and takes what has come.

What a real client keeps across a lost connection (MQTT 5 §4.1) is kept here. A client complains
itself of what it alone can judge: the session present flag, a window overrun, a closed connection.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from tests.doors.wire import Wire
from tests.longrun.ledger import Ledger, Message, Receiver
from tests.longrun.wills import Wills

WINDOW = 20  # messages of one publisher on their way
SESSION_S = 3600


class State(Enum):
    """Of the connection."""

    AWAY = 0
    COMING = 1  # CONNECT is sent
    ONLINE = 2
    LEAVING = 3  # DISCONNECT is sent


@dataclass(frozen=True, slots=True)
class Arrival:
    """How a client connects."""

    clean: bool = False
    will_qos: int | None = None  # None: no will
    will_delay_s: int = 0
    window: int = 0  # receive maximum; 0: as the version has it

    def in_words(self) -> str:
        will = "no will" if self.will_qos is None else f"will QoS {self.will_qos}"
        after = f" after {self.will_delay_s} s" if self.will_delay_s else ""
        return f"{'clean, ' if self.clean else ''}{will}{after}, window {self.window or 'any'}"


class Client:
    """One client id over many connections."""

    def __init__(
        self, ledger: Ledger, wills: Wills, client_id: str, version: int, *, is_kept: bool
    ) -> None:
        self.client_id = client_id
        self.version = version
        self.wire: Wire | None = None
        self.state = State.AWAY
        self.is_deaf = False  # does not read
        self.is_kept = is_kept
        self._ledger = ledger
        self._wills = wills
        self._arrival = Arrival()
        self._session: bool | None = False  # at the broker; None: nobody can know
        self._out: set[int] = set()  # packet ids that the broker has on their way

    # What it is told to do

    def connect(self, port: int, arrival: Arrival) -> None:
        """Also when it is connected: then it takes its own session over."""
        old, self.wire = self.wire, Wire(port, self.client_id, self.version)
        if old is not None and not self._will_outlive:
            self._ended()
        self._arrival = arrival
        how = " over itself" if old else ""
        self._ledger.note(f"{self.client_id} connects{how}: {arrival.in_words()}")
        payload = self._wills.coming(self.client_id, arrival.will_qos, arrival.will_delay_s)
        will = None
        if arrival.will_qos is not None:
            properties = Properties(will_delay_interval=arrival.will_delay_s or None)
            will = Will(f"w/{self.client_id}", payload, arrival.will_qos, properties=properties)
        self._connection_lost()
        self.state = State.COMING
        self._send(
            Connect(
                *(self.client_id, arrival.clean, 0, will),
                version=self.version,
                properties=self._properties(arrival),
            )
        )
        if old is not None:
            old.close()

    def _properties(self, arrival: Arrival) -> Properties:
        if self.version != MQTT_5:
            return NO_PROPERTIES
        return Properties(
            session_expiry_interval=SESSION_S if self.is_kept else None,
            receive_maximum=arrival.window or None,
        )

    @property
    def _will_outlive(self) -> bool:
        """Whether the session of the current connection outlives it."""
        return self.is_kept and (self.version == MQTT_5 or not self._arrival.clean)

    def leave(self) -> None:
        self._ledger.note(f"{self.client_id} leaves")
        self._wills.leaving(self.client_id)
        self.state = State.LEAVING
        self.is_deaf = False
        self._send(Disconnect())

    def hang_up(self) -> None:
        self._ledger.note(f"{self.client_id} hangs up")
        self._wills.lost(self.client_id)
        self._gone()

    # What happens to it

    def take(self) -> None:
        """One read. Every packet of it."""
        assert self.wire is not None
        wire = self.wire
        try:
            packets = wire.take()
        except (EOFError, ConnectionError):
            if self.state is State.LEAVING:
                self._ledger.note(f"{self.client_id} has left")
                self._wills.left(self.client_id)
            else:
                self._ledger.complain(f"{self.client_id} was disconnected in {self.state}")
            self._gone()
            return
        for packet in packets:
            self._hear(packet)

    def _hear(self, packet: Packet) -> None:
        if self.state is State.LEAVING:
            return  # it has gone: what is not acknowledged comes again
        if isinstance(packet, Connack):
            self._arrived(packet)
        elif isinstance(packet, Disconnect):
            if packet.reason is not Reason.SERVER_SHUTTING_DOWN:
                self._ledger.complain(f"{self.client_id} was told {packet}")
        else:
            self.hear(packet)

    def killed(self, is_heard: bool) -> None:
        """The broker was; what it had said before is there to be read, if the client does."""
        while is_heard and self.wire is not None and self.state is not State.LEAVING:
            try:
                packets = self.wire.take()
            except (EOFError, ConnectionError):
                break
            for packet in packets:
                self._hear(packet)
        if self.wire is not None:
            self._gone()

    def _arrived(self, connack: Connack) -> None:
        self._ledger.note(f"{self.client_id} is there, session {connack.session_present}")
        self._wills.connected(self.client_id)
        expected = False if self._arrival.clean else self._session
        if connack.reason is not Reason.SUCCESS or expected not in (None, connack.session_present):
            self._ledger.complain(f"{self.client_id} expected session {expected}, got {connack}")
        self.state = State.ONLINE
        self._session = True
        if not connack.session_present:
            self.session_ended()
        self.resume()

    def _gone(self) -> None:
        assert self.wire is not None
        self.wire.close()
        self.wire = None
        if self.state is State.COMING:
            self._doubt()
        elif not self._will_outlive:
            self._ended()
        self.state = State.AWAY
        self._connection_lost()

    def _doubt(self) -> None:
        """The CONNECT was not answered: what it asked for may be done or not."""
        if self._arrival.clean:
            self.session_doubted()
        if self._will_outlive:
            is_sure = self._session is True and not self._arrival.clean
            self._session = True if is_sure else None
        elif self._session is not False:
            self._session = None

    def _ended(self) -> None:
        self._session = False
        self.session_ended()

    def _connection_lost(self) -> None:
        self.is_deaf = False
        self._out.clear()
        self.connection_lost()

    def _send(self, *packets: Packet) -> None:
        assert self.wire is not None
        with suppress(ConnectionError):  # it is noticed when it reads
            self.wire.send(*packets)

    # What kinds of clients do

    @property
    def is_idle(self) -> bool:
        """Nothing of its own is on its way."""
        return True

    def hear(self, packet: Packet) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        """Connected."""

    def connection_lost(self) -> None:
        """Whatever belonged to the connection is gone."""

    def session_doubted(self) -> None:
        """The session may have ended at the broker."""

    def session_ended(self) -> None:
        """The session that was there before has ended for sure."""


class Publisher(Client):
    """Sends numbers at one QoS, and again with DUP what was not acknowledged."""

    def __init__(
        self, ledger: Ledger, wills: Wills, client_id: str, version: int, qos: int
    ) -> None:
        super().__init__(ledger, wills, client_id, version, is_kept=True)
        self.qos = qos
        self.count = 0
        self.retained: dict[str, Message] = {}  # name -> the newest
        self._unacked: dict[int, Message] = {}  # packet id -> message, in the order of sending
        self._released: dict[int, None] = {}

    @property
    def is_idle(self) -> bool:
        return not self._unacked and not self._released

    def publish(self, name: str, *, retain: bool = False, is_empty: bool = False) -> None:
        if len(self._unacked) + len(self._released) >= WINDOW:
            return
        moment = self._ledger.note(f"{self.client_id} sends {self.count} as {name}")
        message = Message(self.client_id, self.count, name, self.qos, retain, is_empty, moment)
        packet_id = self.count % 60_000 + 1 if self.qos else 0
        self.count += 1
        self._ledger.sent(message)
        if self.qos:
            self._unacked[packet_id] = message
        if retain:
            self.retained[name] = message
        self._send(self._packet(packet_id, message))

    def _packet(self, packet_id: int, message: Message) -> Publish:
        is_dup = message.is_resent
        return Publish(
            message.name, message.payload, message.qos, message.retain, is_dup, packet_id
        )

    def resume(self) -> None:
        for message in self._unacked.values():
            message.is_resent = True
        self._send(*[self._packet(one, message) for one, message in self._unacked.items()])
        self._send(*[Pubrel(one) for one in self._released])

    def hear(self, packet: Packet) -> None:
        if isinstance(packet, Puback | Pubrec):
            message = self._unacked.pop(packet.packet_id, None)
            if message is not None:
                self._ledger.acked(message)
            elif isinstance(packet, Puback):
                self._ledger.complain(f"{self.client_id} got {packet} for nothing")
            if packet.reason >= 0x80:
                self._ledger.complain(f"{self.client_id} got {packet}")
            if isinstance(packet, Pubrec):
                self._released[packet.packet_id] = None
                self._send(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubcomp):
            self._released.pop(packet.packet_id, None)


class Subscriber(Client):
    """Takes messages for a receiver of the ledger; a QoS 2 message once for each id it holds."""

    def __init__(
        self,
        ledger: Ledger,
        wills: Wills,
        client_id: str,
        version: int,
        qos: int,
        *,
        is_kept: bool,
        group: Receiver | None = None,
    ) -> None:
        super().__init__(ledger, wills, client_id, version, is_kept=is_kept)
        self.qos = qos
        self.is_lazy = False  # reads, and acknowledges later
        self.receiver = group or Receiver(ledger, client_id, qos)
        self.count = 0
        self._is_alone = group is None
        self._held: set[int] = set()
        self._late: list[Packet] = []
        self._requests: dict[int, tuple[bool, str]] = {}  # packet id -> is subscribe, filter
        self._last_id = 0

    @property
    def is_idle(self) -> bool:
        return not self._requests

    def subscribe(self, filter: str, retain_handling: int = 0) -> None:
        self._last_id = self._last_id % 65_535 + 1
        self._ledger.note(f"{self.client_id} subscribes to {filter}")
        self._requests[self._last_id] = (True, filter)
        if self._is_alone:
            self.receiver.asked(filter)
        wanted = Subscription(filter, self.qos, retain_handling=retain_handling)
        self._send(Subscribe(self._last_id, (wanted,)))

    def unsubscribe(self, filter: str) -> None:
        self._last_id = self._last_id % 65_535 + 1
        self._ledger.note(f"{self.client_id} unsubscribes from {filter}")
        self._requests[self._last_id] = (False, filter)
        if self._is_alone:
            self.receiver.end_asked(filter)
        self._send(Unsubscribe(self._last_id, (filter,)))

    def acknowledge_late(self) -> None:
        self.is_lazy = False
        self._answer(*self._late)
        self._late.clear()

    def hear(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._take(packet)
        elif isinstance(packet, Pubrel):
            self._held.discard(packet.packet_id)
            self._answer(Pubcomp(packet.packet_id))
        elif isinstance(packet, Suback | Unsuback):
            is_subscribe, filter = self._requests.pop(packet.packet_id)
            moment = self._ledger.note(f"{self.client_id} got {packet} for {filter}")
            if any(reason >= 0x80 for reason in packet.reasons):
                self._ledger.complain(f"{self.client_id} was refused {filter} at {moment}")
            if self._is_alone:
                self.receiver.granted(filter) if is_subscribe else self.receiver.ended(filter)

    def _take(self, packet: Publish) -> None:
        if packet.qos:
            self._out.add(packet.packet_id)
            if self._arrival.window and len(self._out) > self._arrival.window:
                self._ledger.complain(f"{self.client_id}: window of {self._arrival} overrun")
        self._ledger.note(
            f"{self.client_id} hears {packet.payload!r} QoS {packet.qos} id {packet.packet_id}"
            f"{' dup' if packet.dup else ''}{' retained' if packet.retain else ''}"
        )
        if packet.qos < 2 or packet.packet_id not in self._held:
            self.count += 1
            self.receive(packet)
        if packet.qos == 2:
            self._held.add(packet.packet_id)
            self._answer(Pubrec(packet.packet_id))
        elif packet.qos == 1:
            self._answer(Puback(packet.packet_id))

    def receive(self, packet: Publish) -> None:
        if packet.payload and not packet.name.startswith("w/"):
            self.receiver.receive(
                self.client_id, packet.name, packet.payload, packet.qos, packet.retain
            )

    def _answer(self, *packets: Packet) -> None:
        if self.is_lazy:
            self._late += packets
            return
        self._send(*packets)
        for packet in packets:
            if isinstance(packet, Puback | Pubcomp):
                self._out.discard(packet.packet_id)

    def connection_lost(self) -> None:
        self.is_lazy = False
        self._late.clear()
        self._requests.clear()

    def session_doubted(self) -> None:
        if self._is_alone:
            self.receiver.doubted()

    def session_ended(self) -> None:
        self._held.clear()
        if self._is_alone:
            self.receiver.forgotten()


class Watcher(Subscriber):
    """Sees every will that is published."""

    def receive(self, packet: Publish) -> None:
        self._wills.published(packet.payload)
