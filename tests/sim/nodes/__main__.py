"""Replay histories of nodes: `python -m tests.sim.nodes SEED [SEED …] [-q]`."""

from __future__ import annotations

import sys

from tests.sim.nodes.world import SimulatedCluster


def main(arguments: list[str]) -> int:
    is_quiet = "-q" in arguments
    failed = 0
    for seed in (int(argument) for argument in arguments if argument != "-q"):
        try:
            SimulatedCluster(seed, None if is_quiet else print).run_and_check()
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
