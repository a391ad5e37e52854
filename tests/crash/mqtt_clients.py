"""MQTT clients that outlive their broker: publishers that send again, subscribers that remember.

Each runs in a thread for as long as the broker lives; what a real client keeps across a lost
connection (MQTT 5 §4.1) is kept here, so the next life of the broker is met as the protocol says.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from penstock.mqtt.reasons import Reason
from tests.doors.wire import Wire, connect_kept

WINDOW = 20  # messages of one publisher on their way

Saw = Callable[[Packet], None]


class Trigger:
    """Kills the broker at the nth packet of a kind that any client sees."""

    def __init__(self, pid: int, kind: type[Packet] | None, count: int) -> None:
        self.fired = threading.Event()
        self._pid = pid
        self._kind = kind
        self._left = count
        self._lock = threading.Lock()

    def saw(self, packet: Packet) -> None:
        if self._kind is not None and isinstance(packet, self._kind):
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    self.fire()

    def fire(self) -> None:
        if not self.fired.is_set():
            os.kill(self._pid, signal.SIGKILL)
            self.fired.set()


class Client:
    """A persistent session that comes back after each crash."""

    def __init__(self, client_id: str, version: int = MQTT_5) -> None:
        self.client_id = client_id
        self.version = version
        self.problems: list[str] = []
        self._was_there = False

    def run(self, port: int, saw: Saw) -> None:
        """Until the connection is lost."""
        try:
            wire, is_present = connect_kept(port, self.client_id, self.version)
            if self._was_there and not is_present:
                self.problems.append(f"{self.client_id}: its session is gone")
            self._was_there = True
            self.begin(wire)
            while True:
                packet = wire.next()
                self.take(wire, packet)
                saw(packet)
        except (EOFError, OSError):
            return

    def begin(self, wire: Wire) -> None:
        raise NotImplementedError

    def take(self, wire: Wire, packet: Packet) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Sends numbers, a window at a time, and again with DUP what was not acknowledged."""

    def __init__(self, client_id: str, qos: int, name: str, *, names: int = 0) -> None:
        super().__init__(client_id)
        self.qos = qos
        self.acked: list[int] = []
        self.sent = 0  # numbers below it were sent at least once
        self._name = name
        self._names = names  # retained under so many names in turn, if any
        self._unacked: dict[int, int] = {}  # packet id -> number, in the order of sending
        self._released: dict[int, None] = {}

    def begin(self, wire: Wire) -> None:
        wire.send(*[self._message(number, one, True) for one, number in self._unacked.items()])
        wire.send(*[Pubrel(one) for one in self._released])
        self._fill(wire)

    def _message(self, number: int, packet_id: int, dup: bool) -> Publish:
        name = f"{self._name}/{number % self._names}" if self._names else self._name
        payload = b"%s %d" % (self.client_id.encode(), number)
        return Publish(name, payload, self.qos, self._names > 0, dup, packet_id)

    def _fill(self, wire: Wire) -> None:
        while len(self._unacked) + len(self._released) < WINDOW:
            packet_id = self.sent % 60_000 + 1
            self._unacked[packet_id] = self.sent
            self.sent += 1
            wire.send(self._message(self.sent - 1, packet_id, False))

    def take(self, wire: Wire, packet: Packet) -> None:
        if isinstance(packet, Puback | Pubrec):
            if packet.reason >= Reason.UNSPECIFIED_ERROR:
                raise EOFError  # refused: come back, and send it again
            number = self._unacked.pop(packet.packet_id, None)
            if number is not None:
                self.acked.append(number)
            if isinstance(packet, Pubrec):
                self._released[packet.packet_id] = None
                wire.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubcomp):
            self._released.pop(packet.packet_id, None)
        self._fill(wire)


class Subscriber(Client):
    """Writes down what it is given; a QoS 2 message once for each packet id it holds."""

    def __init__(self, client_id: str, qos: int, filter: str, *, start: str = "") -> None:
        super().__init__(client_id)
        self._start = start  # a position: then its subscription is a feed of its own
        self.received: list[bytes] = []
        self._qos = qos
        self._filter = filter
        self._is_subscribed = False
        self._held: set[int] = set()

    def subscribe(self, port: int) -> None:
        wire, _ = connect_kept(port, self.client_id, self.version)
        if self._start:
            wire.subscribe_feed(self._filter, qos=self._qos, from_=self._start)
        else:
            wire.subscribe(self._filter, qos=self._qos)
        self._was_there = True
        wire.disconnect()

    def begin(self, wire: Wire) -> None:
        pass

    def take(self, wire: Wire, packet: Packet) -> None:
        if isinstance(packet, Publish):
            if packet.qos == 1:
                self.received.append(packet.payload)
                wire.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                if packet.packet_id not in self._held:
                    self._held.add(packet.packet_id)
                    self.received.append(packet.payload)
                wire.send(Pubrec(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self._held.discard(packet.packet_id)
            wire.send(Pubcomp(packet.packet_id))
