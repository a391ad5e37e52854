"""One segment file: a header, then batches that chain, then (sealed only) a footer.

A Segment knows offsets [base_offset, end_offset) and reads them in chunks: the batches that begin
in the same CHUNK_BYTES of the file. The chunk index is never the truth: it is rebuilt from the
batches. A Segment object describes one life of the file; when the file at its path has been
replaced (sealed) or removed (trimmed), reading raises StaleSegment and the caller looks the
offset up again.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.log.files.disk import Disk, File
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.checksum import crc32c
from penstock.log.format.footer import Footer, Outline, read_footer, read_outline
from penstock.model.errors import CorruptError, Gap
from penstock.model.limits import MIB

MAGIC: Final = b"PENSTOCK"
VERSION: Final = 1
HEADER_BYTES: Final = 64
_HEADER: Final = struct.Struct("<8sHHIQqQI16xI")
SEALED: Final = 1

CHUNK_BYTES: Final = 1 * MIB  # what one read brings in; shared by all readers of the region
SUFFIX: Final = ".log"


class StaleSegment(CorruptError):
    """The file was sealed or trimmed since this Segment was looked up; or somebody removed it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: the file was removed or replaced")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first bytes of a segment; its checksum starts the chain of its batches."""

    flags: int
    epoch: int
    base_offset: int
    created_at: int  # µs since 1970, UTC
    topic_id: int
    edition: int = 0  # how often records of it were erased

    def pack(self) -> bytes:
        head = _HEADER.pack(
            MAGIC, VERSION, self.flags, self.epoch, self.base_offset, self.created_at,
            self.topic_id, self.edition, 0,
        )[: HEADER_BYTES - 4]  # fmt: skip
        return head + struct.pack("<I", crc32c(head))

    @property
    def checksum(self) -> int:
        return int.from_bytes(self.pack()[-4:], "little")

    @property
    def is_sealed(self) -> bool:
        return self.flags & SEALED != 0


def unpack_segment_header(data: bytes) -> SegmentHeader | None:
    """The header, or None if the bytes are not a whole, intact one."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        return None
    fields = _HEADER.unpack_from(data)
    _, version, flags, epoch, base_offset, created_at, topic_id, edition, checksum = fields
    if crc32c(data[: HEADER_BYTES - 4]) != checksum:
        return None
    if version != VERSION:
        raise CorruptError(f"segment of format version {version}: this Penstock reads {VERSION}")
    return SegmentHeader(
        flags=flags,
        epoch=epoch,
        base_offset=base_offset,
        created_at=created_at,
        topic_id=topic_id,
        edition=edition,
    )


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{SUFFIX}"


def segment_bases(disk: Disk, directory: Path) -> list[int]:
    """Base offsets of the segment files in a log's directory, ascending."""
    stems = (name.removesuffix(SUFFIX) for name in disk.list(directory) if name.endswith(SUFFIX))
    return [int(stem) for stem in stems if len(stem) == 20 and stem.isdigit()]


class ChunkIndex:
    """For each chunk: its first batch's offset, file position and timestamp."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.positions: list[int] = []
        self.times: list[int] = []
        self.next_position = 0  # where the next chunk begins at the earliest

    def note(self, position: int, base_offset: int, timestamp: int) -> None:
        """Tell of the next batch; only the first one of a chunk is remembered."""
        if position >= self.next_position:
            self.next_position = (position // CHUNK_BYTES + 1) * CHUNK_BYTES
            self.offsets.append(base_offset)
            self.positions.append(position)
            self.times.append(timestamp)

    def find(self, offset: int) -> int:
        """The chunk that holds `offset`, if the segment does."""
        # Batches without records share their offset with the next one: take the last such chunk.
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def has_after(self, number: int) -> bool:
        """Whether a chunk follows this one, which then is complete."""
        return number + 1 < len(self.positions)


class SegmentBody:
    """What is learned by opening the file. `length` is where its committed batches end."""

    def __init__(
        self,
        header: SegmentHeader,
        index: ChunkIndex,
        length: int,
        last_timestamp: int,
    ) -> None:
        self.header = header
        self.index = index
        self.length = length
        self.last_timestamp = last_timestamp  # of its newest record; grows in an active segment


def sealed_body(header: SegmentHeader, outline: Outline) -> SegmentBody:
    """What a sealed segment's footer says of it."""
    index = ChunkIndex()
    for entry in outline.entries:
        index.note(entry.position, entry.base_offset, entry.first_timestamp)
    return SegmentBody(header, index, outline.position, outline.last_timestamp)


class Segment:
    """Reading side of a segment; opened when first needed, so opening a log stays cheap."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        base_offset: int,
        end_offset: int,
        body: SegmentBody | None = None,
    ) -> None:
        self.disk = disk
        self.path = path
        self.base_offset = base_offset
        self.end_offset = end_offset  # one past its last committed record
        self._body = body

    @property
    def is_loaded(self) -> bool:
        return self._body is not None

    @property
    def body(self) -> SegmentBody:
        """Headers and index. The first call of a closed, unsealed segment walks its batches."""
        if self._body is None:
            self._body = self._load()
        return self._body

    def read_chunk(self, number: int) -> list[Batch]:
        """The batches of a chunk, checksums verified."""
        body = self.body
        start = body.index.positions[number]
        has_after = body.index.has_after(number)
        return self.read_span(start, body.index.positions[number + 1] if has_after else body.length)

    def read_span(self, start: int, end: int) -> list[Batch]:
        """The batches between two positions of the file at which batches begin or end."""
        return decode_batches(self.read_bytes(start, end), start, self.path)

    def read_bytes(self, start: int, end: int) -> bytes:
        """What lies between two positions of the file this Segment describes."""
        file = self._open_same()
        try:
            data = file.read(start, end - start)
        finally:
            file.close()
        if len(data) < end - start:
            raise CorruptError(f"{self.path} ends at byte {start + len(data)}, not at {end}")
        return data

    def read_footer(self) -> Footer:
        """The indexes of a sealed segment, read anew at each call: its names may take megabytes."""
        file = self._open_same()
        try:
            return read_footer(file, file.size())
        except CorruptError as broken:
            raise CorruptError(f"{self.path}: {broken}") from broken
        finally:
            file.close()

    def _open_same(self) -> File:
        """The file, if it still is the one that this Segment describes."""
        file = self.open_file()
        if file.read(0, HEADER_BYTES) != self.body.header.pack():
            file.close()
            raise StaleSegment(self.path)
        return file

    def open_file(self) -> File:
        try:
            return self.disk.open(self.path, write=False)
        except FileNotFoundError:
            raise StaleSegment(self.path) from None

    def _load(self) -> SegmentBody:
        file = self.open_file()
        try:
            header = unpack_segment_header(file.read(0, HEADER_BYTES))
            if header is None or header.base_offset != self.base_offset:
                raise CorruptError("the segment header is damaged")
            if header.is_sealed:
                outline = read_outline(file, file.size())
                self._demand_end(outline.end_offset)
                return sealed_body(header, outline)
            index = ChunkIndex()
            length = file.size()
            last_timestamp = header.created_at
            checksum, offset = header.checksum, header.base_offset
            for position, batch in walk_headers(file, length):
                if batch.prev_checksum != checksum or batch.base_offset != offset:
                    raise CorruptError(f"the batch at byte {position} does not chain")
                checksum, offset = batch.checksum, batch.end_offset
                index.note(position, batch.base_offset, batch.base_timestamp)
                last_timestamp = batch.last_timestamp
            self._demand_end(offset)
            return SegmentBody(header, index, length, last_timestamp)
        except CorruptError as broken:
            raise CorruptError(f"{self.path}: {broken}") from broken
        finally:
            file.close()

    def _demand_end(self, found: int) -> None:
        if found < self.end_offset:
            raise CorruptError(f"records from {found} to {self.end_offset} are missing")


def newest_stamp(segments: list[Segment]) -> int:
    """When the newest record was stored; 0 if there is none. Blocking.

    A restored log begins a segment that is empty: its own stamp says nothing of a record.
    """
    for segment in reversed(segments):
        if segment.end_offset > segment.base_offset:
            return segment.body.last_timestamp
    return 0


def stamp_at(segments: Sequence[Segment], offset: int) -> int | None:
    """When the record at an offset was stored; None if these segments lack it. Blocking."""
    for segment in segments:
        if segment.base_offset <= offset < segment.end_offset:
            for batch in segment.read_chunk(segment.body.index.find(offset)):
                if offset < batch.end_offset:
                    return batch.timestamp(offset - batch.base_offset)
    return None


def segment_of(segments: list[Segment], offset: int) -> Segment:
    """The segment that holds `offset`, of all segments of a log in order; Gap if it is gone."""
    first = segments[0].base_offset
    if offset < first:
        raise Gap(f"offset {offset} is no longer kept: the first record is {first}")
    return segments[bisect_right(segments, offset, key=lambda s: s.base_offset) - 1]


def decode_batches(data: bytes | bytearray, file_position: int, path: Path | str) -> list[Batch]:
    """All batches in `data`, which was read at `file_position`; CorruptError names the place."""
    batches = []
    at = 0
    view = memoryview(data)
    try:
        while at < len(data):
            batch = decode_batch(view, at)
            batches.append(batch)
            at += batch.header.stored_length
    except CorruptError as broken:
        raise CorruptError(f"{path} at byte {file_position + at}: {broken}") from broken
    return batches


def walk_headers(
    file: File, length: int, position: int = HEADER_BYTES
) -> Iterator[tuple[int, fmt.BatchHeader]]:
    """(position, header) of each batch from `position` to `length`; reads CHUNK_BYTES at a time."""
    window = b""
    window_at = position
    while position < length:
        if position + fmt.HEADER_BYTES > window_at + len(window):
            window_at = position
            window = file.read(position, min(CHUNK_BYTES, length - position))
        header = fmt.unpack_header(window, position - window_at)
        if header is None:
            raise CorruptError(f"no intact batch header at byte {position}")
        yield position, header
        position += header.stored_length


def walk_chunks(file: File, length: int, index: ChunkIndex, position: int) -> int:
    """Index the batches from `position` to `length`; the newest stamp among them, or 0.

    Only for batches that are known to be committed: readers check the checksums later. So
    it costs a fraction of `walk_headers`, which counts where a segment has very many batches.
    """
    window = b""
    window_at = at = position
    chunk = index.positions[-1] // CHUNK_BYTES if index.positions else -1
    stamp = 0
    lengths = fmt.LENGTHS.unpack_from
    while at < length:
        if at + fmt.HEADER_BYTES > window_at + len(window):
            window_at = at
            window = file.read(at, min(CHUNK_BYTES, length - at))
            if len(window) < fmt.HEADER_BYTES:
                raise CorruptError(f"no batch at byte {at}")
        magic, columns_length, blob_length = lengths(window, at - window_at)
        if magic != fmt.MAGIC:
            raise CorruptError(f"no batch at byte {at}")
        following = at + fmt.HEADER_BYTES + columns_length + ((blob_length + 7) & ~7)
        if at // CHUNK_BYTES > chunk or following >= length:
            header = fmt.unpack_header(window, at - window_at)
            if header is None:
                raise CorruptError(f"no intact batch header at byte {at}")
            index.note(at, header.base_offset, header.base_timestamp)
            chunk = at // CHUNK_BYTES
            stamp = header.last_timestamp
        at = following
    return stamp
