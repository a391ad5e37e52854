"""The three delivery protocols, step by step, in both directions."""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.conformance.talk import BOTH, come_back, join
from tests.doors.hosted import Hosted


@BOTH
def test_qos_0_is_sent_once_and_wants_no_answer(broker: Hosted, name: str, version: int) -> None:
    """Is a QoS 0 message a PUBLISH with QoS 0 and DUP 0, and not sent again at a reconnect?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(name, qos=0)
    with join(broker, name + "p", version) as writer:
        for qos in range(3):
            writer.publish(name, b"%d" % qos, qos)
    for _ in range(3):
        message = client.expect(Publish)
        assert (message.qos, message.dup, message.packet_id) == (0, False, 0)
    client.close()
    client, _ = come_back(broker, name, version)
    assert client.settle() == []
    client.close()


@BOTH
def test_qos_1_message_has_a_fresh_id_and_no_dup(broker: Hosted, name: str, version: int) -> None:
    """Does each new QoS 1 message come with an id nobody uses, QoS 1 and DUP 0?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(name, qos=1)
        writer.publish_all(name, 20, qos=1)
        got = [client.expect(Publish) for _ in range(20)]
        assert {(one.qos, one.dup) for one in got} == {(1, False)}
        assert len({one.packet_id for one in got}) == 20


@BOTH
def test_qos_1_message_is_unacknowledged_until_its_puback(
    broker: Hosted, name: str, version: int
) -> None:
    """Is it sent again until its PUBACK came, and not after it?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(name, qos=1)
    with join(broker, name + "p", version) as writer:
        writer.publish(name, b"x", 1)
    message = client.expect(Publish)
    for wrong in (Puback(message.packet_id % 65_535 + 1), Pubcomp(message.packet_id % 65_535 + 1)):
        client.send(wrong)
    client.settle()
    client.close()
    client, _ = come_back(broker, name, version)
    assert client.expect(Publish).packet_id == message.packet_id
    client.send(Puback(message.packet_id))
    client.settle()
    client.close()
    client, _ = come_back(broker, name, version)
    assert client.settle() == []
    client.close()


@BOTH
def test_qos_1_message_is_answered_with_its_id(broker: Hosted, name: str, version: int) -> None:
    """Does the broker answer with PUBACK once it has the message, and does the message arrive?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(name, qos=1)
        writer.send(Publish(name, b"x", 1, packet_id=4711))
        assert writer.expect(Puback).packet_id == 4711
        assert client.receive().payload == b"x"


@BOTH
def test_qos_1_id_is_new_again_after_its_puback(broker: Hosted, name: str, version: int) -> None:
    """Is a PUBLISH with an id that was acknowledged a new message, whatever its DUP says?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(name, qos=1)
        for number, dup in enumerate((False, True, False, True)):
            writer.send(Publish(name, b"%d" % number, 1, dup=dup, packet_id=5))
            assert writer.expect(Puback).packet_id == 5
        assert [client.receive().payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]


@BOTH
def test_qos_2_message_has_a_fresh_id_and_no_dup(broker: Hosted, name: str, version: int) -> None:
    """Does each new QoS 2 message come with an id nobody uses, QoS 2 and DUP 0?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(name, qos=2)
        writer.publish_all(name, 20, qos=2)
        got = [client.expect(Publish) for _ in range(20)]
        assert {(one.qos, one.dup) for one in got} == {(2, False)}
        assert len({one.packet_id for one in got}) == 20


@BOTH
def test_qos_2_message_is_unacknowledged_until_its_pubrec(
    broker: Hosted, name: str, version: int
) -> None:
    """Is the PUBLISH sent again until its PUBREC came, and is PUBREL the answer to that?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(name, qos=2)
    with join(broker, name + "p", version) as writer:
        writer.publish(name, b"x", 2)
    first = client.expect(Publish)
    client.close()
    client, _ = come_back(broker, name, version)
    again = client.expect(Publish)
    assert (again.packet_id, again.dup) == (first.packet_id, True)
    client.send(Pubrec(again.packet_id))
    assert client.expect(Pubrel).packet_id == first.packet_id
    client.send(Pubrec(again.packet_id))  # once more: so is the release
    assert client.expect(Pubrel).packet_id == first.packet_id
    client.close()


@BOTH
def test_qos_2_release_is_unacknowledged_until_its_pubcomp(
    broker: Hosted, name: str, version: int
) -> None:
    """Is PUBREL, and never the PUBLISH again, repeated until PUBCOMP came?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(name, qos=2)
    with join(broker, name + "p", version) as writer:
        writer.publish(name, b"x", 2)
    packet_id = client.expect(Publish).packet_id
    client.send(Pubrec(packet_id))
    for _ in range(3):
        assert client.expect(Pubrel).packet_id == packet_id
        assert client.settle() == []
        client.close()
        client, _ = come_back(broker, name, version)
    assert client.expect(Pubrel).packet_id == packet_id
    client.send(Pubcomp(packet_id))
    client.settle()
    client.close()
    client, _ = come_back(broker, name, version)
    assert client.settle() == []
    client.close()


@BOTH
def test_qos_2_message_is_taken_once_until_it_is_released(
    broker: Hosted, name: str, version: int
) -> None:
    """Is every repeat before PUBREL answered with PUBREC, and none of them delivered?"""
    writer, _ = come_back(broker, name + "p", version)
    with join(broker, name, version) as client:
        client.subscribe(name, qos=2)
        writer.send(Publish(name, b"once", 2, packet_id=6))
        assert writer.expect(Pubrec).packet_id == 6
        for _ in range(3):
            writer.send(Publish(name, b"once", 2, dup=True, packet_id=6))
            assert writer.expect(Pubrec).packet_id == 6
        writer.close()
        writer, _ = come_back(broker, name + "p", version)
        writer.send(Publish(name, b"once", 2, dup=True, packet_id=6))
        assert writer.expect(Pubrec).packet_id == 6
        assert client.receive().payload == b"once"
        assert client.settle() == []
    writer.close()


@BOTH
def test_qos_2_release_is_answered_and_frees_the_id(
    broker: Hosted, name: str, version: int
) -> None:
    """Is PUBREL answered with PUBCOMP, and a PUBLISH with that id a new message then?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(name, qos=2)
        for number in range(3):
            writer.send(Publish(name, b"%d" % number, 2, dup=number == 2, packet_id=6))
            assert writer.expect(Pubrec).packet_id == 6
            writer.send(Pubrel(6))
            assert writer.expect(Pubcomp).packet_id == 6
        assert [client.receive().payload for _ in range(3)] == [b"0", b"1", b"2"]


def test_qos_2_id_is_new_after_a_refusal(broker: Hosted, name: str) -> None:
    """Is a message taken whose id was refused with a PUBREC of 0x80 or above before?"""
    with join(broker, name) as client, join(broker, name + "p") as writer:
        client.subscribe(name, qos=2)
        writer.send(Publish("$SYS/forbidden", b"x", 2, packet_id=3))
        assert writer.expect(Pubrec).reason == Reason.NOT_AUTHORIZED
        writer.send(Publish(name, b"new", 2, packet_id=3))
        assert writer.expect(Pubrec).reason == Reason.SUCCESS
        assert client.receive().payload == b"new"
        writer.send(Pubrel(3))
        assert writer.expect(Pubcomp).reason == Reason.SUCCESS


def test_qos_2_message_on_its_way_does_not_expire(broker: Hosted, name: str) -> None:
    """Is a PUBLISH that was sent before its message expired sent again all the same?"""
    client, _ = come_back(broker, name, MQTT_5)
    client.subscribe(name, qos=2)
    with join(broker, name + "p") as writer:
        asked = Properties(message_expiry_interval=1)
        writer.send(Publish(name, b"started", 2, packet_id=1, properties=asked))
        first = client.expect(Publish)
        client.close()
        writer.send(Publish(name, b"not started", 2, packet_id=2, properties=asked))
        writer.expect(Pubrec), writer.expect(Pubrec)
        broker.wait_past_us(1_200_000)
    client, _ = come_back(broker, name, MQTT_5)
    again = client.receive()
    assert (again.payload, again.packet_id, again.dup) == (b"started", first.packet_id, True)
    assert client.settle() == []
    client.close()


def test_qos_2_answers_go_on_although_the_message_has_expired(broker: Hosted, name: str) -> None:
    """Is PUBREL answered with PUBCOMP when the message had expired by then?"""
    with join(broker, name + "p") as writer:
        asked = Properties(message_expiry_interval=1)
        writer.send(Publish(name, b"x", 2, packet_id=1, properties=asked))
        assert writer.expect(Pubrec).reason == Reason.SUCCESS
        broker.wait_past_us(1_200_000)
        writer.send(Publish(name, b"x", 2, dup=True, packet_id=1, properties=asked))
        assert writer.expect(Pubrec).reason == Reason.SUCCESS
        writer.send(Pubrel(1))
        assert writer.expect(Pubcomp).reason == Reason.SUCCESS


@pytest.mark.parametrize("qos", [1, 2])
def test_message_that_expires_before_it_is_sent_is_deleted(
    broker: Hosted, name: str, qos: int
) -> None:
    """Is a copy whose delivery has not begun thrown away, and the rest of its time told?"""
    client, _ = come_back(broker, name, MQTT_5)
    client.subscribe(name, qos=qos)
    client.close()
    with join(broker, name + "p") as writer:
        for packet_id, expiry_s in ((1, 1), (2, 50), (3, None)):
            asked = Properties(message_expiry_interval=expiry_s)
            writer.send(Publish(name, b"x", qos, packet_id=packet_id, properties=asked))
            writer.next()
        broker.wait_past_us(1_200_000)
    client, _ = come_back(broker, name, MQTT_5)
    left = [client.receive().properties.message_expiry_interval for _ in range(2)]
    assert left[0] is not None and left[0] < 50 and left[1] is None
    assert client.settle() == []
    client.close()
