"""A bare socket below a connection: a Link served by the selector, with no transport."""

from __future__ import annotations

import socket
from contextlib import suppress

from penstock.core.proxies import Address
from penstock.doors.lingering import Lingering, LingeringSocket
from penstock.doors.link import shown_peer
from penstock.doors.selector import READABLE, WRITABLE, DoorSelector


class SocketLink:
    """A non-blocking socket, served by the selector."""

    __slots__ = ("_address", "_events", "_lingering", "_selector", "socket")

    def __init__(
        self,
        sock: socket.socket,
        selector: DoorSelector,
        lingering: Lingering,
        address: Address | None = None,
    ) -> None:
        self._address = address  # the client's, if a proxy speaks for it
        self.socket = sock
        self._selector = selector
        self._lingering = lingering
        self._events: int = READABLE

    @property
    def fd(self) -> int:
        return self.socket.fileno()

    @property
    def source(self) -> str:
        return source_of(self.socket) if self._address is None else self._address[0]

    @property
    def peer(self) -> str:
        return peer_of(self.socket) if self._address is None else shown_peer(self._address)

    @property
    def certificate(self) -> None:
        return None

    def send(self, data: bytes | memoryview) -> int:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    def want_write(self, wanted: bool) -> None:
        self._change(self._events | WRITABLE if wanted else self._events & ~WRITABLE)

    def want_read(self, wanted: bool) -> None:
        self._change(self._events | READABLE if wanted else self._events & ~READABLE)

    def _change(self, events: int) -> None:
        if events != self._events:
            self._events = events
            self._selector.change(self.socket.fileno(), events)

    def close_after(self, data: bytes) -> None:
        try:
            self._selector.leave(self.socket.fileno())
            LingeringSocket(self._lingering, self.socket, data)
        except (OSError, KeyError):  # gone already
            self.socket.close()

    def close(self) -> None:
        with suppress(OSError, KeyError):
            self._selector.leave(self.socket.fileno())
        self.socket.close()


def source_of(sock: socket.socket) -> str:
    """The address of the other side, without the port."""
    try:
        peer = sock.getpeername()
    except OSError:  # gone already
        return ""
    return str(peer[0]) if peer else ""  # a Unix socket has no address


def peer_of(sock: socket.socket) -> str:
    """Address and port of the other side, for people."""
    try:
        return shown_peer(sock.getpeername())
    except OSError:  # gone already
        return shown_peer(None)
