"""Replays histories of a simulation from the command line, by their seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Trace = Callable[[str], None]


class History(Protocol):
    """One history: a seed decides all that happens in it."""

    def run_and_check(self) -> object: ...


def replay(make: Callable[[int, Trace | None], History], arguments: Sequence[str]) -> int:
    """SEED [SEED …] [-q]: each in turn, with all its steps unless it is to be quiet; exit code."""
    is_quiet = "-q" in arguments
    failed = 0
    for seed in (int(argument) for argument in arguments if argument != "-q"):
        try:
            make(seed, None if is_quiet else print).run_and_check()
        except Exception as broken:
            failed += 1
            print(f"seed {seed}: {type(broken).__name__}: {broken}")
            if not is_quiet:
                raise
        else:
            print(f"seed {seed}: every promise was kept")
    return 1 if failed else 0
