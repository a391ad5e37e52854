"""Who may have how much out, what acknowledgements may say, and what becomes of those who err."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.doors.mqtt.answers import SENTENCE_CHARS_MAX
from penstock.doors.mqtt.receive.publishing import RECEIVE_MAX
from penstock.doors.mqtt.unsent import OUT_BYTES_MAX
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Ack,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from tests.doors.deliver.test_mqtt_delivery import client
from tests.doors.hosted import Hosted
from tests.doors.publish.test_mqtt_disk import failing
from tests.doors.served import Served
from tests.doors.wire import Wire, connect_kept

SLOW_DISK = Path(__file__).with_name("slow_disk_child.py")
NOT_FOUND = Reason.PACKET_IDENTIFIER_NOT_FOUND
VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])


def publishes(name: str, first: int, count: int, qos: int, version: int = MQTT_5) -> bytes:
    """So many messages with packet ids from `first` on, as bytes."""
    ids = range(first, first + count)
    return b"".join(encode(Publish(name, b"", qos, packet_id=one), version) for one in ids)


# What a client may have out


def test_connack_announces_the_receive_maximum(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as writer:
        assert writer.connect().properties.receive_maximum == RECEIVE_MAX


def test_as_many_as_announced_may_be_out_and_one_more_ends_it(broker: Hosted, name: str) -> None:
    """QoS 2 counts until PUBREL: is room made by it, and is the next one too many [3.3.4-7]?"""
    with client(broker, name) as writer:
        writer.send_bytes(publishes(name, 1, RECEIVE_MAX, 2))
        assert [writer.expect(Pubrec).packet_id for _ in range(RECEIVE_MAX)][-1] == RECEIVE_MAX
        writer.send(Pubrel(5))
        assert writer.expect(Pubcomp).packet_id == 5
        writer.send(Publish(name, b"", 2, packet_id=5))
        assert writer.expect(Pubrec).reason == Reason.SUCCESS
        writer.send(Publish(name, b"", 1, packet_id=RECEIVE_MAX + 1))
        end = writer.expect(Disconnect)
        assert end.reason == Reason.RECEIVE_MAXIMUM_EXCEEDED
        assert str(RECEIVE_MAX) in (end.properties.reason_string or "")
        assert writer.is_closed()


def test_messages_without_a_puback_count_until_they_are_durable(tmp_path: Path) -> None:
    with Served(tmp_path, program=SLOW_DISK) as broker, Wire(broker.port, "w", MQTT_5) as writer:
        writer.connect()
        writer.send_bytes(publishes("a", 1, RECEIVE_MAX + 1, 1))
        while isinstance(said := writer.next(), Puback):
            assert said.packet_id <= RECEIVE_MAX
        assert isinstance(said, Disconnect)
        assert said.reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_what_is_acknowledged_counts_no_more(broker: Hosted, name: str) -> None:
    """Three windows one after the other, each full: is nobody told off?"""
    with client(broker, name) as writer:
        for qos in (1, 1, 2):
            writer.send_bytes(publishes(name, 1, RECEIVE_MAX, qos))
            for _ in range(RECEIVE_MAX):
                writer.expect(Puback if qos == 1 else Pubrec)
        writer.send(*[Pubrel(one) for one in range(1, RECEIVE_MAX + 1)])
        for _ in range(RECEIVE_MAX):
            assert writer.expect(Pubcomp).reason == Reason.SUCCESS
        writer.publish(name, b"", 2)


def test_what_an_earlier_connection_left_open_does_not_count(broker: Hosted, name: str) -> None:
    """Is the quota of a new connection whole, and are its own messages counted (§4.9)?"""
    writer, _ = connect_kept(broker.port, name, MQTT_5)
    writer.send_bytes(publishes(name, 1, 100, 2))
    for _ in range(100):
        writer.expect(Pubrec)
    writer.close()
    writer, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present
    writer.send_bytes(publishes(name, 101, RECEIVE_MAX, 2))
    for _ in range(RECEIVE_MAX):
        writer.expect(Pubrec)
    writer.send(*[Pubrel(one) for one in range(1, 101)])  # of before: makes no room
    for _ in range(100):
        assert writer.expect(Pubcomp).reason == Reason.SUCCESS
    writer.send(Publish(name, b"", 1, packet_id=1))
    assert writer.expect(Disconnect).reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_older_versions_know_no_receive_maximum(broker: Hosted, name: str) -> None:
    with client(broker, name, MQTT_3_1_1) as writer:
        writer.send_bytes(publishes(name, 1, RECEIVE_MAX + 10, 2, MQTT_3_1_1))
        for _ in range(RECEIVE_MAX + 10):
            writer.expect(Pubrec)


@pytest.mark.parametrize("qos", [1, 2])
def test_receive_maximum_of_a_client_that_comes_back_is_the_new_one(
    broker: Hosted, name: str, qos: int
) -> None:
    """Away with 9 waiting, back with a window of 3, then of 5: never more than that out?"""
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe(name, qos=qos)
    reader.disconnect()
    with client(broker, name + "p") as writer:
        writer.publish_all(name, 9, qos)
    for most in (3, 5):
        reader = Wire(broker.port, name, MQTT_5)
        asked = Properties(session_expiry_interval=100, receive_maximum=most)
        assert reader.connect(clean=False, properties=asked).session_present
        first = [reader.expect(Publish) for _ in range(most)]
        assert reader.poll(0.05) is None
        assert sorted(int(one.payload) for one in first) == list(range(most))
        reader.close()
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    assert [reader.receive().payload for _ in range(9)] == [b"%d" % n for n in range(9)]
    reader.close()


# What waits for room


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_out_goes_on_with_each_acknowledgement(
    broker: Hosted, name: str, qos: int
) -> None:
    """Nine are out, and the client comes back with a window of one: does it get them all?"""
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe(name, qos=qos)
    with client(broker, name + "p") as writer:
        writer.publish_all(name, 9, qos)
    assert len([reader.expect(Publish) for _ in range(9)]) == 9
    reader.close()
    reader = Wire(broker.port, name, MQTT_5)
    asked = Properties(session_expiry_interval=100, receive_maximum=1)
    assert reader.connect(clean=False, properties=asked).session_present
    assert [reader.receive().payload for _ in range(9)] == [b"%d" % n for n in range(9)]
    reader.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_retained_messages_go_on_with_each_acknowledgement(
    broker: Hosted, name: str, qos: int
) -> None:
    with client(broker, name + "p") as writer:
        for number in range(9):
            writer.publish(f"{name}/{number}", b"x", qos, retain=True)
        writer.settle()
    with Wire(broker.port, name, MQTT_5) as reader:
        reader.connect(properties=Properties(receive_maximum=1))
        reader.subscribe(f"{name}/#", qos=qos)
        assert len({reader.receive().name for _ in range(9)}) == 9


def test_retained_messages_wait_for_a_client_that_reads_slowly(broker: Hosted, name: str) -> None:
    """More than its connection holds, at QoS 0: does the client get all that is retained?"""
    payload = bytes(OUT_BYTES_MAX // 4)
    with client(broker, name + "p") as writer:
        for number in range(12):
            writer.publish(f"{name}/{number}", payload, 1, retain=True)
        writer.settle()
    dropped = broker.dropped
    with client(broker, name) as reader:
        reader.subscribe(f"{name}/#")
        broker.call(lambda: None)  # the broker has begun, and the client reads nothing
        assert len({reader.receive().name for _ in range(12)}) == 12
    assert broker.dropped == dropped
    with client(broker, name + "p") as writer:
        for number in range(12):
            writer.publish(f"{name}/{number}", b"", 1, retain=True)
        writer.settle()


# Acknowledgements of what is not there


@VERSIONS
def test_release_and_receipt_of_an_unknown_id_are_answered(
    broker: Hosted, name: str, version: int
) -> None:
    """PUBREL and PUBREC for nothing: is the answer 0x92 in MQTT 5, and the plain one before?"""
    reason = NOT_FOUND if version == MQTT_5 else Reason.SUCCESS
    with client(broker, name, version) as one:
        one.send(Pubrel(7))
        assert one.expect(Pubcomp) == Pubcomp(7, reason)
        one.send(Pubrec(8))
        assert one.expect(Pubrel) == Pubrel(8, reason)
        if version == MQTT_5:
            one.send(Pubrel(9, NOT_FOUND), Pubrec(10, Reason.NO_MATCHING_SUBSCRIBERS))
            assert one.expect(Pubcomp) == Pubcomp(9, NOT_FOUND)
            assert one.expect(Pubrel) == Pubrel(10, NOT_FOUND)
        assert one.settle() == []


@pytest.mark.parametrize("is_kept", [False, True])
def test_known_and_unknown_releases_are_answered_in_their_order(
    broker: Hosted, name: str, is_kept: bool
) -> None:
    writer = connect_kept(broker.port, name, MQTT_5)[0] if is_kept else client(broker, name)
    known = [2, 3, 6, 9]
    for packet_id in known:
        writer.send(Publish(name, b"", 2, packet_id=packet_id))
        writer.expect(Pubrec)
    writer.send(*[Pubrel(packet_id) for packet_id in range(1, 11)])
    for packet_id in range(1, 11):
        reason = Reason.SUCCESS if packet_id in known else NOT_FOUND
        assert writer.expect(Pubcomp) == Pubcomp(packet_id, reason)
    writer.close()


def test_many_acknowledgements_of_nothing_hold_nobody_up(broker: Hosted, name: str) -> None:
    with client(broker, name) as one, client(broker, name + "2") as other:
        for first_byte in (0x50, 0x62):
            ids = b"".join(bytes((first_byte, 2)) + n.to_bytes(2, "big") for n in range(1, 65_536))
            one.send_bytes(ids)
            other.publish(name, b"x", 1)
            for _ in range(65_535):
                answer = one.next()
                assert isinstance(answer, Pubrel | Pubcomp) and answer.reason == NOT_FOUND


# Acknowledgements that do not fit


@VERSIONS
@pytest.mark.parametrize(
    ("qos", "acks"),
    [
        (2, [Puback]),
        (2, [Pubcomp]),
        (2, [Pubrec, Puback]),
        (1, [Pubrec]),
        (1, [Pubcomp]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "+".join(a.__name__ for a in value),
)
def test_acknowledgement_of_the_wrong_kind_is_a_protocol_error(
    broker: Hosted, name: str, version: int, qos: int, acks: list[type[Ack]]
) -> None:
    with client(broker, name + "p") as writer, client(broker, name, version) as reader:
        reader.subscribe(name, qos=2)
        writer.publish(name, b"x", qos)
        packet_id = reader.expect(Publish).packet_id
        reader.send(*[kind(packet_id) for kind in acks])
        if Pubrec in acks[:-1]:
            reader.expect(Pubrel)
        if version == MQTT_5:
            assert reader.expect(Disconnect).reason == Reason.PROTOCOL_ERROR
        assert reader.is_closed()


def test_message_cannot_be_refused_after_it_was_received(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        reader.subscribe(name, qos=2)
        writer.publish(name, b"x", 2)
        packet_id = reader.expect(Publish).packet_id
        reader.send(Pubrec(packet_id))
        reader.expect(Pubrel)
        reader.send(Pubrec(packet_id, Reason.UNSPECIFIED_ERROR))
        assert reader.expect(Disconnect).reason == Reason.PROTOCOL_ERROR


def test_acknowledgement_that_refuses_frees_its_place(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name, receive_maximum=1) as reader:
        reader.subscribe(name, qos=1)
        writer.publish_all(name, 3, qos=1)
        for number in range(3):
            message = reader.expect(Publish)
            assert message.payload == b"%d" % number
            reader.send(Puback(message.packet_id, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
        assert reader.settle() == []


# Sentences


FULL_DISK = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("wanted", [None, 1, 0])
def test_refused_publish_is_explained_to_those_who_want_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int | None
) -> None:
    """Does request problem information 0 spare a client the sentences [MQTT-3.1.2-29]?"""
    with Hosted(tmp_path) as broker, Wire(broker.port, "w", MQTT_5) as writer:
        writer.connect(properties=Properties(request_problem_information=wanted))
        with failing(monkeypatch, "write", FULL_DISK):
            for packet in (Publish("a", b"", 1, packet_id=1), Publish("a", b"", 2, packet_id=2)):
                writer.send(packet)
                refused = writer.next()
                assert isinstance(refused, Puback | Pubrec)
                assert refused.reason == Reason.QUOTA_EXCEEDED
                if wanted == 0:
                    assert refused.properties == NO_PROPERTIES
                else:
                    assert "space" in (refused.properties.reason_string or "")


@pytest.mark.parametrize("wanted", [None, 0])
def test_end_of_a_connection_is_explained_to_everybody(
    broker: Hosted, name: str, wanted: int | None
) -> None:
    """DISCONNECT may always say why (MQTT 5 §3.1.2.11.7)."""
    with Wire(broker.port, name, MQTT_5) as writer:
        writer.connect(properties=Properties(request_problem_information=wanted))
        writer.send_bytes(encode(Publish("a", b""), MQTT_5).replace(b"a", b"#"))
        end = writer.expect(Disconnect)
        assert end.reason == Reason.TOPIC_NAME_INVALID
        assert "wildcard" in (end.properties.reason_string or "")


def test_sentence_is_left_out_where_the_client_takes_no_such_packet(
    broker: Hosted, name: str
) -> None:
    with client(broker, name, maximum_packet_size=20) as writer:
        writer.send_bytes(b"\x30\x04\x00\x01#\x00")
        assert writer.expect(Disconnect) == Disconnect(Reason.TOPIC_NAME_INVALID)


def test_sentence_is_never_long(broker: Hosted, name: str) -> None:
    with client(broker, name) as writer:
        writer.send_bytes(encode(Publish("x" * 60_000 + "/+", b""), MQTT_5))
        sentence = writer.expect(Disconnect).properties.reason_string
        assert sentence and len(sentence) <= SENTENCE_CHARS_MAX
