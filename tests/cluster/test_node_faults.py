"""What do clients lose when nodes are killed, frozen or cut off at the worst moments? Nothing."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.mqtt.packets import Pubcomp, Publish, Pubrec, Pubrel
from penstock.mqtt.reasons import Reason
from tests.cluster.node_world import NodeWorld
from tests.cluster.proxy import Proxy, dial_tcp, dial_unix
from tests.cluster.traffic import Traffic
from tests.doors.wire import Wire
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
NODES = 3
CUT = 1  # the node that can be cut off
OTHERS = (0, 2)
FIGHTERS = 100


class FaultWorld(NodeWorld):
    """Three nodes; between one of them and PostgreSQL or Kafka is a network that can be cut."""

    def __init__(
        self,
        kafka: KafkaServer,
        postgres: PostgresServer,
        folder: Path,
        to_kafka: Proxy,
        to_postgres: Proxy,
    ) -> None:
        self.to_kafka = to_kafka
        self.to_postgres = to_postgres
        self.lease_s = 10  # a busy machine delays heartbeats, too
        own = {
            "PENSTOCK_KAFKA__BOOTSTRAP": f"127.0.0.1:{to_kafka.port}",
            "PENSTOCK_CATALOG__URL": f"postgresql://postgres@127.0.0.1:{to_postgres.port}/postgres",
        }
        super().__init__(kafka, postgres, folder, count=NODES, lease_s=self.lease_s, own={CUT: own})

    def heal(self) -> None:
        """All networks and nodes are well again."""
        self.to_kafka.heal()
        self.to_postgres.heal()
        for node in self.nodes:
            node.revive()
        wait_until(self._is_well)

    def _is_well(self) -> bool:
        try:
            return self.states(0) == {f"n{at}": "live" for at in range(NODES)}
        except AssertionError:  # it does not reach PostgreSQL yet
            return False

    def wait_recovered(self, inc: int) -> None:
        wait_until(lambda: self.state(inc)[0] == "gone")


@pytest.fixture(scope="module")
def started(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultWorld]:
    (cut_port, port), *_ = kafka.cuttable_ports
    with ExitStack() as opened:
        to_kafka = opened.enter_context(Proxy(dial_tcp(port), cut_port))
        to_postgres = opened.enter_context(Proxy(dial_unix(postgres.socket_path)))
        folder = tmp_path_factory.mktemp("faults")
        world = FaultWorld(kafka, postgres, folder, to_kafka, to_postgres)
        yield opened.enter_context(world)
        world.heal()


@pytest.fixture
def world(started: FaultWorld) -> FaultWorld:
    started.heal()
    print(f"seed {SEED}")
    return started


@pytest.fixture
def traffic(world: FaultWorld, request: pytest.FixtureRequest) -> Iterator[Traffic]:
    with Traffic(world, request.node.name, SEED, is_full=True) as begun:
        begun.go_on()
        yield begun


def settle(traffic: Traffic) -> None:
    assert isinstance(traffic.world, FaultWorld)
    traffic.world.heal()
    traffic.go_on()
    print(traffic.settle())


@pytest.mark.parametrize("end", ["killed", "cut off"])
def test_another_node_recovers_when_the_recoverer_is(
    world: FaultWorld, traffic: Traffic, end: str
) -> None:
    """Its fences are in the log, but it never hears of them."""
    victim, recoverer = world.incarnation(0), world.incarnation(CUT)
    writer, _ = world.connect(0, f"writer {end}", is_clean=True)
    writer.send(Publish(name="faults/once", payload=b"1", qos=2, packet_id=7))
    writer.expect(Pubrec)
    world.to_kafka.cut(to_server=False)
    world.freeze(2)
    try:
        world[0].kill()
        wait_until(lambda: world.state(victim) == ("dead", recoverer))
        if end == "killed":
            world[CUT].kill()
    finally:
        world.thaw(2)
    world.wait_recovered(victim)
    assert world.state(victim) == ("gone", world.incarnation(2))
    again, answer = world.connect(2, f"writer {end}")
    assert answer.session_present
    again.send(Publish(name="faults/once", payload=b"1", qos=2, packet_id=7, dup=True))
    again.expect(Pubrec)
    again.send(Pubrel(7))
    again.expect(Pubcomp)
    settle(traffic)


@pytest.mark.parametrize("lost", ["both ways", "answers"])
def test_a_node_cut_off_from_postgresql_ends_and_its_clients_lose_nothing(
    world: FaultWorld, traffic: Traffic, lost: str
) -> None:
    traffic.prefer(CUT)
    traffic.go_on()
    inc = world.incarnation(CUT)
    world.to_postgres.cut(to_server=lost == "both ways")
    world[CUT].wait_ended(3)
    world.to_postgres.heal()
    world.wait_recovered(inc)
    settle(traffic)


@pytest.mark.parametrize("lost", ["both ways", "answers"])
def test_a_node_cut_off_from_kafka_ends_once_another_one_needs_a_session_of_it(
    world: FaultWorld, traffic: Traffic, lost: str
) -> None:
    """Nobody knows which of its messages were stored before it is fenced."""
    traffic.prefer(CUT)
    wait_until(lambda: world.ask(0, "/v1/nodes/n1")["clients"] >= 3)
    traffic.go_on()
    inc = world.incarnation(CUT)
    world.to_kafka.cut(to_server=lost == "both ways")
    traffic.go_on()
    world[CUT].wait_ended(3)
    world.wait_recovered(inc)
    settle(traffic)


def test_a_node_cut_off_from_kafka_for_a_moment_goes_on(
    world: FaultWorld, traffic: Traffic
) -> None:
    traffic.prefer(CUT)
    traffic.go_on()
    world.to_kafka.cut()
    time.sleep(1)
    settle(traffic)


def test_what_a_node_sent_before_it_was_frozen_is_void_behind_its_fence(
    world: FaultWorld, traffic: Traffic
) -> None:
    inc = world.incarnation(CUT)
    reader, _ = world.connect(0, "zombie reader", is_clean=True)
    reader.subscribe("zombie/#", qos=2)
    writer, _ = world.connect(CUT, "zombie writer", is_clean=True)
    writer.publish("zombie/name", b"first", 2)
    world.to_kafka.cut(to_client=False)  # what it sends arrives later
    writer.send(Publish(name="zombie/name", payload=b"once", qos=2, packet_id=9))
    assert writer.poll(1.0) is None
    world.freeze(CUT)
    world.wait_recovered(inc)
    again, answer = world.connect(2, "zombie writer")
    assert answer.session_present
    publish_qos_2(again, b"once", 9, dup=True)
    world.to_kafka.heal()
    wait_until(lambda: raw_payloads(world).count(b"once") == 2)  # one of them is void
    world.thaw(CUT)
    world[CUT].wait_ended(3)
    again.publish("zombie/name", b"last", 2)
    got = []
    while b"last" not in got:
        got.append(reader.receive().payload)
    assert got == [b"first", b"once", b"last"]
    settle(traffic)


def test_a_node_that_is_stopped_before_kafka_answers_leaves_its_sessions_to_be_recovered(
    world: FaultWorld,
) -> None:
    reader, _ = world.connect(0, "doubt reader", is_clean=True)
    reader.subscribe("zombie/#", qos=2)
    writer, _ = world.connect(CUT, "doubt writer", is_clean=True)
    world.to_kafka.cut(to_server=False)  # it is stored, and the node does not hear of it
    writer.send(Publish(name="zombie/name", payload=b"once", qos=2, packet_id=9))
    assert reader.receive().payload == b"once"
    world[CUT].stop()
    again, answer = world.connect(2, "doubt writer")
    assert answer.session_present
    publish_qos_2(again, b"once", 9, dup=True)
    again.publish("zombie/name", b"last", 2)
    assert reader.receive().payload == b"last"


def publish_qos_2(wire: Wire, payload: bytes, packet_id: int, *, dup: bool = False) -> None:
    wire.send(Publish("zombie/name", payload, 2, packet_id=packet_id, dup=dup))
    wire.pick(Pubrec, packet_id)
    wire.send(Pubrel(packet_id))
    wire.pick(Pubcomp, packet_id)


def raw_payloads(world: FaultWorld) -> list[bytes]:
    """All that is stored in the topics of these nodes, whether it counts or not."""
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": "raw"})
    topics = consumer.list_topics(timeout=10).topics
    places = [
        TopicPartition(name, number, 0)
        for name, topic in topics.items()
        if name.startswith(f"{world.prefix}.default.")
        for number in topic.partitions
    ]
    left = 0
    for place in places:  # its oldest records may have been trimmed
        place.offset, end = consumer.get_watermark_offsets(place)
        left += end - place.offset
    consumer.assign(places)
    found = []
    while left:
        for message in consumer.consume(left, timeout=10):
            found.append(message.value())
            left -= 1
    consumer.close()
    return found


def test_nodes_survive_a_restart_of_postgresql_that_is_shorter_than_their_leases(
    world: FaultWorld, traffic: Traffic
) -> None:
    before = [world.incarnation(at) for at in range(NODES)]
    world.postgres.crash()
    settle(traffic)
    assert [world.incarnation(at) for at in range(NODES)] == before


def test_nodes_end_while_postgresql_is_away_and_continue_when_they_are_started_again(
    world: FaultWorld, traffic: Traffic
) -> None:
    world.postgres.halt()
    for node in world.nodes:
        node.wait_ended(3)
    world.postgres.resume()
    settle(traffic)


def test_of_many_clients_that_fight_for_one_id_over_three_nodes_one_is_left_with_the_session(
    world: FaultWorld, traffic: Traffic
) -> None:
    first, _ = world.connect(0, "prize", is_clean=True)
    first.subscribe("prize/#", qos=1)
    writer, _ = world.connect(0, "prize giver", is_clean=True, expiry_s=0)
    fighters = []
    for number in range(FIGHTERS):
        fighters.append(world.begin_connect(number % NODES, "prize"))
        writer.publish("prize/name", str(number).encode(), 1)

    def has_winner() -> bool:
        """One is left, and does not wait for the session any more: else it takes it from us."""
        left = [one for one in fighters if not one.has_ended()]
        return len(left) <= 1 and all(one.is_connected for one in left)

    wait_until(has_winner)
    last, answer = world.connect(1, "prize")
    assert answer.reason == Reason.SUCCESS and answer.session_present
    wait_until(lambda: all(one.has_ended() for one in fighters))
    # Nobody has acknowledged anything: who has the session in the end is given everything.
    got = list(dict.fromkeys(int(last.receive().payload) for _ in range(FIGHTERS)))
    assert got == list(range(FIGHTERS))
    settle(traffic)
