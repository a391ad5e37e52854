"""With catalog and topics in PostgreSQL: does every acknowledgement hold, whoever dies?"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.mqtt.packets import Packet, Puback, Pubcomp, Pubrec
from tests.crash.mqtt_clients import Client
from tests.crash.test_mqtt_kill import DRAIN_S, SEED, Traffic
from tests.doors.served import Served
from tests.postgres_server import PostgresServer


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[tuple[Served, Traffic]]:
    schema = postgres.new_schema()
    variables = {
        "PENSTOCK_CATALOG__URL": postgres.url,
        "PENSTOCK_CATALOG__SCHEMA": schema,
        "PENSTOCK_LOG__BACKEND": "postgres",
    }
    broker = Served(tmp_path / "data", env=os.environ | variables)
    yield (
        broker,
        Traffic(broker, catalog_url=postgres.url, catalog_schema=schema, log_backend="postgres"),
    )


def test_killed_again_and_again_every_acknowledgement_holds(world: tuple[Served, Traffic]) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    _, traffic = world
    traffic.begin()
    kinds: list[type[Packet] | None] = [None, Puback, Pubrec, Pubcomp]
    for round_number in range(8):
        others = 2 if round_number % 6 == 5 else 0
        kind = kinds[round_number % 4]
        traffic.run(kind, chance.randint(1, 200), chance.uniform(0.05, 1.0), others)
        assert traffic.retained_problems() == []
    traffic.drain()
    assert traffic.problems() == []
    assert traffic.stored_problems() == []
    assert min(len(traffic.once.acked), len(traffic.least.acked)) > 100


def come_back(client: Client, port: int, is_over: threading.Event) -> None:
    """A client that connects again whenever it lost its connection, or was turned away."""
    while not is_over.is_set():
        client.run(port, lambda packet: None)
        time.sleep(0.01)


class Storm:
    """Clients that come back again and again while something breaks."""

    def __init__(self, broker: Served, traffic: Traffic) -> None:
        self._broker = broker
        self._traffic = traffic
        self._is_over = threading.Event()
        clients = [traffic.once, traffic.least, traffic.keeping, *traffic.online]
        self._threads = [
            threading.Thread(target=come_back, args=(one, broker.port, self._is_over), daemon=True)
            for one in clients
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop in order, come back, and let every reader have what is there."""
        self._is_over.set()
        self._broker.stop()
        for thread in self._threads:
            thread.join(DRAIN_S)
            assert not thread.is_alive()
        self._broker.start()
        assert self._traffic.retained_problems() == []
        self._traffic.drain()

    def problems(self) -> list[str]:
        """A message that is refused and sent again comes after its successors: order aside."""
        found = [one for one in self._traffic.problems() if "out of order" not in one]
        return found + self._traffic.stored_problems(in_order=False)


def test_connections_cut_again_and_again_lose_nothing_and_double_nothing(
    world: tuple[Served, Traffic], postgres: PostgresServer
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    broker, traffic = world
    traffic.begin()
    storm = Storm(broker, traffic)
    cuts = 0
    for _ in range(15):
        time.sleep(chance.uniform(0.02, 0.4))
        cuts += postgres.cut_connections()
    assert cuts > 15
    storm.end()
    assert storm.problems() == []
    assert min(len(traffic.once.acked), len(traffic.least.acked)) > 100


def test_a_server_that_crashes_again_and_again_loses_nothing_and_doubles_nothing(
    world: tuple[Served, Traffic], postgres: PostgresServer
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    broker, traffic = world
    traffic.begin()
    storm = Storm(broker, traffic)
    for _ in range(3):
        time.sleep(chance.uniform(0.2, 1.0))
        postgres.crash()
    acked = len(traffic.once.acked)
    deadline_s = time.monotonic() + DRAIN_S
    while len(traffic.once.acked) < acked + 50:  # it goes on by itself
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    storm.end()
    assert storm.problems() == []
