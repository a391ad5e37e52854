"""Marks: facts stored in a batch that take no offset, and the bytes of record headers.

A mark guards its record against being stored twice: both become durable in the
same write, so a duplicate filter can never disagree with the log.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import CorruptError
from penstock.model.record import Headers

_MARK: Final = struct.Struct("<BxHI")
_KEY: Final = struct.Struct("<H")
_VALUE: Final = struct.Struct("<I")
_FENCE: Final = struct.Struct(">I")

MARK_QOS2_OPENED: Final = 1  # key: incarnation, packet id
MARK_QOS2_RELEASED: Final = 2
MARK_IDEMPOTENCY_KEY: Final = 3
MARK_SPARK_BATCH: Final = 4  # key: query, batch
MARK_WILL: Final = 5  # key: will id
MARK_REDRIVE: Final = 6  # key: number of a redrive of dead letters
MARK_FENCE: Final = 7  # key: incarnation of a node whose marks are void from here on

NO_RECORD: Final = 0xFFFF_FFFF  # a mark that belongs to no record of its batch


@dataclass(frozen=True, slots=True)
class Mark:
    """`index` is the record of the batch it guards, or NO_RECORD."""

    kind: int
    key: bytes
    index: int = NO_RECORD


def fence_mark(incarnation: int) -> Mark:
    """Marked records of this incarnation that come later are void (core/fences.py)."""
    return Mark(MARK_FENCE, _FENCE.pack(incarnation))


def fenced_incarnation(mark: Mark) -> int:
    """Of whom a fence is."""
    if len(mark.key) != _FENCE.size:
        raise CorruptError(f"the mark of a fence has {len(mark.key)} bytes instead of 4")
    return int(_FENCE.unpack(mark.key)[0])


def encode_marks(marks: list[Mark]) -> bytes:
    """The marks section of a batch."""
    return b"".join(_MARK.pack(m.kind, len(m.key), m.index) + m.key for m in marks)


def decode_marks(data: bytes) -> list[Mark]:
    """The marks of a section; CorruptError if it does not end where a mark ends."""
    marks = []
    at = 0
    while at < len(data):
        if at + _MARK.size > len(data):
            raise CorruptError("marks section ends inside a mark")
        kind, length, index = _MARK.unpack_from(data, at)
        at += _MARK.size
        if at + length > len(data):
            raise CorruptError("marks section ends inside a key")
        marks.append(Mark(kind, data[at : at + length], index))
        at += length
    return marks


def encode_headers(headers: Headers) -> bytes:
    """The bytes of one record's headers; order and duplicates are kept."""
    parts = []
    for key, value in headers:
        key_bytes, value_bytes = key.encode(), value.encode()
        parts += [_KEY.pack(len(key_bytes)), key_bytes, _VALUE.pack(len(value_bytes)), value_bytes]
    return b"".join(parts)


def decode_headers(data: bytes) -> Headers:
    """The headers of one record."""
    headers = []
    at = 0
    try:
        while at < len(data):
            (length,) = _KEY.unpack_from(data, at)
            key = data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            (length,) = _VALUE.unpack_from(data, at)
            headers.append((key, data[at + 4 : at + 4 + length].decode()))
            at += 4 + length
    except (struct.error, UnicodeDecodeError) as broken:
        raise CorruptError(f"record headers are damaged: {broken}") from broken
    if at != len(data):
        raise CorruptError("record headers end inside a value")
    return tuple(headers)
