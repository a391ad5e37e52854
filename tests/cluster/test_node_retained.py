"""Is the newest retained message the same at every node, whoever wrote it and whoever dies?"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from penstock.mqtt.packets import Suback
from penstock.mqtt.reasons import Reason
from tests.cluster.node_world import NodeWorld
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

NAMES = [f"state/{number}" for number in range(6)]


@pytest.fixture(scope="module")
def world(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeWorld]:
    with NodeWorld(kafka, postgres, tmp_path_factory.mktemp("retained")) as made:
        yield made


def test_who_subscribes_at_another_node_after_a_puback_receives_the_message(
    world: NodeWorld,
) -> None:
    writer, _ = world.connect(0, "writer", is_clean=True, expiry_s=0)
    reader, _ = world.connect(1, "reader", is_clean=True, expiry_s=0)
    for number in range(50):
        name = f"fresh/{number}"
        writer.publish(name, b"older", 1, retain=True)
        writer.publish(name, b"newest", 1, retain=True)
        reader.subscribe_later(name, 1)
        reader.pick(Suback)
        # As a retained message if the node has read that far, else as a new one; newest last.
        while reader.receive().payload != b"newest":
            pass
    late, _ = world.connect(1, "late", is_clean=True, expiry_s=0)
    late.subscribe("fresh/#", qos=1)
    got = [late.receive() for _ in range(50)]
    assert all(one.retain and one.payload == b"newest" for one in got)


def test_the_newest_message_of_each_name_wins_although_nodes_write_it_together_and_one_dies(
    world: NodeWorld,
) -> None:
    def write(at: int) -> None:
        with suppress(ConnectionError, EOFError):  # its node is killed
            wire, answer = world.connect(at, f"writer-{at}", is_clean=True, expiry_s=0)
            assert answer.reason == Reason.SUCCESS
            for number in range(60):
                for name in NAMES:
                    payload = b"" if number % 7 == 3 else f"{at}-{number}".encode()
                    wire.publish(name, payload, 1, retain=True)
                if at == 1 and number == 30:
                    world[1].kill()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (0, 1)))
    world[1].start()
    wait_until(lambda: _newest(world, 0) == _newest(world, 1) == _last_stored(world))
    # What the catalog has agrees, too: it is what the next node begins with.
    world[0].stop()
    world[0].start()
    wait_until(lambda: _newest(world, 0) == _last_stored(world))


def _newest(world: NodeWorld, at: int) -> dict[str, str]:
    """The retained messages of the names, as a new client of a node receives them."""
    wire, _ = world.connect(at, "viewer", is_clean=True, expiry_s=0)
    wire.subscribe("state/#", qos=1)
    names = [name for name in world.retained(at) if name in NAMES]
    got = [wire.receive() for _ in names]
    wire.close()
    return {one.name: one.payload.decode() for one in got}


def _last_stored(world: NodeWorld) -> dict[str, str]:
    """The last record of each name in the log, unless it deletes the message."""
    last: dict[str, str] = {}
    page = world.ask(0, "/v1/topics/default/records?limit=10000")
    for record in page["records"]:
        if record["name"] in NAMES:
            last[record["name"]] = record["payload"]
    return {name: payload for name, payload in last.items() if payload}
