"""One run of a pipeline job, as it is reported, kept and shown."""

from __future__ import annotations

from typing import Final

import msgspec

RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"  # by Ctrl-C, or its process is gone without a word


class ScheduledJob(msgspec.Struct):
    """A job that the broker starts by itself; `next_at` is µs since 1970, 0 while it runs."""

    name: str
    job: str
    arguments: list[str]
    every_s: float
    next_at: int = 0


class PipelineRun(msgspec.Struct, frozen=True):
    """Times are µs since 1970, UTC; `ended_at` is 0 while it runs."""

    run_id: str
    job: str
    arguments: list[str]
    state: str
    started_at: int
    updated_at: int
    ended_at: int = 0
    rows: int = 0
    batches: int = 0
    lag: int = 0
    offsets: dict[str, int] = {}
    error: str = ""
