"""The streams of all partitions of a topic as one: records of a partition in order, others between.

Partitions have their turns, so a busy one does not keep the others back.
"""

from __future__ import annotations

import asyncio

from penstock.broker.deliver.streams import Stream
from penstock.broker.topic.topics import Topic
from penstock.model.record import Record


class MergedStream:
    """As a Stream, over one for each partition."""

    def __init__(self, topic: Topic, streams: list[Stream]) -> None:
        self.topic = topic
        self._streams = streams  # by the numbers of their partitions
        self._turn = 0  # the partition that is asked first
        self._has_news = False
        self._is_late = False
        self._wake: asyncio.Future[None] | None = None
        for stream in streams:
            stream.on_news = self._notify

    @property
    def start_offsets(self) -> list[int]:
        """Where it began, for each partition."""
        return [stream.start_offset for stream in self._streams]

    @property
    def next_offsets(self) -> list[int]:
        """Everything that matches below them has been handed out, for each partition."""
        return [stream.next_offset for stream in self._streams]

    @property
    def is_closed(self) -> bool:
        return any(stream.is_closed for stream in self._streams)

    @property
    def has_siblings(self) -> bool:
        """Others read the same topic: what is made of a record may serve them too."""
        return self._streams[0].has_siblings

    @property
    def backlog_bytes(self) -> int:
        """Of the payloads that wait to be taken."""
        return sum([stream.backlog_bytes for stream in self._streams])

    @property
    def overflows(self) -> int:
        """How often its reader was too slow for what came."""
        return sum([stream.overflows for stream in self._streams])

    async def take(self, limit: int, wait_s: float | None = None) -> list[Record]:
        """At least one record, at most `limit`, of one partition; waits for one. Empty once closed.

        With `wait_s` also empty when none came in that time.
        """
        if wait_s is None:
            return await self._take(limit)
        timer = asyncio.get_running_loop().call_later(wait_s, self._be_late)
        try:
            return await self._take(limit)
        finally:
            timer.cancel()
            self._set_late(False)

    async def _take(self, limit: int) -> list[Record]:
        streams = self._streams
        while not self.is_closed:
            self._has_news = False
            for at in range(len(streams)):
                number = (self._turn + at) % len(streams)
                taken = await streams[number].poll(limit)
                if taken:
                    self._turn = number + 1
                    return taken
            if self._is_late:
                return []
            if not self._has_news:
                await self._wait()
        return []

    async def _wait(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def go_back(self, records: list[Record]) -> None:
        """What was taken last comes again with the next `take`, from the log."""
        self._streams[records[0].partition].go_back(records)

    def _be_late(self) -> None:
        self._set_late(True)
        self._notify()

    def _set_late(self, is_late: bool) -> None:
        self._is_late = is_late
        for stream in self._streams:
            stream.is_late = is_late  # also a long search in its log ends

    def _notify(self) -> None:
        self._has_news = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def close(self) -> None:
        """End the iteration, also for a reader that waits right now."""
        for stream in self._streams:
            stream.close()
