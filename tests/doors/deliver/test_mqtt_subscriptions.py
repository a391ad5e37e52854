"""Identifiers, no-local and retained messages, where subscriptions overlap or come back."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Disconnect, Publish, Suback, Subscribe, Subscription
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from tests.doors.deliver.test_mqtt_delivery import client
from tests.doors.hosted import Hosted
from tests.doors.wire import WAIT_S, Wire, connect_kept


def subscribe(wire: Wire, identifier: int, *wanted: Subscription) -> None:
    """One SUBSCRIBE; identifier 0 means none."""
    asked = Properties(subscription_identifiers=(identifier,)) if identifier else NO_PROPERTIES
    wire.send(Subscribe(wire.take_id(), wanted, asked))
    assert all(reason < 0x80 for reason in wire.pick(Suback).reasons)


def identifiers(message: Publish) -> list[int]:
    return sorted(message.properties.subscription_identifiers)


# What CONNACK offers


def test_connack_limits_nothing_that_is_there(broker: Hosted, name: str) -> None:
    """Are QoS 2, retained messages, wildcards and identifiers offered, by saying nothing else?"""
    with Wire(broker.port, name, MQTT_5) as wire:
        offered = wire.connect().properties
        assert offered.maximum_qos is None
        assert offered.retain_available in (None, 1)
        assert offered.wildcard_subscription_available in (None, 1)
        assert offered.subscription_identifier_available in (None, 1)


# Identifiers


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_identifiers_come_live_retained_later_and_again(
    broker: Hosted, name: str, qos: int
) -> None:
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    with client(broker, name + "p") as writer:
        writer.publish(f"{name}/r", b"retained", qos, retain=True)
        writer.publish("elsewhere", b"", 1)  # acknowledged after what came before it
        subscribe(reader, 268_435_455, Subscription(f"{name}/#", qos))
        subscribe(reader, 5, Subscription(f"{name}/a", qos))
        subscribe(reader, 0, Subscription(f"{name}/+", qos, retain_handling=2))
        first = reader.receive()
        assert (first.payload, identifiers(first)) == (b"retained", [268_435_455])
        writer.publish(f"{name}/a", b"live", qos)
        assert identifiers(reader.receive()) == [5, 268_435_455]
        if qos == 0:
            reader.close()
            return
        reader.disconnect()
        writer.publish(f"{name}/a", b"later", qos)
    for is_again in (False, True):
        reader, _ = connect_kept(broker.port, name, MQTT_5)
        message = reader.expect(Publish)
        assert (message.payload, message.dup) == (b"later", is_again)
        assert identifiers(message) == [5, 268_435_455]
        reader.close()


def test_identifier_goes_with_the_subscription_that_is_replaced(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        for identifier in (7, 8, 0, 9):
            subscribe(reader, identifier, Subscription(name, 1))
            writer.publish(name, b"x", 1)
            assert identifiers(reader.receive()) == ([identifier] if identifier else [])


def test_identifier_shared_by_filters_comes_once_a_message(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        subscribe(reader, 3, Subscription(f"{name}/#", 1), Subscription(f"{name}/+", 0))
        writer.publish(f"{name}/a", b"x", 1)
        message = reader.receive()
        assert (identifiers(message), message.qos) == ([3], 1)
        assert reader.settle() == []


@pytest.mark.parametrize("value", [b"\x0b\x00", b"\x0b\x01\x0b\x02"])
def test_identifier_of_zero_or_twice_is_a_protocol_error(
    broker: Hosted, name: str, value: bytes
) -> None:
    with client(broker, name) as reader:
        body = b"\x00\x01" + bytes((len(value),)) + value + b"\x00\x01a\x00"
        reader.send_bytes(bytes((0x82, len(body))) + body)
        assert reader.expect(Disconnect).reason == Reason.PROTOCOL_ERROR


# No-local


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_own_messages_come_by_the_subscriptions_that_want_them(
    broker: Hosted, name: str, qos: int
) -> None:
    """Two filters match, one with no-local: do own messages come as if that one were not there?"""
    with client(broker, name) as one, client(broker, name + "2") as other:
        subscribe(one, 1, Subscription(f"{name}/#", 2, no_local=True))
        subscribe(one, 2, Subscription(f"{name}/+", min(qos, 1)))
        one.publish(f"{name}/a", b"own", qos)
        own = one.receive()
        assert (own.payload, identifiers(own), own.qos) == (b"own", [2], min(qos, 1))
        other.publish(f"{name}/a", b"other", qos)
        message = one.receive()
        assert (message.payload, identifiers(message), message.qos) == (b"other", [1, 2], qos)
        assert one.settle() == []


def test_own_messages_of_qos_0_filters_beside_no_local_come_at_qos_0(
    broker: Hosted, name: str
) -> None:
    with client(broker, name) as one:
        subscribe(one, 1, Subscription(f"{name}/#", 2, no_local=True))
        subscribe(one, 2, Subscription(f"{name}/+", 0))
        one.publish(f"{name}/a", b"own", 2)
        own = one.receive()
        assert (own.qos, identifiers(own)) == (0, [2])
        assert one.settle() == []


def test_own_messages_are_told_apart_also_from_the_log(broker: Hosted, name: str) -> None:
    """The window is full, so what comes next is read from the log: does no-local hold there?"""
    asked = Properties(session_expiry_interval=100, receive_maximum=1)
    one = Wire(broker.port, name, MQTT_5)
    one.connect(clean=False, properties=asked)
    subscribe(one, 1, Subscription(f"{name}/#", 1, no_local=True))
    subscribe(one, 2, Subscription(f"{name}/b", 1))
    with client(broker, name + "2") as other:
        other.publish(f"{name}/a", b"first", 1)
        for last in ("a", "b"):
            one.publish(f"{name}/{last}", b"own", 1)
            other.publish(f"{name}/{last}", b"other", 1)
    received = [one.receive() for _ in range(4)]
    assert [(m.name[-1], m.payload, identifiers(m)) for m in received] == [
        ("a", b"first", [1]),
        ("a", b"other", [1]),
        ("b", b"own", [2]),
        ("b", b"other", [1, 2]),
    ]
    assert one.settle() == []
    one.close()


def test_no_local_on_a_shared_subscription_is_a_protocol_error(broker: Hosted, name: str) -> None:
    with client(broker, name) as reader:
        reader.send(Subscribe(1, (Subscription(f"$share/g/{name}", 1, no_local=True),)))
        assert reader.expect(Disconnect).reason == Reason.PROTOCOL_ERROR
        assert reader.is_closed()


# Retained messages


def retain_many(writer: Wire, name: str, count: int) -> set[str]:
    names = {f"{name}/{number}" for number in range(count)}
    for one in sorted(names):
        writer.publish(one, b"x", 1, retain=True)
    return names


@pytest.mark.parametrize("qos", [1, 2])
def test_retained_messages_out_when_the_client_went_are_sent_again_as_retained(
    broker: Hosted, name: str, qos: int
) -> None:
    with client(broker, name + "p") as writer:
        writer.publish(f"{name}/a", b"old", qos, retain=True)
        reader, _ = connect_kept(broker.port, name, MQTT_5)
        subscribe(reader, 4, Subscription(f"{name}/#", qos))
        first = reader.expect(Publish)
        writer.publish(f"{name}/b", b"new", qos, retain=True)
        live = reader.expect(Publish)
        assert (first.retain, live.retain) == (True, False)
        reader.close()
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    again = [reader.receive(), reader.receive()]
    assert [(one.payload, one.retain, one.dup) for one in again] == [
        (b"old", True, True),
        (b"new", False, True),
    ]
    assert [one.packet_id for one in again] == [first.packet_id, live.packet_id]
    assert [identifiers(one) for one in again] == [[4], [4]]
    assert reader.settle() == []
    reader.close()


def test_retained_messages_not_sent_when_the_client_went_come_at_the_next_subscribe(
    broker: Hosted, name: str
) -> None:
    """They are owed at subscribe and are no part of the session: is it so, and is none lost?"""
    with client(broker, name + "p") as writer:
        names = retain_many(writer, name, 12)
    reader = Wire(broker.port, name, MQTT_5)
    asked = Properties(session_expiry_interval=100, receive_maximum=3)
    reader.connect(clean=False, properties=asked)
    reader.subscribe(f"{name}/+", qos=1)
    out = {reader.expect(Publish).name for _ in range(3)}
    reader.close()
    reader, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present
    assert {reader.receive().name for _ in range(3)} == out
    assert reader.poll(0.1) is None
    reader.subscribe_later(f"{name}/+", qos=1)
    reader.pick(Suback)
    assert {reader.receive().name for _ in range(12)} == names
    reader.close()


def stored_names(data: Path) -> set[str]:
    with sqlite3.connect(f"file:{data}/catalog.db?mode=ro", uri=True) as catalog:
        return {row[0] for row in catalog.execute("select name from retained")}


def wait_stored(data: Path, names: set[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while stored_names(data) != names:
        assert time.monotonic() < deadline, stored_names(data)
        time.sleep(0.02)


def test_expired_retained_messages_leave_memory_and_catalog(tmp_path: Path) -> None:
    """Also one that was stored when the broker stopped, and none that was replaced by a longer."""

    def publish(wire: Wire, name: str, expiry_s: int | None) -> None:
        asked = Properties(message_expiry_interval=expiry_s)
        wire.send(Publish(name, b"x", 1, True, packet_id=1, properties=asked))
        wire.next()

    with Hosted(tmp_path) as broker, Wire(broker.port, version=MQTT_5) as writer:
        writer.connect()
        for name, expiry_s in (("short", 1), ("long", 1000), ("ever", None), ("renewed", 1)):
            publish(writer, name, expiry_s)
        publish(writer, "renewed", 1000)
        publish(writer, "freed", 1)
        publish(writer, "freed", None)
        wait_stored(tmp_path, {"long", "ever", "renewed", "freed"})
        assert len(broker.exchange.store.retained) == 4
        publish(writer, "night", 5)
        broker.run(lambda server: broker.exchange.store.checkpoints.save())
        assert "night" in stored_names(tmp_path)
    with Hosted(tmp_path) as broker:
        wait_stored(tmp_path, {"long", "ever", "renewed", "freed"})
        assert len(broker.exchange.store.retained) == 4


def test_older_clients_get_retained_messages_again_at_every_subscribe(
    broker: Hosted, name: str
) -> None:
    """3.1.1 has no retain handling: a repeated SUBSCRIBE sends them again [MQTT-3.8.4-3]."""
    with client(broker, name + "p") as writer, client(broker, name, MQTT_3_1_1) as reader:
        writer.publish(name, b"x", 1, retain=True)
        for _ in range(2):
            reader.subscribe(name, qos=1)
            assert reader.receive().retain
