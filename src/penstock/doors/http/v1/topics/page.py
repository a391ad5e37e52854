"""A page of records, in the form a reader wants, and the answer that it becomes."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from penstock.broker.topic.reading import (
    Columns,
    Found,
    Selection,
    read_arrow,
    read_page,
    read_records,
    read_stored,
)
from penstock.broker.topic.topics import Topic
from penstock.doors.http.v1.reading import columns_out, long_or_short, record_out
from penstock.doors.http.v1.types import RecordOut, Records
from penstock.doors.http.wire.messages import JSON, Answer, Pairs, Response
from penstock.doors.http.wire.pieces import (
    PIECE_BYTES,
    RECORD_BYTES,
    LongRecord,
    cut,
    page_pieces,
)
from penstock.doors.http.wire.room import Place, Room
from penstock.model.record import Offsets, Record

ARROW: Final = "application/vnd.apache.arrow.stream"
BATCHES: Final = "application/vnd.penstock.batches"

_encode: Final = msgspec.json.Encoder().encode


class Shown(NamedTuple):
    """Offsets as a reader is told them: where its page begins, where to go on, the topic's end."""

    first: Offsets
    next: Offsets
    end: Offsets
    partition: int | None = None  # of all records, where only one of several was read


class ReadRecord(NamedTuple):
    """What a trace is told of a record."""

    offset: int
    name: str
    qos: int
    partition: int


class Page:
    """Records, as columns or one by one; or the bytes of an Arrow stream or of stored batches."""

    __slots__ = ("_columns", "_data", "_form", "_joined", "count", "found")

    def __init__(
        self,
        found: Found,
        count: int,
        form: str = JSON,
        data: bytes | memoryview = b"",
        columns: list[Columns] | None = None,
        joined: list[Page] | None = None,
    ) -> None:
        self.found = found
        self.count = count  # of its records
        self._form = form
        self._data = data
        self._columns = columns
        self._joined = joined  # pages whose records are its own

    @property
    def size(self) -> int:
        """About how many bytes it takes before it is JSON."""
        if self._form != JSON:
            return len(self._data)
        if self._joined is not None:
            return sum([page.size for page in self._joined])
        if self._columns is None:
            return records_size(self.found.records)
        payload_bytes = sum([sum(map(len, part.payloads)) for part in self._columns])
        return payload_bytes + RECORD_BYTES * self.count

    def answer(self, topic: Topic, shown: Shown, room: Room, place: Place | None) -> Answer:
        """Piece by piece if it has a place; else at once."""
        if self._form != JSON:
            headers = _positions(topic, shown)
            if place is None:
                return Response(200, bytes(self._data), self._form, headers)
            return room.stream(place, cut(self._data), self._form, headers)
        body = Records(topic.declared, shown.first, shown.next, shown.end, [])
        if place is None:
            body.records = self.records()
            return Response(200, _encode(body))
        head = _encode(body).removesuffix(b"]}")
        return room.stream(place, page_pieces(head, self.pieces()), JSON)

    def traced(self) -> Iterator[ReadRecord | Record]:
        """What is read of it one by one: not what a reader gets as Arrow or as stored batches."""
        for page in self._joined or ():
            yield from page.traced()
        if self._columns is None:
            yield from self.found.records
            return
        for part in self._columns:
            for offset, name in zip(part.offsets, part.names, strict=True):
                yield ReadRecord(offset, name, part.qos, part.partition)

    def records(self) -> list[RecordOut]:
        if self._joined is not None:
            return [one for page in self._joined for one in page.records()]
        if self._columns is None:
            return [record_out(record) for record in self.found.records]
        return [one for part in self._columns for one in columns_out(part)]

    def pieces(self) -> Iterator[RecordOut | LongRecord]:
        """The same, of which little is made at a time."""
        if self._joined is not None:
            for page in self._joined:
                yield from page.pieces()
            return
        if self._columns is None:
            yield from map(long_or_short, self.found.records)
            return
        for part in self._columns:
            for piece in _slices(part):
                if len(piece.payloads[0]) > PIECE_BYTES:
                    payload, piece.payloads[0] = piece.payloads[0], b""
                    yield LongRecord(next(columns_out(piece)), payload)
                else:
                    yield from columns_out(piece)


def _slices(columns: Columns) -> Iterator[Columns]:
    """Records of about PIECE_BYTES together; a longer one is alone."""
    first = size = 0
    for at, payload in enumerate(columns.payloads):
        weight = RECORD_BYTES + len(payload)
        if size and size + weight > PIECE_BYTES:
            yield columns.cut(first, at)
            first, size = at, 0
        size += weight
    if size:
        yield columns.cut(first, len(columns.payloads))


def records_size(records: list[Record]) -> int:
    """About how many bytes they take."""
    return sum([len(record.payload) for record in records]) + RECORD_BYTES * len(records)


def page_size(page: Page) -> int:
    """About how many bytes it takes before it is JSON."""
    return page.size


async def read_form(topic: Topic, offset: int, selection: Selection, form: str) -> Page:
    """The page of a topic at `offset`."""
    is_plain = not selection.is_filtered
    if form != JSON:
        data: bytes | memoryview
        if form == ARROW:
            data, found = await read_arrow(topic, offset, selection)
        else:
            data, found = await read_stored(topic, offset, selection)
        is_whole = is_plain and not found.records
        count = found.next_offset - found.first_offset if is_whole else len(found.records)
        return Page(found, count, form, data)
    if is_plain:
        columns, found = await read_page(topic, offset, selection)
        if columns is None:  # some of it is not for this reader
            return Page(found, len(found.records))
        return Page(found, found.next_offset - found.first_offset, columns=columns)
    found = await read_records(topic, offset, selection)
    return Page(found, len(found.records))


class PartsPage(NamedTuple):
    """A page over several parts: where each goes on, and whether all of them are at their ends."""

    page: Page
    next_offsets: list[int]
    ends: list[int]
    partition: int | None  # None: records of several

    @property
    def is_at_end(self) -> bool:
        return all(map(operator.ge, self.next_offsets, self.ends))


async def read_parts(
    topic: Topic, offsets: list[int], selection: Selection, untils: list[int | None], form: str
) -> PartsPage:
    """The page of a topic with several parts; those with the most to read have their turn first.

    JSON takes records of as many parts as are needed; other forms have records of one part.
    """
    parts = topic.parts
    next_offsets = list(offsets)
    order = sorted(parts, key=lambda part: offsets[part.partition] - part.log.bounds().end)
    left, left_bytes = selection.limit, selection.bytes_max
    pages: list[Page] = []
    for part in order:
        number = part.partition
        own = replace(selection, limit=left, bytes_max=left_bytes, until=untils[number])
        page = await read_form(part, offsets[number], own, form)
        next_offsets[number] = page.found.next_offset
        if page.count or not pages:
            pages.append(page)
        left -= page.count
        left_bytes -= page.size
        is_cut = page.found.next_offset < own.end_of(part)
        if left <= 0 or left_bytes <= 0 or is_cut or (form != JSON and page.count):
            break
    ends = [part.log.bounds().end for part in parts]
    if form != JSON:
        return PartsPage(pages[-1], next_offsets, ends, number)
    joined = Page(pages[0].found, sum([page.count for page in pages]), joined=pages)
    return PartsPage(joined, next_offsets, ends, None)


def _positions(topic: Topic, shown: Shown) -> Pairs:
    """Only JSON has a place for them."""
    part = topic if shown.partition is None else topic.parts[shown.partition]
    positions: Pairs = (
        ("Penstock-Topic-Id", str(topic.id)),
        ("Penstock-Epoch", str(part.log.epoch)),
        ("Penstock-First-Offset", _encode(shown.first).decode()),
        ("Penstock-Next-Offset", _encode(shown.next).decode()),
        ("Penstock-End-Offset", _encode(shown.end).decode()),
    )
    if shown.partition is not None:
        positions += (("Penstock-Partition", str(shown.partition)),)
    return positions
