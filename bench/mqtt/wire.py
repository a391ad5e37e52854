"""The load generator's clients: raw sockets, packets encoded beforehand, messages counted in bytes.

All messages of a row have one size, so a receiver divides instead of parsing. What is counted is
exact: bytes that make no whole message, or too few of them, are reported.
"""

from __future__ import annotations

import itertools
import random
import resource
import select
import socket
from typing import Final

from bench.mqtt.servers import HOST, Server
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1
from penstock.mqtt.packets import Connect, Publish, Subscribe, Subscription
from penstock.mqtt.properties import NO_PROPERTIES, Properties

RECEIVE_BYTES: Final = 1 << 20
DRAIN_S_MAX: Final = 20.0  # what has not come by then is lost
ACK_BYTES: Final = 4
FILTERS_AT_ONCE: Final = 100  # of one SUBSCRIBE: its answer is a short packet
PAYLOAD: Final = b"x" * 100
NAME: Final = "bench/one"

_numbers: Final = itertools.count(1)


def allow_many_sockets() -> None:
    """As many descriptors as the system lets us have; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def reading_packets(count: int, name: str = NAME) -> bytes:
    """PUBLISH packets of equal size, each with another reading of a sensor as JSON."""
    numbers = random.Random(1)
    packets = []
    for at in range(count):
        text = (
            f'{{"device":"d-{numbers.randrange(5_000):04}","at":{1_790_000_000 + at},'
            f'"celsius":{numbers.random() * 40:06.3f},"humidity":{numbers.random() * 100:06.2f},'
            f'"battery":{numbers.randrange(100):03}}}'
        )
        packets.append(encode(Publish(name, text.encode().ljust(len(PAYLOAD))), MQTT_3_1_1))
    return b"".join(packets)


def publish_packet(
    name: str = NAME,
    qos: int = 0,
    packet_id: int = 0,
    version: int = MQTT_3_1_1,
    properties: Properties = NO_PROPERTIES,
) -> bytes:
    packet = Publish(name, PAYLOAD, qos, packet_id=packet_id, properties=properties)
    return encode(packet, version)


def connect_packet(
    server: Server, client_id: str, version: int = MQTT_3_1_1, *, clean_start: bool = True
) -> bytes:
    """A CONNECT with the login that the server asks for."""
    packet = Connect(
        client_id,
        clean_start,
        keep_alive_s=600,
        username=server.user,
        password=server.password,
        version=version,
    )
    return encode(packet, version)


def connect(
    server: Server, version: int = MQTT_3_1_1, *, clean_start: bool = True
) -> socket.socket:
    """A client that is connected; its socket blocks."""
    sock = socket.create_connection((HOST, server.port), 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client_id = f"bench-{next(_numbers)}"
    sock.sendall(connect_packet(server, client_id, version, clean_start=clean_start))
    answer = _packet(sock)
    assert answer[0] == 0x20 and answer[3] == 0, f"{server.name} refused: {answer!r}"
    return sock


def subscribe(
    server: Server,
    filter: str,
    qos: int = 0,
    version: int = MQTT_3_1_1,
    *,
    clean_start: bool = True,
) -> socket.socket:
    """A client that is connected and subscribed."""
    return subscribe_many(server, [filter], qos, version, clean_start=clean_start)


def subscribe_many(
    server: Server,
    filters: list[str],
    qos: int = 0,
    version: int = MQTT_3_1_1,
    *,
    clean_start: bool = True,
) -> socket.socket:
    """A client that is connected and subscribed to many filters."""
    sock = connect(server, version, clean_start=clean_start)
    for start in range(0, len(filters), FILTERS_AT_ONCE):
        wanted = [Subscription(one, qos) for one in filters[start : start + FILTERS_AT_ONCE]]
        sock.sendall(encode(Subscribe(1, tuple(wanted)), version))
        answer = _packet(sock)
        refused = [code for code in answer[-len(wanted) :] if code > 2]
        assert answer[0] == 0x90 and not refused, f"{server.name} refused: {answer!r}"
    return sock


def _packet(sock: socket.socket) -> bytes:
    """One short packet."""
    head = exactly(sock, 2)
    assert head[1] < 0x80
    return head + exactly(sock, head[1])


def exactly(sock: socket.socket, length: int) -> bytes:
    """So many bytes; waits for all of them."""
    data = b""
    while len(data) < length:
        piece = sock.recv(length - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return data


class Receivers:
    """Subscribers of which only the bytes are counted."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self.sockets = {sock.fileno(): sock for sock in sockets}
        self.bytes = 0
        self._epoll = select.epoll()
        self._buffer = bytearray(RECEIVE_BYTES)
        for sock in sockets:
            sock.setblocking(False)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def receive(self, wait_s: float) -> None:
        """Take what is there, or wait for something at most so long."""
        for fd, _ in self._epoll.poll(wait_s):
            count = self.sockets[fd].recv_into(self._buffer)
            if not count:
                raise ConnectionError("the broker closed a subscriber's connection")
            self.bytes += count

    def close(self) -> None:
        self._epoll.close()
        for sock in self.sockets.values():
            sock.close()


class Sender:
    """A publisher of QoS 0 that sends the same bytes again and again, a part at a time."""

    def __init__(self, sock: socket.socket, blob: bytes, part_bytes: int = 0) -> None:
        sock.setblocking(False)
        self.sock = sock
        whole = memoryview(blob)
        step = part_bytes or len(blob)
        parts = [whole[start : start + step] for start in range(0, len(blob), step)]
        self._parts = itertools.cycle(parts)
        self._rest = whole[:0]

    def send(self) -> int:
        """Send the next part, or the rest of one; how many bytes the socket took."""
        data = self._rest or next(self._parts)
        try:
            count = self.sock.send(data)
        except BlockingIOError:
            return 0
        self._rest = data[count:]
        return count

    def finish(self) -> int:
        """Send the rest of a part that was begun."""
        return self.send() if self._rest else 0

    @property
    def is_whole(self) -> bool:
        return not self._rest

    def close(self) -> None:
        self.sock.close()
