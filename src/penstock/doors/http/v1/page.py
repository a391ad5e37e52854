"""A page of records, in the form a reader wants, and the answer that it becomes."""

from __future__ import annotations

from collections.abc import Iterable
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
from penstock.doors.budget import Share
from penstock.doors.http.messages import JSON, Answer, Pairs, Response
from penstock.doors.http.room import RECORD_BYTES, Room, cut, json_pieces
from penstock.doors.http.v1.reading import columns_out, record_out
from penstock.doors.http.v1.types import RecordOut, Records

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
            payload_bytes = sum([len(record.payload) for record in self.found.records])
        else:
            payload_bytes = sum([sum(map(len, part.payloads)) for part in self._columns])
        return payload_bytes + RECORD_BYTES * self.count

    def answer(self, topic: Topic, first_offset: int) -> Response:
        """All of it at once."""
        if self._form != JSON:
            return Response(200, self._data, self._form, _positions(topic, self.found))
        records = list(self._records())
        found = self.found
        body = Records(topic.declared, first_offset, found.next_offset, found.end_offset, records)
        return Response(200, _encode(body))

    def stream(self, topic: Topic, first_offset: int, room: Room, share: Share) -> Answer:
        """Piece by piece."""
        found = self.found
        if self._form != JSON:
            return room.stream(share, cut(self._data), self._form, _positions(topic, found))
        body = Records(topic.declared, first_offset, found.next_offset, found.end_offset, [])
        head = _encode(body).removesuffix(b"]}")
        return room.stream(share, json_pieces(head, self._records()), JSON)

    def _records(self) -> Iterable[RecordOut]:
        if self._columns is None:
            return map(record_out, self.found.records)
        return (one for part in self._columns for one in columns_out(part))


async def read_form(topic: Topic, offset: int, selection: Selection, form: str) -> Page:
    """The page of a topic at `offset`."""
    is_plain = selection.where is None and selection.names is None
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


async def page_answer(room: Room, page: Page, topic: Topic, first_offset: int) -> Answer:
    """At once if it is small; else it waits for a place in the room."""
    if room.is_small(page.size):
        return page.answer(topic, first_offset)
    return page.stream(topic, first_offset, room, await room.reserve(page.size))


def _positions(topic: Topic, found: Found) -> Pairs:
    """Only JSON has a place for them."""
    return (
        ("Penstock-Topic-Id", str(topic.id)),
        ("Penstock-Epoch", str(topic.log.epoch)),
        ("Penstock-First-Offset", str(found.first_offset)),
        ("Penstock-Next-Offset", str(found.next_offset)),
        ("Penstock-End-Offset", str(found.end_offset)),
    )
