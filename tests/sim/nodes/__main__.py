"""Replay histories of nodes: `python -m tests.sim.nodes SEED [SEED …] [-q]`."""

from __future__ import annotations

import sys

from tests.sim.nodes.world import SimulatedCluster
from tests.sim.replay import replay

if __name__ == "__main__":
    sys.exit(replay(SimulatedCluster, sys.argv[1:]))
