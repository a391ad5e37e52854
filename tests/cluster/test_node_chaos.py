"""Nodes are killed one after the other: is all that was acknowledged there, once where it must be?

PENSTOCK_CHAOS_S says for how many seconds and PENSTOCK_CHAOS_EVERY_S how long after each other;
`make nightly` takes longer than a run of all tests.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.cluster.node_world import NodeWorld
from tests.cluster.traffic import Traffic
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer

CHAOS_S = float(os.environ.get("PENSTOCK_CHAOS_S", "300"))
EVERY_S = float(os.environ.get("PENSTOCK_CHAOS_EVERY_S", "20"))
SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
NODES = 3
DOWN_S_MAX = 3.0  # a killed node is started again at the latest then
AWAY_S_MAX = 60.0  # far above what is measured: a busy machine is no mistake of ours


@pytest.mark.timeout(CHAOS_S + 300)
def test_killed_nodes_lose_nothing_and_repeat_no_qos_2(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    chosen = random.Random(SEED)
    with (
        NodeWorld(kafka, postgres, tmp_path, count=NODES) as world,
        Traffic(world, "chaos", SEED, is_full=True) as traffic,
    ):
        until_s = time.monotonic() + CHAOS_S
        kills = 0
        while time.monotonic() < until_s:
            traffic.go_on()
            time.sleep(chosen.uniform(0, EVERY_S - DOWN_S_MAX))
            world[chosen.randrange(NODES)].kill()
            kills += 1
            time.sleep(chosen.uniform(0, DOWN_S_MAX))
            for node in world.nodes:
                node.revive()
        traffic.go_on()
        account = traffic.settle()
    print(f"{kills} kills in {CHAOS_S:.0f} s: {account}")
    assert account.away_s, "somebody lost its node"
    assert account.away_s[-1] < AWAY_S_MAX
