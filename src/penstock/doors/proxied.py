"""Connections of trusted proxies, until the proxy has said whom it speaks for.

Exactly the header is read, so that what follows it, a TLS handshake or a packet, is still there for
whoever goes on with the socket. A proxy that says nothing in time, or something else, is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.core.proxies import PREFIX_BYTES, Address, proxied_client, rest_length
from penstock.doors.selector import DoorSelector
from penstock.model.errors import PeerError

HEADER_S_MAX: Final = 5.0  # a proxy sends it first and at once

Begin = Callable[[socket.socket, Address | None], None]


class ProxiedSocket:
    """One accepted socket; ends in a call of `begin` or of `fail`, which closes it."""

    __slots__ = ("_begin", "_data", "_fail", "_length", "_selector", "_socket", "_timer")

    def __init__(
        self,
        sock: socket.socket,
        selector: DoorSelector,
        loop: asyncio.AbstractEventLoop,
        begin: Begin,
        fail: Callable[[socket.socket, str], None],
    ) -> None:
        self._socket = sock
        self._selector = selector
        self._begin = begin
        self._fail = fail
        self._data = b""
        self._length = PREFIX_BYTES
        self._timer = loop.call_later(
            HEADER_S_MAX, self.give_up, f"it sent no whole PROXY header within {HEADER_S_MAX:g} s"
        )
        selector.serve(sock.fileno(), self._serve)

    def _serve(self, events: int) -> None:
        try:
            part = self._socket.recv(self._length - len(self._data))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self.give_up("it left before its PROXY header was whole")
            return
        self._data += part
        try:
            if len(self._data) == PREFIX_BYTES == self._length:
                self._length += rest_length(self._data)
            if len(self._data) == self._length:
                client = proxied_client(self._data[:PREFIX_BYTES], self._data[PREFIX_BYTES:])
                self._leave()
                self._begin(self._socket, client)
        except PeerError as wrong:
            self.give_up(str(wrong))

    def give_up(self, problem: str) -> None:
        self._leave()
        self._fail(self._socket, problem)

    def _leave(self) -> None:
        self._timer.cancel()
        with suppress(OSError, KeyError):
            self._selector.leave(self._socket.fileno())
