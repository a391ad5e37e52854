"""The first bytes of a packet: its type, its flags, its length."""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_3_1, MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import BOTH, Talk, join
from tests.doors.hosted import Hosted


@BOTH
@pytest.mark.parametrize("first_byte", [0x40, 0x50, 0x70, 0xC0])
def test_reserved_flags_have_the_value_listed(
    broker: Hosted, name: str, version: int, first_byte: int
) -> None:
    """Is a packet closed on if a flag is set that is reserved as 0?"""
    for flags in (1, 2, 4, 8, 15):
        with join(broker, name, version) as client:
            rest = b"" if first_byte == 0xC0 else spelled.u16(1)
            client.send_bytes(spelled.frame(first_byte | flags, rest))
            client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
def test_connect_with_flags_is_no_connect(broker: Hosted, name: str, version: int) -> None:
    """Does a CONNECT whose first byte has flags get no further than that?"""
    for flags in (1, 2, 4, 8, 15):
        with Talk(broker.port, name, version) as client:
            data = spelled.connect(version, name)
            client.send_bytes(bytes((data[0] | flags,)) + data[1:])
            assert client.ends_without_a_word()


def test_flags_of_a_connect_of_mqtt_3_1_are_ignored(broker: Hosted, name: str) -> None:
    """MQTT 3.1 does not use the flags of CONNECT: is a client with any of them let in?"""
    for flags in (1, 2, 4, 8, 13):
        with Talk(broker.port, name, MQTT_3_1) as client:
            head = spelled.text("MQIsdp") + b"\x03\x02" + spelled.u16(0)
            client.send_bytes(spelled.frame(0x10 | flags, head, spelled.text(name[:20])))
            assert client.expect(Connack).reason == Reason.SUCCESS


@BOTH
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10])
def test_pubrel_has_flags_0010(broker: Hosted, name: str, version: int, flags: int) -> None:
    """Is a PUBREL with any other flags malformed?"""
    with join(broker, name, version) as client:
        client.send_bytes(spelled.ack(0x60 | flags, 1))
        client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10])
def test_subscribe_and_unsubscribe_have_flags_0010(
    broker: Hosted, name: str, version: int, flags: int
) -> None:
    """Is a SUBSCRIBE or UNSUBSCRIBE with any other flags malformed?"""
    for packet in (
        spelled.subscribe(version, 1, ("a", 0), first_byte=0x80 | flags),
        spelled.unsubscribe(version, 1, "a", first_byte=0xA0 | flags),
    ):
        with join(broker, name, version) as client:
            client.send_bytes(packet)
            client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
@pytest.mark.parametrize("flags", [1, 2, 4, 8])
def test_disconnect_has_no_flags(broker: Hosted, name: str, version: int, flags: int) -> None:
    """Is a DISCONNECT with a reserved bit set malformed, and MQTT 5 told so?"""
    with join(broker, name, version) as client:
        client.send_bytes(spelled.frame(0xE0 | flags))
        client.assert_ended(Reason.MALFORMED_PACKET)


@pytest.mark.parametrize("flags", [1, 2, 4, 8])
def test_auth_has_no_flags(broker: Hosted, name: str, flags: int) -> None:
    """Is an AUTH with a reserved bit set malformed?"""
    with join(broker, name) as client:
        method = spelled.properties(MQTT_5, b"\x15", spelled.text("m"))
        client.send_bytes(spelled.frame(0xF0 | flags, b"\x18", method))
        client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
def test_flags_of_what_the_broker_sends(broker: Hosted, name: str, version: int) -> None:
    """Has every packet from the broker the flags that are listed for its type?"""
    expected = {
        Connack: 0x20,
        Puback: 0x40,
        Pubrec: 0x50,
        Pubrel: 0x62,
        Pubcomp: 0x70,
        Pingresp: 0xD0,
    }
    with Talk(broker.port, name, version) as client:
        client.connect()
        assert client.raw[0] == expected.pop(Connack)
        client.subscribe(name, qos=2)
        assert client.raw[0] == 0x90
        client.send_bytes(spelled.publish(version, name, b"2", flags=spelled.QOS_2, packet_id=1))
        client.send_bytes(spelled.publish(version, name, b"1", flags=spelled.QOS_1, packet_id=2))
        client.send_bytes(spelled.frame(0xC0))
        while expected:
            packet = client.next()
            if isinstance(packet, Publish):
                assert client.raw[0] == 0x30 | packet.qos << 1
                client.send_bytes(spelled.ack(0x50 if packet.qos == 2 else 0x40, packet.packet_id))
                continue
            if isinstance(packet, Pubrec):
                client.send_bytes(spelled.ack(0x62, packet.packet_id))
            assert client.raw[0] == expected.pop(type(packet))
        client.send_bytes(spelled.unsubscribe(version, 3, name))
        assert client.next_raw()[0] == 0xB0


@BOTH
def test_length_takes_no_more_bytes_than_it_needs(broker: Hosted, name: str, version: int) -> None:
    """Is a padded length malformed, and every length that the broker writes as short as it can?"""
    with join(broker, name, version) as client:
        client.subscribe(name)
        overhead = len(spelled.text(name)) + (version == MQTT_5)
        for size in (127, 128, 16_383, 16_384, 2_097_151, 2_097_152):
            client.send_bytes(spelled.publish(version, name, bytes(size - overhead)))
            assert len(client.expect(Publish).payload) == size - overhead
            assert client.raw[1:5].startswith(spelled.length(size))
    for padded in (b"\xc0\x80\x00", b"\xc0\x80\x80\x00", b"\xc0\x80\x80\x80\x00"):
        with join(broker, name, version) as client:
            client.send_bytes(padded)
            client.assert_ended(Reason.MALFORMED_PACKET)


def test_integer_in_a_property_takes_no_more_bytes_than_it_needs(broker: Hosted, name: str) -> None:
    """Is a padded property length or subscription identifier malformed?"""
    for section in (b"\x80\x00", b"\x03\x0b\x81\x00", b"\x04\x0b\x80\x80\x00"):
        with join(broker, name) as client:
            packet = spelled.frame(0x82, spelled.u16(1), section, spelled.text("a"), b"\0")
            client.send_bytes(packet)
            client.assert_ended(Reason.MALFORMED_PACKET)


def test_packet_without_properties_has_a_property_length_of_zero(broker: Hosted, name: str) -> None:
    """Do the broker's packets say 'no properties' in one zero byte, where they must say it?"""
    with join(broker, name) as client:
        client.send_bytes(spelled.subscribe(MQTT_5, 1, (name, 1)))
        assert client.next_raw() == b"\x90\x04\x00\x01\x00\x01"
        client.send_bytes(spelled.publish(MQTT_5, name, b"x"))
        assert client.next_raw() == spelled.publish(MQTT_5, name, b"x")
        client.send_bytes(spelled.unsubscribe(MQTT_5, 2, name))
        assert client.next_raw() == b"\xb0\x04\x00\x02\x00\x00"
        client.send_bytes(spelled.frame(0x82, spelled.u16(3), spelled.text("a"), b"\0"))
        client.assert_ended(Reason.MALFORMED_PACKET)  # its filter was read as properties


@BOTH
def test_lengths_beyond_four_bytes_close(broker: Hosted, name: str, version: int) -> None:
    """Is a length that goes on after its fourth byte malformed?"""
    with join(broker, name, version) as client:
        client.send_bytes(b"\x30\xff\xff\xff\xff\x01")
        client.assert_ended(Reason.MALFORMED_PACKET)


def test_packet_type_of_mqtt_5_is_reserved_before_it(broker: Hosted, name: str) -> None:
    """Is AUTH, which 3.1.1 does not know, closed on there, and type 0 anywhere?"""
    for version, packet in ((MQTT_3_1_1, b"\xf0\x00"), (MQTT_3_1_1, b"\0\0"), (MQTT_5, b"\0\0")):
        with join(broker, name, version) as client:
            client.send_bytes(packet)
            client.assert_ended(Reason.MALFORMED_PACKET)
