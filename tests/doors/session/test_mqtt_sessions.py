"""Persistent sessions: does a client that comes back get what it missed, once, in order?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Unsubscribe
from penstock.mqtt.properties import Properties
from tests.doors.served import Served
from tests.doors.wire import Wire, connect_kept

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])


def payloads(wire: Wire, count: int) -> list[bytes]:
    return [wire.receive().payload for _ in range(count)]


@VERSIONS
def test_messages_published_while_away_come_once_and_in_order(tmp_path: Path, version: int) -> None:
    with Served(tmp_path) as broker, Wire(broker.port, "pub") as publisher:
        publisher.connect()
        reader, present = connect_kept(broker.port, "reader", version)
        assert not present
        reader.subscribe("a/#", qos=2)
        publisher.publish("a/0", b"before", 1)
        assert reader.receive().payload == b"before"
        reader.disconnect()
        for number in range(20):
            publisher.publish(f"a/{number % 3}", b"%d" % number, 1 + number % 2)
        reader, present = connect_kept(broker.port, "reader", version)
        assert present
        assert payloads(reader, 20) == [b"%d" % number for number in range(20)]
        publisher.publish("a/9", b"live", 1)
        assert reader.receive().payload == b"live"
        assert reader.settle() == []


@VERSIONS
def test_a_session_survives_kill_9_with_its_subscriptions_and_position(
    tmp_path: Path, version: int
) -> None:
    broker = Served(tmp_path).start()
    reader, _ = connect_kept(broker.port, "reader", version)
    reader.subscribe("a", qos=1)
    reader.disconnect()
    with Wire(broker.port) as publisher:
        publisher.connect()
        for number in range(50):
            publisher.publish("a", b"%d" % number, 1)
    broker.kill()
    broker.start()
    reader, present = connect_kept(broker.port, "reader", version)
    assert present
    assert payloads(reader, 50) == [b"%d" % number for number in range(50)]
    assert reader.settle() == []
    broker.stop()


@VERSIONS
def test_unacked_qos1_message_is_sent_again_with_dup_and_its_id(
    tmp_path: Path, version: int
) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        reader, _ = connect_kept(broker.port, "reader", version)
        reader.subscribe("a", qos=1)
        publisher.publish("a", b"one", 1)
        publisher.publish("a", b"two", 1)
        first, second = reader.expect(Publish), reader.expect(Publish)
        reader.send(Puback(second.packet_id))
        assert reader.settle() == []
        reader.close()
        reader, _ = connect_kept(broker.port, "reader", version)
        again = reader.receive()
        assert (again.payload, again.packet_id, again.dup) == (b"one", first.packet_id, True)
        publisher.publish("a", b"three", 1)
        assert reader.receive().payload == b"three"
        assert reader.settle() == []


@VERSIONS
def test_qos2_message_out_at_kill_9_is_delivered_exactly_once(tmp_path: Path, version: int) -> None:
    broker = Served(tmp_path).start()
    reader, _ = connect_kept(broker.port, "reader", version)
    reader.subscribe("a", qos=2)
    with Wire(broker.port) as publisher:
        publisher.connect()
        for text in (b"done", b"released", b"sent"):
            publisher.publish("a", text, 2)
    assert reader.receive().payload == b"done"
    released = reader.expect(Publish)
    reader.send(Pubrec(released.packet_id))
    sent = reader.expect(Publish)
    assert reader.pick(Pubrel).packet_id == released.packet_id
    broker.kill()
    broker.start()
    reader, present = connect_kept(broker.port, "reader", version)
    assert present
    # A release may be repeated, also of what is done: it delivers nothing.
    again = reader.pick(Publish)
    assert (again.payload, again.packet_id, again.dup) == (b"sent", sent.packet_id, True)
    reader.acknowledge(again)
    rest = reader.settle()
    assert all(isinstance(packet, Pubrel) for packet in rest)
    assert Pubrel(released.packet_id) in rest
    for packet in rest:
        assert isinstance(packet, Pubrel)
        reader.send(Pubcomp(packet.packet_id))
    assert reader.settle() == []
    broker.stop()


@VERSIONS
def test_qos2_publish_repeated_after_kill_9_is_stored_once(tmp_path: Path, version: int) -> None:
    broker = Served(tmp_path).start()
    writer, _ = connect_kept(broker.port, "writer", version)
    writer.send(Publish("a", b"once", 2, packet_id=7))
    assert writer.expect(Pubrec).packet_id == 7
    broker.kill()
    broker.start()
    reader = Wire(broker.port)
    reader.connect()
    reader.subscribe("a", qos=2)
    writer, present = connect_kept(broker.port, "writer", version)
    assert present
    writer.send(Publish("a", b"once", 2, dup=True, packet_id=7))
    assert writer.expect(Pubrec).packet_id == 7
    writer.send(Pubrel(7))
    assert writer.expect(Pubcomp).packet_id == 7
    assert reader.settle() == []
    broker.kill()
    broker.start()
    writer, _ = connect_kept(broker.port, "writer", version)
    writer.send(Publish("a", b"next", 2, packet_id=7))
    assert writer.expect(Pubrec).packet_id == 7
    broker.stop()
    with_all = stored(tmp_path)
    assert with_all == [b"once", b"next"]


def stored(data: Path) -> list[bytes]:
    from penstock import Broker

    with Broker(data) as broker:
        return [record.payload for record in broker.read("default")]


@VERSIONS
def test_clean_start_forgets_the_session(tmp_path: Path, version: int) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        reader, _ = connect_kept(broker.port, "reader", version)
        reader.subscribe("a", qos=1)
        reader.disconnect()
        publisher.publish("a", b"missed", 1)
        with Wire(broker.port, "reader", version) as clean:
            assert not clean.connect(clean=True).session_present
            assert clean.settle() == []
        reader, present = connect_kept(broker.port, "reader", version)
        assert not present
        publisher.publish("a", b"not subscribed", 1)
        assert reader.settle() == []


def test_messages_from_before_a_subscription_do_not_come(tmp_path: Path) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        publisher.publish("a", b"early", 1)
        reader.subscribe("a", qos=1)
        publisher.publish("a", b"1", 1)
        assert reader.receive().payload == b"1"
        reader.send(Unsubscribe(reader.take_id(), ("a",)))
        reader.next()
        publisher.publish("a", b"between", 1)
        reader.subscribe("a", qos=1)
        reader.disconnect()
        publisher.publish("a", b"2", 1)
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        assert reader.receive().payload == b"2"
        assert reader.settle() == []


def test_qos0_messages_are_not_kept_for_those_away(tmp_path: Path) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        reader.subscribe("a", qos=1)
        reader.disconnect()
        publisher.publish("a", b"gone", 0)
        publisher.publish("a", b"kept", 1)
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        assert reader.receive().payload == b"kept"
        assert reader.settle() == []


def test_a_session_ends_when_its_expiry_has_passed(tmp_path: Path) -> None:
    with Served(tmp_path) as broker:
        reader = Wire(broker.port, "reader", MQTT_5)
        reader.connect(clean=False, properties=Properties(session_expiry_interval=1))
        reader.subscribe("a", qos=1)
        reader.disconnect()
        for _ in range(100):
            reader = Wire(broker.port, "other", MQTT_5)
            reader.connect()
            reader.disconnect()
            if not _has_session(tmp_path, "reader"):
                break
        else:
            _wait_until_gone(tmp_path, "reader")
        reader, present = connect_kept(broker.port, "reader", MQTT_5)
        assert not present


def _has_session(data: Path, client_id: str) -> bool:
    import sqlite3

    with sqlite3.connect(f"file:{data}/catalog.db?mode=ro", uri=True) as database:
        found = database.execute("select 1 from sessions where client_id = ?", [client_id])
        return found.fetchone() is not None


def _wait_until_gone(data: Path, client_id: str) -> None:
    import time

    deadline = time.monotonic() + 30
    while _has_session(data, client_id):
        assert time.monotonic() < deadline, "the session did not expire"
        time.sleep(0.05)


def test_a_returning_client_is_paced_by_its_window(tmp_path: Path) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe("a", qos=1)
        reader.disconnect()
        for number in range(30):
            publisher.publish("a", b"%d" % number, 1)
        reader = Wire(broker.port, "reader", MQTT_5)
        asked = Properties(session_expiry_interval=60, receive_maximum=4)
        assert reader.connect(clean=False, properties=asked).session_present
        first = [reader.expect(Publish) for _ in range(4)]
        assert reader.settle() == []
        for message in first:
            reader.send(Puback(message.packet_id))
        got = [message.payload for message in first] + payloads(reader, 26)
        assert got == [b"%d" % number for number in range(30)]
        assert reader.settle() == []


def test_taking_over_a_session_goes_on_where_the_old_connection_was(tmp_path: Path) -> None:
    with Served(tmp_path) as broker, Wire(broker.port) as publisher:
        publisher.connect()
        old, _ = connect_kept(broker.port, "reader", MQTT_5)
        old.subscribe("a", qos=1)
        publisher.publish("a", b"1", 1)
        assert old.receive().payload == b"1"
        assert old.settle() == []
        new, present = connect_kept(broker.port, "reader", MQTT_5)
        assert present
        publisher.publish("a", b"2", 1)
        assert new.receive().payload == b"2"
        assert new.settle() == []
