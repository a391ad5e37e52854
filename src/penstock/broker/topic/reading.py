"""Reading a topic from any position, without a position kept, for doors that answer at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from penstock.broker.queue.consumers import may_read_all, read_batches, read_matching
from penstock.broker.topic.topics import Topic
from penstock.core.access import Gate
from penstock.core.naming.names import quoted
from penstock.core.where import Where
from penstock.log.format.bare import bare_bytes
from penstock.log.format.batch import Batch
from penstock.model.errors import Gap, NotAuthorized, RefusedError
from penstock.model.limits import MIB
from penstock.model.record import KIND_MASK, KIND_SHIFT, QOS_MASK, RETAIN, Headers, Record

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
    gate: Gate | None = None  # which names the reader may read; None: all

    @property
    def is_filtered(self) -> bool:
        return self.where is not None or self.names is not None

    def is_open(self, names: Iterable[str]) -> bool:
        """May the reader read all these names?"""
        return self.gate is None or self.gate.pass_all(names)

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


@dataclass(frozen=True, slots=True)
class Columns:
    """Neighbours of one topic that were published alike, column by column."""

    offsets: range
    timestamps: list[int]
    names: list[str]
    payloads: list[bytes]
    headers: list[Headers] | None  # None: nobody has any
    publishers: list[str]
    expiries: list[int | None]
    qos: int
    retain: bool
    kind: int
    partition: int = 0

    def cut(self, first: int, end: int) -> Columns:
        """Those with index in [first, end)."""
        return Columns(
            self.offsets[first:end],
            self.timestamps[first:end],
            self.names[first:end],
            payloads=self.payloads[first:end],
            headers=None if self.headers is None else self.headers[first:end],
            publishers=self.publishers[first:end],
            expiries=self.expiries[first:end],
            qos=self.qos,
            retain=self.retain,
            kind=self.kind,
            partition=self.partition,
        )


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
                limit=selection.limit,
                where=selection.where,
                names=selection.names,
                bytes_max=selection.bytes_max,
                scan_bytes_max=SCAN_BYTES_MAX,
                gate=selection.gate,
            )
            return Found(records, start, max(start, next_offset), topic.log.bounds().end)
        except Gap:
            continue  # trimmed while we read: the bounds say so now


async def read_page(
    topic: Topic, offset: int, selection: Selection
) -> tuple[list[Columns] | None, Found]:
    """As `read_records` where nothing is filtered; no record is made an object.

    Columns are None if the reader may not read some of them: then there are records.
    """
    end = selection.end_of(topic)
    while True:
        start = max(offset, topic.log.bounds().first)
        stop = min(end, start + selection.limit)
        try:
            columns, reached = await _columns(topic, start, stop, selection.bytes_max)
        except Gap:
            continue  # trimmed while we read: the bounds say so now
        for part in columns:
            if not selection.is_open(set(part.names)):
                return None, await read_records(topic, offset, selection)
        return columns, Found([], start, reached, end)


async def _columns(
    topic: Topic, start: int, stop: int, bytes_max: int
) -> tuple[list[Columns], int]:
    """[start, stop), or as much as fits `bytes_max`, and how far that reaches.

    The first record always fits. Offsets without a record are passed over.
    """
    found: list[Columns] = []
    left_bytes = bytes_max
    offset = start
    while offset < stop:
        try:
            batches = await read_batches(topic, offset)
        except Gap:
            if found:
                return found, offset
            raise
        for batch in batches:
            first = max(offset - batch.base_offset, 0)
            last = min(stop - batch.base_offset, batch.header.count)
            if first < last:
                fitting = _fitting(batch, first, last, left_bytes)
                if not fitting and not found:
                    fitting = 1
                left_bytes -= batch.header.blob_raw_length
                found += _stretches(batch, first, first + fitting, topic.partition)
                if first + fitting < last:
                    return found, batch.base_offset + first + fitting
            offset = max(offset, min(batch.end_offset, stop))
    return found, offset


def _fitting(batch: Batch, first: int, last: int, bytes_max: int) -> int:
    """How many of the records fit into so many bytes."""
    if batch.header.blob_raw_length <= bytes_max:
        return last - first
    for count, length in enumerate(map(len, batch.payloads(first, last))):
        bytes_max -= length
        if bytes_max < 0:
            return count
    return last - first


def _stretches(batch: Batch, first: int, last: int, partition: int) -> Iterator[Columns]:
    """The records with index in [first, last), cut where it changes how they were published."""
    has_headers = batch.plan.header_starts >= 0
    stretches = [(batch.header.record_flags, last - first)]
    if batch.plan.flags >= 0:
        alike = groupby(batch.flags(first, last))
        stretches = [(flags, len(list(group))) for flags, group in alike]
    at = first
    for flags, count in stretches:
        end = at + count
        yield Columns(
            range(batch.base_offset + at, batch.base_offset + end),
            batch.timestamps(at, end),
            batch.names(at, end),
            payloads=batch.payloads(at, end),
            headers=batch.record_headers(at, end) if has_headers else None,
            publishers=batch.publishers(at, end),
            expiries=batch.expiries(at, end),
            qos=flags & QOS_MASK,
            retain=flags & RETAIN != 0,
            kind=flags >> KIND_SHIFT & KIND_MASK,
            partition=partition,
        )
        at = end


async def read_arrow(topic: Topic, offset: int, selection: Selection) -> tuple[memoryview, Found]:
    """As `read_records`, as an Arrow stream; the records of `Found` stay empty.

    Without `where` and `names` no record is made an object.
    """
    arrow = _arrow()
    if selection.is_filtered:
        found = await read_records(topic, offset, selection)
        return arrow.stream_of_records(found.records, selection.columns), found
    batches, found = await _whole_batches(topic, offset, selection, _raw_bytes)
    if not all(may_read_all(selection.gate, batch) for batch in batches):
        found = await read_records(topic, offset, selection)
        return arrow.stream_of_records(found.records, selection.columns), found
    # Beside the loop: a whole answer takes milliseconds to put together.
    data = await asyncio.to_thread(
        arrow.stream_of_batches,
        batches,
        topic.declared,
        found.first_offset,
        found.next_offset,
        columns=selection.columns,
        partition=topic.partition,
    )
    return data, found


async def read_stored(topic: Topic, offset: int, selection: Selection) -> tuple[bytes, Found]:
    """Batches as they are stored, from the one that holds `offset` on: who reads decodes them.

    The first and the last may hold records outside of what was found.
    """
    batches, found = await _whole_batches(topic, offset, selection, _stored_bytes)
    if not all(may_read_all(selection.gate, batch) for batch in batches):
        raise NotAuthorized(
            f"batches of topic {quoted(topic.declared)} contain names that you may not read: ask "
            "for Arrow or JSON, which contain the others"
        )
    return await asyncio.to_thread(bare_bytes, batches), found


async def _whole_batches(
    topic: Topic, offset: int, selection: Selection, size_of: Callable[[Batch], int]
) -> tuple[list[Batch], Found]:
    """The batches that hold what is selected, and how far they, or the bytes, reach."""
    end = selection.end_of(topic)
    while True:
        start = max(offset, topic.log.bounds().first)
        stop = min(end, start + selection.limit)
        batches: list[Batch] = []
        reached = start
        size = 0
        try:
            while reached < stop and size < selection.bytes_max:
                for batch in await read_batches(topic, reached):
                    batches.append(batch)
                    reached = max(reached, min(batch.end_offset, stop))
                    size += size_of(batch)
                    if reached >= stop or size >= selection.bytes_max:
                        break
        except Gap:
            continue  # trimmed while we read: the bounds say so now
        return batches, Found([], start, reached, topic.log.bounds().end)


def _raw_bytes(batch: Batch) -> int:
    return batch.header.blob_raw_length


def _stored_bytes(batch: Batch) -> int:
    return batch.header.stored_length


def _arrow() -> Any:
    """Imported on the first request for Arrow."""
    try:
        from penstock.log.arrow import stream as arrow_stream
    except ImportError:
        raise RefusedError(
            "Arrow needs a package that is not installed on the server: "
            "pip install 'penstock[arrow]', or ask for JSON"
        ) from None
    return arrow_stream
