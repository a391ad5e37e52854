"""Many connections of one address to a broker, and others of another address beside them.

Every address of 127.0.0.0/8 is this machine: each one is a source of its own to the broker.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from tests.doors.served import Served
from tests.waiting import WAIT_S

T = TypeVar("T")

IP_BIND_ADDRESS_NO_PORT = 24  # ports are chosen with `connect`: thousands stay quick


def reach(port: int, source: str, wait_s: float = WAIT_S) -> socket.socket:
    """A connection to the broker from an address of this machine."""
    sock = socket.socket()
    try:
        sock.settimeout(wait_s)
        sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        sock.bind((source, 0))
        sock.connect(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def many_descriptors() -> Iterator[None]:
    """As many connections as the system allows, here and in what is started meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Connections of one address; whoever is inside `with` has them all open."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sockets: list[socket.socket] = []

    def join(self, port: int, count: int, data: bytes = b"") -> Self:
        """So many more, each of which sends this and reads nothing."""
        for _ in range(count):
            sock = reach(port, self.source)
            self.sockets.append(sock)
            if data:
                sock.sendall(data)
        return self

    def count_open(self) -> int:
        """How many have the broker neither answered nor closed?"""
        held = 0
        for sock in self.sockets:
            sock.setblocking(False)
            try:
                sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                held += 1
            except OSError:
                pass
        return held

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sock in self.sockets:
            sock.close()


class Measured:
    """A healthy client's worst wait, and the most memory of the broker meanwhile."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._before = served.memory_bytes
        self.worst_s = 0.0
        self.grown_bytes = 0

    def __call__(self, work: Callable[[], T]) -> T:
        begin_s = time.monotonic()
        result = work()
        self.worst_s = max(self.worst_s, time.monotonic() - begin_s)
        self.grown_bytes = max(self.grown_bytes, self._served.memory_bytes - self._before)
        return result

    def __str__(self) -> str:
        return f"worst wait {self.worst_s:.3f} s, memory +{self.grown_bytes / 1e6:.1f} MB"
