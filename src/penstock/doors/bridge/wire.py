"""The connection to the other broker: TCP or TLS, with backpressure in both directions.

A bare socket is served by the selector, as those of the doors are; TLS needs asyncio's transport.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from penstock.doors.bridge.settings import BridgeSettings
from penstock.doors.lingering import READ_BYTES
from penstock.doors.selector import GONE, READABLE, WRITABLE, DoorSelector
from penstock.doors.unreachable import unreachable
from penstock.model.errors import UnavailableError
from penstock.mqtt.endings import lost

CONNECT_S_MAX: Final = 30.0


class Wire(Protocol):
    """Bytes from and to the other broker. Made by `dial`; callbacks are set by the bridge."""

    on_data: Callable[[bytes], None]
    on_lost: Callable[[UnavailableError], None]
    on_blocked: Callable[[bool], None]
    seen_s: float  # when something came last
    sent_s: float

    def write(self, data: bytes) -> None: ...

    def want_read(self, wanted: bool) -> None: ...

    def close(self) -> None:
        """What was written is still sent, as far as the other broker takes it at once."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class SocketWire:
    """Implements Wire on a connected socket."""

    def __init__(self, sock: socket.socket, selector: DoorSelector) -> None:
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_lost: Callable[[UnavailableError], None] = lambda error: None
        self.on_blocked: Callable[[bool], None] = lambda is_blocked: None
        self._loop = asyncio.get_running_loop()
        self._now_s = self._loop.time
        self.seen_s = self.sent_s = self._now_s()
        self._socket = sock
        self._selector = selector
        self._events = READABLE
        self._rest = bytearray()  # the socket did not take it; bounded, since it blocks the bridge
        self._is_open = True
        sock.setblocking(False)
        selector.serve(sock.fileno(), self._serve)

    def _serve(self, events: int) -> None:
        try:
            if events & WRITABLE:
                self._drain()
            if events & (READABLE | GONE) and self._is_open:
                self._read()
        except Exception as mistake:  # else it would end the loop
            said = {"message": "a bridge was disconnected", "exception": mistake}
            self._loop.call_exception_handler(said)
            self._lose(None)

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as failed:
            self._lose(failed)
            return
        if data:
            self.seen_s = self._now_s()
            self.on_data(data)
        else:
            self._lose(None)

    def _drain(self) -> None:
        del self._rest[: self._send(self._rest)]
        if self._is_open and not self._rest:
            self._want(WRITABLE, False)
            self.on_blocked(False)

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as failed:
            self._lose(failed)
            return 0

    def write(self, data: bytes) -> None:
        if not self._is_open:
            return
        self.sent_s = self._now_s()
        if self._rest:
            self._rest += data
            return
        sent = self._send(data)
        if sent < len(data) and self._is_open:
            self._rest += data[sent:]
            self._want(WRITABLE, True)
            self.on_blocked(True)

    def want_read(self, wanted: bool) -> None:
        self._want(READABLE, wanted)

    def _want(self, event: int, wanted: bool) -> None:
        events = self._events | event if wanted else self._events & ~event
        if events != self._events and self._is_open:
            self._events = events
            self._selector.change(self._socket.fileno(), events)

    def _lose(self, failed: OSError | None) -> None:
        if self._is_open:
            self.abort()
            self.on_lost(lost(failed))

    def close(self) -> None:
        if self._rest:
            self._send(self._rest)
        self.abort()

    def abort(self) -> None:
        if self._is_open:
            self._is_open = False
            with suppress(OSError, KeyError):
                self._selector.leave(self._socket.fileno())
            self._socket.close()


class TlsWire(asyncio.Protocol):
    """Implements Wire on a transport."""

    def __init__(self) -> None:
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_lost: Callable[[UnavailableError], None] = lambda error: None
        self.on_blocked: Callable[[bool], None] = lambda is_blocked: None
        loop = asyncio.get_running_loop()
        self._now_s = loop.time
        self.seen_s = self.sent_s = loop.time()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.seen_s = self._now_s()
        self.on_data(data)

    def connection_lost(self, failed: Exception | None) -> None:
        self.on_lost(lost(failed if isinstance(failed, OSError) else None))

    def pause_writing(self) -> None:
        self.on_blocked(True)

    def resume_writing(self) -> None:
        self.on_blocked(False)

    def write(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if not transport.is_closing():
            self.sent_s = self._now_s()
            transport.write(data)

    def want_read(self, wanted: bool) -> None:
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            return
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def dial(
    settings: BridgeSettings, context: ssl.SSLContext | None, selector: DoorSelector
) -> Wire:
    """Connect; UnavailableError says why that did not work."""
    where = settings.address
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            transport, wire = await loop.create_connection(
                TlsWire, settings.host, settings.port, ssl=context, happy_eyeballs_delay=0.25
            )
    except TimeoutError:
        raise UnavailableError(
            f"cannot connect to {where}: no answer within {CONNECT_S_MAX:g} s"
        ) from None
    except OSError as failed:
        hint = "set tls_ca to the file with its CA"
        raise unreachable(where, failed, is_tls=context is not None, ca_hint=hint) from failed
    if context is not None:
        return wire
    # asyncio chooses the address; the connection then lives on without its transport, which costs
    # a turn of the loop for each arrival. Nothing has come yet: a broker does not speak first.
    sock: socket.socket = transport.get_extra_info("socket").dup()
    transport.abort()
    return SocketWire(sock, selector)
