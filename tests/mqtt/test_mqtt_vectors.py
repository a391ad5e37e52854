"""Do reader and writer agree with bytes written by hand from the specifications?"""

from __future__ import annotations

from contextlib import suppress

import pytest

from penstock.mqtt.decode import decode_packet
from penstock.mqtt.encode import encode
from penstock.mqtt.errors import ProtocolViolation
from penstock.mqtt.kinds import PacketType
from penstock.mqtt.packets import PACKET_TYPES, Connect, Packet
from penstock.mqtt.primitives import read_varint
from penstock.mqtt.scanner import Intake
from penstock.mqtt.unpacking import unpack
from tests.each import each
from tests.mqtt.malformed import BROKEN, Broken
from tests.mqtt.vector import Vector
from tests.mqtt.vectors import READ_ONLY, VECTORS

PACKET_BYTES_MAX = 1 << 20

every = each("vector", VECTORS + READ_ONLY, ids=lambda v: v.title)
every_broken = each("broken", BROKEN, ids=lambda b: b.title)


def body_of(raw: bytes) -> bytes:
    length, start = read_varint(raw, 1, len(raw))
    assert len(raw) == start + length, "the vector's own length is wrong"
    return raw[start:]


def starting_version(vector: Vector) -> int:
    return 0 if isinstance(vector.packet, Connect) else vector.version


def intake_for(vector: Vector) -> Intake:
    return Intake(starting_version(vector), PACKET_BYTES_MAX, vector.sender)


def test_every_packet_type_has_a_vector_in_every_version_that_knows_it() -> None:
    seen = {(vector.version, PACKET_TYPES[type(vector.packet)]) for vector in VECTORS}
    known = {(version, packet_type) for version in (3, 4, 5) for packet_type in PacketType}
    assert seen == known - {(3, PacketType.AUTH), (4, PacketType.AUTH)}


@every
def test_a_vector_is_read_whole(vector: Vector) -> None:
    body = body_of(vector.raw)
    version = starting_version(vector)
    assert decode_packet(vector.raw[0], body, version, vector.sender) == vector.packet


@every
def test_a_vector_is_read_byte_by_byte(vector: Vector) -> None:
    intake = intake_for(vector)
    found: list[Packet] = []
    for index in range(len(vector.raw)):
        assert found == []
        found += unpack(intake.feed(vector.raw[index : index + 1]))
    assert found == [vector.packet]
    assert intake.held_bytes == 0


@every
def test_a_vector_is_read_with_trailing_bytes(vector: Vector) -> None:
    intake = intake_for(vector)
    trailing = b"\x30\x07\x00\x03a"
    assert list(unpack(intake.feed(vector.raw + trailing))) == [vector.packet]
    assert intake.held_bytes == len(trailing)


@every
def test_a_vector_is_read_many_times_in_one_chunk(vector: Vector) -> None:
    intake = Intake(vector.version, PACKET_BYTES_MAX, vector.sender)
    assert list(unpack(intake.feed(vector.raw * 5))) == [vector.packet] * 5


@each("vector", VECTORS, ids=lambda v: v.title)
def test_a_vector_is_written_back(vector: Vector) -> None:
    assert encode(vector.packet, vector.version) == vector.raw


@each("vector", READ_ONLY, ids=lambda v: v.title)
def test_a_longer_spelling_is_written_back_in_no_more_bytes(vector: Vector) -> None:
    assert len(encode(vector.packet, vector.version)) <= len(vector.raw)


@every
def test_every_cut_body_is_refused_or_still_a_packet(vector: Vector) -> None:
    body = body_of(vector.raw)[:200]
    for end in range(len(body)):
        with suppress(ProtocolViolation):
            cut = decode_packet(vector.raw[0], body[:end], starting_version(vector), vector.sender)
            assert type(cut) is type(vector.packet)


@every_broken
def test_a_broken_packet_is_refused_with_its_reason_and_clause(broken: Broken) -> None:
    body = broken.raw[2:]
    with pytest.raises(ProtocolViolation) as caught:
        decode_packet(broken.raw[0], body, broken.version, broken.sender)
    assert (caught.value.reason, caught.value.clause) == (broken.reason, broken.clause)
    assert broken.clause in str(caught.value)


@every_broken
def test_a_broken_packet_is_refused_alike_when_it_comes_byte_by_byte(broken: Broken) -> None:
    intake = Intake(broken.version, PACKET_BYTES_MAX, broken.sender)
    with pytest.raises(ProtocolViolation) as caught:
        for index in range(len(broken.raw)):
            assert list(unpack(intake.feed(broken.raw[index : index + 1]))) == []
    assert (caught.value.reason, caught.value.clause) == (broken.reason, broken.clause)


def test_the_broken_packets_have_right_lengths_so_that_only_their_rule_is_broken() -> None:
    for broken in BROKEN:
        if broken.title.startswith(("a TLS", "an HTTP")):
            continue
        assert len(body_of(broken.raw)) == len(broken.raw) - 2, broken.title
