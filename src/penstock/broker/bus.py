"""The bus at work: what was published goes into the topic `bus`, then to the handlers, one by one.

The log is between publishers and handlers here too: whatever is stored under `bus/0` to `bus/255`,
through whichever door, reaches the handlers in the order of its offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from penstock.broker.deliver.streams import Stream
from penstock.broker.engine import Engine
from penstock.broker.settings import topic_settings
from penstock.broker.topic.topics import Topic
from penstock.core.bus import EVERYBODY, TOPICS, BusTable, Ring, join_id
from penstock.core.delivery.run import Run, run_of
from penstock.core.position import AtOffset
from penstock.log.waiting import append_durably
from penstock.model.errors import PenstockError, UnavailableError
from penstock.model.record import Record

TOPIC: Final = "bus"
GROUP_HEADER: Final = "bus.group"  # on a message that is for one group only
NOBODY: Final = "No functions Called"
TAKE_MAX: Final = 256  # records handed out before others get their turn
CLOSE_S_MAX: Final = 5.0  # for storing what waits, and again for handing it out
RETRY_S: Final = 0.2  # after the log refused what waits


class Subscriber(Protocol):
    """A process on the bus."""

    def call(self, id: int, data: bytes) -> bool:
        """Have its handler called; False if too much waits for it and this was dropped."""
        ...


class BusLoop:
    """Used on the event loop. `open` before anything else."""

    def __init__(
        self,
        engine: Engine,
        table: BusTable[Subscriber],
        ring: Ring,
        on_nobody: Callable[[int], None],
    ) -> None:
        self.table = table
        self._engine = engine
        self._ring = ring
        self._on_nobody = on_nobody
        self._has_work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stream: Stream | None = None
        self._is_closing = False
        self._last_offset = 1 << 62  # handing out ends here; known once the bus closes

    async def open(self) -> None:
        """Begin; handlers hear what is published from now on."""
        engine = self._engine
        chosen = {"durability": engine.topics.weakest_durability, "partitions": 1}
        settings = topic_settings(engine.settings, chosen)
        await engine.topics.create(TOPIC, settings, exist_ok=True)
        topic = engine.topics.find(TOPIC)  # one that refuses makes the ring fill up
        start = AtOffset(topic.log.bounds().end)
        stream = await engine.stream(topic, start)
        assert isinstance(stream, Stream), "the topic of the bus has one partition"
        self._stream = stream
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._store(topic), name="penstock-bus-store"),
            loop.create_task(self._call(self._stream), name="penstock-bus-call"),
        ]

    def wake(self) -> None:
        """Something was put into the ring."""
        self._has_work.set()

    async def _store(self, topic: Topic) -> None:
        """Append what waits; a log that refuses is asked again, and the ring fills up.

        One append stores all of it or nothing, so nothing is stored twice.
        """
        while not self._is_closing or len(self._ring):
            await self._has_work.wait()
            self._has_work.clear()
            waiting = self._ring.peek()
            if not waiting:
                continue
            runs = [_run(id, data) for id, data in waiting]
            try:
                for run in runs:
                    self._engine.check(topic, run)
                await append_durably(topic.log, runs)
                self._ring.drop_first(len(waiting))
            except PenstockError:
                await asyncio.sleep(RETRY_S)
            if len(self._ring):
                self._has_work.set()

    async def _call(self, stream: Stream) -> None:
        with suppress(UnavailableError):
            while records := await stream.take(TAKE_MAX):
                for record in records:
                    self._dispatch(record)
                if stream.next_offset >= self._last_offset:
                    return
                await asyncio.sleep(0)

    def _dispatch(self, record: Record) -> None:
        id = bus_id(record)
        if id is None:
            return
        reached = self.table.reached_by(id)
        if not reached:
            self._on_nobody(id)
        for subscriber in reached:
            if not subscriber.call(id, record.payload):
                self._engine.metrics.dropped["queue_full"] += 1

    async def close(self) -> None:
        """Store and deliver the waiting messages that the log accepts, then stop."""
        self._is_closing = True
        self._has_work.set()
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=CLOSE_S_MAX)
        stream = self._stream
        if stream is not None:
            self._last_offset = stream.topic.log.bounds().end
            if stream.next_offset < self._last_offset:
                await asyncio.wait(self._tasks[1:], timeout=CLOSE_S_MAX)
            stream.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _run(id: int, data: bytes) -> Run:
    group, topic = id >> 8, id & 0xFF
    headers = ((GROUP_HEADER, str(group)),) if group != EVERYBODY else ()
    return run_of(f"{TOPIC}/{topic}", [data], headers=headers)


def bus_id(record: Record) -> int | None:
    """The id a stored message was published to; None if its name is no bus topic's."""
    level, _, rest = record.name.partition("/")
    if level.casefold() != TOPIC or not (rest.isascii() and rest.isdigit()) or len(rest) > 3:
        return None
    topic = int(rest)
    if topic >= TOPICS:
        return None
    group = EVERYBODY
    for key, value in record.headers:
        if key == GROUP_HEADER and value.isascii() and value.isdigit() and int(value) < TOPICS:
            group = int(value)
    return join_id(group, topic)
