"""Reading a topic from any position, without a position kept, for doors that answer at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from penstock.broker.consumers import read_batches, read_matching, resolve
from penstock.broker.topics import Topic
from penstock.core.position import Position
from penstock.core.where import Where
from penstock.log.batch import Batch
from penstock.model.errors import Gap, RefusedError
from penstock.model.limits import MIB
from penstock.model.record import Record

SCAN_BYTES_MAX: Final = 64 * MIB  # looked at for one answer, however few records pass


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records a reader wants, and how many at once."""

    limit: int
    bytes_max: int
    where: Where | None = None
    names: str | None = None
    until: int | None = None  # nothing at or past this offset
    columns: tuple[str, ...] = ()  # of Arrow; empty: all

    def end_of(self, topic: Topic) -> int:
        """One past the last record to look at."""
        end = topic.log.bounds().end
        return end if self.until is None else min(end, self.until)


@dataclass(frozen=True, slots=True)
class Found:
    """Records of [first_offset, next_offset) that pass; `end_offset` is the topic's end."""

    records: list[Record]
    first_offset: int
    next_offset: int
    end_offset: int


async def read_records(topic: Topic, offset: int, selection: Selection) -> Found:
    """From `offset`, or the first record if retention has taken that one."""
    end = selection.end_of(topic)
    while True:
        start = max(offset, topic.log.bounds().first)
        try:
            records, next_offset = await read_matching(
                topic,
                start,
                end,
                selection.limit,
                selection.where,
                selection.names,
                selection.bytes_max,
                SCAN_BYTES_MAX,
            )
            return Found(records, start, max(start, next_offset), topic.log.bounds().end)
        except Gap:
            continue  # trimmed while we read: the bounds say so now


async def position_offset(topic: Topic, position: Position) -> int:
    """The offset a position means in this topic, now."""
    return await resolve(topic, position)


async def read_arrow(topic: Topic, offset: int, selection: Selection) -> tuple[bytes, Found]:
    """As `read_records`, as an Arrow stream; the records of `Found` stay empty.

    Without `where` and `names` no record is made an object.
    """
    arrow = _arrow()
    if selection.where is not None or selection.names is not None:
        found = await read_records(topic, offset, selection)
        return arrow.stream_of_records(found.records, selection.columns), found
    end = selection.end_of(topic)
    while True:
        start = max(offset, topic.log.bounds().first)
        stop = min(end, start + selection.limit)
        try:
            batches, next_offset = await _batches(topic, start, stop, selection.bytes_max)
        except Gap:
            continue
        # Beside the loop: a whole answer takes milliseconds to put together.
        data = await asyncio.to_thread(
            arrow.stream_of_batches, batches, topic.declared, start, next_offset, selection.columns
        )
        return data, Found([], start, next_offset, topic.log.bounds().end)


async def _batches(topic: Topic, start: int, stop: int, bytes_max: int) -> tuple[list[Batch], int]:
    """The batches that hold [start, …), and how far they, or the bytes, reach."""
    batches: list[Batch] = []
    offset = start
    size = 0
    while offset < stop and size < bytes_max:
        for batch in await read_batches(topic, offset):
            batches.append(batch)
            offset = min(batch.end_offset, stop)
            size += batch.header.blob_raw_length
            if offset >= stop or size >= bytes_max:
                break
    return batches, max(offset, start)


def _arrow() -> Any:
    """Only who asks for Arrow needs it."""
    try:
        from penstock.log import arrow_stream
    except ImportError:
        raise RefusedError(
            "Arrow needs a package that is not installed on the server: "
            "pip install 'penstock[arrow]', or ask for JSON"
        ) from None
    return arrow_stream
