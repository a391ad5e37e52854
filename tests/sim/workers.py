"""Time and threads of the simulation: a loop that never waits, and workers without threads.

Everything that would take time takes virtual time chosen by the seed, so every interleaving of
loop and workers can happen, and happens again with the same seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, TypeVar

from penstock.core.erasure import Erasure
from penstock.log.files.commit import CommitJob
from penstock.log.files.segment import Segment
from penstock.log.files.upkeep.erasing import count_erasable, erase_segment
from penstock.log.files.upkeep.seal import seal_segment

T = TypeVar("T")

ROUNDS_MAX: Final = 100_000  # of one loop; a life takes a few thousand
DELAYS_S: Final = (0.0, 0.0, 0.0, 0.001, 0.002, 0.005, 0.02)


class Stuck(AssertionError):
    """Somebody waits for something that will never happen."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose clock jumps to the next thing to do."""

    def __init__(self, quiet: Random | None = None) -> None:
        super().__init__()
        self._quiet = quiet  # says when no other client is active; never, without
        self._now_s = 0.0
        self._rounds = 0
        self._selector = self  # BaseEventLoop asks it what is ready, and for how long to wait

    def time(self) -> float:
        return self._now_s

    def is_quiet(self) -> bool:
        """Is no other client active? Then a lone message is synced at once."""
        return self._quiet is not None and self._quiet.random() < 0.5

    def select(self, timeout: float | None) -> list[Any]:
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise Stuck("the loop turns and turns")
        if timeout is None:
            raise Stuck("everybody waits, and nothing is on its way")
        self._now_s += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class SimWorkers:
    """Implements `Workers`: each piece of work, and the news that it is done, comes some time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng

    def commit(self, jobs: list[CommitJob], done: Callable[[], None]) -> None:
        syncs = [job.sync for job in jobs]
        self._rng.shuffle(syncs)  # the pool's threads may finish in any order
        self._each([*(job.write for job in jobs), *syncs, done], 0)

    def _each(self, steps: list[Callable[[], None]], at: int) -> None:
        def step() -> None:
            steps[at]()
            if at + 1 < len(steps):
                self._each(steps, at + 1)

        self._later(step)

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def act() -> None:
            try:
                result = work()
            except Exception as failed:
                error = failed
                self._later(lambda: None if future.done() else future.set_exception(error))
            else:
                self._later(lambda: None if future.done() else future.set_result(result))

        self._later(act)
        return future

    def seal(self, segment: Segment) -> Awaitable[Segment]:
        return self.run(lambda: seal_segment(segment))

    def erase(
        self, segment: Segment, erasure: Erasure, *, dry_run: bool
    ) -> Awaitable[tuple[Segment, int]]:
        if dry_run:
            return self.run(lambda: (segment, count_erasable(segment, erasure)))
        return self.run(lambda: erase_segment(segment, erasure))

    def close(self) -> None:
        pass

    def _later(self, act: Callable[[], None]) -> None:
        self._loop.call_later(self._rng.choice(DELAYS_S), act)


def bury_task(task: asyncio.Task[Any]) -> None:
    """End a task of a dead process where it stands; nothing of it runs on."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine: Any = task.get_coro()
    coroutine.close()
