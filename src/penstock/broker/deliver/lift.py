"""The lift: readers that lag in a topic go through its log together.

One pass in offset order serves all riders: each batch is read once, whoever rides. Whoever boards
behind the pass waits for the next one, so newcomers never hold up those who are almost there. A
rider that is level with the durable end gets off by itself: from then on commits are its business.

Invariant: a rider stands at `lags[topic id]`; everything below it was served to it. A slice is
served to those who stand inside it at that moment, in one call without a suspension, so nobody is
served a record twice and nobody is carried past one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from penstock.broker.metrics import Metrics
from penstock.broker.queue.consumers import read_batches
from penstock.broker.topics import Topic
from penstock.log.format.batch import Batch
from penstock.model.errors import CorruptError, Gap, UnavailableError


class Rider(Protocol):
    """A reader that may lag behind the durable end of a topic."""

    lags: dict[int, int]  # topic id -> the offset to go on at


R = TypeVar("R", bound=Rider)
# Hand [start, end) of a batch to riders who stand in it. Who cannot take all of it is moved to
# what comes next for it, and leaves; the others are moved to the end.
Serve = Callable[[Batch, int, int, set[R]], None]


class Lift(Generic[R]):
    """The pass through one topic. Ends by itself when nobody rides any more."""

    def __init__(
        self,
        topic: Topic,
        serve: Serve[R],
        slice_max: int,
        metrics: Metrics,
        on_trouble: Callable[[str], None],
    ) -> None:
        self.topic = topic
        self.riders: dict[R, int] = {}  # where each goes on
        self._serve = serve
        self._slice_max = slice_max  # records served before others get their turn
        self._metrics = metrics
        self._on_trouble = on_trouble
        self._cursor = 0  # where the pass is
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def board(self, rider: R) -> None:
        """Ride along from where the rider lags."""
        offset = rider.lags.get(self.topic.id)
        if offset is None or rider in self.riders:
            return
        self.riders[rider] = offset
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self, rider: R) -> None:
        """Get off; where it goes on stays in the rider's lags."""
        self.riders.pop(rider, None)

    def move(self, rider: R, offset: int) -> None:
        """The rider has been served everything below `offset`."""
        self.riders[rider] = offset
        rider.lags[self.topic.id] = offset

    async def wait_done(self) -> None:
        """Suspends until nobody rides."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self.riders:
                await self._step()
        except (CorruptError, UnavailableError) as trouble:
            self._on_trouble(f"{self.topic.declared}: {trouble}")
            self.riders.clear()
        finally:
            self._task = None

    async def _step(self) -> None:
        """Read on from where the pass is to the next rider; from the back when nobody is ahead."""
        ahead = [offset for offset in self.riders.values() if offset >= self._cursor]
        offset = self._cursor = min(ahead or self.riders.values())
        log = self.topic.log
        try:
            batches = await read_batches(self.topic, offset, is_patient=True)
        except Gap:
            self._skip(log.bounds().first)
            return
        if not batches:
            self._arrive(log.bounds().end)
            return
        for batch in batches:
            await self._serve_batch(batch)
        self._cursor = max(offset, batches[-1].end_offset)
        await asyncio.sleep(0)  # a long pass leaves room for everybody else

    async def _serve_batch(self, batch: Batch) -> None:
        start = batch.base_offset
        while start < batch.end_offset:
            end = min(start + self._slice_max, batch.end_offset)
            here = {rider for rider, offset in self.riders.items() if start <= offset < end}
            if here:
                self._serve(batch, start, end, here)
                for rider in here:
                    if rider in self.riders:
                        self.move(rider, end)
                if end < batch.end_offset:
                    await asyncio.sleep(0)
            start = end

    def _skip(self, first: int) -> None:
        """Retention was faster."""
        for rider, offset in list(self.riders.items()):
            if offset < first:
                self._metrics.dropped["retention"] += first - offset
                self.move(rider, first)

    def _arrive(self, end: int) -> None:
        """Riders at the end are level: commits are handed to them again."""
        for rider in [one for one, offset in self.riders.items() if offset >= end]:
            self.leave(rider)
            rider.lags.pop(self.topic.id, None)
