"""Logs that several nodes write to: the fences in them, and what a dead node stored before its own.

The rule is in `core/fences.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.log.format.batch import Batch
from penstock.log.format.marks import MARK_FENCE, fenced_incarnation
from penstock.log.interface import SharedLog


def fences_in(batch: Batch) -> list[tuple[int, int]]:
    """The incarnations that a batch of a node fences, each with the offset from which on."""
    if not batch.header.marks_length:
        return []
    offset = batch.base_offset + batch.header.count  # marks of no record are behind the messages
    fences = [mark for mark in batch.marks() if mark.kind == MARK_FENCE]
    return [(fenced_incarnation(mark), offset) for mark in fences]


async def find_fence(log: SharedLog, level: int, incarnation: int) -> None:
    """Let a log know the fence of a dead node, if there is one between `level` and its end."""
    async for batch in log.batches_since(level):
        for fenced, offset in fences_in(batch):
            if fenced == incarnation:
                log.learn_fences({incarnation: offset})
                return


async def fence_dead(
    log: SharedLog, level: int, incarnation: int, take: Callable[[Batch], None]
) -> int:
    """Fence a dead node, and take the batches with marks, of all nodes, from `level` on.

    Those of others count, too: a session of the dead node may have been elsewhere meanwhile.

    The offset of its first fence is returned, and known to the log. Another node may have written
    that, and died, before the log was opened here: then the search finds it.
    """
    fence = await log.append_fence(incarnation)
    async for batch in log.batches_since(level):
        if batch.base_offset > fence:
            break
        if batch.incarnation and batch.header.marks_length:
            take(batch)
        for fenced, offset in fences_in(batch):
            if fenced == incarnation:
                fence = min(fence, offset)
    log.learn_fences({incarnation: fence})
    return fence
