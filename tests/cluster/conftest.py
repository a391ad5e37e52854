"""Tests with a real Kafka: `make test-cluster`. Nothing here runs with `make test`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_server import KafkaServer

LONGEST = "test_node_chaos.py"  # begins first: others run beside it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in item.path.parts:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """One broker for all tests."""
    server = KafkaServer()
    yield server
    server.stop()
