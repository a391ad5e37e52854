"""A client that says exactly what it is told to, packet by packet, and checks what comes back."""

from __future__ import annotations

import socket
import time
from collections import deque
from types import TracebackType
from typing import Self, TypeVar

from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5, Role
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.scanner import Intake
from penstock.mqtt.unpacking import unpack
from tests.waiting import WAIT_S

P = TypeVar("P", bound=Packet)


class Wire:
    """One connection. Methods block until the packet they name has come."""

    def __init__(
        self,
        port: int,
        client_id: str = "",
        version: int = MQTT_3_1_1,
        sock: socket.socket | None = None,
        patience_s: float = WAIT_S,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self._patience_s = patience_s
        if sock is None:
            sock = socket.create_connection(("127.0.0.1", port), patience_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._intake = Intake(version, 1 << 28, Role.SERVER)
        self._packets: deque[Packet] = deque()
        self._next_id = 1

    def send(self, *packets: Packet) -> None:
        self._socket.sendall(b"".join(encode(packet, self.version) for packet in packets))

    def send_and_close(self, *packets: Packet) -> None:
        self.send(*packets)
        self.close()

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_some(self, chunk: bytes, until_s: float) -> int:
        """Send it again and again, as fast as the broker reads, up to a time; how many bytes."""
        sent = 0
        self._socket.settimeout(0.05)
        while time.monotonic() < until_s:
            try:
                sent += self._socket.send(chunk[sent % len(chunk) :])
            except TimeoutError:
                break
        self._socket.settimeout(self._patience_s)
        return sent

    def take_slowly(self) -> None:
        """Let the system hold as little as it can of what this client does not read."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def next(self) -> Packet:
        """The next packet, whatever it is; EOFError when the broker closed."""
        while not self._packets:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError("closed by the broker")
            self._packets.extend(unpack(self._intake.feed(data)))
        return self._packets.popleft()

    def fileno(self) -> int:
        """So that many can be waited for with `select`."""
        return self._socket.fileno()

    def take(self) -> list[Packet]:
        """What is there and what one read brings; EOFError when the broker closed."""
        if not self._packets:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError("closed by the broker")
            self._packets.extend(unpack(self._intake.feed(data)))
        taken = list(self._packets)
        self._packets.clear()
        return taken

    def poll(self, wait_s: float) -> Packet | None:
        """The next packet if it comes in this time."""
        self._socket.settimeout(wait_s)
        try:
            return self.next()
        except TimeoutError:
            return None
        finally:
            self._socket.settimeout(self._patience_s)

    def expect(self, kind: type[P]) -> P:
        packet = self.next()
        assert isinstance(packet, kind), f"expected {kind.__name__}, got {packet}"
        return packet

    def pick(self, kind: type[P], packet_id: int | None = None) -> P:
        """The next packet of a kind; others that come before it are kept for later."""
        passed: list[Packet] = []
        while True:
            packet = self.next()
            wanted = packet_id is None or packet_id == getattr(packet, "packet_id", None)
            if isinstance(packet, kind) and wanted:
                break
            passed.append(packet)
        self._packets.extendleft(reversed(passed))
        return packet

    def is_closed(self) -> bool:
        """Waits for the broker to close; False if it says something instead."""
        try:
            self.next()
        except (EOFError, ConnectionError):
            return True
        return False

    # Conversations

    def connect(
        self,
        *,
        clean: bool = True,
        properties: Properties = NO_PROPERTIES,
        keep_alive_s: int = 0,
        will: Will | None = None,
    ) -> Connack:
        packet = Connect(
            self.client_id, clean, keep_alive_s, will, version=self.version, properties=properties
        )
        self.send(packet)
        return self.expect(Connack)

    def subscribe(self, *filters: str | Subscription, qos: int = 0) -> Suback:
        wanted = tuple(Subscription(one, qos) if isinstance(one, str) else one for one in filters)
        self.send(Subscribe(self.take_id(), wanted))
        return self.expect(Suback)

    def subscribe_feed(self, *filters: str | Subscription, qos: int = 0, **asked: str) -> Suback:
        """Subscribe with `from_` or `where`."""
        wanted = tuple(Subscription(one, qos) if isinstance(one, str) else one for one in filters)
        pairs = tuple((key.rstrip("_"), value) for key, value in asked.items())
        self.send(Subscribe(self.take_id(), wanted, Properties(user_properties=pairs)))
        return self.expect(Suback)

    def subscribe_later(self, filter: str, qos: int = 0) -> None:
        """Subscribe without waiting for the answer."""
        self.send(Subscribe(self.take_id(), (Subscription(filter, qos),)))

    def publish(self, name: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        """Publish and see it acknowledged, all the way at QoS 2."""
        packet_id = self.take_id() if qos else 0
        self.send(Publish(name, payload, qos, retain, packet_id=packet_id))
        if qos == 1:
            self.pick(Puback, packet_id)
        elif qos == 2:
            self.pick(Pubrec, packet_id)
            self.send(Pubrel(packet_id))
            self.pick(Pubcomp, packet_id)

    def publish_all(self, name: str, count: int, qos: int) -> None:
        """Publish b"0", b"1" and so on, each acknowledged before the next."""
        for number in range(count):
            self.publish(name, b"%d" % number, qos)

    def receive(self) -> Publish:
        """The next message, acknowledged all the way."""
        message = self.expect(Publish)
        self.acknowledge(message)
        return message

    def acknowledge(self, message: Publish) -> None:
        if message.qos == 1:
            self.send(Puback(message.packet_id))
        elif message.qos == 2:
            self.send(Pubrec(message.packet_id))
            self.pick(Pubrel, message.packet_id)
            self.send(Pubcomp(message.packet_id))

    def settle(self) -> list[Packet]:
        """Everything the broker has said up to now: what comes before the answer to a ping."""
        self.send(Pingreq())
        said = []
        while not isinstance(packet := self.next(), Pingresp):
            said.append(packet)
        return said

    def take_id(self) -> int:
        packet_id = self._next_id
        self._next_id = packet_id % 65535 + 1
        return packet_id

    def disconnect(self) -> None:
        self.send(Disconnect())
        assert self.is_closed()
        self.close()

    def close(self) -> None:
        """Hang up without a word."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SentAt:
    """When something was published, to tell what its message expiry must have become since."""

    def __init__(self) -> None:
        self._sent_s = time.monotonic()

    def check_left(self, left_s: int | None, expiry_s: int, waited_s: int = 0) -> None:
        """Whole seconds that passed are taken off, and no more: at least the `waited_s` known of.

        So within the second of publishing only the published value passes.
        """
        passed_s = int(time.monotonic() - self._sent_s)
        assert left_s is not None
        assert expiry_s - passed_s <= left_s <= expiry_s - waited_s


def kept(expiry_s: int = 3600) -> Properties:
    """CONNECT properties of an MQTT 5 session that outlives its connection."""
    return Properties(session_expiry_interval=expiry_s)


def connect_kept(port: int, client_id: str, version: int) -> tuple[Wire, bool]:
    """A client with a persistent session, and whether the session was there before.

    EOFError when it was turned away.
    """
    wire = Wire(port, client_id, version)
    properties = kept() if version == MQTT_5 else NO_PROPERTIES
    answer = wire.connect(clean=False, properties=properties)
    if answer.reason:
        raise EOFError(answer.reason)
    return wire, answer.session_present
