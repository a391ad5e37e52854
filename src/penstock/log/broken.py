"""A log whose files are damaged or missing: it refuses, says why, and keeps everybody's place.

Its bounds and epoch are what it last said of itself, so readers that stand below the end stay where
they are and go on there once the files are back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence

from penstock.core.delivery.run import MixedRun, Run
from penstock.core.erasure import Erasure
from penstock.log.format.batch import Batch
from penstock.log.format.marks import Mark
from penstock.log.history.tier import LogHistory
from penstock.log.interface import Bounds, LogSettings, OnCommit, OnLost, Waiter
from penstock.model.errors import CorruptError, UnavailableError


class DamagedLog(CorruptError):
    """A log cannot be opened. `epoch` and `end` are its own words; epoch 0 if it left none."""

    def __init__(self, message: str, epoch: int, end: int) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.end = end


class BrokenLog:
    """Implements `KeptLog` by refusing; nothing of it is on its way anywhere."""

    def __init__(self, refusal: str, settings: LogSettings, epoch: int, end: int) -> None:
        self.settings = settings
        self.epoch = epoch
        self.on_commit: OnCommit | None = None
        self.on_lost: OnLost | None = None
        self.is_watched = False
        self.last_sync_s = 0.0
        self.is_awaited = False
        self.history: LogHistory | None = None
        self.erasures: Sequence[Erasure] = ()
        self._refusal = refusal
        self._end = end

    def append(
        self,
        messages: Sequence[Run] | MixedRun,
        waiter: Waiter | None = None,
        marks: Sequence[Mark] = (),
    ) -> None:
        if waiter is not None:
            waiter.refused(UnavailableError(self._refusal))

    def append_batch(self, batch: Batch, waiter: Waiter | None = None) -> None:
        if waiter is not None:
            waiter.refused(UnavailableError(self._refusal))

    @property
    def is_congested(self) -> bool:
        return False

    @property
    def is_level(self) -> bool:
        return False

    @property
    def is_retaining(self) -> bool:
        return False

    async def read(self, offset: int) -> list[Batch]:
        raise UnavailableError(self._refusal)

    async def batches_since(self, offset: int) -> AsyncIterator[Batch]:
        for batch in await self.read(offset):
            yield batch

    def bounds(self) -> Bounds:
        return Bounds(0, self._end)

    def count_from(self, offset: int) -> int:
        return max(self._end - offset, 0)

    async def learn_count(self) -> None:
        return

    @property
    def hot_first(self) -> int:
        return 0

    async def offset_at(self, timestamp: int) -> int:
        return self._end

    def wait_past(self, offset: int) -> Awaitable[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(UnavailableError(self._refusal))
        return future

    async def trim(self, before_us: int | None, bytes_max: int | None) -> int:
        return 0

    async def close(self) -> None:
        return

    async def tier(self, before_us: int | None, bytes_max: int | None) -> None:
        return

    async def keep_erasures(self, erasures: Sequence[Erasure]) -> None:
        raise UnavailableError(self._refusal)

    async def erase(self, erasure: Erasure, *, dry_run: bool) -> int:
        raise UnavailableError(self._refusal)

    async def erase_history(self, erasure: Erasure, *, dry_run: bool) -> int:
        raise UnavailableError(self._refusal)

    async def stored_bytes(self) -> int:
        return 0

    async def clamp(self, epoch: int, offset: int) -> int:
        return offset

    async def seal_closed(self) -> int:
        return 0

    @property
    def loads(self) -> int:
        return 0

    @property
    def tail_bytes(self) -> int:
        return 0

    @property
    def fence(self) -> str:
        return self._refusal

    @property
    def damage(self) -> list[str]:
        return [self._refusal]
