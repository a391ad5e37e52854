"""auto_create_topics: does publishing create topics, as many as were allowed, and lose nothing?"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Disconnect, Puback, Publish, Will
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept

QOS = pytest.mark.parametrize("qos", [0, 1, 2])


def creating(data: Path, count: int) -> Hosted:
    return Hosted(data, mqtt__auto_create_topics=count)


def held(broker: Hosted) -> dict[str, list[tuple[str, bytes]]]:
    """Topic -> the names and payloads of its records."""

    def read() -> list[str]:
        return [topic.declared for topic in broker.exchange.engine.topics.all()]

    async def records(topic: str) -> list[tuple[str, bytes]]:
        one = broker.exchange.engine.topics.find(topic)
        found = []
        async for batch in one.log.batches_since(0):
            end = batch.end_offset
            for record in batch.records(topic, batch.base_offset, end):
                found.append((record.name, record.payload))
        return found

    return {topic: broker.run(lambda server: records(topic)) for topic in broker.call(read)}  # noqa: B023


def connected(stack: ExitStack, broker: Hosted, version: int = MQTT_3_1_1) -> Wire:
    wire = stack.enter_context(Wire(broker.port, "", version))
    wire.connect()
    return wire


@QOS
def test_the_first_message_is_in_the_topic_that_it_created(tmp_path: Path, qos: int) -> None:
    with creating(tmp_path, 2) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        publisher.publish("Orders/1/new", b"first", qos)
        publisher.publish("orders/2", b"second", qos)
        publisher.publish("plain", b"third", qos)
        publisher.publish("orders", b"last", 1)
        assert held(broker) == {
            "default": [],
            "Orders": [("Orders/1/new", b"first"), ("orders/2", b"second"), ("orders", b"last")],
            "plain": [("plain", b"third")],
        }


@QOS
def test_without_the_setting_nothing_is_created(tmp_path: Path, qos: int) -> None:
    with Hosted(tmp_path) as broker, ExitStack() as stack:
        connected(stack, broker).publish("orders/1", b"x", qos)
        assert list(held(broker)) == ["default"]


def test_at_most_so_many_are_created_also_after_a_restart_and_the_rest_goes_to_default(
    tmp_path: Path,
) -> None:
    with creating(tmp_path, 2) as broker, ExitStack() as stack:
        broker.run(lambda server: server.broker.create_topic("declared"))  # does not count
        publisher = connected(stack, broker)
        publisher.publish("a/1", b"", 1)
        publisher.publish("declared/1", b"", 1)
        publisher.publish("b/1", b"", 1)
        publisher.publish("c/1", b"", 1)
        assert set(held(broker)) == {"default", "declared", "a", "b"}
    with creating(tmp_path, 2) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        publisher.publish("d/1", b"", 1)
        assert set(held(broker)) == {"default", "declared", "a", "b"}
        assert [name for name, _ in held(broker)["default"]] == ["c/1", "d/1"]
        broker.run(lambda server: server.broker.delete_topic("a"))
        publisher.publish("e/1", b"", 1)  # there is room again
        assert set(held(broker)) == {"default", "declared", "b", "e"}


def test_bindings_and_names_that_no_topic_can_have_create_nothing(tmp_path: Path) -> None:
    names = ["/leading", "$own/x", "x" * 256 + "/y", "."]
    with creating(tmp_path, 100) as broker, ExitStack() as stack:
        broker.run(lambda server: server.broker.create_topic("bound"))
        broker.run(lambda server: server.broker.bind("special/#", "bound"))
        publisher = connected(stack, broker)
        for name in [*names, "special/1"]:
            publisher.publish(name, b"", 1)
        assert {topic: [name for name, _ in found] for topic, found in held(broker).items()} == {
            "default": names,
            "bound": ["special/1"],
        }


def test_one_chunk_with_many_new_names_is_stored_whole_and_in_order(tmp_path: Path) -> None:
    sent = [(f"t{number % 7}/{number % 3}", b"%d" % number) for number in range(300)]
    packets = b"".join(encode(Publish(*one), MQTT_3_1_1) for one in sent)
    with creating(tmp_path, 5) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        reader = connected(stack, broker)
        reader.subscribe("#")
        publisher.send_bytes(packets)
        publisher.publish("end", b"", 1)  # answered after all before it
        topics = held(broker)
        assert set(topics) == {"default", "t0", "t1", "t2", "t3", "t4"}
        for topic, found in topics.items():
            mine = [one for one in [*sent, ("end", b"")] if one[0][:2] == topic]
            rest = [one for one in [*sent, ("end", b"")] if one[0][:2] in ("t5", "t6", "en")]
            assert found == (rest if topic == "default" else mine)
        got = [(message.name, message.payload) for message in _messages(reader, 301)]
        assert sorted(got) == sorted([*sent, ("end", b"")])
        traffic = broker.call(lambda: broker.exchange.engine.metrics.traffic.publishes_received)
        assert traffic == 301


def test_acknowledgements_come_in_the_order_of_the_messages(tmp_path: Path) -> None:
    with creating(tmp_path, 10) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        publisher.send(
            *[Publish(f"n{number % 5}", b"", 1, packet_id=number + 1) for number in range(50)]
        )
        assert [publisher.expect(Puback).packet_id for _ in range(50)] == list(range(1, 51))


def test_clients_that_want_the_same_topic_at_once_get_one(tmp_path: Path) -> None:
    count = 8
    with creating(tmp_path, 1) as broker, ExitStack() as stack:
        publishers = [connected(stack, broker) for _ in range(count)]
        start = threading.Barrier(count)

        def publish(number: int) -> None:
            start.wait(10)
            publishers[number].publish(f"new/{number}", b"", 1)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        topics = held(broker)
        assert sorted(name for name, _ in topics["new"]) == [f"new/{one}" for one in range(count)]
        assert topics["default"] == []


def test_clients_that_want_different_topics_at_once_get_no_more_than_are_allowed(
    tmp_path: Path,
) -> None:
    with creating(tmp_path, 1) as broker, ExitStack() as stack:
        publishers = [connected(stack, broker) for _ in range(2)]
        turn = broker.exchange.engine.topics._turn
        broker.run(lambda server: turn.acquire())  # nothing is created before both have asked
        for number, publisher in enumerate(publishers):
            publisher.send(Publish(f"t{number}/x", b"", 1, packet_id=1))
        deadline = time.monotonic() + 10
        while not broker.call(lambda: all(one.gate.is_paused for one in broker.door._connections)):
            assert time.monotonic() < deadline
        broker.call(turn.release)
        for publisher in publishers:
            publisher.expect(Puback)
        assert sorted(len(found) for found in held(broker).values()) == [1, 1]


def test_a_session_that_is_away_gets_what_went_to_a_new_topic(tmp_path: Path) -> None:
    with creating(tmp_path, 1) as broker, ExitStack() as stack:
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe("new/#", qos=2)
        reader.disconnect()
        connected(stack, broker).publish("new/1", b"x", 2)
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        assert reader.receive().payload == b"x"
        reader.close()


def test_qos_2_in_a_new_topic_is_stored_once_although_it_is_sent_again(tmp_path: Path) -> None:
    with creating(tmp_path, 1) as broker, ExitStack() as stack:
        publisher, _ = connect_kept(broker.port, "publisher", MQTT_5)
        message = Publish("new/1", b"x", 2, packet_id=7)
        publisher.send(message)
        publisher.close()
        publisher, _ = connect_kept(broker.port, "publisher", MQTT_5)
        publisher._next_id = 7
        publisher.publish("new/1", b"x", 2)
        publisher.publish("new/2", b"y", 2)
        assert held(broker)["new"] == [("new/1", b"x"), ("new/2", b"y")]
        publisher.close()
        connected(stack, broker).publish("new/3", b"", 1)


def test_an_alias_reaches_the_topic_that_its_name_created(tmp_path: Path) -> None:
    with creating(tmp_path, 1) as broker, ExitStack() as stack:
        publisher = connected(stack, broker, MQTT_5)
        alias = Properties(topic_alias=1)
        publisher.send(Publish("new/1", b"a", properties=alias))
        publisher.send(Publish("", b"b", 1, packet_id=1, properties=alias))
        publisher.expect(Puback)
        assert held(broker)["new"] == [("new/1", b"a"), ("new/1", b"b")]


def test_a_will_creates_the_topic_of_its_name(tmp_path: Path) -> None:
    with creating(tmp_path, 1) as broker, ExitStack() as stack:
        reader = connected(stack, broker)
        reader.subscribe("gone/#")
        client = stack.enter_context(Wire(broker.port, "client"))
        client.connect(will=Will("gone/client", b"bye", 1))
        client.close()
        assert reader.receive().payload == b"bye"
        assert held(broker)["gone"] == [("gone/client", b"bye")]


def test_when_a_topic_cannot_be_created_nothing_is_acknowledged_and_the_client_is_told(
    tmp_path: Path,
) -> None:
    with creating(tmp_path, 1) as broker, ExitStack() as stack:
        publisher = connected(stack, broker, MQTT_5)
        (tmp_path / "default" / "new-2").write_bytes(b"where the topic's directory would be")
        publisher.send(Publish("new/1", b"x", 1, packet_id=1))
        said = publisher.expect(Disconnect)
        assert said.reason == Reason.QUOTA_EXCEEDED
        assert "cannot create the log's files" in (said.properties.reason_string or "")
        publisher = connected(stack, broker, MQTT_5)
        publisher.publish("new/1", b"x", 1)
        assert held(broker)["new"] == [("new/1", b"x")]


def _messages(wire: Wire, count: int) -> list[Publish]:
    return [wire.receive() for _ in range(count)]
