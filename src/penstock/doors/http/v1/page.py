"""A page of records, in the form a reader wants, and the answer that it becomes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.broker.reading import (
    Columns,
    Found,
    Selection,
    read_arrow,
    read_page,
    read_records,
    read_stored,
)
from penstock.broker.topics import Topic
from penstock.doors.http.messages import JSON, Answer, Pairs, Response
from penstock.doors.http.pieces import (
    PIECE_BYTES,
    RECORD_BYTES,
    LongRecord,
    cut,
    page_pieces,
)
from penstock.doors.http.room import Place, Room
from penstock.doors.http.v1.reading import columns_out, long_or_short, record_out
from penstock.doors.http.v1.types import RecordOut, Records
from penstock.model.record import Record

ARROW: Final = "application/vnd.apache.arrow.stream"
BATCHES: Final = "application/vnd.penstock.batches"

_encode: Final = msgspec.json.Encoder().encode


class Page:
    """Records, as columns or one by one; or the bytes of an Arrow stream or of stored batches."""

    __slots__ = ("_columns", "_data", "_form", "count", "found")

    def __init__(
        self,
        found: Found,
        count: int,
        form: str = JSON,
        data: bytes = b"",
        columns: list[Columns] | None = None,
    ) -> None:
        self.found = found
        self.count = count  # of its records
        self._form = form
        self._data = data
        self._columns = columns

    @property
    def size(self) -> int:
        """About how many bytes it takes before it is JSON."""
        if self._form != JSON:
            return len(self._data)
        if self._columns is None:
            return records_size(self.found.records)
        payload_bytes = sum([sum(map(len, part.payloads)) for part in self._columns])
        return payload_bytes + RECORD_BYTES * self.count

    def answer(self, topic: Topic, first_offset: int, room: Room, place: Place | None) -> Answer:
        """Piece by piece if it has a place; else at once."""
        found = self.found
        if self._form != JSON:
            headers = _positions(topic, found)
            if place is None:
                return Response(200, self._data, self._form, headers)
            return room.stream(place, cut(self._data), self._form, headers)
        body = Records(topic.declared, first_offset, found.next_offset, found.end_offset, [])
        if place is None:
            body.records = self._records()
            return Response(200, _encode(body))
        head = _encode(body).removesuffix(b"]}")
        return room.stream(place, page_pieces(head, self._pieces()), JSON)

    def _records(self) -> list[RecordOut]:
        if self._columns is None:
            return [record_out(record) for record in self.found.records]
        return [one for part in self._columns for one in columns_out(part)]

    def _pieces(self) -> Iterator[RecordOut | LongRecord]:
        """The same, of which little is made at a time."""
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
        read = read_arrow if form == ARROW else read_stored
        data, found = await read(topic, offset, selection)
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


def _positions(topic: Topic, found: Found) -> Pairs:
    """Only JSON has a place for them."""
    return (
        ("Penstock-Topic-Id", str(topic.id)),
        ("Penstock-Epoch", str(topic.log.epoch)),
        ("Penstock-First-Offset", str(found.first_offset)),
        ("Penstock-Next-Offset", str(found.next_offset)),
        ("Penstock-End-Offset", str(found.end_offset)),
    )
