"""Does every packet survive being written and read, and does only PeerError come out of garbage?"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import PeerError
from penstock.mqtt.decode import decode_packet
from penstock.mqtt.encode import encode, encode_within
from penstock.mqtt.errors import ProtocolViolation
from penstock.mqtt.handshake import answer_version
from penstock.mqtt.kinds import (
    FILTERS_MAX,
    FIRST_BYTES,
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    UNKNOWN_VERSION,
    USER_PROPERTIES_MAX,
    PacketType,
    Role,
)
from penstock.mqtt.packets import (
    PACKET_TYPES,
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.primitives import read_varint
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import LEGAL_REASONS, RETURN_CODES, Reason
from penstock.mqtt.scanner import Intake
from penstock.mqtt.unpacking import unpack
from tests.examples import examples
from tests.mqtt.malformed import BROKEN
from tests.mqtt.strategies import SENDERS, VERSIONS, packets
from tests.mqtt.vectors import READ_ONLY, VECTORS


def read(raw: bytes, version: int, sender: Role) -> Packet:
    length, start = read_varint(raw, 1, len(raw))
    assert start + length == len(raw)
    return decode_packet(raw[0], raw[start:], version, sender)


@examples(600)
@given(st.data(), VERSIONS, SENDERS)
def test_what_is_written_is_read_back(data: st.DataObject, version: int, sender: Role) -> None:
    packet = data.draw(packets(version, sender))
    raw = encode(packet, version)
    assert FIRST_BYTES[version][raw[0]]
    assert raw[0] >> 4 == PACKET_TYPES[type(packet)]
    assert read(raw, version, sender) == packet


@examples(300)
@given(st.data(), VERSIONS, SENDERS)
def test_reading_never_takes_a_packet_that_it_could_not_write_again(
    data: st.DataObject, version: int, sender: Role
) -> None:
    raw = bytearray(encode(data.draw(packets(version, sender)), version))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    intake = Intake(version, 1 << 16, sender)
    try:
        for packet in unpack(intake.feed(bytes(raw))):
            again = encode(packet, version)
            spoken = packet.version if isinstance(packet, Connect) else version
            assert read(again, spoken, sender) == packet
    except PeerError:
        pass


@examples(1500)
@given(st.integers(0, 255), st.binary(max_size=60), st.integers(0, 5), SENDERS)
def test_only_peer_errors_come_out_of_random_bytes(
    first_byte: int, body: bytes, version: int, sender: Role
) -> None:
    assert answer_version(body) in (UNKNOWN_VERSION, MQTT_3_1, MQTT_3_1_1, MQTT_5)
    with suppress(PeerError):
        packet = decode_packet(first_byte, body, version, sender)
        assert PACKET_TYPES[type(packet)] == first_byte >> 4


@pytest.mark.parametrize("seed", range(4))
def test_only_peer_errors_come_out_of_mutated_vectors(seed: int) -> None:
    chance = random.Random(seed)
    known = [(v.raw, v.version, v.sender) for v in VECTORS + READ_ONLY if len(v.raw) < 300]
    known += [(b.raw, b.version, b.sender) for b in BROKEN]
    for _ in range(8_000):
        raw, version, sender = chance.choice(known)
        mutated = mutate(bytearray(raw), chance)
        version = chance.choice((version, version, 0, 3, 4, 5))
        body = bytes(mutated[2:])
        with suppress(PeerError):
            packet = decode_packet(mutated[0], body, version, sender)
            assert PACKET_TYPES[type(packet)] == mutated[0] >> 4
        with suppress(PeerError):
            data = bytes(mutated) + raw
            packets = list(unpack(Intake(version, 4096, sender).feed(data)))
            assert 2 * len(packets) <= len(data)  # the shortest packet has two bytes


def mutate(raw: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(raw))
        what = chance.randrange(4)
        if what == 0:
            raw[at] = chance.randrange(256)
        elif what == 1:
            raw[at] ^= 1 << chance.randrange(8)
        elif what == 2:
            raw.insert(at, chance.choice((0, 1, 0x7F, 0x80, 0xFF)))
        elif len(raw) > 1:
            del raw[at]
    return raw


# --- what an older version cannot say ---------------------------------------------------------


@pytest.mark.parametrize("reason", LEGAL_REASONS[PacketType.CONNACK, Role.SERVER].values())
def test_a_refusal_before_mqtt_5_has_a_return_code_or_is_not_sent(reason: Reason) -> None:
    raw = encode(Connack(False, reason), 4)
    if reason in RETURN_CODES:
        assert raw == bytes((0x20, 2, 0, RETURN_CODES[reason]))
        assert (read(raw, 4, Role.SERVER) == Connack()) == (reason == Reason.SUCCESS)
    else:
        assert raw == b""


def test_what_mqtt_5_adds_is_left_out_before_it() -> None:
    explained = Properties(reason_string="why", user_properties=(("k", "v"),))
    assert encode(Puback(1, Reason.QUOTA_EXCEEDED, explained), 4) == bytes.fromhex("40020001")
    assert encode(Suback(1, (Reason.NOT_AUTHORIZED,), explained), 4) == bytes.fromhex("9003000180")
    assert encode(Unsuback(1, (Reason.NOT_AUTHORIZED,)), 3) == bytes.fromhex("b0020001")
    subscription = Subscription("a", 1, no_local=True, retain_as_published=True, retain_handling=2)
    assert encode(Subscribe(1, (subscription,)), 4) == bytes.fromhex("82060001000161 01")
    publish = Publish("a", b"x", properties=Properties(content_type="t"))
    assert encode(publish, 4) == bytes.fromhex("300400016178")
    assert encode(Connack(True), 3) == bytes.fromhex("20020000")


def test_a_property_that_does_not_belong_in_a_packet_is_left_out() -> None:
    publish = Publish("a", b"", properties=Properties(will_delay_interval=5))
    assert encode(publish, 5) == bytes.fromhex("300400016100")


def test_an_answer_too_large_for_the_peer_goes_without_its_explanation() -> None:
    explained = Properties(reason_string="why", user_properties=(("k", "v"),))
    packet = Suback(1, (Reason.NOT_AUTHORIZED,), explained)
    whole = encode(packet, 5)
    bare = encode(replace(packet, properties=Properties()), 5)
    assert encode_within(packet, 5, len(whole)) == whole
    assert encode_within(packet, 5, len(whole) - 1) == bare
    assert encode_within(packet, 5, len(bare) - 1) == b""


def test_a_message_or_request_too_large_for_the_peer_is_not_sent() -> None:
    tagged = Properties(user_properties=(("k", "v"),))
    for packet in (
        Publish("a", b"x", properties=tagged),
        Subscribe(1, (Subscription("a"),), tagged),
        Connect("c", properties=tagged),
    ):
        whole = encode(packet, 5)
        assert encode_within(packet, 5, len(whole)) == whole
        assert encode_within(packet, 5, len(whole) - 1) == b""


@pytest.mark.parametrize(
    ("start", "version"),
    [
        ("0006 4d5149736470 03", 3),
        ("0006 4d5149736470 09", 3),
        ("0004 4d515454 03", 4),
        ("0004 4d515454 04", 4),
        ("0004 4d515454 05", 5),
        ("0004 4d515454 06", 5),
        ("0004 4d515455 04", 0),
        ("0004 4d51", 0),
        ("", 0),
    ],
)
def test_a_refused_connect_is_answered_in_a_version_its_client_can_read(
    start: str, version: int
) -> None:
    assert answer_version(bytes.fromhex(start)) == version


def check_at_most(count: int, *make: Callable[[int], Packet]) -> None:
    for packet_of in make:
        assert read(encode(packet_of(count), 5), 5, Role.CLIENT) == packet_of(count)
        with pytest.raises(ProtocolViolation) as caught:
            read(encode(packet_of(count + 1), 5), 5, Role.CLIENT)
        assert caught.value.reason == Reason.QUOTA_EXCEEDED


def test_a_packet_holds_a_bounded_number_of_filters() -> None:
    check_at_most(
        FILTERS_MAX,
        lambda count: Subscribe(1, (Subscription("a"),) * count),
        lambda count: Unsubscribe(1, ("a",) * count),
    )


def test_a_packet_holds_a_bounded_number_of_user_properties() -> None:
    def tagged(count: int) -> Properties:
        return Properties(user_properties=(("k", "v"),) * count)

    check_at_most(
        USER_PROPERTIES_MAX,
        lambda count: Publish("a", b"", properties=tagged(count)),
        lambda count: Connect("c", properties=tagged(count)),
    )


@pytest.mark.parametrize(
    "packet",
    [
        Puback(0),
        Puback(65536),
        Puback(1, Reason.SERVER_BUSY),
        Publish("a", b"", qos=1),
        Publish("a", b"", packet_id=1),
        Publish("a", b"", qos=3, packet_id=1),
        Publish("", b""),
        Publish("a\0", b""),
        Publish("a" * 65536, b""),
        Subscribe(1, ()),
        Subscribe(1, (Subscription("a", 3),)),
        Suback(1, ()),
        Suback(1, (Reason.SERVER_BUSY,)),
        Unsuback(1, ()),
        Connack(True, Reason.SERVER_BUSY),
    ],
    ids=repr,
)
def test_a_packet_that_no_peer_may_be_sent_is_our_mistake(packet: Packet) -> None:
    with pytest.raises(AssertionError):
        encode(packet, 5)
