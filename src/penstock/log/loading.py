"""Chunks of a log's files in memory: from the cache, or read once for all who ask meanwhile."""

from __future__ import annotations

import asyncio

from penstock.log.batch import Batch
from penstock.log.cache import WHOLE, ChunkCache
from penstock.log.commit import Workers
from penstock.log.segment import Segment
from penstock.log.waiting import forget_failure


class ChunkLoader:
    """The loads of one log. Used on the event loop only."""

    def __init__(
        self, cache: ChunkCache, workers: Workers, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loads = 0
        self._cache = cache
        self._workers = workers
        self._loop = loop
        self._loading: dict[tuple[int, int, int], asyncio.Task[list[Batch]]] = {}

    async def load(self, segment: Segment, number: int, *, is_whole: bool) -> list[Batch]:
        """The batches of a chunk; one that may still grow is not `is_whole`."""
        # The newest chunk is what was there when it was read: it serves while none came since.
        length = WHOLE if is_whole else segment.body.length
        cached = self._cache.get(segment, number, length)
        if cached is not None:
            return cached
        key = (id(segment), number, length)
        loading = self._loading.get(key)
        if loading is None:
            # A task of its own: whoever asked first may give up, the others go on.
            loading = self._loop.create_task(self._fetch(segment, key))
            self._loading[key] = loading
            loading.add_done_callback(forget_failure)
        return await asyncio.shield(loading)

    async def _fetch(self, segment: Segment, key: tuple[int, int, int]) -> list[Batch]:
        _, number, length = key
        try:
            self.loads += 1
            batches = await self._workers.run(lambda: segment.read_chunk(number))
        finally:
            del self._loading[key]
        self._cache.put(segment, number, batches, length)
        return batches

    def forget(self, segment: Segment) -> None:
        """The segment was trimmed or replaced."""
        self._cache.drop(segment)
