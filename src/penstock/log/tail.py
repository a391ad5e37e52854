"""The newest batches of a log, kept decoded: live readers never touch the disk."""

from __future__ import annotations

from collections import deque

from penstock.log.batch import Batch, up_to


class Tail:
    """Batches [first_offset, end) without a hole, bounded by the memory they take."""

    def __init__(self, end_offset: int, bytes_max: int) -> None:
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max
        self.first_offset = end_offset

    def append(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._bytes += batch.memory_bytes
        while self._bytes > self._bytes_max and len(self._batches) > 1:
            oldest = self._batches.popleft()
            self._bytes -= oldest.memory_bytes
            self.first_offset = self._batches[0].base_offset

    def drop_before(self, offset: int) -> None:
        """Retention removed what lies before `offset`."""
        while self._batches and self._batches[0].end_offset <= offset:
            self._bytes -= self._batches.popleft().memory_bytes
        self.first_offset = max(self.first_offset, offset)

    def read(self, offset: int, bytes_max: int) -> list[Batch]:
        """Batches from the one that holds `offset` on; the caller knows it is here."""
        found: list[Batch] = []
        # Readers of a tail want its newest part: walk back from the end.
        for batch in reversed(self._batches):
            if batch.end_offset <= offset:
                break
            found.append(batch)
        found.reverse()
        return up_to(found, bytes_max)
