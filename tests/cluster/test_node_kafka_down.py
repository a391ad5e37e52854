"""What do nodes do while brokers of Kafka are down: one of three, or two of three?"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.node_world import NodeWorld
from tests.cluster.traffic import Traffic
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
BROKERS = 3


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaServer]:
    server = KafkaServer(BROKERS)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def world(
    three: KafkaServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeWorld]:
    folder: Path = tmp_path_factory.mktemp("nodes")
    with NodeWorld(three, postgres, folder, replication=BROKERS, partitions=BROKERS) as made:
        yield made


@pytest.mark.parametrize("down", [1, 2])
def test_nothing_acknowledged_is_lost_while_brokers_are_down(
    three: KafkaServer, world: NodeWorld, down: int
) -> None:
    print(f"seed {SEED}")
    with Traffic(world, f"down-{down}", SEED) as traffic:
        traffic.go_on()
        dead = random.Random(SEED).sample(three.brokers, down)
        for broker in dead:
            broker.kill()
        if down == 1:
            traffic.go_on()  # the others have everything, and take over
        for broker in dead:
            broker.start()
        for broker in dead:
            broker.wait_ready()
        traffic.go_on()
        print(f"{down} of {BROKERS} brokers down: {traffic.settle()}")
