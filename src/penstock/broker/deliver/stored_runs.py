"""Stored batches as runs again, for sessions that go on from the log."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.delivery.run import Run
from penstock.log.format.batch import Batch
from penstock.model.timeline import Timeline


def stored_runs(
    batch: Batch, start_offset: int, clock: Timeline, wanted: set[int] | None = None
) -> Iterator[tuple[int, Run]]:
    """(offset of its first message, run) of the records from `start_offset` on.

    Neighbours that are alike share a run. With `wanted` only records whose name has one of these
    numbers in the batch's dictionary.
    """
    h = batch.header
    first = max(start_offset - h.base_offset, 0)
    if first >= h.count:
        return
    plan = batch.plan
    ids = batch.u32(plan.names, h.count) if plan.names >= 0 else None
    if wanted is None or ids is None:
        picked = list(range(first, h.count))
    else:
        picked = [at for at in range(first, h.count) if ids[at] in wanted]
    at = 0
    while at < len(picked):
        run = _run(batch, picked, at, clock)
        yield h.base_offset + picked[at], run
        at += run.count


def stored_run(batch: Batch, offset: int, clock: Timeline) -> Run:
    """The record at an offset of the batch, as a run of one."""
    assert batch.base_offset <= offset < batch.end_offset
    return _run(batch, [offset - batch.base_offset], 0, clock)


def _run(batch: Batch, picked: list[int], at: int, clock: Timeline) -> Run:
    """The longest run of neighbours in `picked` from position `at` on that are alike."""
    first = picked[at]
    kind = _kind(batch, first)
    end = at + 1
    while (
        end < len(picked)
        and picked[end] == picked[end - 1] + 1
        and _kind(batch, picked[end]) == kind
    ):
        end += 1
    plan = batch.plan
    count = end - at
    if plan.lengths < 0:
        bounds = batch.u32(plan.starts + 4 * first, count + 1).tolist()
        starts = bounds[:-1]
        lengths = [bounds[i + 1] - bounds[i] for i in range(count)]
    else:
        starts = batch.u32(plan.starts + 4 * first, count).tolist()
        lengths = batch.u32(plan.lengths + 4 * first, count).tolist()
    low = min(starts)
    high = max(start + length for start, length in zip(starts, lengths, strict=True))
    flags = batch.flags(first, first + 1)[0]
    run = Run(
        batch.names(first, first + 1)[0],
        bytes(batch.blob[low:high]),
        [start - low for start in starts],
        lengths,
        flags,
    )
    run.headers = batch.record_headers(first, first + 1)[0]
    expires_at = batch.expiries(first, first + 1)[0]
    if expires_at:
        run.until_us = clock.until_us(batch.timestamp(first), expires_at)
    run.publisher = batch.publishers(first, first + 1)[0]
    return run


def _kind(batch: Batch, index: int) -> tuple[object, ...]:
    """What neighbours must share to be one run; columns that are constant need no look."""
    plan = batch.plan
    return (
        batch.u32(plan.names + 4 * index, 1)[0] if plan.names >= 0 else 0,
        batch.columns[plan.flags + index] if plan.flags >= 0 else 0,
        batch.u32(plan.publishers + 4 * index, 1)[0] if plan.publishers >= 0 else 0,
        batch.expiries(index, index + 1)[0] if plan.expires >= 0 else 0,
        batch.record_headers(index, index + 1)[0] if plan.header_starts >= 0 else (),
    )
