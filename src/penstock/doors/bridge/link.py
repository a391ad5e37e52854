"""The wire between a bridge and its own broker, inside the process.

What the broker sends is handed on at once, and only while the other broker takes it: otherwise the
session of the bridge lags behind in the log, which is its buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.model.certificate import Certificate
from penstock.model.limits import KIB

PART_BYTES_MAX: Final = 64 * KIB  # handed on at once; then the other broker may be full


class BridgeLink:
    """Implements Link."""

    def __init__(
        self,
        name: str,
        hand_on: Callable[[bytes], None],
        want_read: Callable[[bool], None],
        on_end: Callable[[], None],
    ) -> None:
        self._name = name
        self._hand_on = hand_on
        self._want_read = want_read
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._is_wanted = False
        self._is_open = True
        self._is_blocked = False  # the other broker takes nothing more
        self.on_writable: Callable[[], None] = lambda: None

    @property
    def source(self) -> str:
        return "127.0.0.1"  # this process

    @property
    def peer(self) -> str:
        return f"bridge {self._name}"

    @property
    def certificate(self) -> Certificate | None:
        return None

    def send(self, data: bytes | memoryview) -> int:
        if not self._is_open:
            raise ConnectionResetError("the bridge is closed")
        sent = 0
        while sent < len(data) and not self._is_blocked:
            part = bytes(data[sent : sent + PART_BYTES_MAX])
            self._hand_on(part)
            sent += len(part)
        return sent

    def block(self, is_blocked: bool) -> None:
        """Whether the other broker takes nothing more for now."""
        self._is_blocked = is_blocked
        self._on_room()

    def want_write(self, wanted: bool) -> None:
        if wanted and not self._is_wanted:
            self._loop.call_soon(self._on_room)
        self._is_wanted = wanted

    def _on_room(self) -> None:
        if self._is_wanted and self._is_open and not self._is_blocked:
            self.on_writable()

    def want_read(self, wanted: bool) -> None:
        self._want_read(wanted)

    def close_after(self, data: bytes) -> None:
        if self._is_open and data:
            self._hand_on(data)
        self.close()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._on_end()
