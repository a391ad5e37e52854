"""The send quota: how much may be on its way, and what is never held up by it?"""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.reasons import Reason
from tests.conformance.talk import BOTH, come_back, join, kinds
from tests.doors.hosted import Hosted


@pytest.mark.parametrize("most", [1, 3, 20])
def test_quota_begins_above_zero_and_at_most_at_the_receive_maximum(
    broker: Hosted, name: str, most: int
) -> None:
    """Is something sent to a client of any receive maximum, and never more than that at once?"""
    with join(broker, name, receive_maximum=most) as client, join(broker, name + "p") as writer:
        client.subscribe(name, qos=2)
        for number in range(25):
            writer.publish(name, b"%d" % number, 1 + number % 2)
        sent = client.settle()
        assert 0 < len(sent) <= most
        assert kinds(sent) == [Publish] * len(sent)


def test_quota_of_zero_stops_messages_until_one_is_done_with(broker: Hosted, name: str) -> None:
    """Is room made by PUBACK, PUBCOMP and a PUBREC that refuses, and by no other packet?"""
    with join(broker, name, receive_maximum=1) as client, join(broker, name + "p") as writer:
        client.subscribe(name, qos=2)
        for number, qos in enumerate((1, 2, 2, 1)):
            writer.publish(name, b"%d" % number, qos)
        first = client.expect(Publish)
        assert client.settle() == []
        client.send(Puback(first.packet_id))
        second = client.expect(Publish)
        client.send(Pubrec(second.packet_id))
        client.expect(Pubrel)
        assert client.settle() == []  # it is still on its way
        client.send(Pubcomp(second.packet_id))
        third = client.expect(Publish)
        assert client.settle() == []
        client.send(Pubrec(third.packet_id, Reason.QUOTA_EXCEEDED))
        assert client.expect(Publish).payload == b"3"


def test_messages_of_qos_0_do_not_count(broker: Hosted, name: str) -> None:
    """Do QoS 0 messages pass while the quota is zero?"""
    with join(broker, name, receive_maximum=1) as client, join(broker, name + "p") as writer:
        client.subscribe(name, qos=1)
        writer.publish(name, b"out", 1)
        client.expect(Publish)
        writer.publish(name, b"waits", 1)
        for _ in range(5):
            writer.publish(name, b"passes", 0)
            assert client.expect(Publish).payload == b"passes"


def test_other_packets_are_not_held_up_by_the_quota(broker: Hosted, name: str) -> None:
    """Does the broker answer everything else while it may send no message above QoS 0?"""
    with join(broker, name, receive_maximum=1) as client, join(broker, name + "p") as writer:
        client.subscribe(name, qos=2)
        writer.publish(name, b"1", 2)
        writer.publish(name, b"2", 2)
        out = client.expect(Publish)
        client.send(Publish("elsewhere", b"", 1, packet_id=1))
        assert isinstance(client.next(), Puback)
        client.send(Publish("elsewhere", b"", 2, packet_id=2))
        assert isinstance(client.next(), Pubrec)
        client.send(Pubrel(2))
        assert isinstance(client.next(), Pubcomp)
        client.subscribe_later(f"{name}/other", qos=1)
        assert isinstance(client.next(), Suback)
        client.send(Unsubscribe(9, (f"{name}/other",)))
        assert isinstance(client.next(), Unsuback)
        client.send(Pubrec(out.packet_id))
        assert isinstance(client.next(), Pubrel)
        client.send_bytes(b"\xc0\x00")
        assert isinstance(client.next(), Pingresp)


def test_quota_of_a_session_that_comes_back_is_the_new_one(broker: Hosted, name: str) -> None:
    """Is the receive maximum of the newest CONNECT the one that counts, also for repeats?"""
    client, _ = come_back(broker, name, MQTT_5, receive_maximum=5)
    client.subscribe(name, qos=1)
    with join(broker, name + "p") as writer:
        writer.publish_all(name, 8, qos=1)
    assert len(client.settle()) == 5
    client.close()
    client, _ = come_back(broker, name, MQTT_5, receive_maximum=2)
    got = []
    while len(got) < 8:
        sent = client.settle()
        assert len(sent) <= 2
        for packet in sent:
            assert isinstance(packet, Publish)
            got.append(packet.payload)
            client.send(Puback(packet.packet_id))
    assert got == [b"%d" % number for number in range(8)]
    client.close()


@BOTH
def test_client_that_names_no_maximum_gets_much_at_once(
    broker: Hosted, name: str, version: int
) -> None:
    """Is the quota of a client that says nothing, or cannot, larger than a handful?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(name, qos=1)
        writer.publish_all(name, 50, qos=1)
        assert kinds(client.settle()) == [Publish] * 50
