"""The footer of a sealed segment: indexes of offsets, times and names, so that nothing is walked.

Layout: one entry per batch, the names of the segment in byte order with the batches each occurs
in, then a fixed trailer at the very end of the file that says where the footer begins.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from penstock.log.files.disk import File
from penstock.log.format.checksum import crc32c
from penstock.model.errors import CorruptError

TRAILER_MAGIC: Final = b"PENSFOOT"
TRAILER_BYTES: Final = 64
_ENTRY: Final = struct.Struct("<QQqqII")
_TRAILER: Final = struct.Struct("<8sHHIQQqqIII")


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """Where one batch lies and what it spans."""

    base_offset: int
    position: int
    first_timestamp: int
    last_timestamp: int
    count: int
    length: int


@dataclass(frozen=True, slots=True)
class Outline:
    """What a footer says of the batches; `position` is where they end and the footer begins.

    The broker keeps this much of a sealed segment. A segment may hold hundreds of thousands of
    names, so they are read only to look for a name.
    """

    position: int
    end_offset: int
    first_timestamp: int
    last_timestamp: int
    entries: list[BatchEntry]


@dataclass(frozen=True, slots=True)
class Footer:
    """All of it. `position` is where the batches end and the footer begins."""

    position: int
    end_offset: int
    first_timestamp: int
    last_timestamp: int
    entries: list[BatchEntry]
    names: list[bytes]  # sorted
    postings: list[array[int]]  # for each name, the numbers of the batches that hold it

    def batches_of(self, name: str) -> list[int]:
        """The batches that hold records of this name, ascending."""
        wanted = name.encode()
        at = bisect_left(self.names, wanted)
        if at == len(self.names) or self.names[at] != wanted:
            return []
        return self.postings[at].tolist()


def encode_footer(footer: Footer) -> bytes:
    """The bytes that follow the last batch, trailer included."""
    entries = b"".join(
        _ENTRY.pack(
            e.base_offset, e.position, e.first_timestamp, e.last_timestamp, e.count, e.length
        )
        for e in footer.entries
    )
    name_starts = array("I", accumulate(map(len, footer.names), initial=0))
    posting_starts = array("I", accumulate(map(len, footer.postings), initial=0))
    postings = array("I")
    for posting in footer.postings:
        postings.extend(posting)
    parts = [
        entries,
        name_starts.tobytes(),
        posting_starts.tobytes(),
        postings.tobytes(),
        b"".join(footer.names),
    ]
    body = b"".join(parts)
    trailer = _TRAILER.pack(
        TRAILER_MAGIC,
        1,
        0,
        len(footer.entries),
        footer.position,
        footer.end_offset,
        footer.first_timestamp,
        footer.last_timestamp,
        len(footer.names),
        len(postings),
        crc32c(body),
    )
    return body + trailer + struct.pack("<I", crc32c(trailer))


def read_outline(file: File, size: int) -> Outline:
    """The footer of a sealed segment without its names; CorruptError if any of it is damaged."""
    return _read_body(file, size)[0]


def read_footer(file: File, size: int) -> Footer:
    """The footer of a sealed segment of `size` bytes; CorruptError if it is damaged."""
    outline, body, name_count, posting_count = _read_body(file, size)
    at = len(outline.entries) * _ENTRY.size
    numbers = array("I", body[at : at + 4 * (2 * (name_count + 1) + posting_count)])
    name_starts = numbers[: name_count + 1]
    posting_starts = numbers[name_count + 1 : 2 * (name_count + 1)]
    postings = numbers[2 * (name_count + 1) :]
    text = body[at + 4 * len(numbers) :]
    return Footer(
        position=outline.position,
        end_offset=outline.end_offset,
        first_timestamp=outline.first_timestamp,
        last_timestamp=outline.last_timestamp,
        entries=outline.entries,
        names=[text[name_starts[i] : name_starts[i + 1]] for i in range(name_count)],
        postings=[postings[posting_starts[i] : posting_starts[i + 1]] for i in range(name_count)],
    )


def _read_body(file: File, size: int) -> tuple[Outline, bytes, int, int]:
    """(outline, all bytes before the trailer, how many names, how many postings), verified."""
    trailer = file.read(max(size - TRAILER_BYTES, 0), TRAILER_BYTES)
    if len(trailer) != TRAILER_BYTES or not trailer.startswith(TRAILER_MAGIC):
        raise CorruptError("the sealed segment has no trailer")
    fields = _TRAILER.unpack_from(trailer)
    (checksum,) = struct.unpack_from("<I", trailer, _TRAILER.size)
    if crc32c(trailer[: _TRAILER.size]) != checksum:
        raise CorruptError("the trailer does not match its checksum")
    (
        _,
        version,
        _,
        entry_count,
        position,
        end_offset,
        first,
        last,
        name_count,
        posting_count,
        crc,
    ) = fields
    if version != 1:
        raise CorruptError(f"footer of format version {version}: this Penstock reads version 1")
    body = file.read(position, size - TRAILER_BYTES - position)
    if crc32c(body) != crc:
        raise CorruptError("the footer does not match its checksum")
    entries = [BatchEntry(*_ENTRY.unpack_from(body, i * _ENTRY.size)) for i in range(entry_count)]
    outline = Outline(position, end_offset, first, last, entries)
    return outline, body, name_count, posting_count
