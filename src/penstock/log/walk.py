"""Walking over a log's files in the background, beside what reading caches and shares.

An async generator, which mypyc cannot compile: it lies beside the compiled log, not in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator
from functools import partial

from penstock.log.batch import Batch
from penstock.log.commit import Workers
from penstock.log.segment import Segment


async def walk_batches(
    segments: list[Segment], offset: int, workers: Workers
) -> AsyncIterator[Batch]:
    """All batches with records or marks from `offset` on, in order."""
    at = bisect_left(segments, offset, key=lambda segment: segment.base_offset)
    for segment in segments[max(at - 1, 0) :]:
        index = (await workers.run(lambda segment=segment: segment.body)).index  # type: ignore[misc]
        # Batches of marks only share their offset with the next one: begin with the first.
        first = max(bisect_left(index.offsets, offset) - 1, 0)
        for number in range(first, len(index.positions)):
            for batch in await workers.run(partial(segment.read_chunk, number)):
                is_marks = batch.header.count == 0 and batch.base_offset >= offset
                if batch.end_offset > offset or is_marks:
                    yield batch
