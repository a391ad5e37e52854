"""Which records of a topic are to be erased."""

from __future__ import annotations

import msgspec

from penstock.core.naming.names import matches


class Erasure(msgspec.Struct, frozen=True):
    """The records below offset `end` whose names match and that are older than `before_us`."""

    names: str  # a filter
    end: int  # one past the last record that may be erased
    before_us: int | None = None  # µs since 1970, UTC; None: however new

    def has_name(self, name: str) -> bool:
        return matches(self.names, name)

    def is_before(self, timestamp: int) -> bool:
        return self.before_us is None or timestamp < self.before_us

    def has(self, name: str, offset: int, timestamp: int) -> bool:
        return offset < self.end and self.is_before(timestamp) and self.has_name(name)
