"""Listening sockets of a door, and what becomes of the connections they take."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from penstock.broker.limited_log import LimitedLog
from penstock.doors.lingering import Lingering
from penstock.doors.link import Link
from penstock.doors.selector import DoorSelector
from penstock.doors.serving import Served, Serving
from penstock.doors.tcp import SocketLink
from penstock.doors.tls import TlsListener
from penstock.model.unix_socket import short_address

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
        self._files: list[Path] = []  # of Unix sockets

    def listen(
        self, host: str, port: int, context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Take connections on an address, with TLS if told how; the address that was bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        self._sockets.append(listener)
        begin: Callable[[socket.socket], None] = partial(self._begin, self._make)
        if context is not None:
            tls = TlsListener(
                context, self._loop, self._make, self._refused, self._lingering, self._log
            )
            self._tls.append(tls)
            begin = tls.take
        self._selector.serve(listener.fileno(), partial(self._accept, listener, begin))
        bound = listener.getsockname()
        return bound[0], bound[1]

    def listen_local(self, path: Path, make: Make) -> None:
        """Take connections on a Unix socket that only the broker's own user can open.

        The directory is ours alone, so a socket at the path is one that nobody listens on.
        """
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            with short_address(path) as address:
                listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(mask)
        listener.setblocking(False)
        self._sockets.append(listener)
        self._files.append(path)
        begin = partial(self._begin, make)
        self._selector.serve(listener.fileno(), partial(self._accept, listener, begin))

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
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            begin(sock)

    def _begin(self, make: Make, sock: socket.socket) -> None:
        link = SocketLink(sock, self._selector, self._lingering)
        connection = make(link)
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
        for path in self._files:
            path.unlink(missing_ok=True)
        self._files = []
        for tls in self._tls:
            tls.close()
