"""Chunks of a partition for its readers, the next ones fetched while a reader uses what it has.

Kafka is asked for about 1 MiB at a time. A reader that went on where its last chunk ended will most
likely go on again, so the chunks behind it are brought into the cache meanwhile: a few MiB of a few
logs, so that they are still there when they are wanted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from penstock.log.cache import CACHE_BYTES_MAX, ChunkCache
from penstock.log.format.batch import Batch
from penstock.log.loading import ChunkLoader
from penstock.model.limits import MIB

AHEAD_BYTES_MAX: Final = 8 * MIB  # of one log: a page of an Arrow reader
LOGS_MAX: Final = CACHE_BYTES_MAX // AHEAD_BYTES_MAX - 1  # at once; the rest is for what is used
CHUNKS_MAX: Final = 64  # of a log, whose bounds are remembered

T = TypeVar("T")
Fetch = Callable[[int], Awaitable[list[Batch]]]


class AheadChunks:
    """The chunks of one log, by the offset they were fetched at. Used on the event loop only."""

    def __init__(self, cache: ChunkCache, fetch: Fetch, busy: set[AheadChunks]) -> None:
        self._loader = ChunkLoader(cache, asyncio.get_running_loop())
        self._fetch = fetch
        self._busy = busy  # of all logs of a store, those that are read ahead at the moment
        self._task: asyncio.Task[None] | None = None
        self._ends: OrderedDict[int, int] = (
            OrderedDict()
        )  # of chunks that were read, by their start
        self._following: OrderedDict[int, None] = OrderedDict()  # where readers may go on

    @property
    def loads(self) -> int:
        return self._loader.loads

    async def read(self, offset: int, end: int) -> list[Batch]:
        """The batches from the one that holds `offset` on; others up to `end` may be fetched."""
        start = self._start_of(offset)
        found = await self._load(start)
        if found:
            self._note(start, found[-1].end_offset, end)
        return found if start == offset else [one for one in found if one.end_offset > offset]

    def _start_of(self, offset: int) -> int:
        """Where the chunk in memory that holds this offset was fetched; else this offset."""
        for start, end in self._ends.items():
            if start < offset < end and self._loader.has(self, start):
                return start
        return offset

    async def _load(self, start: int) -> list[Batch]:
        return await self._loader.load(self, start, partial(self._fetch, start))

    def _note(self, start: int, following: int, end: int) -> None:
        """A reader has everything from `start` up to `following`."""
        _keep(self._ends, start, following)
        is_going_on = start in self._following
        _keep(self._following, following, None)
        if is_going_on and self._task is None and len(self._busy) < LOGS_MAX:
            self._busy.add(self)
            self._task = asyncio.get_running_loop().create_task(self._read_ahead(following, end))
            self._task.add_done_callback(self._finish)

    async def _read_ahead(self, start: int, end: int) -> None:
        left_bytes = AHEAD_BYTES_MAX
        while start < end and left_bytes > 0:
            found = await self._load(start)
            if not found:
                return
            left_bytes -= sum([batch.memory_bytes for batch in found])
            _keep(self._ends, start, found[-1].end_offset)
            start = found[-1].end_offset

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._busy.discard(self)
        if not task.cancelled():
            task.exception()  # whoever reads there is told

    def forget(self) -> None:
        """What was read was trimmed or replaced."""
        self._loader.forget(self)
        self._ends.clear()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.forget()


def _keep(places: OrderedDict[int, T], place: int, value: T) -> None:
    """Remember a place, and forget the one that was used least recently if there are many."""
    places[place] = value
    places.move_to_end(place)
    if len(places) > CHUNKS_MAX:
        places.popitem(last=False)
