"""From CONNECT to DISCONNECT: who is let in, under which id, for how long, and how it ends."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1, MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept, kept

EVERY_VERSION = pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1, MQTT_5])


def test_broker_answers_while_others_come_and_go(broker: Hosted) -> None:
    """Is a socket that says nothing, or hangs up at once, no trouble to anybody?"""
    silent = [Wire(broker.port) for _ in range(20)]
    for one in silent[::2]:
        one.close()
    with Wire(broker.port) as client:
        client.connect()
        assert client.settle() == []
    for one in silent[1::2]:
        one.close()


@EVERY_VERSION
def test_connect_is_accepted_in_every_version(broker: Hosted, name: str, version: int) -> None:
    with Wire(broker.port, name, version) as client:
        answer = client.connect()
        assert (answer.reason, answer.session_present) == (Reason.SUCCESS, False)
        client.subscribe(name, qos=1)
        client.send(Publish(name, b"x", 1, packet_id=7))
        assert {type(client.next()), type(client.next())} == {Publish, Puback}


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_empty_client_id_is_given_one_of_its_own(broker: Hosted, version: int) -> None:
    with Wire(broker.port, "", version) as first, Wire(broker.port, "", version) as second:
        given = [wire.connect().properties.assigned_client_identifier for wire in (first, second)]
        if version == MQTT_5:
            assert given[0] and given[1] and given[0] != given[1]
        assert first.settle() == second.settle() == []


def test_assigned_client_id_can_be_used_to_come_back(broker: Hosted) -> None:
    with Wire(broker.port, "", MQTT_5) as client:
        given = client.connect(properties=kept()).properties.assigned_client_identifier
        assert given is not None
    _, is_present = connect_kept(broker.port, given, MQTT_5)
    assert is_present


def test_empty_client_id_that_wants_to_be_kept_is_refused(broker: Hosted) -> None:
    """Is 3.1.1 told that its identifier is rejected [MQTT-3.1.3-8]?"""
    with Wire(broker.port, "", MQTT_3_1_1) as client:
        answer = client.connect(clean=False)
        assert answer.reason == Reason.CLIENT_IDENTIFIER_NOT_VALID
        assert client.is_closed()


def test_unknown_protocol_level_is_told_so(broker: Hosted) -> None:
    """Does a client of another protocol level hear it [MQTT-3.1.2-2]?"""
    connect = bytearray(encode(Connect("x", version=MQTT_3_1_1), MQTT_3_1_1))
    for level, version, reason in (
        (3, MQTT_3_1_1, Reason.UNSUPPORTED_PROTOCOL_VERSION),
        (9, MQTT_5, Reason.UNSUPPORTED_PROTOCOL_VERSION),
    ):
        with Wire(broker.port, version=version) as client:
            connect[8] = level
            client.send_bytes(bytes(connect))
            assert client.expect(Connack).reason == reason
            assert client.is_closed()


def test_another_protocol_is_closed_without_a_word(broker: Hosted) -> None:
    for opening in (b"GET / HTTP/1.1\r\n\r\n", b"\x10\x0c\x00\x04HTTP\x04\x02\x00\x00\x00\x00"):
        with Wire(broker.port) as client:
            client.send_bytes(opening)
            assert client.is_closed()


@pytest.mark.parametrize(
    "packet",
    [
        Publish("a", b"x"),
        Publish("a", b"x", 1, packet_id=1),
        Puback(1),
        Pubrec(1),
        Subscribe(1, (Subscription("a"),)),
        Unsubscribe(1, ("a",)),
        Pingreq(),
        Disconnect(),
        Auth(Reason.SUCCESS),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_packet_before_connect_closes(broker: Hosted, packet: Packet) -> None:
    with Wire(broker.port, version=MQTT_5) as client:
        client.send(packet)
        assert client.is_closed()


@EVERY_VERSION
def test_second_connect_closes_with_protocol_error(broker: Hosted, name: str, version: int) -> None:
    with Wire(broker.port, name, version) as client:
        client.connect()
        client.send(Connect(name, version=version))
        if version == MQTT_5:
            assert client.expect(Disconnect).reason == Reason.PROTOCOL_ERROR
        assert client.is_closed()


def test_packets_behind_connect_wait_for_the_answer(broker: Hosted, name: str) -> None:
    """May a client send before it has its CONNACK, also one whose session is being loaded?"""
    for properties in (Properties(), kept()):
        with Wire(broker.port, name, MQTT_5) as client:
            client.send(
                Connect(name, False, version=MQTT_5, properties=properties),
                Subscribe(1, (Subscription(name, 1),)),
                Publish(name, b"early", 1, packet_id=2),
                Pingreq(),
            )
            assert isinstance(client.next(), Connack)
            said = [client.next() for _ in range(4)]
            assert {type(packet).__name__ for packet in said} == {
                "Suback",
                "Publish",
                "Puback",
                "Pingresp",
            }


def test_much_sent_behind_connect_is_all_read(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as client:
        connect = Connect(name, False, version=MQTT_5, properties=kept())
        client.send(connect, *[Publish(name, bytes(1000)) for _ in range(300)], Pingreq())
        assert isinstance(client.next(), Connack)
        assert isinstance(client.next(), Pingresp)


def test_will_in_connect_is_accepted(broker: Hosted, name: str) -> None:
    for version in (MQTT_3_1, MQTT_3_1_1, MQTT_5):
        with Wire(broker.port, name, version) as client:
            client.send(Connect(name, will=Will("w", b"gone", 1, True), version=version))
            assert client.expect(Connack).reason == Reason.SUCCESS


def test_extended_authentication_is_refused(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as client:
        asked = Properties(authentication_method="SCRAM-SHA-1")
        answer = client.connect(properties=asked)
        assert answer.reason == Reason.BAD_AUTHENTICATION_METHOD
        assert "not offered" in (answer.properties.reason_string or "")
        assert client.is_closed()


def test_auth_on_a_connection_is_a_protocol_error(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as client:
        client.connect()
        again = Properties(authentication_method="SCRAM-SHA-1")
        client.send(Auth(Reason.REAUTHENTICATE, again))
        assert client.expect(Disconnect).reason == Reason.PROTOCOL_ERROR
        assert client.is_closed()


# Time


def test_silent_client_is_let_go_after_one_and_a_half_keep_alives(
    broker: Hosted, name: str
) -> None:
    with Wire(broker.port, name, MQTT_5) as client:
        client.connect(keep_alive_s=1)
        end = client.expect(Disconnect)
        assert end.reason == Reason.KEEP_ALIVE_TIMEOUT
        assert "keep alive of 1 s" in (end.properties.reason_string or "")
        assert client.is_closed()


@pytest.mark.parametrize(("keep_alive_s", "ticks_max"), [(1, 2), (2, 3), (3, 5), (5, 8)])
def test_nobody_is_let_go_before_one_and_a_half_keep_alives(
    broker: Hosted, name: str, keep_alive_s: int, ticks_max: int
) -> None:
    """The clock ticks once a second; a client may have said its last word just before a tick."""

    def is_there_after(ticks: int) -> bool:
        door = broker.door
        (connection,) = [
            one for one in door._connections if one.session and one.session.client_id == name
        ]
        connection.last_seen = door.serving.tick
        for _ in range(ticks):
            door._timer.cancel()
            door._each_second()
        return not connection.is_closed

    with Wire(broker.port, name, MQTT_5) as client:
        client.connect(keep_alive_s=keep_alive_s)
        assert broker.call(lambda: is_there_after(ticks_max))
        assert not broker.call(lambda: is_there_after(ticks_max + 1))


def test_pings_keep_a_client_and_any_packet_is_as_good(broker: Hosted, name: str) -> None:
    with (
        Wire(broker.port, name, MQTT_5) as pinging,
        Wire(broker.port, name + "2", MQTT_5) as talking,
        Wire(broker.port, name + "3", MQTT_5) as silent,
    ):
        for one in (pinging, talking, silent):
            one.connect(keep_alive_s=1)
        silent.send(Pingreq())
        silent.expect(Pingresp)
        deadline = time.monotonic() + 30
        while not silent_is_gone(silent):
            assert time.monotonic() < deadline
            pinging.send(Pingreq())
            pinging.expect(Pingresp)
            talking.send(Publish(name, b"x"))
        assert pinging.settle() == talking.settle() == []


def silent_is_gone(silent: Wire) -> bool:
    packet = silent.poll(0.2)
    return isinstance(packet, Disconnect) and packet.reason == Reason.KEEP_ALIVE_TIMEOUT


def test_client_that_never_connects_is_let_go(tmp_path: Path) -> None:
    with (
        Hosted(tmp_path, mqtt__connect_timeout="1s") as broker,
        Wire(broker.port) as silent,
        Wire(broker.port) as halfway,
    ):
        halfway.send_bytes(encode(Connect("x"), MQTT_5)[:5])
        assert silent.is_closed()
        assert halfway.is_closed()


# Takeover


@pytest.mark.parametrize("is_kept", [False, True])
def test_newer_connection_takes_the_client_id_over(
    broker: Hosted, name: str, is_kept: bool
) -> None:
    properties = kept() if is_kept else Properties()
    with (
        Wire(broker.port, name, MQTT_5) as older,
        Wire(broker.port, name, MQTT_5) as newer,
    ):
        older.connect(clean=False, properties=properties)
        assert newer.connect(clean=False, properties=properties).session_present is is_kept
        end = older.expect(Disconnect)
        assert end.reason == Reason.SESSION_TAKEN_OVER
        assert "another client connected" in (end.properties.reason_string or "")
        assert older.is_closed()
        newer.subscribe(name)
        newer.send(Publish(name, b"x"))
        assert newer.expect(Publish).payload == b"x"


def test_many_connections_fight_for_an_id_and_the_last_one_has_it(
    broker: Hosted, name: str
) -> None:
    """Is there one connection left, and is it the newest, however fast they come?"""
    wires = [Wire(broker.port, name, MQTT_5) for _ in range(12)]
    for number, wire in enumerate(wires):
        properties = kept() if number % 3 else Properties()
        wire.send(Connect(name, number % 4 == 0, version=MQTT_5, properties=properties))
        if number % 5 == 4:
            wires[0].poll(0.01)
    wires[-1].expect(Connack)
    wires[-1].subscribe(name, qos=1)
    wires[-1].publish_all(name, 3, qos=1)
    for wire in wires[:-1]:
        while not wire.is_closed():
            pass
    sessions = broker.call(
        lambda: [one for one in broker.exchange.sessions.connected if one == name]
    )
    assert len(sessions) == 1


# Sessions and their time


def test_disconnect_can_shorten_and_end_a_session(broker: Hosted, name: str) -> None:
    first, _ = connect_kept(broker.port, name, MQTT_5)
    first.send(Disconnect(properties=Properties(session_expiry_interval=0)))
    assert first.is_closed()
    second, is_present = connect_kept(broker.port, name, MQTT_5)
    assert not is_present
    second.send(Disconnect(properties=Properties(session_expiry_interval=1000)))
    assert second.is_closed()
    _, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present


def test_disconnect_cannot_begin_to_keep_a_session(broker: Hosted, name: str) -> None:
    """Is a session that was to end with its connection not prolonged (MQTT 5 §3.14.2.2.2)?"""
    with Wire(broker.port, name, MQTT_5) as client:
        client.connect()
        client.send(Disconnect(properties=Properties(session_expiry_interval=100)))
        assert client.expect(Disconnect).reason == Reason.PROTOCOL_ERROR
        assert client.is_closed()
    _, is_present = connect_kept(broker.port, name, MQTT_5)
    assert not is_present


def test_session_without_expiry_ends_with_its_connection(broker: Hosted, name: str) -> None:
    kept_one, _ = connect_kept(broker.port, name, MQTT_5)
    kept_one.subscribe(name, qos=1)
    kept_one.disconnect()
    with Wire(broker.port, name, MQTT_5) as client:
        assert client.connect(clean=False).session_present  # now it does not outlive this one
        client.disconnect()
    with Wire(broker.port, name, MQTT_5) as client:
        assert not client.connect(clean=False).session_present


def test_session_can_change_its_version(broker: Hosted, name: str) -> None:
    old, _ = connect_kept(broker.port, name, MQTT_3_1_1)
    old.subscribe(name, qos=1)
    old.disconnect()
    with Wire(broker.port) as publisher:
        publisher.connect()
        publisher.publish(name, b"x", 1)
    new, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present
    assert new.receive().payload == b"x"


def test_client_that_hangs_up_before_its_answer_loses_nothing(broker: Hosted, name: str) -> None:
    """Does a session survive a client that goes while its session is still being loaded?"""
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe(name, qos=1)
    reader.disconnect()
    with Wire(broker.port) as publisher:
        publisher.connect()
        publisher.publish_all(name, 5, qos=1)
    connect = Connect(name, False, version=MQTT_5, properties=kept())
    for _ in range(3):
        hasty = Wire(broker.port, name, MQTT_5)
        broker.call(partial(hasty.send_and_close, connect))  # the broker sees both in one go
        broker.wait_idle()
    reader, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present
    assert [reader.receive().payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_session_taken_over_while_it_was_loaded_is_still_kept(broker: Hosted, name: str) -> None:
    """Two CONNECTs at once: is the position of the one that stays saved when it goes?"""
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe(name, qos=1)
    reader.disconnect()
    with Wire(broker.port) as publisher:
        publisher.connect()
        publisher.publish_all(name, 3, qos=1)
        first, second = Wire(broker.port, name, MQTT_5), Wire(broker.port, name, MQTT_5)
        connect = Connect(name, False, version=MQTT_5, properties=kept())
        broker.call(lambda: (first.send(connect), second.send(connect)))
        assert second.expect(Connack).session_present
        assert [second.receive().payload for _ in range(3)] == [b"0", b"1", b"2"]
        second.settle()
        is_connected = broker.stored_sessions()[name]
        assert is_connected
        second.disconnect()
        publisher.publish(name, b"3", 1)
    reader, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present
    assert reader.receive().payload == b"3"
    assert reader.settle() == []
