"""How many messages a partition has from any offset on: some offsets of Kafka hold none.

Since the log was opened every batch was seen. What lies before is taken for messages, until
somebody has looked at the newest part of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from penstock.log.format.batch import Batch
from penstock.log.kafka.sizes import Sizes

LOOK_BACK_MAX: Final = 20_000  # offsets that a log looks at to count what was there before it


class Counts:
    """Exact from `known_from` on, until there are thousands of gaps; before it, an upper bound."""

    def __init__(self, first: int, end: int) -> None:
        self._places = Sizes(first, end, end - first)
        self._opened = end
        self._end = end
        self._dense_from = end  # from here to the end every offset holds a message
        self.known_from = end

    def add(self, batch: Batch) -> None:
        """A batch was shown, the next one of the log."""
        messages_end = batch.base_offset + batch.header.count
        if messages_end < batch.end_offset:
            self._close(messages_end)
            self._places.add(batch.end_offset, 0)
            self._dense_from = batch.end_offset
        self._end = batch.end_offset

    def _close(self, end: int) -> None:
        """What is dense ends here."""
        if end > self._dense_from:
            self._places.add(end, end - self._dense_from)

    def between(self, start: int, end: int) -> int:
        """How many messages lie in [start, end), which is not beyond what was shown."""
        if start >= end:
            return 0
        dense = max(end - max(start, self._dense_from), 0)
        return dense + self._places.before(end) - self._places.before(start)

    async def look_back(self, first: int, batches: AsyncIterator[Batch]) -> None:
        """Count the batches from `first` on, as far as they were there before this log."""
        found = Counts(first, first)
        found._places = Sizes(0, first, first)
        async for batch in batches:
            if batch.base_offset >= self._opened:
                break
            found.add(batch)
            if batch.end_offset >= self._opened:
                break
        found._close(max(self._opened, found._dense_from))
        found._places.join(self._places, self._opened)
        self._places = found._places
        self.known_from = first

    def look_back_from(self, first: int) -> int:
        """Where `look_back` begins if the log begins at `first`."""
        return max(first, self._opened - LOOK_BACK_MAX)
