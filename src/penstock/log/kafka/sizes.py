"""About how many bytes the records of a partition take, from any offset on.

Kafka tells what a partition takes as a whole, also for records that are deleted and still in its
files. So what is appended is counted here, and between two known places bytes grow evenly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from penstock.core.delivery.run import MixedRun, Run

POINTS_MAX: Final = 4_096  # when there are more, every second one is forgotten


class Sizes:
    """Places (offset, bytes of all records before it), both rising."""

    def __init__(self, first: int, end: int, stored_bytes: int) -> None:
        self._offsets = [first]
        self._bytes = [0]
        if end > first:
            self.add(end, stored_bytes)

    def add(self, end: int, size: int) -> None:
        """Records up to `end` (exclusive) were appended and take `size` bytes."""
        self._offsets.append(end)
        self._bytes.append(self._bytes[-1] + size)
        if len(self._offsets) > POINTS_MAX:
            last = self._offsets.pop(), self._bytes.pop()
            self._offsets = [*self._offsets[::2], last[0]]
            self._bytes = [*self._bytes[::2], last[1]]

    def join(self, other: Sizes, from_offset: int) -> None:
        """Add what another one knows of the records from `from_offset` on."""
        for at in range(1, len(other._offsets)):
            if other._offsets[at] > from_offset:
                self.add(other._offsets[at], other._bytes[at] - other._bytes[at - 1])

    def before(self, offset: int) -> int:
        """The bytes of the records before `offset`."""
        at = bisect_right(self._offsets, offset)
        if at == 0:
            return 0
        if at == len(self._offsets):
            return self._bytes[-1]
        start, end = self._offsets[at - 1], self._offsets[at]
        low, high = self._bytes[at - 1], self._bytes[at]
        return low + (high - low) * (offset - start) // (end - start)

    def kept(self, first: int) -> int:
        """The bytes of the records from `first` on."""
        return self._bytes[-1] - self.before(first)

    def first_within(self, bytes_max: int) -> int:
        """The last offset from which on the records take at least `bytes_max`, or the first."""
        target = self._bytes[-1] - bytes_max
        if target <= 0:
            return self._offsets[0]
        at = bisect_right(self._bytes, target) - 1
        start, low = self._offsets[at], self._bytes[at]
        if at + 1 == len(self._offsets) or low == target:
            return start
        end, high = self._offsets[at + 1], self._bytes[at + 1]
        return start + (end - start) * (target - low) // (high - low)


def names_bytes(messages: Sequence[Run] | MixedRun) -> int:
    """What the names of messages take in Kafka, which stores one with each message."""
    if isinstance(messages, MixedRun):
        sizes = zip(messages.names, messages.counts, strict=True)
        return sum(len(name) * count for name, count in sizes)
    return sum(len(run.name) * run.count for run in messages)
