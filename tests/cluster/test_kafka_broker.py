"""Is a broker whose topics are in Kafka the same broker at every door?"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import penstock
from penstock import Broker, Bus
from penstock.cli.main import main
from penstock.model.errors import RefusedError
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec
from tests.crash.test_mqtt_kill import Traffic
from tests.doors.served import Served
from tests.doors.wire import Wire, kept
from tests.kafka_server import KafkaServer

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))


def settings(server: KafkaServer, prefix: str, partitions: int = 1) -> dict[str, str | int]:
    return {
        "log_backend": "kafka",
        "kafka_bootstrap": server.bootstrap,
        "kafka_prefix": prefix,
        "kafka_partitions": partitions,
        "kafka_replication": 1,
    }


def variables(server: KafkaServer, prefix: str, partitions: int = 1) -> dict[str, str]:
    chosen = {
        "PENSTOCK_LOG__BACKEND": "kafka",
        "PENSTOCK_KAFKA__BOOTSTRAP": server.bootstrap,
        "PENSTOCK_KAFKA__PREFIX": prefix,
        "PENSTOCK_KAFKA__PARTITIONS": str(partitions),
        "PENSTOCK_KAFKA__REPLICATION": "1",
    }
    return {**os.environ, **chosen}


class KafkaBrokerWorld:
    """A broker process on Kafka."""

    def __init__(self, server: KafkaServer, data: Path, *flags: str, partitions: int = 1) -> None:
        self.server = server
        self.prefix = server.new_prefix()
        self.settings = settings(server, self.prefix, partitions)
        env = variables(server, self.prefix, partitions)
        self.served = Served(data, *flags, env=env)

    def topic(self, slug: str, topic_id: int) -> str:
        """What Kafka calls a topic."""
        return f"{self.prefix}.default.{slug}-{topic_id}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.served.http_port}"


@pytest.fixture
def world(kafka: KafkaServer, tmp_path: Path) -> Iterator[KafkaBrokerWorld]:
    made = KafkaBrokerWorld(kafka, tmp_path / "data")
    with made.served:
        yield made


def kafka_names(world: KafkaBrokerWorld) -> dict[str, str]:
    """Kafka's name of each topic, by the slug."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": world.server.bootstrap})
    names = admin.list_topics(timeout=60).topics
    mine = [name for name in names if name.startswith(f"{world.prefix}.default.")]
    return {name.rsplit(".", 1)[1].rsplit("-", 1)[0]: name for name in mine}


def test_what_mqtt_publishes_reaches_subscribers_clients_and_plain_consumers(
    world: KafkaBrokerWorld,
) -> None:
    with (
        Wire(world.served.port, "reader", MQTT_5) as reader,
        Wire(world.served.port, "w") as writer,
    ):
        reader.connect()
        reader.subscribe("sensors/#", qos=2)
        writer.connect()
        for qos in (0, 1, 2):
            writer.publish("sensors/1", b"%d" % qos, qos)
        received = []
        for _ in range(3):
            message = reader.receive()
            reader.acknowledge(message)
            received.append((message.name, message.payload))
        assert received == [("sensors/1", b"%d" % qos) for qos in (0, 1, 2)]
    with penstock.connect(world.url) as client:
        (info,) = client.topics()
        assert info.durability == "replicated"
        records = list(client.read(info.topic))
        assert [one.payload for one in records] == [b"0", b"1", b"2"]
    consumer = Consumer(
        {
            "bootstrap.servers": world.server.bootstrap,
            "group.id": world.prefix,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([kafka_names(world)["default"]])
    found = []
    while len(found) < 3:
        (one,) = consumer.consume(1, 60)
        if one.key() is not None:  # else it holds marks of QoS 2
            found.append((one.key(), one.value()))
    consumer.close()
    assert found == [(b"sensors/1", b"%d" % qos) for qos in (0, 1, 2)]


def test_a_record_of_another_producer_reaches_every_reader(world: KafkaBrokerWorld) -> None:
    with penstock.connect(world.url) as client:
        client.create_topic("orders")
        client.subscribe("billing", "orders")
        with Wire(world.served.port, "reader") as reader:
            reader.connect()
            reader.subscribe("shop/#", qos=1)
            producer = Producer({"bootstrap.servers": world.server.bootstrap})
            headers = [("trace", b"abc")]
            name = kafka_names(world)["orders"]
            producer.produce(name, b"from afar", key=b"shop/1", headers=headers)
            assert producer.flush(60) == 0
            message = reader.receive()
            assert (message.name, message.payload, message.qos) == ("shop/1", b"from afar", 1)
        (record,) = client.consume("billing", "orders", limit=1)
        assert (record.name, record.payload) == ("shop/1", b"from afar")
        assert record.headers == (("trace", "abc"),)
        client.publish("ours", "orders", name="shop/2")
        stream = client.stream("orders", start="earliest")
        assert [next(stream).payload for _ in range(2)] == [b"from afar", b"ours"]


def test_groups_pages_streams_and_feeds_pass_over_offsets_without_messages(
    world: KafkaBrokerWorld,
) -> None:
    with Wire(world.served.port, "w", MQTT_5) as writer:
        writer.connect(clean=False, properties=kept())
        for number in range(6):  # each release of QoS 2 is a record of its own in Kafka
            writer.publish("n", b"%d" % number, 2)
    expected = [b"%d" % number for number in range(6)]
    with penstock.connect(world.url) as client:
        topic = client.topics()[0].topic
        records = list(client.read(topic))
        assert [one.payload for one in records] == expected
        assert [one.offset for one in records] == [0, 2, 4, 6, 8, 10]
        stream = client.stream(topic, start="earliest")
        assert [next(stream).payload for _ in range(6)] == expected
        group = client.join_group("workers", topic)
        given: list[bytes] = []
        while len(given) < 6:
            leased = group.fetch(limit=1)
            given += [one.record.payload for one in leased]
            group.ack(leased)
        assert given == expected
    with Wire(world.served.port, "feed", MQTT_5) as feed:
        feed.connect()
        feed.subscribe_feed("n", qos=1, **{"from": "earliest"})
        received = []
        for _ in range(6):
            message = feed.receive()
            feed.acknowledge(message)
            received.append(message.payload)
        assert received == expected


def test_an_export_of_lines_counts_lines_and_not_offsets(
    world: KafkaBrokerWorld, tmp_path: Path
) -> None:
    with Wire(world.served.port, "w", MQTT_5) as writer:
        writer.connect(clean=False, properties=kept())
        for number in range(4):
            writer.publish("n", b"%d" % number, 2)
    with penstock.connect(world.url) as client:
        (topic,) = [one.topic for one in client.topics()]
        client.subscribe("me", topic, start="earliest")
        assert [one.payload for one in client.consume("me", topic, limit=3)] == [b"0", b"1", b"2"]
        client.commit("me", topic)
    out = tmp_path / "out"
    assert main(["log", "export", "--lines", str(out), "--at", world.url]) == 0
    assert (out / topic / "messages.log").read_text().split() == ["0", "1", "2", "3"]
    assert (out / topic / "subscriptions" / "me.offset").read_text() == "3\n"


def test_sizes_and_lags_count_messages_also_of_before_a_restart(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    made = KafkaBrokerWorld(kafka, tmp_path / "data")
    with made.served:
        with penstock.connect(made.url) as client:
            client.create_topic("default")
            client.subscribe("billing", "default")
            client.join_group("workers", "default").fetch(limit=1)
        with Wire(made.served.port, "w", MQTT_5) as writer:
            writer.connect(clean=False, properties=kept())
            for number in range(5):  # each release of QoS 2 is a record of its own in Kafka
                writer.publish("n", b"%d" % number, 2)
        assert_counted(made, 5)
        made.served.kill()
        made.served.start()
        assert_counted(made, 5)


def assert_counted(made: KafkaBrokerWorld, count: int) -> None:
    with penstock.connect(made.url) as client:
        info = client.topic("default")
        assert info.end_offset - info.first_offset > count, "offsets hold marks, too"
        assert client.size("default") == info.records == count
        assert client.size("default", "billing") == count
        (group,) = client.groups("default")
        assert group.lag == count


def test_sessions_retained_messages_and_positions_are_there_after_a_restart(
    world: KafkaBrokerWorld,
) -> None:
    port = world.served.port
    with Wire(port, "reader", MQTT_5) as reader, Wire(port, "w", MQTT_5) as writer:
        reader.connect(properties=kept(), clean=False)
        reader.subscribe("a/#", qos=1)
        writer.connect()
        writer.publish("a/1", b"retained", 1, retain=True)
        reader.acknowledge(reader.receive())
    with Wire(port, "w2", MQTT_5) as writer:
        writer.connect()
        writer.publish("a/2", b"while away", 1)
    world.served.kill()
    world.served.start()
    with Wire(world.served.port, "reader", MQTT_5) as reader:
        reader.connect(properties=kept(), clean=False)
        payloads = set()
        while b"while away" not in payloads:
            message = reader.receive()
            reader.acknowledge(message)
            payloads.add(message.payload)
    with Wire(world.served.port, "new", MQTT_5) as new:
        new.connect()
        new.subscribe("a/1", qos=1)
        assert new.receive().payload == b"retained"


def test_a_program_can_open_the_directory_with_the_same_settings(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    chosen = settings(kafka, kafka.new_prefix())
    with Broker(tmp_path / "data", **chosen) as broker:
        broker.create_topic("orders")
        assert list(broker.publish_many(["a", "b"], "orders")) == [0, 1]
        assert broker.topics()[0].durability == "replicated"
    with Broker(tmp_path / "data", **chosen) as broker:
        assert [one.value for one in broker.read("orders")] == ["a", "b"]
        assert broker.publish("c", "orders") == 2
        broker.delete_topic("orders")
        assert broker.topics() == []
    with pytest.raises(RefusedError, match="the topics in Kafka"):
        Broker(tmp_path / "data").close()


def test_topics_of_another_directory_are_left_alone(kafka: KafkaServer, tmp_path: Path) -> None:
    chosen = settings(kafka, kafka.new_prefix())
    with Broker(tmp_path / "one", **chosen) as broker:
        broker.create_topic("orders")
        broker.publish("a", "orders")
    with pytest.raises(RefusedError, match="belong to another data directory"):
        Broker(tmp_path / "two", **chosen).close()
    with Broker(tmp_path / "one", **chosen) as broker:
        assert [one.value for one in broker.read("orders")] == ["a"]


def test_levels_of_durability_are_those_of_kafka(kafka: KafkaServer, tmp_path: Path) -> None:
    chosen = settings(kafka, kafka.new_prefix())
    with Broker(tmp_path / "data", **chosen) as broker:
        with pytest.raises(RefusedError, match="use 'fsync' or 'replicated'"):
            broker.create_topic("loose", durability="os")
        broker.create_topic("safe", durability="fsync")
        assert broker.topics()[0].durability == "fsync"
        broker.alter_topic("safe", durability="replicated")
        assert broker.topics()[0].durability == "replicated"


def test_the_bus_is_stored_in_kafka(kafka: KafkaServer, tmp_path: Path) -> None:
    place = tmp_path / "bus"
    world = KafkaBrokerWorld(kafka, tmp_path / "data", "--bus", str(place))
    heard: list[bytes] = []
    done = threading.Event()

    def handler(id: int, data: bytes) -> None:
        heard.append(data)
        if len(heard) == 100:
            done.set()

    with world.served, Bus.connect(place) as reading, Bus.connect(place) as writing:
        reading.subscribe(7, handler)
        for number in range(100):
            writing.publish(7, b"%d" % number)
        assert done.wait(60)
    assert heard == [b"%d" % number for number in range(100)]


def test_serve_says_where_topics_are_and_what_an_ack_means(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    prefix = kafka.new_prefix()
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data", str(tmp_path / "data")]
    command += ["--mqtt", "127.0.0.1:0", "--http", "off"]
    env = variables(kafka, prefix)
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        said = []
        for line in serving.stdout:
            said.append(line.rstrip())
            if line.startswith("ready"):
                serving.terminate()
    assert f"topics: Kafka at {kafka.bootstrap}, prefix {prefix}, replication 1" in said
    (durability,) = [line for line in said if line.startswith("durability: ")]
    assert durability.startswith("durability: replicated, acknowledged messages are on all Kafka")


def test_killed_again_and_again_every_acknowledgement_holds(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    world = KafkaBrokerWorld(kafka, tmp_path / "data")
    traffic = Traffic(world.served, **world.settings)  # type: ignore[arg-type]
    traffic.begin()
    kinds: list[type[Packet] | None] = [None, Puback, Pubrec, Pubcomp]
    for round_number in range(8):
        kind = kinds[round_number % 4]
        others = 2 if round_number % 4 == 3 else 0
        traffic.run(kind, chance.randint(1, 200), chance.uniform(0.05, 1.5), others)
        assert traffic.retained_problems() == []
    traffic.drain()
    assert traffic.problems() == []
    assert traffic.stored_problems() == []
    assert min(len(traffic.once.acked), len(traffic.least.acked)) > 50


def test_kafka_killed_under_traffic_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    server = KafkaServer()
    try:
        world = KafkaBrokerWorld(server, tmp_path / "data")
        with world.served, Wire(world.served.port, "reader") as reader:
            reader.connect()
            reader.subscribe("n", qos=1)
            received: list[bytes] = []
            count = 300

            def publish() -> None:
                with Wire(world.served.port, "w") as writer:
                    writer.connect()
                    for number in range(count):
                        writer.publish("n", b"%d" % number, 1)  # waits for PUBACK

            publishing = threading.Thread(target=publish)
            publishing.start()
            while len(received) < count:
                message = reader.receive()
                reader.acknowledge(message)
                received.append(message.payload)
                if len(received) in (50, 150):
                    server.kill()
                    server.start()
            publishing.join()
            assert received == [b"%d" % number for number in range(count)]
            deadline = time.monotonic() + 60
            with penstock.connect(world.url) as client:
                topic = client.topics()[0].topic
                while client.topics()[0].end_offset < count and time.monotonic() < deadline:
                    time.sleep(0.01)
                assert [one.payload for one in client.read(topic)] == received
    finally:
        server.stop()


def test_a_broker_can_be_stopped_while_kafka_is_gone(tmp_path: Path) -> None:
    server = KafkaServer()
    try:
        world = KafkaBrokerWorld(server, tmp_path / "data")
        with world.served, Wire(world.served.port, "w") as writer:
            writer.connect()
            writer.publish("n", b"stored", 1)
            server.kill()
            writer.send(Publish("n", b"in doubt", 1, packet_id=99))
            world.served.stop()  # exit code 0, in bounded time
        server.start()
        with world.served, penstock.connect(world.url) as client:
            found = [one.payload for one in client.read(client.topics()[0].topic)]
            assert found[0] == b"stored"
    finally:
        server.stop()
