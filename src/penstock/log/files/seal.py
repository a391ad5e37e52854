"""Sealing: a closed segment is rewritten into large, compressed batches with an index behind them.

The new file is complete and synced before it takes the old one's name, so a crash leaves the one
or the other. Offsets, stamps, marks and every byte of the records stay as they were.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

from penstock.log.files.disk import File, SyncError
from penstock.log.files.segment import HEADER_BYTES, SEALED, Segment, SegmentHeader
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.builder import Columns, assemble
from penstock.log.format.footer import BatchEntry, Footer, encode_footer
from penstock.log.format.marks import NO_RECORD, Mark
from penstock.model.limits import MIB

SEALED_RECORDS: Final = 16_384  # of one batch: large enough to be read column by column
SEALED_BLOB_BYTES: Final = 4 * MIB  # or this much payload, whichever comes first
Change = Callable[[Batch], Batch]  # offsets and count stay
SEALING: Final = ".sealing"  # behind the name of what is being written


class _Gathering:
    """Records of several source batches on their way into one sealed batch."""

    def __init__(self) -> None:
        self.count = 0
        self.blob_length = 0
        self._lengths = array("I")
        self._times = array("q")
        self._names = array("I")
        self._publishers = array("I")
        self._expires = array("q")
        self._flags: list[bytes] = []
        self._headers: list[bytes] = []
        self._header_lengths = array("I")
        self._strings: dict[str, int] = {}
        self._marks: list[Mark] = []
        self._blobs: list[bytes] = []
        self._batch_stamp = 0  # of the newest source batch; stamps a batch without records

    @property
    def is_empty(self) -> bool:
        return self.count == 0 and not self._marks

    def add(self, batch: Batch, first: int, last: int) -> None:
        """Take records [first, last) of a source batch, each with the marks that guard it."""
        count = last - first
        plan = batch.plan
        for mark in batch.marks():
            if mark.index == NO_RECORD:
                if first == 0:
                    self._marks.append(mark)
            elif first <= mark.index < last:
                self._marks.append(Mark(mark.kind, mark.key, mark.index - first + self.count))
        self._batch_stamp = batch.header.last_timestamp
        if count == 0:
            return
        if plan.lengths < 0:
            bounds = batch.u32(plan.starts + 4 * first, count + 1).tolist()
            self._lengths.extend([b - a for a, b in pairwise(bounds)])
            blob = bytes(batch.blob[bounds[0] : bounds[-1]])
        else:
            payloads = batch.payloads(first, last)
            self._lengths.extend(map(len, payloads))
            blob = b"".join(payloads)
        self._blobs.append(blob)
        self.blob_length += len(blob)
        self._times.extend(batch.timestamps(first, last))
        self._add_strings(batch, first, last)
        self._flags.append(batch.flags(first, last))
        self._expires.extend([at or 0 for at in batch.expiries(first, last)])
        self._add_headers(batch, first, last)
        self.count += count

    def _add_strings(self, batch: Batch, first: int, last: int) -> None:
        count = last - first
        plan = batch.plan
        strings = self._strings
        ids = [strings.setdefault(string, len(strings)) for string in batch.strings]
        if plan.names < 0:
            self._names.extend(array("I", ids[:1]) * count)
        else:
            self._names.extend([ids[i] for i in batch.u32(plan.names + 4 * first, count)])
        if plan.publishers < 0:
            only = batch.header.publisher_id
            mapped = only if only == fmt.NO_STRING else ids[only]
            self._publishers.extend(array("I", [mapped]) * count)
        else:
            self._publishers.extend(
                [
                    i if i == fmt.NO_STRING else ids[i]
                    for i in batch.u32(plan.publishers + 4 * first, count)
                ]
            )

    def _add_headers(self, batch: Batch, first: int, last: int) -> None:
        plan = batch.plan
        if plan.header_starts < 0:
            self._header_lengths.extend(array("I", [0]) * (last - first))
            return
        at = plan.strings + batch.header.strings_length
        bounds = batch.u32(plan.header_starts + 4 * first, last - first + 1).tolist()
        self._header_lengths.extend([b - a for a, b in pairwise(bounds)])
        self._headers.append(bytes(batch.columns[at + bounds[0] : at + bounds[-1]]))

    def encode(self, epoch: int, base_offset: int, prev_checksum: int) -> Batch:
        columns = Columns()
        columns.count = self.count
        columns.strings = list(self._strings)
        columns.marks = self._marks
        columns.base_timestamp = self._times[0] if self._times else self._batch_stamp
        columns.last_timestamp = self._times[-1] if self._times else self._batch_stamp
        spread = columns.last_timestamp - columns.base_timestamp
        deltas = [at - columns.base_timestamp for at in self._times]
        if spread > 0xFFFF_FFFF:
            columns.wide_times = array("Q", deltas).tobytes()
        elif spread:
            columns.times = array("I", deltas).tobytes()
        columns.starts = array("I", accumulate(self._lengths, initial=0)).tobytes()
        if any(self._names):
            columns.names = self._names.tobytes()
        if len(set(self._publishers)) > 1:
            columns.publishers = self._publishers.tobytes()
        elif self._publishers:
            columns.publisher_id = self._publishers[0]
        flags = b"".join(self._flags)
        if len(set(flags)) > 1:
            columns.flags = flags
        elif flags:
            columns.record_flags = flags[0]
        if any(self._expires):
            columns.expires = self._expires.tobytes()
        if any(self._header_lengths):
            columns.headers = b"".join(self._headers)
            columns.header_starts = array(
                "I", accumulate(self._header_lengths, initial=0)
            ).tobytes()
        batch = assemble(columns, b"".join(self._blobs), epoch, base_offset, prev_checksum)
        batch.compress()
        return batch

    def names(self) -> set[str]:
        strings = list(self._strings)
        return {strings[i] for i in set(self._names)}


def _gather(segment: Segment, change: Change | None) -> Iterator[_Gathering]:
    gathering = _Gathering()
    for number in range(len(segment.body.index.positions)):
        for stored in segment.read_chunk(number):
            batch = stored if change is None else change(stored)
            first = 0
            while True:
                room = SEALED_RECORDS - gathering.count
                last = min(batch.header.count, first + room)
                gathering.add(batch, first, last)
                first = last
                if gathering.count >= SEALED_RECORDS or gathering.blob_length >= SEALED_BLOB_BYTES:
                    yield gathering
                    gathering = _Gathering()
                if first >= batch.header.count:
                    break
    if not gathering.is_empty:
        yield gathering


def seal_segment(segment: Segment) -> Segment:
    """The sealed form of a closed segment, in place of it on disk. Blocking."""
    return adopt_sealed(segment, write_sealed(segment, SEALING))


def write_sealed(segment: Segment, suffix: str, change: Change | None = None) -> Path:
    """Write the sealed form next to a closed segment, complete and synced; its path. Blocking.

    A `change` of its batches makes another edition of it.
    """
    old = segment.body.header
    edition = old.edition + (change is not None)
    header = SegmentHeader(
        SEALED, old.epoch, old.base_offset, old.created_at, old.topic_id, edition
    )
    temporary = segment.path.with_name(segment.path.name + suffix)
    file = segment.disk.open(temporary, create=True)
    try:
        _write_batches(file, _gather(segment, change), segment.end_offset, header)
        file.sync()
    except BaseException:
        file.close()
        segment.disk.remove(temporary)
        raise
    file.close()
    return temporary


def adopt_sealed(segment: Segment, temporary: Path) -> Segment:
    """Put the sealed form in the place of the closed one. Blocking."""
    sealed = Segment(segment.disk, temporary, segment.base_offset, segment.end_offset)
    body = sealed.body  # its footer is whole and holds as many records, or nothing happens
    segment.disk.rename(temporary, segment.path)
    # From here on the old Segment is stale, so nothing may fail.
    with suppress(SyncError):  # power loss may then bring the old file back: the same records
        segment.disk.sync_dir(segment.path.parent)
    return Segment(segment.disk, segment.path, segment.base_offset, segment.end_offset, body)


def _write_batches(
    file: File, gatherings: Iterable[_Gathering], end_offset: int, header: SegmentHeader
) -> None:
    file.write(0, [header.pack()])
    position = HEADER_BYTES
    checksum = header.checksum
    offset = header.base_offset
    entries: list[BatchEntry] = []
    postings: dict[bytes, array[int]] = {}
    for gathering in gatherings:
        batch = gathering.encode(header.epoch, offset, checksum)
        buffers = batch.to_bytes()
        file.write(position, buffers)
        for name in gathering.names():
            postings.setdefault(name.encode(), array("I")).append(len(entries))
        h = batch.header
        entries.append(
            BatchEntry(
                offset, position, h.base_timestamp, h.last_timestamp, h.count, h.stored_length
            )
        )
        position += h.stored_length
        offset += h.count
        checksum = h.checksum
    assert offset == end_offset, f"sealed {offset}, expected {end_offset}"
    names = sorted(postings)
    footer = Footer(
        position,
        offset,
        entries[0].first_timestamp if entries else header.created_at,
        entries[-1].last_timestamp if entries else header.created_at,
        entries,
        names,
        [postings[name] for name in names],
    )
    file.write(position, [encode_footer(footer)])
