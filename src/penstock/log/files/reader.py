"""Reading a log's files from outside the broker: Spark tasks, verify, dump, export.

Synchronous, needs no lock, changes nothing, and never goes past the durable end that the broker
wrote down. A segment that is sealed or trimmed meanwhile is looked up again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from penstock.log.files.disk import Disk
from penstock.log.files.endfile import End, read_end
from penstock.log.files.segment import (
    CHUNK_BYTES,
    HEADER_BYTES,
    ChunkIndex,
    Segment,
    SegmentBody,
    StaleSegment,
    segment_bases,
    segment_of,
    segment_path,
    unpack_segment_header,
    walk_chunks,
)
from penstock.log.format.batch import Batch
from penstock.log.format.footer import BatchEntry
from penstock.log.interface import Bounds
from penstock.model.errors import CorruptError

T = TypeVar("T")
RAW: Final = 4  # chunks that `read_raw` brings in at once
Wants = Callable[[str], bool]  # whether a reader is interested in a name


class RecordReader(Protocol):
    """A log as a Spark task sees it."""

    def bounds(self) -> Bounds: ...

    def read(self, offset: int) -> list[Batch]:
        """The batches from the one that holds `offset` on, about 1 MiB; empty at the end."""
        ...

    def offset_at(self, timestamp: int) -> int: ...


class _Wanted(NamedTuple):
    """Which batches of a sealed segment hold a name that a reader wants."""

    segment: Segment | None
    wants: Wants | None
    entries: list[BatchEntry]  # all of them
    numbers: set[int]  # of those that do


class FileReader:
    """Implements `RecordReader` on a log's directory."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._segments: dict[int, Segment] = {}  # closed or sealed, by base offset
        self._active: Segment | None = None
        self._wanted = _Wanted(None, None, [], set())

    def bounds(self) -> Bounds:
        return self._again_if_stale(self._bounds)

    def read(self, offset: int) -> list[Batch]:
        return self._again_if_stale(lambda: self._read(offset))

    def offset_at(self, timestamp: int) -> int:
        return self._again_if_stale(lambda: self._offset_at(timestamp))

    def epoch(self) -> int:
        """Which life of the log this is."""
        return self._again_if_stale(lambda: self._look()[1].epoch)

    def clamp(self, epoch: int, offset: int) -> int:
        """Where a position of `epoch` stands now: records lost since then move it back."""
        return self._again_if_stale(lambda: self._clamp(epoch, offset))

    def batches(self, start: int, end: int, wants: Wants | None = None) -> Iterator[Batch]:
        """The batches that hold records in [start, end), or wanted ones, as far as indexes tell."""
        offset = start
        while offset < end:
            found, reached = self.read_on(offset, end, wants)
            yield from found
            if reached == offset:
                return
            offset = reached

    def read_on(self, offset: int, end: int, wants: Wants | None) -> tuple[list[Batch], int]:
        """As `batches`, about 1 MiB, and where to go on: at `offset` when nothing is left."""
        return self._again_if_stale(partial(self._read_on, offset, end, wants))

    def read_raw(self, offset: int, end: int) -> tuple[bytes, int]:
        """The very bytes of the batches from the one that holds `offset` on, and where to go on.

        About 4 MiB; empty at the end, and where batches are sealed, which `read_on` reads better.
        """
        return self._again_if_stale(partial(self._read_raw, offset, end))

    def cuts(self, start: int, end: int, count: int) -> list[int]:
        """Where to cut [start, end) into `count` pieces: at the beginning of a batch, if near."""
        return self._again_if_stale(lambda: self._cuts(start, end, count))

    def stored_bytes(self, start: int, end: int) -> int:
        """About how much of the files [start, end) takes."""
        return self._again_if_stale(lambda: self._stored_bytes(start, end))

    def _again_if_stale(self, work: Callable[[], T]) -> T:
        for _ in range(2):  # it may have been sealed, and then trimmed
            try:
                return work()
            except StaleSegment:
                self._segments.clear()
                self._active = None
        return work()

    def _bounds(self) -> Bounds:
        segments, end = self._look()
        return Bounds(segments[0].base_offset, end.durable_end)

    def _read(self, offset: int) -> list[Batch]:
        segments, end = self._look()
        if offset >= end.durable_end:
            return []
        segment = segment_of(segments, offset)
        number = segment.body.index.find(offset)
        return [batch for batch in segment.read_chunk(number) if batch.end_offset > offset]

    def _read_on(self, offset: int, end: int, wants: Wants | None) -> tuple[list[Batch], int]:
        """The next batches below `end`, about 1 MiB, and where to go on; there at the end."""
        if wants is not None:
            segments, durable = self._look()
            if offset >= durable.durable_end:
                return [], offset
            segment = segment_of(segments, offset)
            if segment.body.header.is_sealed:
                return self._read_indexed(segment, offset, end, wants)
        found = self._read(offset)
        reached = found[-1].end_offset if found else offset
        return [batch for batch in found if batch.base_offset < end], max(offset, reached)

    def _read_raw(self, offset: int, end: int) -> tuple[bytes, int]:
        segments, durable = self._look()
        if offset >= min(end, durable.durable_end):
            return b"", offset
        segment = segment_of(segments, offset)
        body = segment.body
        if body.header.is_sealed:
            return b"", offset
        index = body.index
        first = index.find(offset)
        last = first + 1
        while last < len(index.positions) and index.offsets[last] < end and last < first + RAW:
            last += 1
        if last < len(index.positions):
            return segment.read_bytes(index.positions[first], index.positions[last]), (
                index.offsets[last]
            )
        return segment.read_bytes(index.positions[first], body.length), segment.end_offset

    def _read_indexed(
        self, segment: Segment, offset: int, end: int, wants: Wants
    ) -> tuple[list[Batch], int]:
        """As `_read_on`, in a sealed segment: batches without a wanted name are not read."""
        found = self._wanted_batches(segment, wants)
        entries, wanted = found.entries, found.numbers
        first = bisect_right(entries, offset, key=lambda entry: entry.base_offset) - 1
        last = bisect_left(entries, end, key=lambda entry: entry.base_offset)
        number = next((n for n in range(max(first, 0), last) if n in wanted), last)
        if number == last:
            return [], min(end, segment.end_offset)
        start = entries[number].position
        stop = start
        while number < last and number in wanted and stop - start < CHUNK_BYTES:
            stop = entries[number].position + entries[number].length
            offset = entries[number].base_offset + entries[number].count
            number += 1
        return segment.read_span(start, stop), offset

    def _wanted_batches(self, segment: Segment, wants: Wants) -> _Wanted:
        """The batches that hold a wanted name; remembered for the newest asker."""
        if self._wanted[:2] != (segment, wants):
            footer = segment.read_footer()
            pairs = zip(footer.names, footer.postings, strict=True)
            numbers = {n for name, posting in pairs if wants(name.decode()) for n in posting}
            self._wanted = _Wanted(segment, wants, footer.entries, numbers)
        return self._wanted

    def _clamp(self, epoch: int, offset: int) -> int:
        segments, end = self._look()
        if epoch < end.epoch:
            for segment in segments:
                if segment.base_offset >= offset:
                    break
                if segment.body.header.epoch > epoch:
                    return segment.base_offset
        return min(offset, end.durable_end)

    def _cuts(self, start: int, end: int, count: int) -> list[int]:
        segments, _ = self._look()
        cuts: list[int] = []
        before = start
        for number in range(1, count):
            cut = start + (end - start) * number // count
            index = segment_of(segments, cut).body.index
            near = index.offsets[index.find(cut)] if index.offsets else cut
            if before < near and cut - near <= (end - start) // (2 * count):
                cut = near
            if cut > before:
                cuts.append(cut)
                before = cut
        return cuts

    def _stored_bytes(self, start: int, end: int) -> int:
        segments, durable = self._look()
        total = 0
        for segment in segments:
            ends = min(segment.end_offset, durable.durable_end)
            shared = min(ends, end) - max(segment.base_offset, start)
            if shared > 0:
                total += _size(segment) * shared // (ends - segment.base_offset)
        return total

    def _offset_at(self, timestamp: int) -> int:
        segments, end = self._look()
        at = bisect_right(segments, timestamp - 1, key=lambda s: s.body.last_timestamp)
        if at == len(segments):
            return end.durable_end
        segment = segments[at]
        index = segment.body.index
        for number in range(max(bisect_right(index.times, timestamp - 1) - 1, 0), len(index.times)):
            for batch in segment.read_chunk(number):
                if batch.header.count and batch.header.last_timestamp >= timestamp:
                    return batch.base_offset + batch.index_at(timestamp)
        return end.durable_end

    def _look(self) -> tuple[list[Segment], End]:
        """The segments as they are now, and how far they are durable."""
        end = read_end(self._disk, self._directory)
        if end is None:
            raise CorruptError(
                f"{self._directory / 'end'} is missing or damaged: start a broker on the "
                "directory once; it verifies the log and writes the file again"
            )
        bases = segment_bases(self._disk, self._directory)
        bases = [base for base in bases if base <= end.segment_base]
        if not bases or bases[-1] != end.segment_base:
            raise StaleSegment(segment_path(self._directory, end.segment_base))
        closed = [self._closed(base, following) for base, following in pairwise(bases)]
        self._segments = {segment.base_offset: segment for segment in closed}
        return [*closed, self._newest(end)], end

    def _closed(self, base: int, end_offset: int) -> Segment:
        known = self._segments.get(base)
        if known is not None:
            return known
        return Segment(self._disk, segment_path(self._directory, base), base, end_offset)

    def _newest(self, end: End) -> Segment:
        """The active segment, walked on from where it was last seen."""
        segment = self._active
        if segment is None or segment.base_offset != end.segment_base:
            path = segment_path(self._directory, end.segment_base)
            segment = Segment(self._disk, path, end.segment_base, end.durable_end)
            file = segment.open_file()
            header = unpack_segment_header(file.read(0, HEADER_BYTES))
            file.close()
            if header is None:
                raise CorruptError(f"{path}: the segment header is damaged")
            if not header.is_sealed:
                body = SegmentBody(header, ChunkIndex(), HEADER_BYTES, header.created_at)
                segment = Segment(self._disk, path, end.segment_base, end.durable_end, body)
            self._active = segment
        body = segment.body
        if body.length < end.position and not body.header.is_sealed:
            file = segment.open_file()
            try:
                if file.read(0, HEADER_BYTES) != body.header.pack():
                    raise StaleSegment(segment.path)
                stamp = walk_chunks(file, end.position, body.index, body.length)
                body.last_timestamp = max(body.last_timestamp, stamp)
            except StaleSegment:
                raise
            except CorruptError as broken:
                raise CorruptError(f"{segment.path}: {broken}") from broken
            finally:
                file.close()
            body.length = end.position
            segment.end_offset = end.durable_end
        return segment


def _size(segment: Segment) -> int:
    if segment.is_loaded:
        return segment.body.length
    file = segment.open_file()
    try:
        return file.size()
    finally:
        file.close()
