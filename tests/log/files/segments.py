"""Segment files of chosen batches, written as a broker writes them."""

from __future__ import annotations

from pathlib import Path

from penstock.log.files.active import create_segment
from penstock.log.files.disk import RealDisk
from penstock.log.files.segment import Segment, SegmentHeader
from penstock.log.format.batch import Batch
from tests.log.format.batch_model import ModelLog, RunPlan, T


def write_closed(
    directory: Path, header: SegmentHeader, batches: list[Batch], end_offset: int
) -> Segment:
    """A closed segment that holds these batches, chained anew."""
    active = create_segment(RealDisk(), directory, header, batches)
    active.finish()
    active.close_file()
    return Segment(RealDisk(), active.path, header.base_offset, end_offset)


def write_model(directory: Path, model: ModelLog, plans: list[list[RunPlan]]) -> Segment:
    """A closed segment with one batch for each list of runs, which the model takes note of."""
    header = SegmentHeader(0, 1, model.end, T, 1)
    batches = [model.batch(runs) for runs in plans]
    return write_closed(directory, header, batches, model.end)


def all_batches(segment: Segment) -> list[Batch]:
    numbers = range(len(segment.body.index.positions))
    return [batch for number in numbers for batch in segment.read_chunk(number)]


def plain_run(
    name: str,
    payloads: list[bytes],
    step_us: int = 0,
    *,
    publisher: str = "",
    mark_kinds: list[int] | None = None,
) -> RunPlan:
    return RunPlan(name, payloads, step_us, 1, False, 0, publisher, 0, (), None, mark_kinds or [])
