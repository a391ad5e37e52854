"""Turns of load: each drives one broker for a while and says what came through.

Nothing is sent faster than it is received beyond a bound, so a broker has no reason to drop; what
is missing in the end is reported, never left out of the count.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.mqtt.servers import Server
from bench.mqtt.wire import ACK_BYTES, DRAIN_S_MAX, Receivers, Sender, connect, publish_packet

IDS: Final = 20_000  # packet ids in use, in turn
PINGREQ: Final = b"\xc0\x00"
PING_BYTES: Final = 2
SPIN_SENDS: Final = 16  # single packets sent before receivers are looked at


class Lost(Exception):
    """Messages that were sent and did not come."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: `blob` holds `per_blob` messages, each of which reaches `fan` receivers."""

    blob: bytes
    per_blob: int
    fan: int
    received_bytes: int  # of one message at one receiver
    outstanding_max: int  # messages sent and not received yet


def stream(
    senders: list[Sender], receivers: Receivers, load: Load, turn_s: float, spin: int = 1
) -> float:
    """Messages of QoS 0 per second, counted where they arrive."""
    size = len(load.blob) // load.per_blob
    out_bytes = load.fan * load.received_bytes
    bound = load.outstanding_max * out_bytes
    first_bytes = receivers.bytes
    sent_bytes = 0
    at = 0
    begin = time.perf_counter()
    end_s = begin + turn_s
    while time.perf_counter() < end_s:
        is_stuck = True
        for _ in range(spin):
            if sent_bytes // size * out_bytes - (receivers.bytes - first_bytes) >= bound:
                break
            count = senders[at].send()
            if count:
                is_stuck = False
                sent_bytes += count
            at = at + 1 if at + 1 < len(senders) else 0
        receivers.receive(0.01 if is_stuck else 0)
    give_up_s = time.perf_counter() + DRAIN_S_MAX
    while any(not sender.is_whole for sender in senders):
        sent_bytes += sum(sender.finish() for sender in senders)
        receivers.receive(0)
    messages = sent_bytes // size
    wanted = messages * out_bytes
    while receivers.bytes - first_bytes < wanted and time.perf_counter() < give_up_s:
        receivers.receive(0.05)
    taken_s = time.perf_counter() - begin
    got = receivers.bytes - first_bytes
    if got != wanted:
        raise Lost(f"{wanted - got:,} of {wanted:,} bytes did not come")
    return messages * load.fan / taken_s


def ingest(sockets: list[socket.socket], blob: bytes, part_bytes: int, turn_s: float) -> int:
    """Bytes per second that nobody reads, at QoS 0; a PINGRESP says that they were taken."""
    senders = [Sender(sock, blob, part_bytes) for sock in sockets]
    poll = select.epoll()
    for sock in sockets:
        poll.register(sock.fileno(), select.EPOLLOUT)
    by_fd = {sender.sock.fileno(): sender for sender in senders}
    sent_bytes = 0
    begin = time.perf_counter()
    end_s = begin + turn_s
    while time.perf_counter() < end_s:
        for fd, _ in poll.poll(0.05):
            sent_bytes += by_fd[fd].send()
    poll.close()
    for sender in senders:
        sender.sock.setblocking(True)
        while not sender.is_whole:
            sent_bytes += sender.finish()
        sender.sock.sendall(PINGREQ)
    for sender in senders:
        answer = sender.sock.recv(PING_BYTES, socket.MSG_WAITALL)
        assert answer == b"\xd0\x00", answer
    return int(sent_bytes / (time.perf_counter() - begin))


class WindowSender:
    """A publisher of QoS 1 with a bounded number of messages that wait for their PUBACK."""

    def __init__(
        self, sock: socket.socket, packets: memoryview, size: int, window: int, per_send: int
    ) -> None:
        self.sock = sock
        self._packets = packets
        self._size = size
        self._window = window
        self._per_send = per_send
        self._at = 0
        self._pending_bytes = 0  # of a PUBACK that came in part
        self.sent = 0
        self.acked = 0

    def fill(self) -> None:
        """Send as many as the window has room for, at most `per_send` at once."""
        count = self._window - (self.sent - self.acked)
        while count > 0:
            part = min(count, IDS - self._at, self._per_send)
            self.sock.sendall(self._packets[self._at * self._size : (self._at + part) * self._size])
            self._at = (self._at + part) % IDS
            self.sent += part
            count -= part

    def take_acks(self) -> None:
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed a publisher's connection")
        count, self._pending_bytes = divmod(self._pending_bytes + len(data), ACK_BYTES)
        self.acked += count


class AckingReceiver:
    """A subscriber of QoS 1: finds the packet ids by their place and acknowledges them."""

    def __init__(self, sock: socket.socket, size: int, id_at: int) -> None:
        self.sock = sock
        self.received = 0
        self._size = size
        self._id_at = id_at
        self._held = b""

    def receive(self) -> None:
        data = self._held + self.sock.recv(1 << 18)
        count = len(data) // self._size
        whole = data[: count * self._size]
        self._held = data[count * self._size :]
        if count:
            acks = bytearray(b"\x40\x02\x00\x00" * count)
            acks[2::4] = whole[self._id_at :: self._size]
            acks[3::4] = whole[self._id_at + 1 :: self._size]
            self.sock.sendall(acks)
            self.received += count


def id_packets(name: str) -> tuple[memoryview, int]:
    """Every packet id's PUBLISH one after the other, and the size of each."""
    packets = [publish_packet(name, 1, number + 1) for number in range(IDS)]
    return memoryview(b"".join(packets)), len(packets[0])


def acknowledged(
    server: Server,
    name: str,
    connections: int,
    window: int,
    receivers: Sequence[socket.socket],
    *,
    per_send: int = IDS,
) -> Callable[[float], float]:
    """A turn of QoS 1: messages per second, acknowledged, and received if anybody reads."""
    packets, size = id_packets(name)
    id_at = 2 + 2 + len(name)  # one byte of length: packets are shorter than 128 bytes

    def turn(turn_s: float) -> float:
        senders = [
            WindowSender(connect(server), packets, size, window, per_send)
            for _ in range(connections)
        ]
        readers = [AckingReceiver(receiver, size, id_at) for receiver in receivers]
        try:
            return _acknowledged(senders, readers, turn_s)
        finally:
            for sender in senders:
                sender.sock.close()

    assert size <= 129
    return turn


def _acknowledged(
    senders: list[WindowSender], readers: list[AckingReceiver], turn_s: float
) -> float:
    poll = select.epoll()
    by_fd = {sender.sock.fileno(): sender for sender in senders}
    reading = {reader.sock.fileno(): reader for reader in readers}
    for fd in (*by_fd, *reading):
        poll.register(fd, select.EPOLLIN)
    begin = time.perf_counter()
    end_s = begin + turn_s
    for sender in senders:
        sender.fill()
    while True:
        now_s = time.perf_counter()
        is_over = now_s >= end_s
        for fd, _ in poll.poll(0.05):
            if fd in reading:
                reading[fd].receive()
            else:
                sender = by_fd[fd]
                sender.take_acks()
                if not is_over:
                    sender.fill()
        if is_over:
            sent = sum(sender.sent for sender in senders)
            acked = sum(sender.acked for sender in senders)
            got = sum(reader.received for reader in readers) if readers else acked
            if acked >= sent and got >= sent:
                break
            if now_s > end_s + DRAIN_S_MAX:
                raise Lost(f"of {sent:,} sent {acked:,} were acknowledged and {got:,} received")
    poll.close()
    if got != sent:
        raise Lost(f"{got - sent:,} more than the {sent:,} sent were received")
    return sent / (time.perf_counter() - begin)
