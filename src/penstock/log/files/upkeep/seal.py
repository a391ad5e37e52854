"""Sealing: a closed segment is rewritten into large, compressed batches with an index behind them.

The new file is complete and synced before it takes the old one's name, so a crash leaves the one
or the other. Offsets, stamps, marks and every byte of the records stay as they were.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.log.files.disk import File, SyncError
from penstock.log.files.segment import HEADER_BYTES, SEALED, Segment, SegmentHeader
from penstock.log.format.batch import Batch
from penstock.log.format.footer import BatchEntry, Footer, encode_footer
from penstock.log.format.gathering import Gathering
from penstock.model.limits import MIB

SEALED_RECORDS: Final = 16_384  # of one batch: large enough to be read column by column
SEALED_BLOB_BYTES: Final = 4 * MIB  # or this much payload, whichever comes first
Change = Callable[[Batch], Batch]  # offsets and count stay
SEALING: Final = ".sealing"  # behind the name of what is being written


def _gather(segment: Segment, change: Change | None) -> Iterator[Gathering]:
    gathering = Gathering()
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
                    gathering = Gathering()
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
        flags=SEALED,
        epoch=old.epoch,
        base_offset=old.base_offset,
        created_at=old.created_at,
        topic_id=old.topic_id,
        edition=edition,
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
    file: File, gatherings: Iterable[Gathering], end_offset: int, header: SegmentHeader
) -> None:
    file.write(0, [header.pack()])
    position = HEADER_BYTES
    checksum = header.checksum
    offset = header.base_offset
    entries: list[BatchEntry] = []
    postings: dict[bytes, array[int]] = {}
    for gathering in gatherings:
        batch = gathering.encode(header.epoch, offset, checksum)
        batch.compress()
        buffers = batch.to_bytes()
        file.write(position, buffers)
        for name in gathering.names():
            postings.setdefault(name.encode(), array("I")).append(len(entries))
        h = batch.header
        entries.append(
            BatchEntry(
                base_offset=offset,
                position=position,
                first_timestamp=h.base_timestamp,
                last_timestamp=h.last_timestamp,
                count=h.count,
                length=h.stored_length,
            )
        )
        position += h.stored_length
        offset += h.count
        checksum = h.checksum
    assert offset == end_offset, f"sealed {offset}, expected {end_offset}"
    names = sorted(postings)
    footer = Footer(
        position=position,
        end_offset=offset,
        first_timestamp=entries[0].first_timestamp if entries else header.created_at,
        last_timestamp=entries[-1].last_timestamp if entries else header.created_at,
        entries=entries,
        names=names,
        postings=[postings[name] for name in names],
    )
    file.write(position, [encode_footer(footer)])
