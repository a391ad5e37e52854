"""Answers: is every code in them a listed one, and does an explanation never make them too long?"""

from __future__ import annotations

import pytest

from penstock.mqtt.encode import encode, encode_within
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Auth,
    Connack,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import join
from tests.doors.hosted import Hosted

REASON = Properties(reason_string="because " * 5)
USER = Properties(user_properties=(("why", "because"), ("so", "what")))
explained = pytest.mark.parametrize("why", [REASON, USER], ids=["reason", "user"])


def assert_fits(packet: Packet, bare: Packet) -> None:
    """Whole as long as there is room; then without its explanation; then not at all."""
    whole, short = encode(packet, MQTT_5), encode(bare, MQTT_5)
    assert len(whole) > len(short)
    for bytes_max in range(1, len(whole) + 3):
        sent = encode_within(packet, MQTT_5, bytes_max)
        assert len(sent) <= bytes_max
        if bytes_max >= len(whole):
            assert sent == whole
        else:
            assert sent == (short if bytes_max >= len(short) else b"")


@explained
def test_explanation_never_makes_a_connack_too_long(why: Properties) -> None:
    """Are reason string and user properties left out of a CONNACK that would be too large?"""
    assert_fits(Connack(False, Reason.BANNED, why), Connack(False, Reason.BANNED))


@explained
@pytest.mark.parametrize("kind", [Puback, Pubrec])
def test_explanation_never_makes_a_puback_or_pubrec_too_long(
    why: Properties, kind: type[Puback] | type[Pubrec]
) -> None:
    """Are they left out of a PUBACK and a PUBREC that would be too large?"""
    assert_fits(kind(7, Reason.QUOTA_EXCEEDED, why), kind(7, Reason.QUOTA_EXCEEDED))


@explained
@pytest.mark.parametrize("kind", [Pubrel, Pubcomp])
def test_explanation_never_makes_a_pubrel_or_pubcomp_too_long(
    why: Properties, kind: type[Pubrel] | type[Pubcomp]
) -> None:
    """Are they left out of a PUBREL and a PUBCOMP that would be too large?"""
    missing = Reason.PACKET_IDENTIFIER_NOT_FOUND
    assert_fits(kind(7, missing, why), kind(7, missing))


@explained
@pytest.mark.parametrize("kind", [Suback, Unsuback])
def test_explanation_never_makes_a_suback_or_unsuback_too_long(
    why: Properties, kind: type[Suback] | type[Unsuback]
) -> None:
    """Are they left out of a SUBACK and an UNSUBACK that would be too large?"""
    reasons = (Reason.SUCCESS, Reason.NOT_AUTHORIZED)
    assert_fits(kind(7, reasons, why), kind(7, reasons))


@explained
@pytest.mark.parametrize("kind", [Disconnect, Auth])
def test_explanation_never_makes_a_disconnect_or_auth_too_long(
    why: Properties, kind: type[Disconnect] | type[Auth]
) -> None:
    """Are they left out of a DISCONNECT and an AUTH that would be too large?"""
    assert_fits(kind(Reason.SUCCESS, why), kind(Reason.SUCCESS))


# What may be in them: MQTT 5, the table of each packet.
PUBACK_CODES = bytes.fromhex("00 10 80 83 87 90 91 97 99")
PUBREL_CODES = bytes.fromhex("00 92")
DISCONNECT_CODES = bytes.fromhex("00 04 80 81 82 83 90 93 94 95 96 97 98 99")
TRIED = bytes.fromhex("00 01 02 04 10 11 18 19 7f 80 81 82 83 84 87 8b 8e 90 91 92 93 97 99 a2 ff")


def taken(broker: Hosted, name: str, first_byte: int, head: bytes = b"\0\x09") -> set[int]:
    """Which of the codes the broker takes from a client; on the others it must close."""
    good = set()
    for code in TRIED:
        with join(broker, name) as client:
            client.send_bytes(spelled.frame(first_byte, head, bytes((code,))))
            client.send_bytes(b"\xc0\x00")
            packet = client.next()
            if isinstance(packet, Disconnect):
                assert packet.reason == Reason.PROTOCOL_ERROR
                assert client.ends_without_a_word()
            else:
                good.add(code)
    return good


def test_codes_of_puback_and_pubrec_are_the_listed_ones(broker: Hosted, name: str) -> None:
    """Is any other code in a PUBACK or PUBREC a protocol error?"""
    for first_byte in (0x40, 0x50):
        assert taken(broker, name, first_byte) == set(PUBACK_CODES) & set(TRIED)


def test_codes_of_pubrel_and_pubcomp_are_the_listed_ones(broker: Hosted, name: str) -> None:
    """Is any other code in a PUBREL or PUBCOMP a protocol error?"""
    for first_byte in (0x62, 0x70):
        assert taken(broker, name, first_byte) == set(PUBREL_CODES)


def test_codes_of_disconnect_are_the_listed_ones(broker: Hosted, name: str) -> None:
    """Is a code that a client has no business to send, or nobody has, a protocol error?"""
    for code in TRIED:
        with join(broker, name) as client:
            client.send_bytes(spelled.frame(0xE0, bytes((code,))))
            if code in DISCONNECT_CODES:
                assert client.ends_without_a_word()
            else:
                client.assert_ended(Reason.PROTOCOL_ERROR)
