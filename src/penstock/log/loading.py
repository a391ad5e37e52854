"""Chunks of a log in memory: from the cache, or read once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.log.cache import WHOLE, ChunkCache
from penstock.log.format.batch import Batch
from penstock.log.waiting import forget_failure

Read = Callable[[], Awaitable[list[Batch]]]


class _Load:
    """A chunk that is being read."""

    __slots__ = ("is_forgotten", "task")

    task: asyncio.Task[list[Batch]]

    def __init__(self) -> None:
        self.is_forgotten = False


class ChunkLoader:
    """The loads of one log. Used on the event loop only."""

    def __init__(self, cache: ChunkCache, loop: asyncio.AbstractEventLoop) -> None:
        self.loads = 0
        self._cache = cache
        self._loop = loop
        self._loading: dict[tuple[int, int, int], _Load] = {}

    async def load(
        self, owner: object, number: int, read: Read, length: int = WHOLE
    ) -> list[Batch]:
        """The batches of a chunk; one that may still grow has the `length` of its owner.

        It is what was there when it was read, and serves while nothing came since.
        """
        cached = self._cache.get(owner, number, length)
        if cached is not None:
            return cached
        return await asyncio.shield(self._start(owner, (id(owner), number, length), read))

    def prepare(self, owner: object, number: int, read: Read) -> None:
        """Load a chunk that somebody will want soon; a failure is told to whoever asks then."""
        if self._cache.get(owner, number) is None:
            self._start(owner, (id(owner), number, WHOLE), read)

    def has(self, owner: object, number: int) -> bool:
        """Whether a whole chunk is in memory, or will be without another read."""
        is_loading = (id(owner), number, WHOLE) in self._loading
        return is_loading or self._cache.get(owner, number) is not None

    def _start(
        self, owner: object, key: tuple[int, int, int], read: Read
    ) -> asyncio.Task[list[Batch]]:
        load = self._loading.get(key)
        if load is None:
            load = self._loading[key] = _Load()
            # A task of its own: the first caller may give up while others still wait.
            load.task = self._loop.create_task(self._fetch(owner, key, read, load))
            load.task.add_done_callback(forget_failure)
        return load.task

    async def _fetch(
        self, owner: object, key: tuple[int, int, int], read: Read, load: _Load
    ) -> list[Batch]:
        _, number, length = key
        try:
            self.loads += 1
            batches = await read()
        finally:
            if not load.is_forgotten:
                del self._loading[key]
        if batches and not load.is_forgotten:
            self._cache.put(owner, number, batches, length)
        return batches

    def forget(self, owner: object) -> None:
        """What it owned was trimmed or replaced; what is being read goes to who waits for it."""
        self._cache.drop(owner)
        for key in [key for key in self._loading if key[0] == id(owner)]:
            self._loading.pop(key).is_forgotten = True
