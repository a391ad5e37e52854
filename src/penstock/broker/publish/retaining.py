"""Retained messages that wait for their commit, and the subscribers that wait for them.

A subscriber is given what is retained when it subscribes (MQTT 5 §3.3.1.3). A retained message that
came before it is not in that view until it is durable, so the subscriber waits for those that are
on their way at that moment, and for no later one: a stream of them holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from penstock.broker.publish.run import Run


class Retaining:
    """Used on the event loop. Costs a message that is not retained nothing."""

    def __init__(self) -> None:
        self._runs: OrderedDict[Run, int] = OrderedDict()  # on their way, numbered as they came
        self._last = 0  # the newest number
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # for all up to a number

    @property
    def is_idle(self) -> bool:
        """Is no retained message on its way?"""
        return not self._runs

    def enter(self, run: Run) -> None:
        """A retained run is on its way to the disk."""
        self._last += 1
        self._runs[run] = self._last

    def leave(self, run: Run) -> None:
        """It is durable, and in the view of what is retained; or it was refused."""
        del self._runs[run]
        if not self._waiting:
            return
        oldest = next(iter(self._runs.values()), self._last + 1)
        while self._waiting and self._waiting[0][0] < oldest:
            _, settled = self._waiting.popleft()
            if not settled.done():
                settled.set_result(None)

    async def wait_settled(self) -> None:
        """Suspends until every retained run that is on its way now has left."""
        if self._runs:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self._last, settled))
            await settled
