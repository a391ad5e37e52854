"""Does a log in Kafka keep what every log promises? The contract suite, on a real Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cluster.kafka_world import open_kafka
from tests.kafka_server import KafkaServer
from tests.log.conftest import Bench
from tests.log.test_contract import *  # noqa: F403


@pytest.fixture
async def bench(kafka: KafkaServer) -> AsyncIterator[Bench]:
    async with open_kafka(kafka) as world:
        yield Bench(world.store, world.clock, is_durable=True, is_dense=False)
