"""Retained messages on their way into the log: they count for quotas before they are retained."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

# A message whose commit failed is not heard of again: it counts no longer than this.
ADMITTED_US: Final = 30_000_000


class Admitted:
    """The newest of each name; the oldest of them are first."""

    __slots__ = ("_sizes", "bytes", "names")

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}  # name -> bytes, until when it counts
        self.names: set[str] = set()  # those of which nothing is retained yet
        self.bytes = 0

    def add(self, name: str, size: int, now_us: int, retained: Container[str]) -> None:
        self.remove(name)
        self._sizes[name] = (size, now_us + ADMITTED_US)
        self.bytes += size
        if name not in retained:
            self.names.add(name)

    def remove(self, name: str) -> None:
        """It is in the log, or will never be."""
        known = self._sizes.pop(name, None)
        if known is not None:
            self.bytes -= known[0]
            self.names.discard(name)

    def forget_old(self, now_us: int) -> None:
        while self._sizes:
            name, (_, until_us) = next(iter(self._sizes.items()))
            if until_us > now_us:
                return
            self.remove(name)
