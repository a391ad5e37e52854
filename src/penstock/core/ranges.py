"""A set of offsets as ascending, half-open ranges that neither touch nor overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class OffsetRanges:
    """Offsets that were dealt with, mostly next to each other."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # one past the last offset of each range
        for start, end in ranges:
            self._starts.append(start)
            self._ends.append(end)

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def add(self, offset: int) -> None:
        """No more than before if it is there already."""
        if offset in self:
            return
        after = bisect_right(self._starts, offset)
        joins_before = after > 0 and self._ends[after - 1] == offset
        joins_after = after < len(self._starts) and self._starts[after] == offset + 1
        if joins_before and joins_after:
            self._ends[after - 1] = self._ends[after]
            del self._starts[after], self._ends[after]
        elif joins_before:
            self._ends[after - 1] = offset + 1
        elif joins_after:
            self._starts[after] = offset
        else:
            self._starts.insert(after, offset)
            self._ends.insert(after, offset + 1)

    def trim(self, first: int, start: int = 0) -> None:
        """Offsets of [start, first) do not exist any more; no range lies on both sides of start."""
        at = bisect_left(self._starts, start)
        gone = max(bisect_right(self._ends, first), at)
        del self._starts[at:gone], self._ends[at:gone]
        if at < len(self._starts) and self._starts[at] < first:
            self._starts[at] = first
