"""The bytes of a batch: header, columns, blob (docs/FORMATS.md is the specification).

A batch is the unit of writing, checking and reading. Its header carries its own checksum and the
checksum of the header before it, so a log is a chain: whatever does not chain was never
committed. Column and blob checksums exclude the header, so a staged batch is placed at an offset
by writing a new header only. Everything is little-endian; columns are aligned so that Arrow can
map them.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.log.format.checksum import crc32c
from penstock.model.errors import CorruptError

Buffer = bytes | memoryview

MAGIC: Final = b"PSB1"
VERSION: Final = 1
HEADER_BYTES: Final = 96
_HEADER: Final = struct.Struct("<4sBBHIIQqqIIIIIIIIIIIB3xI")
_CHECKSUM: Final = struct.Struct("<I")
LENGTHS: Final = struct.Struct("<4s40xI4xI")  # of a header: magic, and what `stored_length` needs

COMPRESSION_NONE: Final = 0
COMPRESSION_LZ4: Final = 1

# Batch flags: which columns are stored; a column that is not stored is constant.
CONTIGUOUS: Final = 1  # payloads follow each other: starts has one more entry, no lengths
TIMES: Final = 2  # µs since base_timestamp, 32 bit
WIDE_TIMES: Final = 4  # the same in 64 bit, for batches that span more than 71 minutes
NAMES: Final = 8  # else every record has name 0
PUBLISHERS: Final = 16  # else every record has header.publisher_id
FLAGS: Final = 32  # else every record has header.record_flags
EXPIRES: Final = 64  # else no record expires
HEADERS: Final = 128  # else no record has headers
KNOWN_FLAGS: Final = 255

NO_STRING: Final = 0xFFFF_FFFF  # a publisher id that stands for "nobody"


class BatchHeader:
    """The fixed part of a batch. `base_offset` is the offset of its first record."""

    def __init__(
        self,
        compression: int,
        flags: int,
        prev_checksum: int,
        epoch: int,
        base_offset: int,
        base_timestamp: int,
        last_timestamp: int,
        count: int,
        columns_length: int,
        columns_checksum: int,
        blob_length: int,
        blob_checksum: int,
        blob_raw_length: int,
        string_count: int,
        strings_length: int,
        headers_length: int,
        marks_length: int,
        publisher_id: int,
        record_flags: int,
    ) -> None:
        self.compression = compression
        self.flags = flags
        self.prev_checksum = prev_checksum
        self.epoch = epoch
        self.base_offset = base_offset
        self.base_timestamp = base_timestamp
        self.last_timestamp = last_timestamp
        self.count = count
        self.columns_length = columns_length
        self.columns_checksum = columns_checksum
        self.blob_length = blob_length
        self.blob_checksum = blob_checksum
        self.blob_raw_length = blob_raw_length
        self.string_count = string_count
        self.strings_length = strings_length
        self.headers_length = headers_length
        self.marks_length = marks_length
        self.publisher_id = publisher_id
        self.record_flags = record_flags
        self.checksum = 0  # of this header; set by `pack_header` and `unpack_header`

    def take_contents(self, other: BatchHeader) -> None:
        """Become the header of the contents of another one, at the same place in a log."""
        self.flags = other.flags
        self.base_timestamp = other.base_timestamp
        self.last_timestamp = other.last_timestamp
        self.columns_length = other.columns_length
        self.columns_checksum = other.columns_checksum
        self.blob_length = other.blob_length
        self.blob_checksum = other.blob_checksum
        self.blob_raw_length = other.blob_raw_length
        self.string_count = other.string_count
        self.strings_length = other.strings_length
        self.headers_length = other.headers_length
        self.publisher_id = other.publisher_id
        self.record_flags = other.record_flags

    @property
    def end_offset(self) -> int:
        """One past the last record."""
        return self.base_offset + self.count

    @property
    def stored_length(self) -> int:
        """Bytes of the whole batch in a file, header and padding included."""
        return HEADER_BYTES + self.columns_length + (self.blob_length + 7 & ~7)


def padded(length: int) -> int:
    """The next multiple of eight: what follows stays aligned."""
    return (length + 7) & ~7


def pack_header(h: BatchHeader) -> bytes:
    """The header's bytes; also sets `h.checksum`, which the next batch chains to."""
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        h.compression,
        h.flags,
        h.prev_checksum,
        h.epoch,
        h.base_offset,
        h.base_timestamp,
        h.last_timestamp,
        h.count,
        h.columns_length,
        h.columns_checksum,
        h.blob_length,
        h.blob_checksum,
        h.blob_raw_length,
        h.string_count,
        h.strings_length,
        h.headers_length,
        h.marks_length,
        h.publisher_id,
        h.record_flags,
        0,
    )
    h.checksum = crc32c(head)
    return head + h.checksum.to_bytes(4, "little")


def unpack_header(data: Buffer, position: int) -> BatchHeader | None:
    """The header at `position`, or None if the bytes there are not a whole, intact header."""
    if len(data) - position < HEADER_BYTES or data[position : position + 4] != MAGIC:
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, position + HEADER_BYTES - 4)
    if crc32c(data[position : position + HEADER_BYTES - 4]) != checksum:
        return None
    fields = _HEADER.unpack_from(data, position)
    if fields[1] != VERSION:
        raise CorruptError(
            f"batch of format version {fields[1]}: this Penstock reads version {VERSION}; "
            "open the directory with the release that wrote it, or a newer one"
        )
    header = BatchHeader(*fields[2:-1])
    header.checksum = checksum
    return header


class ColumnPlan:
    """Where each stored column of a batch begins inside its column section; -1 means constant."""

    def __init__(self, flags: int, count: int, string_count: int) -> None:
        at = 0
        self.expires = self.wide_times = self.lengths = self.times = -1
        self.names = self.publishers = self.header_starts = self.flags = -1
        if flags & EXPIRES:
            self.expires = at
            at += 8 * count
        if flags & WIDE_TIMES:
            self.wide_times = at
            at += 8 * count
        self.starts = at
        if flags & CONTIGUOUS:
            at += 4 * (count + 1)
        else:
            self.lengths = at + 4 * count
            at += 8 * count
        if flags & TIMES:
            self.times = at
            at += 4 * count
        if flags & NAMES:
            self.names = at
            at += 4 * count
        if flags & PUBLISHERS:
            self.publishers = at
            at += 4 * count
        if flags & HEADERS:
            self.header_starts = at
            at += 4 * (count + 1)
        self.string_starts = at
        at += 4 * (string_count + 1)
        if flags & FLAGS:
            self.flags = at
            at += count
        self.strings = at


def check_geometry(h: BatchHeader, plan: ColumnPlan) -> str:
    """Why this header cannot describe a batch, or an empty text. Guards every later slice."""
    if h.flags & ~KNOWN_FLAGS:
        return f"unknown batch flags {h.flags:#x}"
    used = plan.strings + h.strings_length + h.headers_length + h.marks_length
    if padded(used) != h.columns_length:
        return f"columns take {padded(used)} bytes, the header says {h.columns_length}"
    if h.compression == COMPRESSION_NONE and h.blob_length != h.blob_raw_length:
        return "an uncompressed blob must have equal lengths"
    if h.compression > COMPRESSION_LZ4:
        return f"unknown compression {h.compression}"
    return ""
