"""Where catalog work runs: one thread with group commit, or inline for the simulation.

Invariant: units run in the order in which `run` was called, all on one thread, and `run` returns
a value only after the transaction that holds it was committed. While one group is being synced
the next one gathers, so a storm of units shares a few syncs. At most QUEUE_UNITS_MAX units wait
or run; further callers of `run` wait for room.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar, cast

from penstock.catalog.database.group import OnFull, Outcome, Work, run_group
from penstock.catalog.database.interface import Database
from penstock.model.errors import DiskFull, UnavailableError

T = TypeVar("T")

GROUP_UNITS_MAX: Final = 256  # enough to hide a sync; the first of a group waits for the last
QUEUE_UNITS_MAX: Final = 4_096  # ~10 groups and more: seconds of backlog on the slowest disk


class Runner(Protocol):
    """Runs units of work against the catalog's database."""

    async def run(self, work: Callable[[Database], T]) -> T:
        """Run `work` in a transaction; its result once durable, or the error it raised.

        Cancelling the caller does not stop a unit that is already queued.
        """
        ...

    async def close(self) -> None:
        """Finish what was asked for, then close the database. Later runs are refused."""
        ...


class InlineRunner:
    """Runs each unit at once on the calling thread, a group of its own."""

    def __init__(self, database: Database, on_full: OnFull | None = None) -> None:
        self._database = database
        self._on_full = on_full
        self._is_closed = False

    async def run(self, work: Callable[[Database], T]) -> T:
        if self._is_closed:
            raise _closed()
        (outcome,) = run_group(self._database, [work], self._on_full)
        return cast(T, outcome.unwrap())

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._database.close()


@dataclass(frozen=True, slots=True)
class _Unit:
    work: Work
    done: asyncio.Future[Outcome]


class CatalogThread:
    """The catalog's thread; made by `start`, used from the event loop that started it."""

    def __init__(
        self,
        open_database: Callable[[], Database],
        on_full: OnFull | None,
        group_units_max: int,
        queue_units_max: int,
    ) -> None:
        self._open_database = open_database
        self._on_full = on_full
        self._group_units_max = group_units_max
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()  # None ends it
        self._room = asyncio.Semaphore(queue_units_max)
        self._is_closing = False
        self._opened: asyncio.Future[Outcome] = self._loop.create_future()
        self._stopped: asyncio.Future[Outcome] = self._loop.create_future()
        # A daemon: a program that forgets close() still ends, as if it had been killed.
        self._thread = threading.Thread(target=self._serve, name="penstock-catalog", daemon=True)

    @classmethod
    async def start(
        cls,
        open_database: Callable[[], Database],
        *,
        on_full: OnFull | None = None,
        group_units_max: int = GROUP_UNITS_MAX,
        queue_units_max: int = QUEUE_UNITS_MAX,
    ) -> CatalogThread:
        """Open the database on a new thread; raises what opening raised.

        `on_full` is called on that thread when the disk is full, and whoever was refused is tried
        once more when it returns True.
        """
        thread = cls(open_database, on_full, group_units_max, queue_units_max)
        thread._thread.start()
        try:
            (await thread._opened).unwrap()
        except BaseException:  # also when cancelled: nobody will close what opens after all
            thread._queue.put(None)
            raise
        return thread

    async def run(self, work: Callable[[Database], T]) -> T:
        await self._room.acquire()
        if self._is_closing:
            self._room.release()
            raise _closed()
        unit = _Unit(work, self._loop.create_future())
        self._queue.put(unit)
        return cast(T, (await unit.done).unwrap())

    async def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._queue.put(None)
        outcome = await asyncio.shield(self._stopped)
        self._thread.join()  # its last word was said: it ends without waiting for anybody
        outcome.unwrap()

    # On the thread from here on.

    def _serve(self) -> None:
        try:
            database = self._open()
        except BaseException as error:
            self._tell(partial(_resolve, self._opened, Outcome(error=error)))
            return
        self._tell(partial(_resolve, self._opened, Outcome()))
        while group := self._take_group():
            outcomes = run_group(database, [unit.work for unit in group], self._on_full)
            self._tell(partial(self._finish, group, outcomes))
        try:
            database.close()
        except Exception as error:
            self._tell(partial(_resolve, self._stopped, Outcome(error=error)))
        else:
            self._tell(partial(_resolve, self._stopped, Outcome()))

    def _open(self) -> Database:
        try:
            return self._open_database()
        except DiskFull:
            if self._on_full is None or not self._on_full():
                raise
        return self._open_database()

    def _take_group(self) -> list[_Unit]:
        """All that wait, up to the bound; empty when the queue has ended."""
        group: list[_Unit] = []
        unit = self._queue.get()
        while unit is not None:
            group.append(unit)
            if len(group) == self._group_units_max:
                return group
            try:
                unit = self._queue.get_nowait()
            except queue.Empty:
                return group
        if group:
            self._queue.put(None)  # seen too early: nothing comes after it, so it may go back
        return group

    def _tell(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback)

    # On the loop again.

    def _finish(self, group: list[_Unit], outcomes: list[Outcome]) -> None:
        for unit, outcome in zip(group, outcomes, strict=True):
            # Room is freed here and not when `run` returns: a cancelled caller's unit took part
            # in the queue until now.
            self._room.release()
            _resolve(unit.done, outcome)


def _resolve(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


def _closed() -> UnavailableError:
    return UnavailableError("the catalog is closed: open it again")
