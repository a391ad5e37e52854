"""Reading a log's files from outside the broker: Spark tasks, verify, dump, export.

Synchronous, needs no lock, changes nothing, and never goes past the durable end that the broker
wrote down. A segment that is sealed or trimmed meanwhile is looked up again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

from penstock.log.batch import Batch
from penstock.log.endfile import End, read_end
from penstock.log.files import Disk
from penstock.log.interface import Bounds
from penstock.log.segment import (
    HEADER_BYTES,
    ChunkIndex,
    Segment,
    SegmentBody,
    StaleSegment,
    segment_bases,
    segment_path,
    unpack_segment_header,
    walk_headers,
)
from penstock.model.errors import CorruptError, Gap

T = TypeVar("T")


class RecordReader(Protocol):
    """A log as a Spark task sees it."""

    def bounds(self) -> Bounds: ...

    def read(self, offset: int) -> list[Batch]:
        """The batches from the one that holds `offset` on, about 1 MiB; empty at the end."""
        ...

    def offset_at(self, timestamp: int) -> int: ...


class FileReader:
    """Implements `RecordReader` on a log's directory."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._segments: dict[int, Segment] = {}  # closed or sealed, by base offset
        self._active: Segment | None = None

    def bounds(self) -> Bounds:
        return self._again_if_stale(self._bounds)

    def read(self, offset: int) -> list[Batch]:
        return self._again_if_stale(lambda: self._read(offset))

    def offset_at(self, timestamp: int) -> int:
        return self._again_if_stale(lambda: self._offset_at(timestamp))

    def batches(self, start: int, end: int) -> Iterator[Batch]:
        """All batches that hold records in [start, end)."""
        offset = start
        while offset < end:
            found = self.read(offset)
            if not found:
                return
            for batch in found:
                if batch.base_offset >= end:
                    return
                yield batch
            offset = max(offset, found[-1].end_offset)

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
        first = segments[0].base_offset
        if offset < first:
            raise Gap(f"offset {offset} is no longer kept: the first record is {first}")
        segment = segments[bisect_right(segments, offset, key=lambda s: s.base_offset) - 1]
        number = segment.body.index.find(offset)
        return [batch for batch in segment.read_chunk(number) if batch.end_offset > offset]

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
                f"{self._directory / 'end'} is missing or damaged: open a broker on the directory, "
                "it verifies the log and writes the file anew"
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
                for position, batch in walk_headers(file, end.position, body.length):
                    body.index.note(position, batch.base_offset, batch.base_timestamp)
                    body.last_timestamp = batch.last_timestamp
            except StaleSegment:
                raise
            except CorruptError as broken:
                raise CorruptError(f"{segment.path}: {broken}") from broken
            finally:
                file.close()
            body.length = end.position
            segment.end_offset = end.durable_end
        return segment
