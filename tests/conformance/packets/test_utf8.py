"""Texts on the wire: which bytes are text, and is text left as it came?"""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Publish
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import BOTH, Talk, join
from tests.doors.hosted import Hosted

ILL_FORMED = {
    "surrogate": b"a\xed\xa0\x80",
    "surrogate pair": b"\xed\xa0\x80\xed\xb0\x80",
    "overlong": b"\xc0\xaf",
    "past U+10FFFF": b"\xf4\x90\x80\x80",
    "cut character": b"a\xc3",
    "lone continuation": b"\x80",
    "0xFF": b"\xff",
}
ill_formed = pytest.mark.parametrize("raw", ILL_FORMED.values(), ids=ILL_FORMED)


@BOTH
@ill_formed
def test_ill_formed_utf8_closes_the_connection(
    broker: Hosted, name: str, version: int, raw: bytes
) -> None:
    """Is a name that is not well-formed UTF-8 malformed, surrogates included?"""
    with join(broker, name, version) as client:
        client.send_bytes(spelled.publish(version, raw, b"x"))
        client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
def test_null_character_closes_the_connection(broker: Hosted, name: str, version: int) -> None:
    """Is U+0000 refused in a name and in a filter?"""
    for packet in (
        spelled.publish(version, b"a\0b", b"x"),
        spelled.subscribe(version, 1, (b"a/\0", 0)),
        spelled.unsubscribe(version, 1, b"\0"),
    ):
        with join(broker, name, version) as client:
            client.send_bytes(packet)
            client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
def test_byte_order_mark_is_a_character_and_stays(broker: Hosted, name: str, version: int) -> None:
    """Is EF BB BF neither skipped nor stripped, at the beginning or inside of a text?"""
    marked = f"\ufeff{name}/\ufeffx"
    with join(broker, name, version) as client, join(broker, name + "2", version) as unmarked:
        client.subscribe(marked)
        unmarked.subscribe(f"{name}/x", f"{name}/\ufeffx")
        client.send_bytes(spelled.publish(version, marked, b"payload"))
        assert client.expect(Publish).name == marked
        assert spelled.text(marked) in client.raw
        client.send_bytes(spelled.publish(version, f"{name}/\ufeffx", b"inside"))
        assert unmarked.expect(Publish).payload == b"inside"
        assert client.settle() == unmarked.settle() == []


@ill_formed
@pytest.mark.parametrize("which", ["key", "value"])
def test_both_texts_of_a_pair_are_checked(
    broker: Hosted, name: str, raw: bytes, which: str
) -> None:
    """Is a user property refused if either of its texts is ill-formed, wherever it stands?"""
    pair = [spelled.text("k"), spelled.text("v")]
    pair[which == "value"] = spelled.text(raw)
    section = spelled.properties(MQTT_5, b"\x26", *pair)
    for packet in (
        spelled.frame(0x30, spelled.text("a"), section),
        spelled.frame(0x82, spelled.u16(1), section, spelled.text("a"), b"\0"),
        spelled.frame(0xA2, spelled.u16(1), section, spelled.text("a")),
        spelled.frame(0xE0, b"\0", section),
    ):
        with join(broker, name) as client:
            client.send_bytes(packet)
            client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
@ill_formed
def test_client_id_is_utf8(broker: Hosted, version: int, raw: bytes) -> None:
    """Is a CONNECT whose client id is no text refused?"""
    _assert_connect_refused(broker, version, spelled.connect(version, raw))


@BOTH
@ill_formed
def test_will_name_is_utf8(broker: Hosted, name: str, version: int, raw: bytes) -> None:
    """Is a CONNECT whose will has a name that is no text refused?"""
    will = (spelled.properties(version), spelled.text(raw), spelled.text("gone"))
    _assert_connect_refused(broker, version, spelled.connect(version, name, *will, flags=0x06))


@BOTH
@ill_formed
def test_user_name_is_utf8(broker: Hosted, name: str, version: int, raw: bytes) -> None:
    """Is a CONNECT whose user name is no text refused?"""
    packet = spelled.connect(version, name, spelled.text(raw), flags=0x82)
    _assert_connect_refused(broker, version, packet)


def _assert_connect_refused(broker: Hosted, version: int, packet: bytes) -> None:
    with Talk(broker.port, version=version) as client:
        client.send_bytes(packet)
        if version == MQTT_5:
            assert client.expect(Connack).reason == Reason.MALFORMED_PACKET
        assert client.ends_without_a_word()


@BOTH
@ill_formed
def test_filters_are_utf8(broker: Hosted, name: str, version: int, raw: bytes) -> None:
    """Is a SUBSCRIBE or UNSUBSCRIBE with a filter that is no text malformed?"""
    for packet in (
        spelled.subscribe(version, 1, ("good", 0), (raw, 0)),
        spelled.unsubscribe(version, 1, "good", raw),
    ):
        with join(broker, name, version) as client:
            client.send_bytes(packet)
            client.assert_ended(Reason.MALFORMED_PACKET)


@ill_formed
def test_response_topic_and_content_type_are_utf8(broker: Hosted, name: str, raw: bytes) -> None:
    """Are the texts that travel with a message checked like any other?"""
    for identifier in (b"\x03", b"\x08"):
        with join(broker, name) as client:
            said = identifier + spelled.text(raw)
            client.send_bytes(spelled.publish(MQTT_5, "a", b"x", said=said))
            client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
def test_name_is_the_first_field_of_a_publish(broker: Hosted, name: str, version: int) -> None:
    """Does every PUBLISH begin with its name, what the broker sends and what it takes?"""
    with join(broker, name, version) as client:
        client.subscribe(name, qos=1)
        for flags, packet_id in ((0, None), (spelled.QOS_1, 7)):
            client.send_bytes(
                spelled.publish(version, name, b"x", flags=flags, packet_id=packet_id)
            )
            client.pick(Publish)
            assert spelled.body(client.raw).startswith(spelled.text(name))
    for cut in (b"", b"\0", b"\0\x05name"):
        with join(broker, name, version) as client:
            client.send_bytes(spelled.frame(0x30, cut))
            client.assert_ended(Reason.MALFORMED_PACKET)
