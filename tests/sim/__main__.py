"""Replay histories: `python -m tests.sim SEED [SEED …] [-q]`; prints every disk operation."""

from __future__ import annotations

import sys

from tests.sim.replay import replay
from tests.sim.world import SimulatedMachine

if __name__ == "__main__":
    sys.exit(replay(SimulatedMachine, sys.argv[1:]))
