"""Retained messages: does a new subscriber get the newest of each name, also after kill -9?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Publish, Subscription
from tests.doors.served import Served
from tests.doors.wire import Wire, connect_kept


def retained(port: int, filter: str, qos: int = 1) -> dict[str, bytes]:
    """What a fresh subscriber is given."""
    with Wire(port, version=MQTT_5) as reader:
        reader.connect()
        reader.subscribe(filter, qos=qos)
        found = {}
        while said := reader.settle():
            for packet in said:
                assert isinstance(packet, Publish) and packet.retain
                reader.acknowledge(packet)
                found[packet.name] = packet.payload
        return found


def test_the_newest_retained_message_of_each_name_comes_at_subscribe(tmp_path: Path) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        publisher.publish("a/1", b"old", 1, retain=True)
        publisher.publish("a/1", b"new", 1, retain=True)
        publisher.publish("a/2", b"two", 0, retain=True)
        publisher.publish("a/3", b"plain", 1)
        publisher.publish("$a/4", b"hidden", 1, retain=True)
        publisher.settle()
        assert retained(broker.port, "a/1") == {"a/1": b"new"}
        assert retained(broker.port, "#") == {"a/1": b"new", "a/2": b"two"}
        assert retained(broker.port, "a/+", qos=0) == {"a/1": b"new", "a/2": b"two"}
        assert retained(broker.port, "$a/#") == {"$a/4": b"hidden"}
        assert retained(broker.port, "b/#") == {}


def test_an_empty_payload_deletes_and_is_delivered_live(tmp_path: Path) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        publisher.publish("a", b"x", 1, retain=True)
        with Wire(broker.port) as reader:
            reader.connect()
            reader.subscribe("a", qos=1)
            assert reader.receive().retain
            publisher.publish("a", b"", 1, retain=True)
            live = reader.receive()
            assert (live.payload, live.retain) == (b"", False)
        assert retained(broker.port, "a") == {}


def test_retained_messages_are_right_after_kill_9(tmp_path: Path) -> None:
    broker = Served(tmp_path).start()
    for round_number in range(3):
        with Wire(broker.port) as publisher:
            publisher.connect()
            for number in range(40):
                publisher.publish(f"a/{number}", b"%d %d" % (round_number, number), 1, retain=True)
            publisher.publish(f"a/{round_number}", b"", 1, retain=True)
        broker.kill()
        broker.start()
        expected = {f"a/{n}": b"%d %d" % (round_number, n) for n in range(40)}
        del expected[f"a/{round_number}"]
        assert retained(broker.port, "a/#") == expected
    broker.stop()


def test_retain_handling_decides_whether_they_come(tmp_path: Path) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        publisher.publish("a", b"x", 1, retain=True)
        with Wire(broker.port, version=MQTT_5) as reader:
            reader.connect()
            reader.subscribe(Subscription("a", 0, retain_handling=2))
            assert reader.settle() == []
            reader.subscribe(Subscription("a", 0, retain_handling=1))
            assert reader.settle() == []  # not a new subscription
            reader.subscribe(Subscription("a", 0, retain_handling=0))
            assert reader.receive().payload == b"x"


def test_retained_messages_of_many_names_do_not_hold_up_others(tmp_path: Path) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        count = 3000
        for start in range(0, count, 500):
            publisher.send(
                *[Publish(f"a/{n}", b"%d" % n, 0, True) for n in range(start, start + 500)]
            )
        publisher.settle()
        publisher.publish("b", b"flush", 1)
        found = retained(broker.port, "a/#", qos=0)
        assert found == {f"a/{n}": b"%d" % n for n in range(count)}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_retained_message_says_so_when_it_is_sent_again(
    tmp_path: Path, version: int, qos: int
) -> None:
    """Also if its filter was there before it: RETAIN tells why it was sent (MQTT 5 §3.3.1.3)."""
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        reader, _ = connect_kept(broker.port, "reader", version)
        reader.subscribe("a", qos=qos)
        publisher.publish("a", b"x", qos, retain=True)
        live = reader.receive()
        assert not live.retain
        reader.subscribe("a", qos=qos)
        given = reader.expect(Publish)
        assert given.retain
        reader.close()
        reader, _ = connect_kept(broker.port, "reader", version)
        again = reader.expect(Publish)
        assert (again.packet_id, again.dup, again.retain) == (given.packet_id, True, True)
        reader.acknowledge(again)
        assert reader.settle() == []


def test_the_same_message_may_be_out_live_and_because_it_was_retained(tmp_path: Path) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe("a", qos=1)
        publisher.publish("a", b"x", 1, retain=True)
        live = reader.expect(Publish)
        reader.subscribe("a", qos=1)
        given = reader.expect(Publish)
        assert (live.retain, given.retain) == (False, True)
        reader.close()
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        again = [reader.expect(Publish), reader.expect(Publish)]
        found = {(one.packet_id, one.dup, one.retain) for one in again}
        assert found == {(live.packet_id, True, False), (given.packet_id, True, True)}


def test_a_retained_message_of_a_filter_with_where_says_so_when_it_is_sent_again(
    tmp_path: Path,
) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        publisher.publish("a", b"x", 1, retain=True)
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe_feed("a", qos=1, where="payload = 'x'")
        given = reader.expect(Publish)
        reader.close()
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        again = reader.expect(Publish)
        assert (given.retain, again.retain, again.dup) == (True, True, True)
        assert again.properties == given.properties
        reader.acknowledge(again)
        reader.subscribe_feed("b", qos=1, where="payload = 'x'")  # a feed with an id of its own
        publisher.publish("b", b"x", 1)
        assert reader.receive().name == "b"
