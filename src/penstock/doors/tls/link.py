"""TLS below a connection: asyncio's transports, seen as a Link.

Handshakes are bounded in number and time and run concurrently; only a client that
finished its own becomes a connection. What waits to be sent is bounded as on a bare socket: while
the transport is full, `send` takes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.broker.limited_log import LimitedLog
from penstock.core.proxies import Address
from penstock.doors.lingering import Linger, Lingering
from penstock.doors.link import Wired, shown_peer
from penstock.doors.strangers import Stranger, Strangers
from penstock.doors.tcp import peer_of, source_of
from penstock.doors.tls.context import (
    TlsContext,
    certificate_of,
    handshake_problem,
    is_certificate_refused,
)
from penstock.model.limits import KIB

HANDSHAKES_MAX: Final = 1_000  # under way
HANDSHAKES_PER_NETWORK_MAX: Final = 500
HANDSHAKE_S_MAX: Final = 10.0
SHUTDOWN_S_MAX: Final = 5.0  # for the client to take leave after the last packet
# TLS here cannot be closed one way. A client that is silent for this long after our last packet has
# stopped sending, so that closing will not reset what it reads.
QUIET_S: Final = 1.0
# asyncio reads into a buffer of this size, one for each connection from its first byte on. It takes
# 256 KiB unless told otherwise: a quarter of a gigabyte for a thousand strangers.
sslproto.SSLProtocol.max_size = 64 * KIB
SEND_BYTES_MAX: Final = 256 * KIB  # handed to the transport at once

NoteCertificate = Callable[[str, str], None]  # where a client comes from, what is wrong


class TlsLink:
    """Implements the connection's Link on a transport."""

    __slots__ = (
        "_heard_s",
        "_is_full",
        "_is_wanted",
        "_linger",
        "_lingering",
        "_loop",
        "_on_writable",
        "_transport",
        "certificate",
        "peer",
        "source",
    )

    def __init__(
        self, transport: asyncio.Transport, lingering: Lingering, address: Address | None
    ) -> None:
        self._transport = transport
        self._lingering = lingering
        self._linger: Linger | None = None
        self._heard_s = 0.0  # when a client that lingers sent something, at the latest
        self._loop = lingering.loop
        self._is_full = False
        self._is_wanted = False
        self._on_writable: Callable[[], None] | None = None
        peer = address or transport.get_extra_info("peername")
        self.source = str(peer[0]) if peer else ""
        self.peer = shown_peer(peer)
        socket = transport.get_extra_info("ssl_object")
        self.certificate = certificate_of(socket.getpeercert(), socket.getpeercert(True))
        transport.set_write_buffer_limits(high=SEND_BYTES_MAX)

    def bind(self, on_writable: Callable[[], None]) -> None:
        self._on_writable = on_writable

    def send(self, data: bytes | memoryview) -> int:
        if self._transport.is_closing():
            raise ConnectionResetError("the transport is closing")
        if self._is_full:
            return 0
        part = data[:SEND_BYTES_MAX]
        self._transport.write(part)
        return len(part)

    def want_write(self, wanted: bool) -> None:
        if wanted and not self._is_wanted:
            self._loop.call_soon(self._tell_writable)
        self._is_wanted = wanted

    def _tell_writable(self) -> None:
        """As epoll does, for as long as it is wanted and there is room."""
        if self._is_wanted and not self._is_full and self._on_writable is not None:
            self._on_writable()
            if self._is_wanted and not self._is_full:
                self._loop.call_soon(self._tell_writable)

    def set_full(self, is_full: bool) -> None:
        """The transport has too much to send, or has room again."""
        self._is_full = is_full
        self._tell_writable()

    def want_read(self, wanted: bool) -> None:
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close_after(self, data: bytes) -> None:
        self._on_writable = None
        transport = self._transport
        if transport.is_closing():
            return
        self._linger = self._lingering.begin(transport.abort)
        transport.write(data)
        transport.resume_reading()
        self._heard_s = self._loop.time()
        self._loop.call_later(QUIET_S, self._close_when_quiet)

    def throw_away(self, size: int) -> None:
        """The client of a connection that is over sent something."""
        if self._linger is not None:
            self._heard_s = self._loop.time()
            self._linger.throw_away(size)

    def _close_when_quiet(self) -> None:
        """TLS cannot be closed one way, so wait until the client has nothing more to say."""
        if self._linger is None:
            return
        left_s = self._heard_s + QUIET_S - self._loop.time()
        if left_s <= 0 and not self._transport.get_write_buffer_size():
            self._transport.close()
        else:
            self._loop.call_later(max(left_s, QUIET_S / 10), self._close_when_quiet)

    def on_gone(self) -> None:
        linger, self._linger = self._linger, None
        if linger is not None:
            linger.end()

    def close(self) -> None:
        self._on_writable = None
        self._transport.close()


class TlsProtocol(asyncio.Protocol):
    """A client that finished its handshake."""

    def __init__(self, listener: TlsListener, address: Address | None) -> None:
        self._listener = listener
        self._address = address  # the client's, if a proxy speaks for it
        self._link: TlsLink | None = None
        self._connection: Wired | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link = TlsLink(transport, self._listener.lingering, self._address)
        self._connection = self._listener.make_connection(self._link)
        if self._connection is None:
            transport.abort()
        else:
            self._link.bind(self._connection.on_writable)

    def data_received(self, data: bytes) -> None:
        if self._connection is not None and not self._connection.is_closed:
            self._connection.receive(data)
        elif self._link is not None:
            self._link.throw_away(len(data))

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.set_full(True)

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.set_full(False)

    def connection_lost(self, failed: Exception | None) -> None:
        if self._link is not None:
            self._link.on_gone()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class TlsListener:
    """Takes accepted sockets through their handshakes."""

    def __init__(
        self,
        context: TlsContext,
        loop: asyncio.AbstractEventLoop,
        make_connection: Callable[[TlsLink], Wired | None],
        refused: Counter[str],
        lingering: Lingering,
        log: LimitedLog,
        *,
        note_certificate: NoteCertificate,
        handshake_s_max: float = HANDSHAKE_S_MAX,
    ) -> None:
        """`note_certificate` hears of clients whose certificate is refused."""
        self.make_connection = make_connection  # None when there is no room for another
        self._context = context
        self._loop = loop
        self._refused = refused
        self.lingering = lingering
        self._log = log
        self._note_certificate = note_certificate
        self._handshake_s_max = handshake_s_max
        self._handshakes: dict[asyncio.Task[None], Stranger] = {}
        self.strangers = Strangers(
            loop.time, HANDSHAKES_MAX, HANDSHAKES_PER_NETWORK_MAX, on_evict=self._note_eviction
        )

    def take(self, sock: socket.socket, address: Address | None = None) -> None:
        """Begin the handshake on a non-blocking socket."""
        source = source_of(sock) if address is None else address[0]
        if not self.strangers.has_room(source, HANDSHAKES_MAX):
            self._refused["handshakes"] += 1
            text = "connection from %(peer)s refused: too many TLS handshakes are under way"
            self._log.warning("connection refused", text, {"peer": peer_of(sock)})
            sock.close()
            return
        handshake = self._loop.create_task(self._shake(sock, address))
        self._handshakes[handshake] = self.strangers.enter(source, partial(_cancel, handshake))
        handshake.add_done_callback(self._finish)

    def _finish(self, handshake: asyncio.Task[None]) -> None:
        self._handshakes.pop(handshake).leave()

    def _note_eviction(self, network: str) -> None:
        self._refused["handshakes"] += 1
        text = (
            "TLS handshake with %(network)s given up: its address has the most of them, and there "
            "was no room for another client"
        )
        self._log.warning("handshake given up", text, {"network": network})

    async def _shake(self, sock: socket.socket, address: Address | None) -> None:
        peer = peer_of(sock) if address is None else shown_peer(address)  # while it is known
        try:
            await self._loop.connect_accepted_socket(
                lambda: TlsProtocol(self, address),
                sock,
                ssl=self._context.current(),
                ssl_handshake_timeout=self._handshake_s_max,
                ssl_shutdown_timeout=SHUTDOWN_S_MAX,
            )
        except OSError as failed:  # version, certificate, patience: SSLError and TimeoutError too
            self._refused["handshake"] += 1
            problem = handshake_problem(failed) or "the client took too long or left"
            values = {"peer": peer, "problem": problem}
            text = "TLS handshake with %(peer)s failed: %(problem)s"
            self._log.warning("handshake failed", text, values)
            if is_certificate_refused(failed):
                self._note_certificate(peer, f"certificate: {problem}")

    def close(self) -> None:
        for handshake in list(self._handshakes):
            handshake.cancel()


def _cancel(handshake: asyncio.Task[None]) -> None:
    handshake.cancel()
