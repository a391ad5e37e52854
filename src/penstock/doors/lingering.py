"""Connections that are over, until their clients have had time to read why.

Closing a socket while input is unread resets the connection: the client's next write fails, and a
last packet that says why is never read. So the broker sends what is left, stops sending, throws
away what the client still sends, and closes once the client has. Both the time and the bytes are
bounded: a client that never reads, or that sends for ever, is cut.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from penstock.doors.selector import GONE, READABLE, WRITABLE, DoorSelector
from penstock.model.limits import KIB, MIB

LINGER_S_MAX: Final = 5.0  # from the end of a connection to its socket's
STOP_LINGER_S_MAX: Final = 1.0  # the same when the broker stops
LINGER_BYTES_MAX: Final = 64 * MIB  # discarded: twice the largest body that is accepted
LINGERS_MAX: Final = 1_000  # or half the connections of the door; then the oldest is cut
READ_BYTES: Final = 64 * KIB


class LingerLimits(Protocol):
    """The limits of a door that bound its lingering connections."""

    @property
    def linger_s_max(self) -> float: ...
    @property
    def linger_bytes_max(self) -> int: ...
    @property
    def connections_max(self) -> int: ...


class Lingering:
    """The lingering connections of one door."""

    def __init__(
        self,
        selector: DoorSelector,
        loop: asyncio.AbstractEventLoop,
        limits: LingerLimits,
    ) -> None:
        self.selector = selector
        self.loop = loop
        self.s_max = limits.linger_s_max
        self.bytes_max = limits.linger_bytes_max
        self.count_max = max(LINGERS_MAX, limits.connections_max // 2)
        self.lingers: dict[Linger, None] = {}  # the oldest first
        self.is_stopping = False  # every client may read why, however many there are
        self._empty: asyncio.Event | None = None  # somebody waits for the last one to go

    def __len__(self) -> int:
        return len(self.lingers)

    def begin(self, cut: Callable[[], None]) -> Linger:
        """A connection begins to linger; `cut` closes it when a bound is reached."""
        if len(self.lingers) >= self.count_max and not self.is_stopping:
            self.cut_oldest()
        linger = Linger(self, cut)
        self.lingers[linger] = None
        return linger

    def cut_oldest(self) -> bool:
        """Close the one that lingers longest; False if nobody lingers."""
        oldest = next(iter(self.lingers), None)
        if oldest is None:
            return False
        oldest.cut()
        return True

    def forget(self, linger: Linger) -> None:
        self.lingers.pop(linger, None)
        if not self.lingers and self._empty is not None:
            self._empty.set()

    async def close(self, wait_s_max: float) -> None:
        """Wait until the last connection is closed; those that take longer are cut."""
        if self.lingers:
            self._empty = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), wait_s_max)
        for linger in list(self.lingers):
            linger.cut()


class Linger:
    """The bounds of one lingering connection."""

    __slots__ = ("_bytes_left", "_cut", "_lingering", "_timer")

    def __init__(self, lingering: Lingering, cut: Callable[[], None]) -> None:
        self._lingering = lingering
        self._cut = cut
        self._bytes_left = lingering.bytes_max
        self._timer = lingering.loop.call_later(lingering.s_max, self.cut)

    def throw_away(self, size: int) -> None:
        """The client sent this much more."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            self.cut()

    def cut(self) -> None:
        self.end()
        self._cut()

    def end(self) -> None:
        """The connection is closed."""
        self._timer.cancel()
        self._lingering.forget(self)


class LingeringSocket:
    """A bare socket that only the selector knows."""

    __slots__ = ("_linger", "_rest", "_selector", "_socket")

    def __init__(self, lingering: Lingering, sock: socket.socket, data: bytes) -> None:
        self._socket = sock
        self._rest = memoryview(data)
        self._selector = lingering.selector
        self._linger = lingering.begin(self._close)
        self._selector.serve(sock.fileno(), self._serve, READABLE | WRITABLE)
        self._send()

    def _serve(self, events: int) -> None:
        if events & WRITABLE and not self._send():
            return
        if events & (READABLE | GONE):
            self._read()

    def _send(self) -> bool:
        """Send what is left, then nothing more; False if the client is gone."""
        try:
            self._rest = self._rest[self._socket.send(self._rest) if self._rest else 0 :]
            if not self._rest:
                self._socket.shutdown(socket.SHUT_WR)
                self._selector.change(self._socket.fileno(), READABLE)
        except BlockingIOError:
            return True
        except OSError:
            self._end()
            return False
        return True

    def _read(self) -> None:
        try:
            size = len(self._socket.recv(READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if size:
            self._linger.throw_away(size)
        else:
            self._end()

    def _end(self) -> None:
        self._linger.end()
        self._close()

    def _close(self) -> None:
        with suppress(OSError, KeyError):
            self._selector.leave(self._socket.fileno())
        self._socket.close()
