"""A broker that only moves bytes: what it reaches is the ceiling of the load generator.

`python -m bench.mqtt.sink PORT PACKET_BYTES ACKS SPLITS`. It answers CONNECT, SUBSCRIBE and
PINGREQ. All else from a publisher goes to every subscriber as it is, or (SPLITS) in equal shares;
with ACKS each PACKET_BYTES are acknowledged. Packets are never looked at.
"""

from __future__ import annotations

import select
import socket
import sys
from typing import Final

READ_BYTES: Final = 1 << 18
CONNACK: Final = {4: b"\x20\x02\x00\x00", 5: b"\x20\x03\x00\x00\x00"}
PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"
ACK: Final = b"\x40\x02\x00\x01"


class Peer:
    """A connection, and how much of a packet it has sent."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.version = 0  # until CONNECT
        self.is_subscriber = False
        self.left_bytes = 0


class Sink:
    def __init__(self, packet_bytes: int, *, acks: bool, splits: bool) -> None:
        self._packet_bytes = packet_bytes
        self._acks = acks
        self._splits = splits
        self._subscribers: list[Peer] = []
        self._out: list[bytes] = []
        self._share_bytes = 0  # of packets that have not made a whole round of subscribers

    def receive(self, peer: Peer, data: bytes) -> None:
        if not peer.version:
            peer.version = data[8]
            peer.sock.sendall(CONNACK[peer.version])
        elif data[0] == 0x82:
            self._subscribe(peer, data)
        elif not peer.is_subscriber:
            self._publish(peer, data)

    def _subscribe(self, peer: Peer, data: bytes) -> None:
        peer.is_subscriber = True
        self._subscribers.append(peer)
        properties = b"\x00" if peer.version == 5 else b""
        body = data[2:4] + properties + b"\x00"
        peer.sock.sendall(bytes((0x90, len(body))) + body)

    def _publish(self, peer: Peer, data: bytes) -> None:
        if data.endswith(PINGREQ):
            peer.sock.sendall(PINGRESP)
            data = data[:-2]
        if self._acks:
            peer.left_bytes += len(data)
            count, peer.left_bytes = divmod(peer.left_bytes, self._packet_bytes)
            peer.sock.sendall(ACK * count)
        if self._splits:
            self._share_bytes += len(data)
            whole = self._packet_bytes * len(self._subscribers)
            count, self._share_bytes = divmod(self._share_bytes, whole)
            data = bytes(self._packet_bytes * count)
        if data:
            self._out.append(data)

    def flush(self) -> None:
        """One write for each subscriber and tick."""
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out = []
            for subscriber in self._subscribers:
                subscriber.sock.sendall(data)

    def leave(self, peer: Peer) -> None:
        if peer.is_subscriber:
            self._subscribers.remove(peer)
            self._share_bytes = 0
        peer.sock.close()


def serve(port: int, sink: Sink) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    peers: dict[int, Peer] = {}
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers[sock.fileno()] = Peer(sock)
                epoll.register(sock.fileno(), select.EPOLLIN)
                continue
            try:
                data = peers[fd].sock.recv(READ_BYTES)
                if data:
                    sink.receive(peers[fd], data)
            except OSError:
                data = b""
            if not data:
                epoll.unregister(fd)
                sink.leave(peers.pop(fd))
        sink.flush()


if __name__ == "__main__":
    bound, packet, with_acks, in_shares = map(int, sys.argv[1:])
    serve(bound, Sink(packet, acks=bool(with_acks), splits=bool(in_shares)))
