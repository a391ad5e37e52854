"""Futures that wait for a log: publishers for their commit, readers for the end to move."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from typing import Final

from penstock.core.delivery.run import Run
from penstock.log.format.marks import Mark
from penstock.log.interface import Log
from penstock.model.errors import UnavailableError

FULL_RETRY_S: Final = 1.0
SWEEP_MIN: Final = 256  # waiters of one log before those that gave up are looked for


def settle(future: asyncio.Future[int], result: int | BaseException) -> None:
    """Give a waiter its answer, unless it stopped waiting."""
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def write_refusal(failed: OSError) -> UnavailableError:
    """What publishers are told when a write failed and was cut back."""
    if failed.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnavailableError(
            "the disk is full, nothing was stored: free some space and publishing resumes",
            FULL_RETRY_S,
        )
    return UnavailableError(f"writing failed ({failed.strerror}): nothing was stored")


def forget_failure(task: asyncio.Task[object]) -> None:
    """Those who wait see it; when all of them gave up, that is fine."""
    if not task.cancelled():
        task.exception()


class FutureWaiter:
    """Hands the outcome of a commit to a future."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[int]) -> None:
        self._future = future

    @property
    def has_given_up(self) -> bool:
        return self._future.done()

    def committed(self, offset: int) -> None:
        settle(self._future, offset)

    def refused(self, error: Exception) -> None:
        settle(self._future, error)


def append_durably(
    log: Log, messages: Sequence[Run], marks: Sequence[Mark] = ()
) -> asyncio.Future[int]:
    """Append; resolves with the first record's offset once all are durable."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    log.append(messages, FutureWaiter(future), marks)
    return future


class EndWaiters:
    """Readers that suspend until the visible end passes an offset."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._sweep_at = SWEEP_MIN

    def add(self, offset: int, future: asyncio.Future[None]) -> None:
        self.waiting.append((offset, future))
        if len(self.waiting) >= self._sweep_at:  # some may have given up while nothing moved
            self.waiting = [one for one in self.waiting if not one[1].done()]
            self._sweep_at = max(SWEEP_MIN, 2 * len(self.waiting))

    def wake(self, end: int) -> None:
        """The end moved: resolve those it passed, forget those that gave up."""
        still = []
        for offset, future in self.waiting:
            if future.done():
                continue
            if offset < end:
                future.set_result(None)
            else:
                still.append((offset, future))
        self.waiting = still

    def fail(self, error: Exception) -> None:
        """The end will not move again."""
        for _, future in self.waiting:
            if not future.done():
                future.set_exception(error)
        self.waiting = []
