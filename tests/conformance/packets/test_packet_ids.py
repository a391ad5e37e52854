"""Packet identifiers: who chooses them, when are they free, and do answers carry the right one?"""

from __future__ import annotations

import pytest

from penstock.mqtt.packets import Puback, Publish
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import BOTH, come_back, join
from tests.doors.hosted import Hosted

IDS = (1, 255, 256, 65_535)


@BOTH
def test_request_with_packet_id_0_closes(broker: Hosted, name: str, version: int) -> None:
    """Is a SUBSCRIBE, an UNSUBSCRIBE or a PUBLISH above QoS 0 without a packet id refused?"""
    for packet in (
        spelled.subscribe(version, 0, ("a", 0)),
        spelled.unsubscribe(version, 0, "a"),
        spelled.publish(version, "a", b"x", flags=spelled.QOS_1, packet_id=0),
        spelled.publish(version, "a", b"x", flags=spelled.QOS_2, packet_id=0),
    ):
        with join(broker, name, version) as client:
            client.send_bytes(packet)
            client.assert_ended(Reason.PROTOCOL_ERROR)


@BOTH
def test_message_of_qos_0_has_no_packet_id(broker: Hosted, name: str, version: int) -> None:
    """Does a PUBLISH at QoS 0 go from the name straight to what follows, both ways?"""
    with join(broker, name, version) as client:
        client.subscribe(name, qos=2)
        packet = spelled.publish(version, name, b"\x00\x07 is payload")
        client.send_bytes(packet)
        assert client.next_raw() == packet


@BOTH
def test_broker_gives_each_message_an_id_that_is_not_in_use(
    broker: Hosted, name: str, version: int
) -> None:
    """Are ids of messages in flight different and not zero, also when old ones become free?"""
    with join(broker, name, version) as reader, join(broker, name + "p", version) as writer:
        reader.subscribe(name, qos=2)
        in_flight: list[Publish] = []
        for round_number in range(40):
            for number in range(4):
                writer.publish(name, b"%d" % number, 1 + number % 2)
                in_flight.append(reader.pick(Publish))
            ids = [one.packet_id for one in in_flight]
            assert 0 not in ids and len(set(ids)) == len(ids)
            for _ in range(3):  # more stay out than are acknowledged, in no order
                reader.acknowledge(in_flight.pop(round_number % len(in_flight)))


@BOTH
def test_broker_passes_over_ids_in_use_when_it_begins_again(
    broker: Hosted, name: str, version: int
) -> None:
    """After id 65,535 comes 1: are those that are still out left alone?"""
    with join(broker, name, version) as reader, join(broker, name + "p", version) as writer:
        reader.subscribe(name, qos=2)
        writer.publish_all(name, 4, qos=2)
        out = [reader.expect(Publish) for _ in range(4)]
        reader.acknowledge(out.pop(1))
        window = broker.exchange.sessions.connected[name].window
        broker.call(lambda: setattr(window, "_next_id", 65_534))
        writer.publish_all(name, 4, qos=1)
        fresh = [reader.pick(Publish).packet_id for _ in range(4)]
        assert fresh == [65_534, 65_535, 2, 5]


@BOTH
@pytest.mark.parametrize("packet_id", IDS)
def test_answers_to_a_message_carry_its_id(
    broker: Hosted, name: str, version: int, packet_id: int
) -> None:
    """Do PUBACK, PUBREC and PUBCOMP have the id of the PUBLISH they belong to?"""
    with join(broker, name, version) as client:
        for flags in (spelled.QOS_1, spelled.QOS_2):
            client.send_bytes(spelled.publish(version, name, b"", flags=flags, packet_id=packet_id))
            answer = client.next_raw()
            assert answer == spelled.ack(0x40 if flags == spelled.QOS_1 else 0x50, packet_id)
        client.send_bytes(spelled.ack(0x62, packet_id))
        assert client.next_raw() == spelled.ack(0x70, packet_id)


@BOTH
def test_release_carries_the_id_of_its_message(broker: Hosted, name: str, version: int) -> None:
    """Has the broker's PUBREL the id of the PUBLISH that it sent before?"""
    with join(broker, name, version) as reader, join(broker, name + "p", version) as writer:
        reader.subscribe(name, qos=2)
        for _ in range(5):
            writer.publish(name, b"x", 2)
        ids = [reader.expect(Publish).packet_id for _ in range(5)]
        for packet_id in reversed(ids):
            reader.send_bytes(spelled.ack(0x50, packet_id))
            assert reader.next_raw() == spelled.ack(0x62, packet_id)
            reader.send_bytes(spelled.ack(0x70, packet_id))
        assert reader.settle() == []


@BOTH
@pytest.mark.parametrize("packet_id", IDS)
def test_answers_to_requests_carry_their_id(
    broker: Hosted, name: str, version: int, packet_id: int
) -> None:
    """Do SUBACK and UNSUBACK have the id of what they answer?"""
    with join(broker, name, version) as client:
        client.send_bytes(spelled.subscribe(version, packet_id, (name, 0)))
        raw = client.next_raw()
        assert (raw[0], spelled.body(raw)[:2]) == (0x90, spelled.u16(packet_id))
        client.send_bytes(spelled.unsubscribe(version, packet_id, name))
        raw = client.next_raw()
        assert (raw[0], spelled.body(raw)[:2]) == (0xB0, spelled.u16(packet_id))


@BOTH
def test_ids_of_both_directions_do_not_touch_each_other(
    broker: Hosted, name: str, version: int
) -> None:
    """May client and broker have the same id in flight at the same time?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(name, qos=2)
        writer.publish(name, b"theirs", 2)
        theirs = client.expect(Publish).packet_id
        other = name + "/other"
        packet = spelled.publish(version, other, b"", flags=spelled.QOS_2, packet_id=theirs)
        client.send_bytes(packet)
        assert client.next_raw() == spelled.ack(0x50, theirs)
        client.send_bytes(spelled.ack(0x50, theirs))
        assert client.next_raw() == spelled.ack(0x62, theirs)
        client.send_bytes(spelled.ack(0x62, theirs))
        assert client.next_raw() == spelled.ack(0x70, theirs)
        client.send_bytes(spelled.ack(0x70, theirs))
        assert client.settle() == []


@BOTH
def test_message_sent_again_keeps_its_id(broker: Hosted, name: str, version: int) -> None:
    """Has a message the same id when it is sent again, and is the id free after its answer?"""
    reader, _ = come_back(broker, name, version)
    reader.subscribe(name, qos=1)
    with join(broker, name + "p", version) as writer:
        writer.publish_all(name, 3, qos=1)
        first = [reader.expect(Publish) for _ in range(3)]
        for _ in range(2):
            reader.close()
            reader, _ = come_back(broker, name, version)
            again = [reader.expect(Publish) for _ in range(3)]
            assert [one.packet_id for one in again] == [one.packet_id for one in first]
        for one in again:
            reader.send(Puback(one.packet_id))
        reader.disconnect()
        reader, is_present = come_back(broker, name, version)
        assert is_present and reader.settle() == []
    reader.close()
