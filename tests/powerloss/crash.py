"""Walks a trace from crash point to crash point and builds each distinct directory once."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .disk import Disk
from .loss import Policy
from .trace import SyncFilter, Trace


@dataclass(frozen=True, slots=True)
class Crash:
    """A power loss: when, with which policy, the directory it left, and what had been acked."""

    at: int
    policy: Policy
    directory: Path
    acked: bytes

    def acked_lines(self) -> list[str]:
        """Complete lines among the acks."""
        return self.acked.decode().split("\n")[:-1]

    def __str__(self) -> str:
        return f"crash point {self.at}, {self.policy}"


def crashes(
    trace: Trace,
    points: Iterable[int],
    policies: Sequence[Policy],
    workdir: Path,
    ignore: SyncFilter = lambda sync: False,
) -> Iterator[Crash]:
    """Each distinct (directory, acks) that these points and policies leave, in the order of time.

    The directory is the caller's to change until the next one is asked for; then it is removed.
    """
    disk = Disk(trace, ignore)
    seen: set[tuple[int, int]] = set()
    for at in sorted(set(points)):
        acked = trace.acked(at)
        for policy in policies:
            remains = disk.remains(at, policy)
            key = (remains.key(), len(acked))
            if key in seen:
                continue
            seen.add(key)
            with tempfile.TemporaryDirectory(prefix="crash-", dir=workdir) as folder:
                target = Path(folder, "data")
                remains.save(target)
                yield Crash(at, policy, target, acked)


def sampled_points(trace: Trace, count: int, seed: int) -> list[int]:
    """Both ends of the trace and a random choice between them, at most `count` in all."""
    everything = range(len(trace) + 1)
    if len(everything) <= count:
        return list(everything)
    inner = random.Random(seed).sample(everything[1:-1], max(count - 2, 0))
    return [0, *sorted(inner), len(trace)]
