"""The power-loss laboratory: record what a real program does, then lose the power at any point."""

from __future__ import annotations

from .crash import Crash, crashes, sampled_points
from .disk import Disk, Remains
from .loss import DROP_ALL, KEEP_ALL, Policy, RandomLoss, all_policies
from .run import ProgramFailed, Recording, build_shim, run_traced
from .trace import SyncBegin, Trace, TraceError, ignoring, read_trace

__all__ = [
    "DROP_ALL",
    "KEEP_ALL",
    "Crash",
    "Disk",
    "Policy",
    "ProgramFailed",
    "RandomLoss",
    "Recording",
    "Remains",
    "SyncBegin",
    "Trace",
    "TraceError",
    "all_policies",
    "build_shim",
    "crashes",
    "ignoring",
    "read_trace",
    "run_traced",
    "sampled_points",
]
