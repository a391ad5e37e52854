"""Is a session the same whichever node has it, also if it was on this one before?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.mqtt.packets import Connack, Pubcomp, Publish, Pubrec, Pubrel
from penstock.mqtt.reasons import Reason
from tests.cluster.node_world import NodeWorld
from tests.cluster.proxy import Proxy, dial_tcp
from tests.doors.wire import Wire
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

ROUNDS = 5  # a checkpoint each second may come between the steps of one of them
CUT = 1  # the node that can be cut off from Kafka


class MovesWorld(NodeWorld):
    """Two nodes, of which one can be cut off from Kafka."""

    def __init__(
        self, kafka: KafkaServer, postgres: PostgresServer, folder: Path, to_kafka: Proxy
    ) -> None:
        self.to_kafka = to_kafka
        own = {CUT: {"PENSTOCK_KAFKA__BOOTSTRAP": f"127.0.0.1:{to_kafka.port}"}}
        super().__init__(kafka, postgres, folder, own=own)


@pytest.fixture(scope="module")
def started(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MovesWorld]:
    (cut_port, port), *_ = kafka.cuttable_ports
    with ExitStack() as opened:
        to_kafka = opened.enter_context(Proxy(dial_tcp(port), cut_port))
        world = MovesWorld(kafka, postgres, tmp_path_factory.mktemp("moves"), to_kafka)
        yield opened.enter_context(world)


@pytest.fixture
def world(started: MovesWorld) -> MovesWorld:
    started.to_kafka.heal()
    for node in started.nodes:
        node.revive()
    return started


def open_packet(wire: Wire, name: str, payload: bytes, packet_id: int) -> None:
    wire.send(Publish(name=name, payload=payload, qos=2, packet_id=packet_id))
    wire.pick(Pubrec, packet_id)


def close_packet(wire: Wire, packet_id: int) -> None:
    wire.send(Pubrel(packet_id))
    wire.pick(Pubcomp, packet_id)


def back(world: NodeWorld, at: int, client_id: str) -> Wire:
    wire, answer = world.connect(at, client_id)
    assert answer.session_present
    return wire


def test_a_packet_id_that_was_released_on_another_node_is_free_here(world: MovesWorld) -> None:
    reader, _ = world.connect(0, "free reader", is_clean=True, expiry_s=0)
    reader.subscribe("free/#", qos=1)
    writer, _ = world.connect(0, "free writer", is_clean=True)
    for number in range(ROUNDS):
        open_packet(writer, "free/name", b"a%d" % number, 7)
        writer = back(world, 1, "free writer")
        close_packet(writer, 7)
        writer = back(world, 0, "free writer")
        open_packet(writer, "free/name", b"b%d" % number, 7)
        close_packet(writer, 7)
    got = [reader.receive().payload for _ in range(2 * ROUNDS)]
    assert got == [b"%s%d" % (kind, number) for number in range(ROUNDS) for kind in (b"a", b"b")]


def test_a_packet_id_that_was_opened_on_another_node_is_taken_here(world: MovesWorld) -> None:
    reader, _ = world.connect(0, "taken reader", is_clean=True, expiry_s=0)
    reader.subscribe("taken/#", qos=1)
    writer, _ = world.connect(0, "taken writer", is_clean=True)
    for number in range(ROUNDS):
        open_packet(writer, "taken/name", b"a%d" % number, 7)
        close_packet(writer, 7)
        writer = back(world, 1, "taken writer")
        open_packet(writer, "taken/name", b"b%d" % number, 7)
        writer = back(world, 0, "taken writer")
        open_packet(writer, "taken/name", b"b%d" % number, 7)  # the same message, repeated
        close_packet(writer, 7)
    writer.publish("taken/name", b"end", 1)
    got = []
    while b"end" not in got:
        got.append(reader.receive().payload)
    wanted = [b"%s%d" % (kind, number) for number in range(ROUNDS) for kind in (b"a", b"b")]
    assert got == [*wanted, b"end"]


@pytest.mark.parametrize("was_open", [True, False])
def test_recovery_knows_what_became_of_a_packet_id_on_another_node(
    world: MovesWorld, was_open: bool
) -> None:
    """The marks of the killed node are older than those of the other one."""
    name, client_id = f"recovered/{was_open}", f"recovered {was_open}"
    reader, _ = world.connect(1, f"reader {was_open}", is_clean=True)
    reader.subscribe(name, qos=1)
    writer, _ = world.connect(0, client_id, is_clean=True)
    open_packet(writer, name, b"first", 7)
    if not was_open:
        close_packet(writer, 7)
    writer = back(world, 1, client_id)
    if was_open:
        close_packet(writer, 7)
    else:
        open_packet(writer, name, b"second", 7)
    back(world, 0, client_id)
    world[0].kill()
    writer = back(world, 1, client_id)
    open_packet(writer, name, b"second", 7)
    close_packet(writer, 7)
    writer.publish(name, b"end", 1)
    got = []
    while b"end" not in got:
        got.append(reader.receive().payload)
    assert got == [b"first", b"second", b"end"]


def test_a_session_that_comes_to_a_node_behind_the_other_loses_and_repeats_nothing(
    world: MovesWorld,
) -> None:
    reader, _ = world.connect(0, "behind", is_clean=True)
    reader.subscribe("behind/#", qos=2)
    writer, _ = world.connect(0, "behind writer", is_clean=True, expiry_s=0)
    world.to_kafka.cut()
    writer.publish("behind/name", b"done", 2)
    assert reader.receive().payload == b"done"
    writer.publish("behind/name", b"out", 1)
    assert reader.expect(Publish).payload == b"out"  # and not acknowledged
    reader.close()
    again = world.begin_connect(CUT, "behind")
    assert again.poll(0.5) is None, "it has to see first what the session has seen"
    world.to_kafka.heal()
    assert again.expect(Connack).session_present
    writer.publish("behind/name", b"end", 1)
    got = []
    while b"end" not in got:
        got.append(again.receive().payload)
    assert got == [b"out", b"end"]


def test_a_session_that_nobody_has_on_its_node_is_given_to_another_one(world: MovesWorld) -> None:
    first, _ = world.connect(0, "nobody", is_clean=True)
    first.subscribe("nobody/#", qos=1)
    first.close()
    wait_until(lambda: world.sql(OWNER, "nobody") == [(None,)])
    world.sql(
        "update {}.sessions set owner_inc = $2, is_connected = 1 where client_id = $1",
        *("nobody", world.incarnation(0)),
    )
    again, answer = world.connect(1, "nobody")
    assert answer.reason == Reason.SUCCESS and answer.session_present
    again.publish("nobody/name", b"one", 1)
    assert again.pick(Publish).payload == b"one"


OWNER = "select owner_inc from {}.sessions where client_id = $1"
