"""Bridges of other brokers: the bit in their CONNECT, and what they say of their connections."""

from __future__ import annotations

import pytest

from penstock.broker.states import STATE_BYTES_MAX, STATES_MAX
from penstock.mqtt.kinds import MQTT_3_1, MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Puback,
    Publish,
    Will,
)
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1], ids=["3.1", "3.1.1"])


def state_of(client_id: str) -> str:
    return f"$SYS/broker/connection/{client_id}/state"


def bridge(
    broker: Hosted, client_id: str, version: int = MQTT_3_1_1, *, clean: bool = True
) -> Wire:
    """A bridge as Mosquitto's: with the bit, and a will that says that it is gone."""
    wire = Wire(broker.port, client_id, version)
    will = Will(state_of(client_id), b"0", 1, True)
    wire.send(Connect(client_id, clean, 60, will, version=version, is_bridge=True))
    assert wire.expect(Connack).reason == Reason.SUCCESS
    return wire


def reader(broker: Hosted, client_id: str, *filters: str) -> Wire:
    wire = Wire(broker.port, client_id, MQTT_5)
    wire.connect()
    wire.subscribe(*filters)
    return wire


@VERSIONS
def test_a_bridge_gets_what_others_publish_and_none_of_its_own(
    broker: Hosted, name: str, version: int
) -> None:
    with bridge(broker, name[:20], version) as one, Wire(broker.port, f"{name}2") as other:
        other.connect()
        other.subscribe(f"{name}/#", qos=1)
        one.subscribe(f"{name}/#", qos=1)
        for qos in range(3):
            one.publish(f"{name}/a", b"from the bridge", qos)
            other.publish(f"{name}/b", b"from the other", qos)
        assert [one.receive().payload for _ in range(3)] == [b"from the other"] * 3
        assert one.settle() == []
        names = sorted(other.pick(Publish).name for _ in range(6))
        assert names == [f"{name}/a"] * 3 + [f"{name}/b"] * 3


def test_a_bridge_is_told_whether_a_message_was_published_as_retained(
    broker: Hosted, name: str
) -> None:
    with bridge(broker, name) as one, Wire(broker.port, f"{name}2") as other:
        one.subscribe(f"{name}/#", qos=1)
        other.connect()
        for retain in (True, False):
            other.publish(f"{name}/a", b"x", 1, retain=retain)
            assert one.receive().retain is retain


def test_what_a_bridge_published_does_not_come_back_from_a_session_that_was_kept(
    broker: Hosted, name: str
) -> None:
    """Retained, and while it was away: is only what others published there?"""
    one = bridge(broker, name, clean=False)
    one.subscribe(f"{name}/#", qos=1)
    one.publish(f"{name}/a", b"own", 1, retain=True)
    one.disconnect()
    with Wire(broker.port, f"{name}2") as other:
        other.connect()
        other.publish(f"{name}/b", b"meanwhile", 1)
    with bridge(broker, name, clean=False) as one:
        assert one.receive().payload == b"meanwhile"
        one.subscribe(f"{name}/#", qos=1)
        assert one.settle() == []


def test_a_bridge_may_take_part_in_a_shared_subscription(broker: Hosted, name: str) -> None:
    with bridge(broker, name) as one:
        one.subscribe(f"$share/g/{name}", qos=1)
        one.publish(name, b"x", 1)
        assert one.receive().payload == b"x"


def test_a_bridge_says_that_it_is_there_and_its_will_that_it_is_gone(
    broker: Hosted, name: str
) -> None:
    with reader(broker, f"{name}r", "$SYS/broker/connection/#") as early:
        while early.poll(0.2) is not None:  # states of other tests
            pass
        with bridge(broker, name) as one:
            one.publish(state_of(name), b"1", 1, retain=True)
            assert early.receive().payload == b"1"
            with reader(broker, f"{name}r2", state_of(name)) as late:
                greeting = late.receive()
                assert (greeting.payload, greeting.retain) == (b"1", True)
        gone = early.receive()
        assert (gone.name, gone.payload) == (state_of(name), b"0")
        with reader(broker, f"{name}r3", state_of(name)) as late:
            assert late.receive().payload == b"0"
        with reader(broker, f"{name}r4", "#") as late:  # no wildcard stands for $SYS
            said = [one for one in late.settle() if isinstance(one, Publish)]
            assert [one.name for one in said if one.name.startswith("$")] == []


def test_an_empty_state_is_forgotten(broker: Hosted, name: str) -> None:
    with bridge(broker, name) as one:
        one.publish(state_of(name), b"1", 1, retain=True)
        one.publish(state_of(name), b"", 1, retain=True)
        with reader(broker, f"{name}r", state_of(name)) as late:
            assert late.settle() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_clients_without_the_bit_may_say_the_same_of_themselves(
    broker: Hosted, name: str, qos: int
) -> None:
    """Mosquitto's bridges of MQTT 5 and those without `try_private`: are they let in, too?"""
    with (
        reader(broker, f"{name}r", state_of(name)) as early,
        Wire(broker.port, name, MQTT_5) as one,
    ):
        answer = one.connect(will=Will(state_of(name), b"0", qos, True))
        assert answer.reason == Reason.SUCCESS
        one.publish(state_of(name), b"1", qos, retain=True)
        assert early.receive().payload == b"1"


@pytest.mark.parametrize(
    "rest", ["connection/other/state", "connection/{}/other", "connection/{}", "uptime"]
)
def test_nobody_may_say_anything_else_in_the_name_of_the_broker(
    broker: Hosted, name: str, rest: str
) -> None:
    spoken = "$SYS/broker/" + rest.format(name)
    with Wire(broker.port, name, MQTT_5) as one:
        one.connect()
        one.send(Publish(spoken, b"1", 1, True, packet_id=1))
        assert one.expect(Puback).reason == Reason.NOT_AUTHORIZED
    with Wire(broker.port, name, MQTT_5) as one:
        assert one.connect(will=Will(spoken, b"0", 1, True)).reason == Reason.NOT_AUTHORIZED
    with bridge(broker, name) as one:
        one.send(Publish(spoken, b"1", 1, True, packet_id=1))
        assert one.is_closed()


def test_a_state_is_short_and_the_number_of_states_bounded(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as one:
        one.connect()
        one.send(Publish(state_of(name), b"x" * (STATE_BYTES_MAX + 1), 1, True, packet_id=1))
        assert one.expect(Puback).reason == Reason.NOT_AUTHORIZED
    for number in range(STATES_MAX + 1):
        with Wire(broker.port, f"{name}{number}", MQTT_5) as one:
            one.connect()
            one.publish(state_of(f"{name}{number}"), b"x" * STATE_BYTES_MAX, 1, retain=True)
    assert broker.call(lambda: len(broker.exchange.publisher.states.values)) == STATES_MAX
    with reader(broker, f"{name}r", state_of(f"{name}0"), state_of(f"{name}{STATES_MAX}")) as late:
        assert [one.name for one in late.settle() if isinstance(one, Publish)] == [
            state_of(f"{name}{STATES_MAX}")
        ]


@pytest.mark.parametrize(("level", "version"), [(0x83, MQTT_3_1_1), (0x85, MQTT_5), (0x86, MQTT_5)])
def test_bits_that_no_version_has_are_refused_in_words_the_client_knows(
    broker: Hosted, level: int, version: int
) -> None:
    with Wire(broker.port, version=version) as client:
        client.send_bytes(b"\x10\x0d\x00\x04MQTT" + bytes((level,)) + b"\x02\x00\x0a\x00\x01a")
        assert client.expect(Connack).reason == Reason.UNSUPPORTED_PROTOCOL_VERSION
        assert client.is_closed()


def test_a_bridge_whose_connect_is_broken_is_answered_in_its_own_version(broker: Hosted) -> None:
    """So that Mosquitto reads a refusal, not noise."""
    with Wire(broker.port, version=MQTT_3_1_1) as client:
        client.send_bytes(b"\x10\x0c\x00\x04MQTT\x84\x00\x00\x0a\x00\x00")
        assert client.expect(Connack).reason == Reason.CLIENT_IDENTIFIER_NOT_VALID
        assert client.is_closed()
