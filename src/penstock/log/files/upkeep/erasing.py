"""Erasing records of one closed segment: it is rewritten into its sealed form without them.

As in sealing, the new file is complete and synced before it takes the place of the old one. Its
header has another edition, so whoever had the old file open notices that it was replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from penstock.core.erasure import Erasure
from penstock.log.erasing import erase, find
from penstock.log.files.segment import Segment
from penstock.log.files.upkeep.seal import SEALING, write_sealed
from penstock.log.format.batch import Batch


def count_erasable(segment: Segment, erasure: Erasure) -> int:
    """How many of its records there are to erase. Blocking."""
    return sum(len(find(batch, erasure)) for batch in _candidates(segment, erasure))


def _candidates(segment: Segment, erasure: Erasure) -> Iterator[Batch]:
    """The batches that may hold such records, as far as an index tells."""
    body = segment.body
    if not body.header.is_sealed:
        for number in range(len(body.index.positions)):
            yield from segment.read_chunk(number)
        return
    footer = segment.read_footer()
    pairs = zip(footer.names, footer.postings, strict=True)
    numbers = {n for name, found in pairs if erasure.has_name(name.decode()) for n in found}
    for number in sorted(numbers):
        entry = footer.entries[number]
        if entry.base_offset < erasure.end and erasure.is_before(entry.first_timestamp):
            yield from segment.read_span(entry.position, entry.position + entry.length)


def write_erased(segment: Segment, erasure: Erasure, suffix: str) -> Path:
    """Write the segment without these records next to it, complete and synced. Blocking."""
    return write_sealed(segment, suffix, partial(erase, erasure=erasure))


def adopt_erased(segment: Segment, temporary: Path) -> Segment:
    """Put the new file in the place of the old one; it is there for good on return. Blocking."""
    erased = Segment(segment.disk, temporary, segment.base_offset, segment.end_offset)
    body = erased.body  # its footer is whole and holds as many records, or nothing happens
    segment.disk.rename(temporary, segment.path)
    return Segment(segment.disk, segment.path, segment.base_offset, segment.end_offset, body)


def erase_segment(segment: Segment, erasure: Erasure) -> tuple[Segment, int]:
    """The segment without these records, in place of it on disk, and how many. Blocking."""
    count = count_erasable(segment, erasure)
    if count:
        segment = adopt_erased(segment, write_erased(segment, erasure, SEALING))
    return segment, count
