"""Streams: records as they become visible, from any position on, with no gap and no repeat.

A stream is a feed over one topic. While it lags it reads chunks of the log, shared with other
readers; once level it is live and is handed what commits bring. A slow reader costs bounded memory:
its feed falls back to the log. So do many slow readers: what they keep is bounded together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.broker.deliver.decoded import Decoded
from penstock.broker.figures.metrics import Metrics
from penstock.broker.queue.consumers import read_batches
from penstock.broker.topic.topics import Topic
from penstock.core.access import Gate
from penstock.core.delivery.feed import Feed
from penstock.core.naming.names import matches, quoted
from penstock.core.where import Where
from penstock.model.errors import Gap, UnavailableError
from penstock.model.limits import KIB, MIB
from penstock.model.record import Record

BACKLOG_RECORDS_MAX: Final = 10_000  # of one stream; a chunk of small records fits
BACKLOG_BYTES_MAX: Final = 4 * MIB  # of one live stream; beyond it the log is the buffer
BACKLOG_BYTES_MIN: Final = 64 * KIB  # of one stream, however many others there are
BACKLOGS_BYTES_MAX: Final = 64 * MIB  # of all streams
FREE_PER_STREAM: Final = 8  # one may take this part of what is free


class Backlogs:
    """Payload bytes that wait in all streams of a broker; the more there are, the less of one."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    @property
    def most(self) -> int:
        """That may wait in one stream."""
        free = (BACKLOGS_BYTES_MAX - self.bytes) // FREE_PER_STREAM
        return min(BACKLOG_BYTES_MAX, max(BACKLOG_BYTES_MIN, free))


class Stream:
    """Records of one topic, taken in order; ends when it or the broker is closed."""

    def __init__(
        self,
        topic: Topic,
        start_offset: int,
        names: str | None,
        where: Where | None,
        on_gap: str,
        metrics: Metrics,
        siblings: set[Stream],
        decoded: Decoded,
        on_close: Callable[[Stream], None],
        gate: Gate | None = None,
        *,
        backlogs: Backlogs,
    ) -> None:
        self.topic = topic
        self.start_offset = start_offset
        self._feed: Feed[Record] = Feed(start_offset, BACKLOG_RECORDS_MAX)
        self._names = names
        self._where = where
        self._gate = gate
        self._on_gap = on_gap
        self._metrics = metrics
        self._siblings = siblings  # streams of the same topic
        self._decoded = decoded
        self._on_close = on_close
        self._backlogs = backlogs
        self._backlog_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._is_closed = False
        self.is_late = False  # its reader does not wait any longer
        self.on_news: Callable[[], None] | None = None  # hears what wakes a reader that waits
        self.overflows = 0  # how often its reader was too slow for what came

    @property
    def next_offset(self) -> int:
        """Everything that matches below it has been handed out."""
        return self._feed.next_offset

    @property
    def start_offsets(self) -> list[int]:
        """Where it began, for each partition."""
        return [self.start_offset]

    @property
    def next_offsets(self) -> list[int]:
        """Everything that matches below them has been handed out, for each partition."""
        return [self._feed.next_offset]

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def has_siblings(self) -> bool:
        """Others read the same topic: what is made of a record may serve them too."""
        return len(self._siblings) > 1

    @property
    def backlog_bytes(self) -> int:
        """Of the payloads that wait to be taken."""
        return self._backlog_bytes

    def _count(self, backlog_bytes: int) -> None:
        """So many bytes wait from now on."""
        self._backlogs.bytes += backlog_bytes - self._backlog_bytes
        self._backlog_bytes = backlog_bytes

    async def take(self, limit: int, wait_s: float | None = None) -> list[Record]:
        """At least one record, at most `limit`; waits for one. Empty once closed.

        With `wait_s` also empty when none came in that time.
        """
        if wait_s is None:
            return await self._take(limit)
        loop = asyncio.get_running_loop()
        self.is_late = False
        timer = loop.call_later(wait_s, self._be_late)
        try:
            return await self._take(limit)
        finally:
            timer.cancel()
            self.is_late = False

    async def _take(self, limit: int) -> list[Record]:
        while not self._is_closed:
            taken = await self.poll(limit)
            if taken or self.is_late:
                return taken
            if not self._is_closed:
                await self._wait()
        return []

    async def poll(self, limit: int) -> list[Record]:
        """At most `limit` records that are at hand or in the log; empty if there are none yet."""
        while not self._is_closed:
            taken = [record for _, record in self._feed.take(limit)]
            if taken:
                self._count(self._backlog_bytes - _size(taken))
                taken = self._allowed(taken)  # rules may have changed while they waited
                if not taken:
                    continue
                self._metrics.note_read(len(taken))
                return taken
            if self.is_late or self._feed.is_live:
                return []
            try:
                await self._resume()
            except UnavailableError:
                if not self._is_closed:  # else the log was closed while we read it
                    raise
        return []

    def go_back(self, records: list[Record]) -> None:
        """What was taken last comes again with the next `take`, from the log."""
        self._metrics.note_read(-len(records))
        self._feed.go_back(records[0].offset)
        self._count(0)

    async def _wait(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    async def _resume(self) -> None:
        feed = self._feed
        log = self.topic.log
        start = feed.level
        first, _ = log.bounds()
        if start < first:
            if self._on_gap == "error":
                raise Gap(
                    f"the stream of {quoted(self.topic.declared)} is at offset {start}, but the "
                    f"first stored record is {first}: start there, or use on_gap='skip'"
                )
            self._metrics.dropped["retention"] += feed.skip_to(first)
            start = feed.level
        try:
            batches = await read_batches(self.topic, start)
        except Gap:
            return  # trimmed meanwhile: the bounds say so now
        if self._is_closed:
            return
        end = max(batches[-1].end_offset if batches else start, start)
        end = min(end, start + feed.backlog_max)  # more would be decoded for nothing
        records: list[Record] = []
        for batch in batches:
            if self.has_siblings:
                records += self._decoded.records(self.topic, batch, start, end)
            else:
                records += batch.records(self.topic.declared, start, end, self.topic.partition)
        items, end = _within(self._matching(records), self._backlogs.most, end)
        feed.supply(items, start, end, log.bounds().end)
        self._count(_size([record for at, record in items if at < feed.level]))

    def offer(self, records: list[Record], start: int, end: int) -> None:
        """[start, end) became visible; called in offset order."""
        feed = self._feed
        if not feed.is_live or self._is_closed:
            return
        items = self._matching(records)
        backlog_bytes = self._backlog_bytes + _size([record for _, record in items])
        is_behind = bool(feed.waiting)
        # A reader that waits gets what came, however large; one that is busy reads it later.
        if backlog_bytes > self._backlogs.most and (is_behind or self._wake is None):
            feed.fall_back()
        else:
            feed.offer(items, start, end)
        if not feed.is_live:
            backlog_bytes = 0
            self.overflows += is_behind
        self._count(backlog_bytes)
        self._notify()

    def _allowed(self, records: list[Record]) -> list[Record]:
        gate = self._gate
        if gate is None or gate.is_open:
            return records
        return [record for record in records if gate.passes(record.name)]

    def _matching(self, records: list[Record]) -> list[tuple[int, Record]]:
        names, where, gate = self._names, self._where, self._gate
        if gate is not None and gate.is_open:
            gate = None
        return [
            (record.offset, record)
            for record in records
            if (names is None or matches(names, record.name))
            and (gate is None or gate.passes(record.name))
            and (where is None or where.passes(record))
        ]

    def _be_late(self) -> None:
        self.is_late = True
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        if self.on_news is not None:
            self.on_news()

    def close(self) -> None:
        """End the iteration, also for a reader that waits right now."""
        if not self._is_closed:
            self._is_closed = True
            self._count(0)
            self._on_close(self)
            self._notify()


def _size(records: list[Record]) -> int:
    """Of their payloads."""
    return sum([len(record.payload) for record in records])


def _within(
    items: list[tuple[int, Record]], bytes_max: int, end: int
) -> tuple[list[tuple[int, Record]], int]:
    """Those of the items that have so many bytes together, at least one; and where they end."""
    for at, (offset, record) in enumerate(items):
        bytes_max -= len(record.payload)
        if bytes_max < 0 and at:
            return items[:at], offset
    return items, end
