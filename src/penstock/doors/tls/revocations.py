"""Revoked certificates end what was begun with them, within a second of the new list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from penstock.doors.tls.context import TlsContext

LOOK_S: Final = 0.5  # between two looks at the files: a system call for each


class Revocations:
    """Looks at the files of the TLS listeners; `on_change` is told the numbers that are revoked."""

    def __init__(
        self,
        contexts: Iterable[TlsContext],
        loop: asyncio.AbstractEventLoop,
        on_change: Callable[[frozenset[str]], None],
    ) -> None:
        self._contexts = list(contexts)
        self._loop = loop
        self._on_change = on_change
        self._told: frozenset[str] = frozenset()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._look()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        for context in self._contexts:
            context.current()
        revoked: frozenset[str] = frozenset().union(*[one.revoked for one in self._contexts])
        if revoked != self._told:
            self._told = revoked
            self._on_change(revoked)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
