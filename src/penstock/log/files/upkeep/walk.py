"""Walking over a log's files in the background, without the caches of reading.

An async generator, which mypyc cannot compile: so it is a module next to the compiled log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator
from functools import partial

from penstock.log.files.commit import Workers
from penstock.log.files.segment import Segment
from penstock.log.files.upkeep.survey import Damage, body_of, is_damage
from penstock.log.format.batch import Batch
from penstock.model.errors import CorruptError


async def walk_batches(
    segments: list[Segment], offset: int, workers: Workers, damage: Damage
) -> AsyncIterator[Batch]:
    """All batches with records or marks from `offset` on, in order; damaged chunks left out."""
    at = bisect_left(segments, offset, key=lambda segment: segment.base_offset)
    for segment in segments[max(at - 1, 0) :]:
        try:
            index = (await body_of(segment, workers)).index
        except (CorruptError, OSError) as found:
            if not is_damage(found):
                raise
            damage.note(segment, found)
            continue
        # Batches of marks only share their offset with the next one: begin with the first.
        first = max(bisect_left(index.offsets, offset) - 1, 0)
        for number in range(first, len(index.positions)):
            try:
                batches = await workers.run(partial(segment.read_chunk, number))
            except (CorruptError, OSError) as found:
                if not is_damage(found):
                    raise
                damage.note(segment, found)
                continue
            for batch in batches:
                is_marks = batch.header.count == 0 and batch.base_offset >= offset
                if batch.end_offset > offset or is_marks:
                    yield batch
