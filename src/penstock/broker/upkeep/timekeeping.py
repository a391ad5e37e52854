"""Keeps the timeline: it goes on after a restart, and stamps follow a wall clock that was set.

Checkpoints save the clocks, too. So a crash loses at most a second of steady time in a broker at
work, SAVE_S in one that is idle, and only if the machine was restarted with it and its wall clock
was set back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from penstock.catalog.clock import ClockCatalog
from penstock.model.errors import PenstockError
from penstock.model.timeline import Timeline

LOOK_S: Final = 1.0  # how late stamps follow
SAVE_S: Final = 60.0  # an idle broker should leave the disk alone


class Timekeeping:
    """Used on the event loop."""

    def __init__(self, timeline: Timeline, catalog: ClockCatalog) -> None:
        self._timeline = timeline
        self._catalog = catalog
        self._saved_s = 0.0
        self._is_changed = False
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Before anything asks for the time."""
        saved = await self._catalog.load()
        if saved is not None:
            self._timeline.resume(saved)
        self._timeline.follow()
        await self._save()
        self._task = asyncio.create_task(self._run(), name="penstock-clock")

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        with suppress(PenstockError):  # the next start has to do with an older one
            await self._save()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(PenstockError):  # the next look tries again
                await self.look()

    async def look(self) -> None:
        """Follow the wall clock; save what the next start needs when that changed or is old."""
        if self._timeline.follow():
            self._is_changed = True
        if self._is_changed or self._timeline.monotonic_s() - self._saved_s >= SAVE_S:
            await self._save()

    async def _save(self) -> None:
        await self._catalog.save(self._timeline.reading())
        self._saved_s = self._timeline.monotonic_s()
        self._is_changed = False
