"""Listening sockets of a door, and what becomes of the connections they take."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from penstock.broker.limited_log import LimitedLog
from penstock.core.proxies import Address, TrustedProxies
from penstock.doors.descriptors import SCARCE, Descriptors
from penstock.doors.lingering import Lingering
from penstock.doors.link import Link
from penstock.doors.proxied import Begin, ProxiedSocket
from penstock.doors.selector import READABLE, DoorSelector
from penstock.doors.serving import Served, Serving
from penstock.doors.tcp import SocketLink, peer_of, source_of
from penstock.doors.tls.context import TlsContext
from penstock.doors.tls.link import NoteCertificate, TlsListener
from penstock.model.limits import KIB
from penstock.model.unix_socket import short_address

ACCEPTS_MAX: Final = 64  # of one event: others get their turn
BACKLOG: Final = 1024
# That the system takes for a client who does not read, besides what is on its way: without a bound
# it takes 4 MB of memory for each of them. What is under way is not bounded by it (tcp(7)).
SOCKET_BYTES_MAX: Final = 128 * KIB
PAUSE_S: Final = 0.2  # of accepting, when the system has no descriptor or memory for it

Make = Callable[[Link], Served | None]  # None when there is no room for another connection


@dataclass(frozen=True, slots=True)
class SharedAddress:
    """An address that several processes listen on."""

    host: str
    port: int
    context: TlsContext | None
    accept: Callable[[int], None]  # those that wait to be


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
        *,
        descriptors: Descriptors,
        may_use_reserve: bool,
        proxies: TrustedProxies,
        note_certificate: NoteCertificate,
    ) -> None:
        """`may_use_reserve`: its clients may be those that ask how the broker is.

        `proxies` have to begin every connection with a header of the PROXY protocol.
        `note_certificate` hears of clients whose certificate is refused.
        """
        self._note_certificate = note_certificate
        self._proxies = proxies
        self._descriptors = descriptors
        self._may_use_reserve = may_use_reserve
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
        self._shared: dict[socket.socket, SharedAddress] = {}
        self._left: list[SharedAddress] = []  # only others take connections there now

    def listen(
        self, host: str, port: int, context: TlsContext | None = None, *, is_shared: bool = False
    ) -> tuple[str, int]:
        """Take connections on an address, with TLS if told how; the address that was bound.

        A shared one may be open in other processes as well: the system deals connections out.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server(
            (host, port), family=family, backlog=BACKLOG, reuse_port=is_shared
        )
        listener.setblocking(False)
        # What is accepted inherits it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, SOCKET_BYTES_MAX)
        self._sockets.append(listener)
        begin: Begin = partial(self._begin, self._make)
        if context is not None:
            tls = TlsListener(
                context,
                self._loop,
                self._make,
                refused=self._refused,
                lingering=self._lingering,
                log=self._log,
                note_certificate=self._note_certificate,
            )
            self._tls.append(tls)
            self._descriptors.watch(tls.strangers)
            begin = tls.take
        accept = partial(self._accept, listener, begin)
        self._selector.serve(listener.fileno(), accept)
        bound = listener.getsockname()
        if is_shared:
            self._shared[listener] = SharedAddress(bound[0], bound[1], context, accept)
        return bound[0], bound[1]

    def leave_shared(self) -> None:
        """Other processes take the connections to shared addresses; those there are stay."""
        for listener, address in self._shared.items():
            address.accept(READABLE)  # who is connected already would be cut off
            self._sockets.remove(listener)
            self._selector.leave(listener.fileno())
            listener.close()
            self._left.append(address)
        self._shared = {}

    def join_shared(self) -> None:
        """Take connections to shared addresses again."""
        left, self._left = self._left, []
        for one in left:
            self.listen(one.host, one.port, one.context, is_shared=True)

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

    def _accept(self, listener: socket.socket, begin: Begin, events: int) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:  # nobody waits
                return
            except OSError as failed:
                if failed.errno not in SCARCE:  # that client is gone again
                    continue
                text = "a connection cannot be accepted: %(problem)s"
                self._log.warning("accept failed", text, {"problem": str(failed)})
                self._pause(listener)
                return
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                if self._is_short(sock):
                    sock.close()
                    continue
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._proxies.trusts(source_of(sock)):
                    ProxiedSocket(sock, self._selector, self._loop, begin, self._refuse_proxy)
                    continue
            begin(sock, None)

    def _refuse_proxy(self, sock: socket.socket, problem: str) -> None:
        self._refused["proxy"] += 1
        text = "connection of the trusted proxy %(peer)s closed: %(problem)s"
        self._log.warning("proxy refused", text, {"peer": peer_of(sock), "problem": problem})
        sock.close()

    def _is_short(self, sock: socket.socket) -> bool:
        """Whether a newcomer would use up what files need, and nobody gives way to it."""
        descriptors = self._descriptors
        if not descriptors.is_reserved(sock.fileno(), may_use_half=self._may_use_reserve):
            return False
        if descriptors.make_room():
            return False
        self._refused["descriptors"] += 1
        text = "connection from %(peer)s refused: the process has too few descriptors"
        self._log.warning("connection refused", text, {"peer": peer_of(sock)})
        return True

    def _pause(self, listener: socket.socket) -> None:
        """Accept nothing for a moment: a listener that stays readable would keep the loop busy."""
        self._descriptors.make_room()
        self._selector.change(listener.fileno(), 0)
        self._loop.call_later(PAUSE_S, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            self._selector.change(listener.fileno(), READABLE)

    def _begin(self, make: Make, sock: socket.socket, address: Address | None) -> None:
        link = SocketLink(sock, self._selector, self._lingering, address)
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
