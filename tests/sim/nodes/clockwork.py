"""One clock for many event loops: each is a process that can be frozen, or gone."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.sim.workers import Stuck, bury_task

TURNS_MAX: Final = 3_000_000  # of one history; most take some ten thousand


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one process; `Clockwork` turns it."""

    def __init__(self, clockwork: Clockwork) -> None:
        super().__init__()
        self._clockwork = clockwork
        self._selector = self  # BaseEventLoop asks it what is ready: never anything
        self.frozen_until_s = 0.0
        self.is_dead = False

    def time(self) -> float:
        return self._clockwork.now_s

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def due_s(self) -> float:
        """When it has something to do next."""
        inner: Any = self
        if inner._ready:
            due_s = 0.0
        elif inner._scheduled:
            due_s = inner._scheduled[0]._when
        else:
            due_s = float("inf")
        return max(due_s, self.frozen_until_s)

    def turn(self) -> None:
        inner: Any = self
        asyncio._set_running_loop(self)
        try:
            inner._run_once()
        finally:
            asyncio._set_running_loop(None)

    def kill(self) -> None:
        """The process is gone: nothing of it runs any more."""
        self.is_dead = True
        for task in asyncio.all_tasks(self):
            bury_task(task)
        self.set_exception_handler(lambda loop, context: None)


class Clockwork:
    """Turns the loops in an order that the seed chooses, and jumps to what is due next."""

    def __init__(self, rng: Random) -> None:
        self.now_s = 0.0
        self.loses_packets = True
        self.failures: list[BaseException] = []
        self._rng = rng
        self._loops: list[ProcessLoop] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def new_loop(self) -> ProcessLoop:
        loop = ProcessLoop(self)
        loop.set_exception_handler(self._see_exception)
        self._loops.append(loop)
        return loop

    def _see_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or AssertionError(str(context)))

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Let something happen outside of all processes, such as a packet that arrives."""
        self._number += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._number, act))

    def run(self, is_over: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if self.failures:
                raise self.failures[0]
            if is_over():
                return
            self._turn()
        raise Stuck("the loops turn and turn")

    def _turn(self) -> None:
        self._loops = [loop for loop in self._loops if not loop.is_dead]
        due = [loop for loop in self._loops if loop.due_s() <= self.now_s]
        is_event_due = bool(self._events) and self._events[0][0] <= self.now_s
        if due and (not is_event_due or self._rng.random() < 0.5):
            self._rng.choice(due).turn()
        elif is_event_due:
            heapq.heappop(self._events)[2]()
        else:
            next_s = min([loop.due_s() for loop in self._loops], default=float("inf"))
            if self._events:
                next_s = min(next_s, self._events[0][0])
            if next_s == float("inf"):
                raise Stuck("everybody waits, and nothing is on its way")
            self.now_s = next_s

    def close(self) -> None:
        for loop in self._loops:
            loop.kill()
            loop.close()


class Network:
    """Between one process and one server; packets of a cut network arrive once it is whole."""

    def __init__(self, clockwork: Clockwork, loop: ProcessLoop, rng: Random) -> None:
        self._clockwork = clockwork
        self._loop = loop
        self._rng = rng
        self.there_cut_until_s = 0.0
        self.back_cut_until_s = 0.0

    def delay_s(self, cut_until_s: float) -> float:
        delay_s = self._rng.choice((0.0003, 0.001, 0.001, 0.004))
        if self._rng.random() < 0.01 and self._clockwork.loses_packets:
            delay_s = self._rng.uniform(0.05, 6.0)  # a packet that was lost and repeated
        return max(delay_s, cut_until_s - self._clockwork.now_s + delay_s)

    async def ask(self, serve: Callable[[Callable[[Any], None]], None]) -> Any:
        """What the server answers; `serve` is called there, and calls what it is given."""
        answered: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any) -> None:
            if answered.done():
                return
            if isinstance(result, BaseException):
                answered.set_exception(result)
            else:
                answered.set_result(result)

        def arrive(result: Any) -> None:
            if not self._loop.is_dead:
                self._loop.call_soon(settle, result)

        def answer(result: Any) -> None:
            self._clockwork.after(self.delay_s(self.back_cut_until_s), lambda: arrive(result))

        self._clockwork.after(self.delay_s(self.there_cut_until_s), lambda: serve(answer))
        return await answered
