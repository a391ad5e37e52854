"""Replay histories: `python -m tests.sim SEED [SEED …] [-q]`; prints every disk operation."""

from __future__ import annotations

import sys

from tests.sim.world import SimulatedMachine


def main(arguments: list[str]) -> int:
    is_quiet = "-q" in arguments
    failed = 0
    for seed in (int(argument) for argument in arguments if argument != "-q"):
        try:
            SimulatedMachine(seed, None if is_quiet else print).run_and_check()
        except Exception as broken:
            failed += 1
            print(f"seed {seed}: {type(broken).__name__}: {broken}")
            if not is_quiet:
                raise
        else:
            print(f"seed {seed}: every promise was kept")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
