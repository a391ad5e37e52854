"""Positions are saved lazily: many consumers' newest ones together, by count and by time.

Invariant: for every consumer either its newest noted position is saved, or it is in
`DirtyPositions` and a flush is due. A failed save loses nothing and is tried again. A forgotten
consumer's position is never saved afterwards. Memory: one entry per consumer that moved.

`DirtyPositions` decides, without a clock or a wait; `PositionSaver` acts on an event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from penstock.catalog.catalog import Position
from penstock.model.errors import PenstockError, UnavailableError
from penstock.model.record import TenantId, TopicId

SAVES_MAX: Final = 1_000  # dirty positions that start a flush; default of the setting
SAVE_S_MAX: Final = 1.0  # age of the oldest unsaved position; default of the setting
BATCH_ROWS_MAX: Final = 10_000  # of one unit of work: some 40 ms of the catalog's thread
RETRY_S: Final = 1.0  # after a failure that does not say itself when to try again

PositionKey = tuple[TenantId, TopicId, str]  # …, consumer
SavePositions = Callable[[Sequence[Position]], Awaitable[None]]


class DirtyPositions:
    """The newest unsaved position of each consumer, and when they have to be saved.

    Times are seconds of whatever clock the caller passes in.
    """

    def __init__(self, saves_max: int = SAVES_MAX, save_s_max: float = SAVE_S_MAX) -> None:
        assert saves_max > 0 and save_s_max >= 0
        self._saves_max = saves_max
        self._save_s_max = save_s_max
        self._dirty: dict[PositionKey, tuple[int, int]] = {}  # oldest first; epoch, next offset
        self._taken: dict[PositionKey, tuple[int, int]] = {}  # being saved
        self._since_s = 0.0  # when the oldest became dirty
        self._retry_at_s = -math.inf  # not before, after a failure

    def __len__(self) -> int:
        """Consumers whose newest position is not known to be saved."""
        return len(self._dirty.keys() | self._taken.keys())

    def note(self, key: PositionKey, epoch: int, next_offset: int, now_s: float) -> bool:
        """Remember the newest position; True when `due_at_s` may have become earlier."""
        count = len(self._dirty)
        if count == 0:
            self._since_s = now_s
        self._dirty[key] = (epoch, next_offset)
        return len(self._dirty) > count and (count == 0 or count + 1 == self._saves_max)

    def forget(self, key: PositionKey) -> None:
        """Never save this consumer's position, not even from a batch that will fail."""
        self._dirty.pop(key, None)
        self._taken.pop(key, None)

    def due_at_s(self) -> float:
        """When to flush; infinity when there is nothing to save, the past when at once."""
        if not self._dirty:
            return math.inf
        if len(self._dirty) >= self._saves_max:
            return self._retry_at_s
        return max(self._since_s + self._save_s_max, self._retry_at_s)

    def count_waiting(self) -> int:
        """Positions that the next batches will take."""
        return len(self._dirty)

    def take(self, rows_max: int) -> list[Position]:
        """The oldest positions, to be followed by `saved` or `failed`."""
        assert not self._taken, "one batch at a time"
        self._taken = dict(islice(self._dirty.items(), rows_max))
        for key in self._taken:
            del self._dirty[key]
        return [(*key, *position) for key, position in self._taken.items()]

    def saved(self) -> None:
        """The batch is durable."""
        self._taken = {}
        self._retry_at_s = -math.inf

    def failed(self, retry_at_s: float) -> None:
        """The batch may not be saved: take it back, where nothing newer was noted meanwhile."""
        self._dirty = self._taken | self._dirty
        self._taken = {}
        self._retry_at_s = retry_at_s


class PositionSaver:
    """Saves noted positions in the background; on one event loop, which gives the time."""

    def __init__(
        self,
        save: SavePositions,
        loop: asyncio.AbstractEventLoop,
        *,
        saves_max: int = SAVES_MAX,
        save_s_max: float = SAVE_S_MAX,
    ) -> None:
        self._save = save
        self._loop = loop
        self._dirty = DirtyPositions(saves_max, save_s_max)
        self._turn = asyncio.Lock()  # one flush at a time
        self._timer: asyncio.TimerHandle | None = None
        self._background: asyncio.Task[None] | None = None
        self._is_closed = False
        self.last_error: Exception | None = None  # of the newest save; None when it worked

    def __len__(self) -> int:
        """Consumers whose newest position is not known to be saved."""
        return len(self._dirty)

    def note(
        self, tenant: TenantId, topic_id: TopicId, consumer: str, epoch: int, next_offset: int
    ) -> None:
        """Remember a position; it is saved within the settings' count and time."""
        assert not self._is_closed, "noted after close"
        key = (tenant, topic_id, consumer)
        if self._dirty.note(key, epoch, next_offset, self._loop.time()):
            self._arm()

    def forget(self, key: PositionKey) -> None:
        """The consumer is being unsubscribed: drop what is not saved. Call it before deleting."""
        self._dirty.forget(key)

    async def flush(self) -> None:
        """Everything noted before the call is durable on return; on an error it is kept."""
        try:
            async with self._turn:
                await self._save_waiting()
        finally:
            self._arm()

    async def close(self) -> None:
        """Flush, and stop. When that fails the positions stay where they were last saved."""
        self._is_closed = True
        await self.flush()

    async def _save_waiting(self) -> None:
        # Counted once: positions noted meanwhile must not keep this flush from ending. They come
        # after the ones that count, because a key that is noted again keeps its place.
        left = self._dirty.count_waiting()
        while left > 0 and (batch := self._dirty.take(min(left, BATCH_ROWS_MAX))):
            left -= len(batch)
            try:
                await self._save(batch)
            except BaseException as error:
                self._dirty.failed(self._loop.time() + _retry_after_s(error))
                if isinstance(error, Exception):
                    self.last_error = error
                raise
            self._dirty.saved()
            self.last_error = None

    def _arm(self) -> None:
        """Set the timer to when the next flush is due; a running flush does it when it ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_at_s = self._dirty.due_at_s()
        if due_at_s < math.inf and not self._is_closed and not self._turn.locked():
            self._timer = self._loop.call_at(max(due_at_s, self._loop.time()), self._start)

    def _start(self) -> None:
        self._timer = None
        self._background = self._loop.create_task(self._flush_in_background())

    async def _flush_in_background(self) -> None:
        with suppress(PenstockError):  # kept in last_error, and tried again
            await self.flush()


def _retry_after_s(error: BaseException) -> float:
    return error.retry_after_s if isinstance(error, UnavailableError) else RETRY_S
