"""Does a topic of several partitions in Kafka work at every door, with an order per name?"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Producer

import penstock
from penstock import Broker
from penstock.cli.main import main
from penstock.client.sync import Client
from penstock.log.kafka.partitioner import partition_of
from penstock.model.errors import InvalidPosition, RefusedError
from penstock.model.record import Record
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Will
from tests.cluster.test_kafka_broker import (
    KafkaBrokerWorld,
    kafka_names,
    settings,
    variables,
)
from tests.doors.served import Served
from tests.doors.wire import Wire, kept
from tests.kafka_server import KafkaServer

COUNT = 4
NAMES = [f"n/{number}" for number in range(12)]  # in all partitions


@pytest.fixture(scope="module")
def world(
    kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaBrokerWorld]:
    made = KafkaBrokerWorld(kafka, tmp_path_factory.mktemp("partitions") / "data", partitions=COUNT)
    with made.served:
        yield made


@pytest.fixture
def client(world: KafkaBrokerWorld) -> Iterator[Client]:
    with penstock.connect(world.url) as connected:
        yield connected


def place(name: str) -> int:
    return partition_of(name.encode(), COUNT)


def fill(client: Client, topic: str, each: int = 3) -> list[tuple[str, str]]:
    """Messages of every name, in turns; what was published."""
    sent = [(name, f"{name} {number}") for number in range(each) for name in NAMES]
    for name, text in sent:
        client.publish(text, topic, name=name)
    return sent


def by_name(records: list[Record]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in records:
        found.setdefault(record.name, []).append(record.value)
    return found


def expected(sent: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, text in sent:
        found.setdefault(name, []).append(text)
    return found


def ask(world: KafkaBrokerWorld, method: str, path: str, body: Any = None, **headers: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(world.url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def test_names_are_in_the_partitions_that_kafka_chooses_and_in_order(
    world: KafkaBrokerWorld, client: Client
) -> None:
    assert {place(name) for name in NAMES} == set(range(COUNT))
    client.create_topic("placed")
    sent = fill(client, "placed")
    records = client.read("placed")
    assert all(one.partition == place(one.name) for one in records)
    assert by_name(records) == expected(sent)
    (info,) = [one for one in client.topics() if one.topic == "placed"]
    assert [one.partition for one in info.partitions] == list(range(COUNT))
    assert info.end_offset == sum(one.end_offset for one in info.partitions) == len(sent)
    assert client.size("placed") == len(sent)


def test_publish_returns_partition_and_offset(world: KafkaBrokerWorld, client: Client) -> None:
    client.create_topic("returned")
    assert client.publish("a", "returned", name="n/1") == (place("n/1"), 0)
    stored = client.publish_many(["b", "c"], "returned", name="n/1")
    assert stored == [(place("n/1"), 1), (place("n/1"), 2)]
    assert client.publish_many([], "returned") == []


def test_the_number_of_partitions_is_chosen_once(world: KafkaBrokerWorld, client: Client) -> None:
    client.create_topic("narrow", partitions=1)
    assert client.publish("a", "narrow") == 0
    assert client.read("narrow", start=0)[0].value == "a"
    client.create_topic("wide", partitions=7)
    (info,) = [one for one in client.topics() if one.topic == "wide"]
    assert len(info.partitions) == 7
    with pytest.raises(RefusedError, match="cannot be changed: it has 7"):
        client.alter_topic("wide", partitions=8)
    with pytest.raises(RefusedError, match="partitions 0 is not a number of partitions"):
        client.create_topic("none", partitions=0)
    client.alter_topic("wide", retention_age="1h")
    client.delete_topic("wide")
    assert "wide" not in [one.topic for one in client.topics()]


def test_positions_have_an_offset_for_each_partition(
    world: KafkaBrokerWorld, client: Client
) -> None:
    client.create_topic("positions")
    fill(client, "positions", 4)
    (info,) = [one for one in client.topics() if one.topic == "positions"]
    last = {str(one.partition): one.end_offset - 1 for one in info.partitions}
    found = client.read("positions", start=last)
    assert sorted((one.partition, one.offset) for one in found) == [
        (number, last[str(number)]) for number in range(COUNT)
    ]
    assert client.read("positions", start="latest") == []
    with pytest.raises(InvalidPosition, match=r"it has 4 partitions; give an offset for each"):
        client.read("positions", start=3)
    with pytest.raises(InvalidPosition, match="no offset for partition 1"):
        client.read("positions", start={"0": 1})
    with pytest.raises(InvalidPosition, match="has no partition 9"):
        client.read("positions", start=last | {"9": 1})
    with pytest.raises(InvalidPosition, match="is not in partition 0 of topic"):
        client.read("positions", start=last | {"0": 1_000})


def test_pages_go_on_where_they_ended(world: KafkaBrokerWorld, client: Client) -> None:
    client.create_topic("pages")
    sent = fill(client, "pages")
    path = "/v1/topics/pages/records"
    seen: list[tuple[int, int]] = []
    position = "earliest"
    while True:
        page = ask(world, "GET", f"{path}?limit=5&from={quote(position)}")
        seen += [(one.get("partition", 0), one["offset"]) for one in page["records"]]
        position = json.dumps(page["next_offset"])
        if page["next_offset"] == page["end_offset"]:
            break
        assert len(page["records"]) == 5
    assert len(seen) == len(set(seen)) == len(sent)
    one = ask(world, "GET", f"{path}?partition=2&from=1&until=2")
    assert [(r["partition"], r["offset"]) for r in one["records"]] == [(2, 1)]
    assert one["next_offset"] == 2


def test_a_request_is_stored_once_in_all_its_partitions(
    world: KafkaBrokerWorld, client: Client
) -> None:
    client.create_topic("once")
    path = "/v1/topics/once/records"
    body = [{"payload": name, "name": name} for name in NAMES]
    headers = {"Idempotency-Key": "k1", "Content-Type": "application/json"}
    first = ask(world, "POST", path, body, **headers)
    assert [one["partition"] for one in first["results"]] == [place(name) for name in NAMES]
    assert ask(world, "POST", path, body, **headers) == first
    assert client.size("once") == len(NAMES)
    assert len(client.read("once")) == len(NAMES)
    part = {**headers, "Idempotency-Part": "3"}
    again = ask(world, "POST", path, body[3:4], **part)
    assert again["results"] == first["results"][3:4]
    for other in ([{"payload": "other", "name": name}] for name in NAMES):
        with pytest.raises(urllib.error.HTTPError, match="422"):
            ask(world, "POST", path, other, **headers)
    assert len(client.read("once")) == len(NAMES)


def test_consumers_have_a_position_in_every_partition(
    world: KafkaBrokerWorld, client: Client
) -> None:
    client.create_topic("consumed")
    sent = fill(client, "consumed")
    client.subscribe("billing", "consumed")
    assert client.size("consumed", "billing") == len(sent)
    found: list[Record] = []
    for _ in range(6):
        found += client.consume("billing", "consumed", limit=5)
    found += client.consume("billing", "consumed")
    assert by_name(found) == expected(sent)
    assert client.size("consumed", "billing") == 0
    (told,) = client.consumers("consumed")
    ends = told.next_offset
    assert isinstance(ends, dict) and sum(ends.values()) == len(sent)
    assert client.seek("billing", "consumed", "earliest") == dict.fromkeys(ends, 0)
    client.commit("billing", "consumed", {"1": ends["1"]})
    again = client.consume("billing", "consumed")
    assert {one.partition for one in again} == {0, 2, 3}
    with pytest.raises(InvalidPosition, match="it has 4 partitions"):
        client.commit("billing", "consumed", 3)
    client.unsubscribe("billing", "consumed")
    assert client.consumers("consumed") == []


def test_a_stream_brings_all_partitions_and_resumes_by_event_id(
    world: KafkaBrokerWorld, client: Client
) -> None:
    client.create_topic("streamed")
    sent = fill(client, "streamed")
    stream = client.stream("streamed", start="earliest")
    assert by_name([next(stream) for _ in sent]) == expected(sent)
    client.publish("live", "streamed", name="n/0")
    assert next(stream).value == "live"
    seen: list[tuple[int, int]] = []
    last = ""
    for _ in range(3):  # each time after a few events
        for event_id, record in events(world, "streamed", last, 13 if len(seen) < 26 else 11):
            seen.append((record.get("partition", 0), record["offset"]))
            last = event_id
    assert len(seen) == len(set(seen)) == len(sent) + 1
    assert last.count(":") == COUNT


def events(
    world: KafkaBrokerWorld, topic: str, last: str, count: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    connection = http.client.HTTPConnection("127.0.0.1", world.served.http_port, timeout=60)
    headers = {"Last-Event-ID": last} if last else {}
    connection.request("GET", f"/v1/topics/{topic}/stream?from=earliest", headers=headers)
    answer = connection.getresponse()
    event_id = kind = ""
    while count:
        line = answer.readline().decode().rstrip()
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            if kind == "":
                count -= 1
                yield event_id, json.loads(line[6:])
            kind = ""
    connection.close()


def test_sessions_resume_in_every_partition_with_qos_1_and_2(world: KafkaBrokerWorld) -> None:
    port = world.served.port
    with Wire(port, "away", MQTT_5) as reader:
        reader.connect(properties=kept(), clean=False)
        reader.subscribe("s/#", qos=2)
    names = [f"s/{number}" for number in range(12)]
    with Wire(port, "writer", MQTT_5) as writer:
        writer.connect(clean=False, properties=kept())
        for number in range(4):
            for at, name in enumerate(names):
                writer.publish(name, b"%d" % number, 1 + at % 2)
    with Wire(port, "away", MQTT_5) as reader:
        reader.connect(properties=kept(), clean=False)
        received: dict[str, list[bytes]] = {}
        for _ in range(4 * len(names)):
            message = reader.receive()
            reader.acknowledge(message)
            received.setdefault(message.name, []).append(message.payload)
    assert received == {name: [b"%d" % number for number in range(4)] for name in names}


def test_retained_messages_shares_and_wills_work_over_partitions(world: KafkaBrokerWorld) -> None:
    port = world.served.port
    names = [f"r/{number}" for number in range(8)]
    with Wire(port, "writer", MQTT_5) as writer, Wire(port, "member", MQTT_5) as member:
        member.connect()
        member.subscribe("$share/g/r/#", qos=1)
        writer.connect()
        for name in names:
            writer.publish(name, name.encode(), 1, retain=True)
        shared = []
        for _ in names:
            message = member.receive()
            member.acknowledge(message)
            shared.append(message.payload.decode())
        assert sorted(shared) == names
    with Wire(port, "late", MQTT_5) as late:
        late.connect()
        late.subscribe("r/#", qos=1)
        assert sorted(late.receive().name for _ in names) == names


def test_a_feed_over_mqtt_says_the_partition_of_each_record(
    world: KafkaBrokerWorld, client: Client
) -> None:
    client.create_topic("fed")
    client.bind("fed/#", "fed")
    names = [f"fed/{number}" for number in range(8)]
    for name in names:
        client.publish("x", "fed", name=name)
    with Wire(world.served.port, "feed", MQTT_5) as feed:
        feed.connect()
        feed.subscribe_feed("fed/#", qos=1, **{"from": "earliest"})
        found = {}
        for _ in names:
            message = feed.receive()
            feed.acknowledge(message)
            found[message.name] = dict(message.properties.user_properties)["penstock-partition"]
    assert found == {name: str(place(name)) for name in names}


def test_a_record_of_another_producer_is_read_wherever_it_lies(
    world: KafkaBrokerWorld, client: Client
) -> None:
    client.create_topic("foreign")
    with Wire(world.served.port, "reader") as reader:
        reader.connect()
        reader.subscribe("shop/#", qos=1)
        producer = Producer({"bootstrap.servers": world.server.bootstrap})
        kafka_name = kafka_names(world)["foreign"]
        elsewhere = (place("shop/1") + 1) % COUNT
        producer.produce(kafka_name, b"afar", key=b"shop/1", partition=elsewhere)
        assert producer.flush(60) == 0
        assert reader.receive().payload == b"afar"
    (record,) = client.read("foreign")
    assert (record.partition, record.name) == (elsewhere, "shop/1")


def test_everything_is_there_after_kill_9(kafka: KafkaServer, tmp_path: Path) -> None:
    world = KafkaBrokerWorld(kafka, tmp_path / "data", partitions=COUNT)
    with world.served:
        with penstock.connect(world.url) as client:
            client.create_topic("kept")
            sent = fill(client, "kept")
            client.subscribe("billing", "kept")
            client.consume("billing", "kept", limit=10)
            client.commit("billing", "kept")
        world.served.kill()
        world.served.start()
        with penstock.connect(world.url) as client:
            assert by_name(client.read("kept")) == expected(sent)
            assert client.size("kept", "billing") == len(sent) - 10
            assert len(client.consume("billing", "kept")) == len(sent) - 10
            client.delete_topic("kept")


def test_a_program_has_the_same_partitions_with_no_server(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    chosen = settings(kafka, kafka.new_prefix(), COUNT)
    with Broker(tmp_path / "data", **chosen) as broker:
        broker.create_topic("orders")
        assert broker.publish("a", "orders", name="n/1") == (place("n/1"), 0)
        broker.publish_many(["b", "c"], "orders", name="n/2")
        broker.subscribe("billing", "orders")
        assert len(broker.consume("billing", "orders")) == 3
        stream = broker.stream("orders", start="earliest")
        assert {next(stream).value for _ in range(3)} == {"a", "b", "c"}
    with Broker(tmp_path / "data", **chosen) as broker:
        assert broker.size("orders") == 3
        assert broker.size("orders", "billing") == 0
        assert sorted(one.value for one in broker.read("orders")) == ["a", "b", "c"]


def test_topics_in_files_have_one_partition(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        with pytest.raises(RefusedError, match="partitions 2 is not possible"):
            broker.create_topic("wide", partitions=2)
        broker.create_topic("one", partitions=1)
        assert broker.topics()[0].partitions == ()


def test_groups_lease_and_redrive_records_of_all_partitions(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    world = KafkaBrokerWorld(kafka, tmp_path / "data", partitions=COUNT)
    with world.served:
        with penstock.connect(world.url) as client:
            client.create_topic("grouped")
            sent = fill(client, "grouped")
            group = client.join_group("workers", "grouped")
            leased = [one for _ in range(4) for one in group.fetch(limit=7)]
            assert group.ack(leased[:20]) == 20
            assert group.extend(leased[20:24], lease_s=60) == 4
            assert group.nack(leased[24:]) == 4
        world.served.kill()
        world.served.start()
        with penstock.connect(world.url) as client:
            group = client.join_group("workers", "grouped")
            again = [one for _ in range(3) for one in group.fetch(limit=7)]
            records = [one.record for one in leased[:20] + again]
            assert len(records) == len({(one.partition, one.offset) for one in records})
            assert {one.value for one in records} == {text for _, text in sent}
            (info,) = client.groups("grouped")
            assert {(one.partition, one.offset) for one in info.pending} == {
                (one.record.partition, one.record.offset) for one in again
            }
            client.alter_group("workers", "grouped", deliveries_max=1)
            assert group.nack(again, reason="no boxes") == 16
            letters = client.read("grouped.dead")
            assert len(letters) == 16
            assert {one.partition for one in letters} == set(range(COUNT))
            assert client.redrive("workers", "grouped") == 16
            assert client.redrive("workers", "grouped") == 0
            assert len(client.read("grouped")) == len(sent) + 16


def test_metrics_count_the_records_of_all_partitions(
    world: KafkaBrokerWorld, client: Client
) -> None:
    client.create_topic("counted")
    sent = fill(client, "counted")
    with urllib.request.urlopen(world.url + "/metrics", timeout=60) as answer:
        shown = answer.read().decode()
    assert f'penstock_topic_records{{topic="counted"}} {len(sent)}\n' in shown


def test_a_will_is_published_once_whichever_partition_it_belongs_to(
    world: KafkaBrokerWorld,
) -> None:
    port = world.served.port
    names = [f"w/{number}" for number in range(8)]
    assert {place(name) for name in names} == set(range(COUNT))
    with Wire(port, "watcher", MQTT_5) as watcher:
        watcher.connect()
        watcher.subscribe("w/#", qos=1)
        for name in names:
            with Wire(port, f"dying {name}", MQTT_5) as dying:
                dying.connect(will=Will(name, b"gone", 1, True))
        wills = []
        for _ in names:
            message = watcher.receive()
            watcher.acknowledge(message)
            wills.append(message.name)
        assert sorted(wills) == names
    with Wire(port, "late", MQTT_5) as late:
        late.connect()
        late.subscribe("w/#", qos=1)
        assert sorted(late.receive().name for _ in names) == names


def test_commands_read_all_partitions_and_trace_a_record_of_one(
    world: KafkaBrokerWorld, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.create_topic("told")
    sent = fill(client, "told")
    client.subscribe("billing", "told")
    client.join_group("workers", "told").fetch(limit=1)

    def lines(*arguments: str) -> list[str]:
        assert main([*arguments, "--at", world.url]) == 0
        return capsys.readouterr().out.splitlines()

    assert sorted(lines("consume", "told")) == sorted(text for _, text in sent)
    assert len(lines("consume", "told", "--limit", "20")) == 20
    assert lines("consume", "told", "--names", "n/3") == [f"n/3 {number}" for number in range(3)]
    assert len(lines("consume", "told", "--from", "-1h")) == len(sent)
    number, last = place("n/3"), client.read("told", names="n/3")[-1].offset
    shown = "\n".join(lines("trace", f"told/{number}@{last}"))
    assert f"told/{number}@{last}" in shown and "n/3" in shown
    assert "billing" in shown and "workers" in shown
    with pytest.raises(RefusedError, match="partition '4' does not exist"):
        client.read("told", partition=4)
    assert {one.partition for one in client.read("told", partition=2, start=1)} == {2}
    assert main(["trace", f"told@{last}", "--at", world.url]) == 1
    assert "has 4 partitions" in capsys.readouterr().err


def test_a_broker_with_default_settings_serves_every_door_from_16_partitions(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    world = KafkaBrokerWorld(kafka, tmp_path / "data")
    env = variables(kafka, world.prefix)
    del env["PENSTOCK_KAFKA__PARTITIONS"]
    world.served = Served(tmp_path / "data", env=env)
    with world.served, penstock.connect(world.url) as client:
        client.create_topic("orders")
        client.bind("n/#", "orders")
        assert len(client.topic("orders").partitions) == 16
        client.subscribe("billing", "orders")
        with Wire(world.served.port, "reader", MQTT_5) as reader:
            reader.connect(clean=False, properties=kept())
            reader.subscribe("n/#", qos=1)
            sent = fill(client, "orders", each=2)
            received: dict[str, list[str]] = {}
            for _ in sent:
                message = reader.receive()
                reader.acknowledge(message)
                received.setdefault(message.name, []).append(message.payload.decode())
        assert received == by_name(client.read("orders")) == expected(sent)
        assert by_name(client.consume("billing", "orders", limit=100)) == expected(sent)
        assert client.size("orders") == len(sent)
        group = client.join_group("workers", "orders")
        leased = group.fetch(limit=100)
        group.ack(leased)
        assert by_name([one.record for one in leased]) == expected(sent)
        stream = client.stream("orders", start="earliest")
        assert by_name([next(stream) for _ in sent]) == expected(sent)
        (told,) = ask(world, "GET", "/v1/topics/orders/groups")["groups"]
        assert told["lag"] == 0
