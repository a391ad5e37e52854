"""Listening sockets of a door, and what becomes of the connections they take."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.broker.limited_log import LimitedLog
from penstock.doors.lingering import Lingering
from penstock.doors.link import Link
from penstock.doors.selector import DoorSelector
from penstock.doors.serving import Served, Serving
from penstock.doors.tcp import SocketLink
from penstock.doors.tls import TlsListener

ACCEPTS_MAX: Final = 64  # of one event: others get their turn
BACKLOG: Final = 1024

Make = Callable[[Link], Served | None]  # None when there is no room for another connection


class Listeners:
    """Takes connections until it is closed. Bare sockets are served inside the selector."""

    def __init__(
        self,
        selector: DoorSelector,
        loop: asyncio.AbstractEventLoop,
        refused: Counter[str],
        make: Make,
        serving: Serving,
        lingering: Lingering,
        log: LimitedLog,
    ) -> None:
        self._log = log
        self._lingering = lingering
        self._selector = selector
        self._loop = loop
        self._refused = refused
        self._make = make
        self._serving = serving
        self._sockets: list[socket.socket] = []
        self._tls: list[TlsListener] = []

    def listen(
        self, host: str, port: int, context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Take connections on an address, with TLS if told how; the address that was bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        self._sockets.append(listener)
        begin = self._begin
        if context is not None:
            tls = TlsListener(
                context, self._loop, self._make, self._refused, self._lingering, self._log
            )
            self._tls.append(tls)
            begin = tls.take
        self._selector.serve(listener.fileno(), partial(self._accept, listener, begin))
        bound = listener.getsockname()
        return bound[0], bound[1]

    def _accept(
        self, listener: socket.socket, begin: Callable[[socket.socket], None], events: int
    ) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:  # nobody waits
                return
            except OSError as failed:  # no descriptor is left, perhaps: the others are served on
                text = "a connection cannot be accepted: %(problem)s"
                self._log.warning("accept failed", text, {"problem": str(failed)})
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        link = SocketLink(sock, self._selector, self._lingering)
        connection = self._make(link)
        if connection is None:
            sock.close()
        else:
            self._selector.serve(link.fd, partial(self._serving.serve, connection, link))

    def close(self) -> None:
        """Take no more connections; those there are stay."""
        for listener in self._sockets:
            self._selector.leave(listener.fileno())
            listener.close()
        self._sockets = []
        for tls in self._tls:
            tls.close()
