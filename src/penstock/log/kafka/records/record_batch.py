"""Kafka's record batches (magic 2) as bytes: one commit is one of them.

Writing: `Records` collects records, `seal` puts a header before them. Reading: `split` finds the
batches in what a fetch brought, `read_records` the records of one. A batch with a wrong checksum is
never read. Everything is big-endian; numbers of records are zigzag varints.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.log.format.checksum import crc32c
from penstock.log.kafka.records.compression import decompress
from penstock.model.errors import CorruptError

HEADER_BYTES: Final = 61
MAGIC: Final = 2
_HEAD: Final = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, checksum
_BODY: Final = struct.Struct(">hiqqqhii")  # what the checksum covers, before the records
_LENGTH_FROM: Final = 12  # the length counts from here
_CHECKED_FROM: Final = 21
_LENGTH: Final = struct.Struct(">8xi")

CODEC_MASK: Final = 0b111
TRANSACTIONAL: Final = 0b1_0000
CONTROL: Final = 0b10_0000  # of Kafka's own transactions: no records of anybody

NO_PRODUCER: Final = -1
SEQUENCE_MASK: Final = 0x7FFF_FFFF  # sequences are counted per record and begin again at 0


def varint(value: int) -> bytes:
    """A number of a record, zigzag; up to 64 bits."""
    left = value << 1 if value >= 0 else (-value << 1) - 1
    if left < 0x80:
        return _SHORT[left]
    out = bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


_SHORT: Final = [bytes([value]) for value in range(0x80)]


class Records:
    """Records on their way into one batch."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[bytes] = []

    def add(self, time_part: bytes, key_part: bytes, value: bytes | None, tail: bytes) -> None:
        """One record. `time_part`, `key_part` and `tail` are encoded: records often share them."""
        offset_part = varint(self.count)
        length_part = NULL if value is None else varint(len(value))
        size = len(time_part) + len(offset_part) + len(key_part) + len(length_part) + len(tail)
        parts = self._parts
        if value is None:
            parts += [varint(size), time_part, offset_part, key_part, length_part, tail]
        else:
            size += len(value)
            parts += [varint(size), time_part, offset_part, key_part, length_part, value, tail]
        self.count += 1

    def to_bytes(self) -> bytes:
        return b"".join(self._parts)


NULL: Final = varint(-1)  # the length of what is not there


def encode_time(delta_ms: int) -> bytes:
    """The beginning of a record: its attributes, which nobody uses, and its time."""
    return b"\x00" + varint(delta_ms)


def encode_bytes(data: bytes | None) -> bytes:
    """Bytes with their length before them, or null."""
    return NULL if data is None else varint(len(data)) + data


def seal(
    records: Records, base_ms: int, max_ms: int, producer: tuple[int, int], sequence: int
) -> bytes:
    """The batch as it is sent: numbered by its producer (id, epoch), its offset still open."""
    times = base_ms, max_ms
    return seal_bytes(records.to_bytes(), records.count, times, producer, sequence)


def seal_bytes(
    stored: bytes,
    count: int,
    times_ms: tuple[int, int],
    producer: tuple[int, int],
    sequence: int,
    codec: int = 0,
) -> bytes:
    """As `seal`, for records that are encoded, and compressed with `codec`; first and last time."""
    producer_id, producer_epoch = producer
    base_ms, max_ms = times_ms
    body = _BODY.pack(
        codec, count - 1, base_ms, max_ms, producer_id, producer_epoch, sequence, count
    )
    body += stored
    length = len(body) + _CHECKED_FROM - _LENGTH_FROM
    return _HEAD.pack(0, length, -1, MAGIC, crc32c(body)) + body


class RecordBatch:
    """The header of a stored batch, and its records as they were stored."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.base_offset, _, self.leader_epoch, magic, checksum = _HEAD.unpack_from(data, start)
        if magic != MAGIC:
            raise CorruptError(
                f"a record batch at offset {self.base_offset} has format {magic}: Penstock reads "
                "format 2, which Kafka writes since version 0.11"
            )
        if crc32c(memoryview(data)[start + _CHECKED_FROM : end]) != checksum:
            raise CorruptError(
                f"the record batch at offset {self.base_offset} does not match its checksum"
            )
        (
            self.attributes,
            last_delta,
            self.base_ms,
            self.max_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = _BODY.unpack_from(data, start + _CHECKED_FROM)
        self.end_offset = self.base_offset + last_delta + 1  # one past the last record
        self.stored = data[start + HEADER_BYTES : end]
        self.stored_length = end - start

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    def records(self) -> bytes:
        return decompress(self.stored, self.attributes & CODEC_MASK)


def split(data: bytes) -> list[RecordBatch]:
    """The whole batches in what a fetch brought; the last one is often cut short and left out."""
    found: list[RecordBatch] = []
    at = 0
    while at + HEADER_BYTES <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + _LENGTH_FROM + length
        if length < HEADER_BYTES - _LENGTH_FROM:
            raise CorruptError(f"a record batch says that it has {length} bytes")
        if end > len(data):
            break
        found.append(RecordBatch(data, at, end))
        at = end
    return found


class RecordColumns:
    """Where the parts of each record lie in the bytes of their batch; a length of -1 is null."""

    def __init__(self) -> None:
        self.offset_deltas: list[int] = []
        self.time_deltas: list[int] = []
        self.key_starts: list[int] = []
        self.key_lengths: list[int] = []
        self.value_starts: list[int] = []
        self.value_lengths: list[int] = []
        self.header_starts: list[int] = []  # of the number of headers
        self.header_ends: list[int] = []


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends. IndexError past the end."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise CorruptError("a number of a record has more than ten bytes")


def read_records(data: bytes, count: int) -> RecordColumns:
    """The records of a batch; CorruptError unless they are exactly these bytes."""
    columns = RecordColumns()
    at = 0
    try:
        for _ in range(count):
            length, at = read_varint(data, at)
            end = at + length
            if length < 0 or end > len(data):
                raise CorruptError("a record ends after its batch")
            time_delta, at = read_varint(data, at + 1)
            offset_delta, at = read_varint(data, at)
            key_length, at = read_varint(data, at)
            columns.key_starts.append(at)
            columns.key_lengths.append(key_length)
            if key_length > 0:
                at += key_length
            value_length, at = read_varint(data, at)
            columns.value_starts.append(at)
            columns.value_lengths.append(value_length)
            if value_length > 0:
                at += value_length
            if at >= end or key_length < -1 or value_length < -1:
                raise CorruptError("a record ends inside a part of it")
            columns.offset_deltas.append(offset_delta)
            columns.time_deltas.append(time_delta)
            columns.header_starts.append(at)
            columns.header_ends.append(end)
            at = end
    except IndexError:
        raise CorruptError("a record batch ends inside a record") from None
    if at != len(data):
        raise CorruptError("a record batch has bytes after its last record")
    return columns


def encode_record_headers(headers: list[tuple[bytes, bytes | None]]) -> bytes:
    """The end of a record: its headers, in order."""
    parts = [varint(len(headers))]
    for key, value in headers:
        parts += [encode_bytes(key), encode_bytes(value)]
    return b"".join(parts)


def read_record_headers(section: bytes) -> list[tuple[bytes, bytes | None]]:
    """The headers of one record; CorruptError unless they are exactly these bytes."""
    headers: list[tuple[bytes, bytes | None]] = []
    try:
        count, at = read_varint(section, 0)
        for _ in range(count):
            length, at = read_varint(section, at)
            if length < 0:
                raise CorruptError("a header of a record has no key")
            key = section[at : at + length]
            at += length
            length, at = read_varint(section, at)
            headers.append((key, None if length < 0 else section[at : at + length]))
            at += max(length, 0)
    except IndexError:
        raise CorruptError("a record ends inside its headers") from None
    if at != len(section):
        raise CorruptError("the headers of a record do not end with it")
    return headers
