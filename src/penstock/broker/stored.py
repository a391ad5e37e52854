"""Stored batches as runs again, for sessions that go on from the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from penstock.broker.runs import Run
from penstock.log import format as fmt
from penstock.log.batch import Batch


def stored_runs(batch: Batch, start_offset: int) -> Iterator[tuple[int, Run]]:
    """(offset of its first message, run) from `start_offset` on; records alike share a run."""
    h = batch.header
    first = max(start_offset - h.base_offset, 0)
    if first >= h.count:
        return
    plan = batch.plan
    data = bytes(batch.blob)
    starts = batch.u32(plan.starts, h.count + (plan.lengths < 0)).tolist()
    if plan.lengths < 0:
        lengths = [starts[i + 1] - starts[i] for i in range(h.count)]
    else:
        lengths = batch.u32(plan.lengths, h.count).tolist()
    names = batch.names(first, h.count)
    flags = batch.flags(first, h.count)
    headers = batch.record_headers(first, h.count)
    expiries = batch.expiries(first, h.count)
    publishers = batch.publishers(first, h.count)
    kinds = zip(names, flags, headers, expiries, publishers, strict=True)
    at = first
    for (name, flag, header, expires_at, publisher), group in groupby(kinds):
        count = sum(1 for _ in group)
        run = Run(
            name,
            data,
            starts[at : at + count],
            lengths[at : at + count],
            flag & fmt.QOS_MASK,
            flag & fmt.RETAIN != 0,
        )
        run.headers = header
        run.expires_at = expires_at or 0
        run.publisher = publisher
        run.kind = flag >> fmt.KIND_SHIFT & fmt.KIND_MASK
        yield h.base_offset + at, run
        at += count
