"""Retained messages on their way into the log: they count for quotas before they are retained."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.access.owners import Amounts
from penstock.catalog.session.retained import RetainedHead

# A message whose commit failed is not heard of again: it counts no longer than this.
ADMITTED_US: Final = 30_000_000


class Waiting(NamedTuple):
    """The newest message of a name that is not in the log yet."""

    size: int
    until_us: int  # when it stops to count
    owner: str | None
    is_more: bool  # the owner has no retained message of this name yet


class Admitted:
    """The newest of each name; the oldest of them are first."""

    __slots__ = ("_waiting", "amounts", "bytes", "names")

    def __init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}
        self.names: set[str] = set()  # those of which nothing is retained yet
        self.amounts = Amounts()  # by owner
        self.bytes = 0

    def get(self, name: str) -> Waiting | None:
        return self._waiting.get(name)

    def add(
        self, name: str, size: int, owner: str | None, now_us: int, head: RetainedHead | None
    ) -> None:
        """`head` is what is retained under this name by now."""
        self.remove(name)
        is_more = head is None or head.owner != owner
        self._waiting[name] = Waiting(size, now_us + ADMITTED_US, owner, is_more)
        self.amounts.add(owner, is_more, size)
        self.bytes += size
        if head is None:
            self.names.add(name)

    def remove(self, name: str) -> Waiting | None:
        """It is in the log, or will never be."""
        known = self._waiting.pop(name, None)
        if known is not None:
            self.bytes -= known.size
            self.amounts.add(known.owner, -known.is_more, -known.size)
            self.names.discard(name)
        return known

    def forget_old(self, now_us: int) -> None:
        while self._waiting:
            name, oldest = next(iter(self._waiting.items()))
            if oldest.until_us > now_us:
                return
            self.remove(name)
