"""A glance at the records of a batch: are they plain messages, and what are their names?

Most batches that a node follows have no reader here. So their records are walked once, without an
object for each of them, and decoded when somebody asks. What views follow (marks, fences, retained
messages) is never plain, so no batch with it stays undecoded.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from penstock.log.kafka.records.properties import (
    PLAIN_PARTS,
    VALUE_BYTES_MIN,
    VERSION,
    read_incarnation,
)
from penstock.model.errors import CorruptError
from penstock.model.record import RETAIN

_KEY_0: Final = 0x7E  # the key of the header: ~p
_KEY_1: Final = 0x70
_SHIFT_MAX: Final = 28


class Glance:
    """What was seen of the records of one batch."""

    def __init__(self) -> None:
        self.is_plain = False  # messages only, at offsets that follow each other
        self.is_foreign = False  # none of them was written by Penstock
        self.incarnation = 0  # of the node that wrote the first one
        self.keys: dict[bytes, int] = {}  # in the order of their first record; null is empty


def glance(data: bytes, count: int) -> Glance:
    """Walk the records of a batch; CorruptError unless they are exactly these bytes.

    The walk ends at the first record that is not plain.
    """
    seen = Glance()
    try:
        _walk(data, count, seen)
    except IndexError:
        raise CorruptError("a record batch ends inside a record") from None
    return seen


def _walk(data: bytes, count: int, seen: Glance) -> None:
    keys = seen.keys
    at: i64 = 0
    size: i64 = len(data)
    own: i64 = 0
    for index in range(count):
        delta, _, key_at, key_length, value_at, value_length, end = find_parts(data, at, size)
        if delta != index:
            return  # records between them were removed
        key = data[key_at : key_at + key_length] if key_length > 0 else b""
        if key not in keys:
            keys[key] = index
        at = value_at + value_length if value_length > 0 else value_at
        if data[at] or end > at + 1:
            value_at = _find_properties(data, at, end)
            if value_at < 0 or (value_at and key_length < 0):
                return
            if value_at and not own:
                seen.incarnation = read_incarnation(data, value_at)
            own += 1 if value_at else 0
        at = end
    if at != size:
        raise CorruptError("a record batch has bytes after its last record")
    seen.is_foreign = own == 0
    seen.is_plain = own == 0 or own == count


def find_parts(data: bytes, at: i64, size: i64) -> tuple[i64, i64, i64, i64, i64, i64, i64]:
    """Where the parts of the record at `at` lie: its offset delta, where its time delta begins,
    start and length of its key and of its value (-1: null), and where it ends.

    IndexError past the end of the data.
    """
    length: i64 = data[at]
    at += 1
    if length >= 0x80:
        length, at = read_number(data, at - 1)
    else:
        length = (length >> 1) ^ -(length & 1)
    end = at + length
    if length < 0 or end > size:
        raise CorruptError("a record ends after its batch")
    time_at = at + 1  # behind its attributes
    at += 2
    while data[at - 1] >= 0x80:
        at += 1
    delta: i64 = data[at]
    at += 1
    if delta >= 0x80:
        delta, at = read_number(data, at - 1)
    else:
        delta = (delta >> 1) ^ -(delta & 1)
    key_length: i64 = data[at]
    at += 1
    if key_length >= 0x80:
        key_length, at = read_number(data, at - 1)
    else:
        key_length = (key_length >> 1) ^ -(key_length & 1)
    key_at = at
    if key_length > 0:
        at += key_length
    value_length: i64 = data[at]
    at += 1
    if value_length >= 0x80:
        value_length, at = read_number(data, at - 1)
    else:
        value_length = (value_length >> 1) ^ -(value_length & 1)
    value_end = at + value_length if value_length > 0 else at
    if value_end >= end or key_length < -1 or value_length < -1:
        raise CorruptError("a record ends inside a part of it")
    return delta, time_at, key_at, key_length, at, value_length, end


def read_number(data: bytes, at: i64) -> tuple[i64, i64]:
    """A number of at most 32 bits, and where it ends. IndexError past the end."""
    byte: i64 = data[at]
    at += 1
    value: i64 = byte & 0x7F
    shift: i64 = 7
    while byte >= 0x80:
        if shift > _SHIFT_MAX:
            raise CorruptError("a length in a record has more than five bytes")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), at


def _find_properties(data: bytes, at: i64, end: i64) -> i64:
    """Where the value of `~p` is among the headers of a record; 0: none, -1: it is not plain."""
    found: i64 = 0
    left, at = read_number(data, at)
    while left > 0:
        length, at = read_number(data, at)
        if length < 0:
            raise CorruptError("a header of a record has no key")
        is_properties = length == 2 and data[at] == _KEY_0 and data[at + 1] == _KEY_1
        at += length
        length, at = read_number(data, at)
        if is_properties:
            if length < VALUE_BYTES_MIN or at + length > end or found:
                return -1
            if data[at] != VERSION or data[at + 1] & RETAIN or data[at + 2] & ~PLAIN_PARTS:
                return -1
            found = at
        if length > 0:
            at += length
        left -= 1
    if at != end:
        raise CorruptError("the headers of a record do not end with it")
    return found
