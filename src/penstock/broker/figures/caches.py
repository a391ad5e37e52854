"""What the broker keeps in memory to answer sooner: how large each cache is, and when it goes.

Nothing here is the truth: whatever is dropped is read or worked out again. A cache that nobody
used for a while is emptied, so readers that have left leave no memory behind.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.broker.topic.topics import Topics
from penstock.model.clock import Clock

IDLE_S: Final = 30.0  # between two looks; a cache that was not used between them is emptied


class Cache(Protocol):
    """Bounded by the bytes it holds."""

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        ...

    def release_unused(self) -> None:
        """Give everything back if nobody has used it since the last call."""
        ...


class Tails:
    """Implements Cache: the newest records of all topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def bytes(self) -> int:
        return sum(topic.log.tail_bytes for topic in self._topics.all())

    def release_unused(self) -> None:
        """They are always in use: the next reader of a topic begins there."""


class Caches:
    """All of them, by the name under which they are exported."""

    def __init__(self, clock: Clock) -> None:
        self.by_name: dict[str, Cache] = {}
        self._clock = clock
        self._looked_s = clock.monotonic_s()

    async def look(self) -> None:
        """An errand of upkeep."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._looked_s + IDLE_S:
            self._looked_s = now_s
            for cache in self.by_name.values():
                cache.release_unused()

    def export(self) -> dict[str, float]:
        """One gauge for each cache."""
        return {
            f'penstock_cache_bytes{{cache="{name}"}}': cache.bytes
            for name, cache in self.by_name.items()
        }
