"""The newest batches of a log, kept decoded: live readers never touch the disk."""

from __future__ import annotations

from collections import deque

from penstock.log.format.batch import Batch, up_to


class Tail:
    """Batches [first_offset, end) without a hole, bounded by the memory they take.

    Small batches take several times their stored bytes, and a reader just behind the tail would
    read the newest chunk of the file again after each commit. So they may take twice the bound,
    until a quarter of it is held as stored bytes.
    """

    def __init__(self, end_offset: int, bytes_max: int) -> None:
        self._batches: deque[Batch] = deque()
        # What each of them counts, memory and stored: a batch may be decoded while it is here.
        self._counted: deque[tuple[int, int]] = deque()
        self.bytes = 0
        self._stored_bytes = 0
        self._bytes_max = bytes_max
        self._stored_bytes_min = bytes_max // 4
        self.first_offset = end_offset

    def append(self, batch: Batch) -> None:
        memory_bytes, stored_bytes = batch.memory_bytes, batch.header.stored_length
        self._batches.append(batch)
        self._counted.append((memory_bytes, stored_bytes))
        self.bytes += memory_bytes
        self._stored_bytes += stored_bytes
        while self.bytes > self._bytes_max and self._is_over and len(self._batches) > 1:
            self._drop_oldest()
            self.first_offset = self._batches[0].base_offset

    @property
    def _is_over(self) -> bool:
        return self._stored_bytes > self._stored_bytes_min or self.bytes > 2 * self._bytes_max

    def drop_before(self, offset: int) -> None:
        """Retention removed what lies before `offset`."""
        while self._batches and self._batches[0].end_offset <= offset:
            self._drop_oldest()
        self.first_offset = max(self.first_offset, offset)

    def _drop_oldest(self) -> None:
        self._batches.popleft()
        memory_bytes, stored_bytes = self._counted.popleft()
        self.bytes -= memory_bytes
        self._stored_bytes -= stored_bytes

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
