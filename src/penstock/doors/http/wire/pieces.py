"""JSON that is made piece by piece while it is sent.

A text may be six times as long in JSON as it was stored. So the JSON of a long payload never exists
as a whole: a reader that takes nothing costs one piece, besides the record itself.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.doors.http.v1.types import RecordOut
from penstock.model.limits import KIB

PIECE_BYTES: Final = 64 * KIB  # of a payload, made into JSON and sent at once
RECORD_BYTES: Final = 100  # what a record has besides its payload, roughly
_BASE64_BYTES: Final = PIECE_BYTES // 4 * 3  # a multiple of three: the pieces need no padding

_encode: Final = msgspec.json.Encoder().encode


class LongRecord:
    """A record without its payload, and the payload that is put into its JSON piece by piece."""

    __slots__ = ("out", "payload")

    def __init__(self, out: RecordOut, payload: bytes) -> None:
        out.payload = out.payload_base64 = UNSET
        self.out = out
        self.payload = payload

    def pieces(self) -> Iterator[bytes]:
        """The record as JSON."""
        out, payload = self.out, self.payload
        if out.kind == "json":
            return _fill(out, "payload", cut(payload), quote=b"")
        if is_text(payload):
            return _fill(out, "payload", text_pieces(payload))
        return _fill(out, "payload_base64", base64_pieces(payload))


def _fill(
    out: RecordOut, field: str, value: Iterable[bytes], quote: bytes = b'"'
) -> Iterator[bytes]:
    """The record with this value in a field that is empty so far."""
    setattr(out, field, "")
    # No other text contains it: quotes inside of texts are escaped.
    before, _, after = _encode(out).partition(b'"%b":""' % field.encode())
    yield b'%b"%b":%b' % (before, field.encode(), quote)
    yield from value
    yield quote + after


def list_pieces(records: Iterable[RecordOut | LongRecord]) -> Iterator[bytes]:
    """The elements of a JSON list, with commas between them."""
    gathered: list[RecordOut] = []
    size = 0
    comma = b""
    for record in records:
        weight = 0 if isinstance(record, LongRecord) else _weight(record)
        if gathered and (not weight or size + weight > PIECE_BYTES):
            yield comma + _encode(gathered)[1:-1]
            comma = b","
            gathered, size = [], 0
        if isinstance(record, LongRecord):
            yield comma
            yield from record.pieces()
            comma = b","
        else:
            gathered.append(record)
            size += weight
    if gathered:
        yield comma + _encode(gathered)[1:-1]


def page_pieces(head: bytes, records: Iterable[RecordOut | LongRecord]) -> Iterator[bytes]:
    """`head`, which ends with the '[' of a list, the records, and the end of list and object."""
    yield head
    yield from list_pieces(records)
    yield b"]}"


def _weight(record: RecordOut) -> int:
    return RECORD_BYTES + _length(record.payload) + _length(record.payload_base64)


def _length(payload: Any) -> int:
    if isinstance(payload, msgspec.Raw):
        return memoryview(payload).nbytes
    return len(payload) if type(payload) is str else 0


def cut(data: bytes | memoryview) -> Iterator[bytes]:
    """The pieces of something that is sent as it is."""
    for at in range(0, len(data), PIECE_BYTES):
        yield bytes(data[at : at + PIECE_BYTES])


def is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_pieces(payload: bytes, errors: str = "strict") -> Iterator[bytes]:
    """Bytes as the inside of a JSON string."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    for at in range(0, len(payload), PIECE_BYTES):
        end = at + PIECE_BYTES
        yield _encode(decoder.decode(payload[at:end], end >= len(payload)))[1:-1]


def base64_pieces(payload: bytes) -> Iterator[bytes]:
    for at in range(0, len(payload), _BASE64_BYTES):
        yield base64.b64encode(payload[at : at + _BASE64_BYTES])
