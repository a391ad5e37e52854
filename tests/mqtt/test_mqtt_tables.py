"""Are the tables of properties and reasons complete, and does the codec obey each cell?"""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from penstock.mqtt.errors import ProtocolViolation
from penstock.mqtt.kinds import FIRST_BYTES, PacketType, Role
from penstock.mqtt.primitives import read_varint, write_varint
from penstock.mqtt.properties import (
    NO_PROPERTIES,
    PROPERTIES,
    WILL,
    Properties,
    PropertyRow,
    Wire,
    decode_properties,
    encode_properties,
    read_properties,
)
from penstock.mqtt.reasons import (
    LEGAL_REASONS,
    REASONS_BY_RETURN_CODE,
    RETURN_CODES,
    Reason,
    describe,
)
from tests.each import each

# MQTT 5 table 2-4 by hand: identifier, type, and the packets by their numbers (0 is a will).
TABLE_2_4 = """
01 byte 3 0
02 u32 3 0
03 text 3 0
08 name 3 0
09 binary 3 0
0b varint 3 8
11 u32 1 2 14
12 text 2
13 u16 2
15 text 1 2 15
16 binary 1 2 15
17 byte 1
18 u32 0
19 byte 1
1a text 2
1c text 2 14
1f text 2 4 5 6 7 9 11 14 15
21 u16 1 2
22 u16 1 2
23 u16 3
24 byte 2
25 byte 2
26 pair 0 1 2 3 4 5 6 7 8 9 10 11 14 15
27 u32 1 2
28 byte 2
29 byte 2
2a byte 2
"""
WIRES = {
    "byte": Wire.BYTE,
    "u16": Wire.U16,
    "u32": Wire.U32,
    "varint": Wire.VARINT,
    "text": Wire.TEXT,
    "name": Wire.NAME,
    "binary": Wire.BINARY,
    "pair": Wire.PAIR,
}
SAMPLE = {
    Wire.BYTE: b"\1",
    Wire.U16: b"\0\1",
    Wire.U32: b"\0\0\0\1",
    Wire.VARINT: b"\1",
    Wire.TEXT: b"\0\1a",
    Wire.NAME: b"\0\1a",
    Wire.BINARY: b"\0\1a",
    Wire.PAIR: b"\0\1a\0\1b",
}
WITH_PROPERTIES = (WILL, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15)
rows = each("row", PROPERTIES, ids=lambda row: row.field)


def sender_of(row: PropertyRow, where: int) -> Role:
    only_server = {("subscription_identifiers", 3), ("server_reference", 14)}
    return Role.SERVER if (row.field, where) in only_server else Role.CLIENT


def test_the_property_table_is_the_specifications_table() -> None:
    expected = {}
    for line in TABLE_2_4.split("\n")[1:-1]:
        identifier, wire, *where = line.split()
        expected[int(identifier, 16)] = (WIRES[wire], {int(one) for one in where})
    assert {row.id: (row.wire, set(row.legal_in)) for row in PROPERTIES} == expected


def test_every_property_has_a_field_and_every_field_a_property() -> None:
    assert [row.field for row in PROPERTIES] == [field.name for field in fields(Properties)]


@rows
@each("where", WITH_PROPERTIES)
def test_a_property_is_read_and_written_where_it_is_legal_and_nowhere_else(
    row: PropertyRow, where: int
) -> None:
    section = bytes((row.id,)) + SAMPLE[row.wire]
    sender = sender_of(row, where)
    if where not in row.legal_in:
        with pytest.raises(ProtocolViolation) as caught:
            decode_properties(section, where, sender)
        assert caught.value.reason == Reason.MALFORMED_PACKET
        return
    found = decode_properties(section, where, sender)
    assert [field.name for field in fields(found) if getattr(found, field.name)] == [row.field]
    assert encode_properties(found, where) == bytes((len(section),)) + section


@rows
def test_a_property_stands_once_unless_it_may_repeat(row: PropertyRow) -> None:
    one = bytes((row.id,)) + SAMPLE[row.wire]
    for where in row.legal_in:
        sender = sender_of(row, where)
        may_repeat = row.id == 0x26 or (row.id, where) == (0x0B, 3)
        if may_repeat:
            assert len(getattr(decode_properties(one * 3, where, sender), row.field)) == 3
        else:
            with pytest.raises(ProtocolViolation) as caught:
                decode_properties(one * 2, where, sender)
            assert caught.value.reason == Reason.PROTOCOL_ERROR


@rows
def test_a_property_cut_anywhere_is_malformed(row: PropertyRow) -> None:
    section = bytes((row.id,)) + SAMPLE[row.wire]
    where = row.legal_in[0]
    for end in range(1, len(section)):
        with pytest.raises(ProtocolViolation) as caught:
            decode_properties(section[:end], where, sender_of(row, where))
        assert caught.value.reason == Reason.MALFORMED_PACKET


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("subscription_identifiers", 268_435_455),
        ("receive_maximum", 65_535),
        ("topic_alias", 65_535),
        ("maximum_packet_size", 4_294_967_295),
    ],
)
def test_a_property_that_may_not_be_0_says_what_it_may_be(field: str, most: int) -> None:
    (row,) = [one for one in PROPERTIES if one.field == field]
    where = row.legal_in[0]
    section = bytes((row.id,)) + b"\0" * len(SAMPLE[row.wire])
    with pytest.raises(ProtocolViolation, match=f"{field} is 0: it must be from 1 to {most}$"):
        decode_properties(section, where, sender_of(row, where))


def test_user_properties_keep_their_order_and_their_duplicates() -> None:
    pairs = (("b", "1"), ("a", "2"), ("b", "1"), ("b", ""))
    section = encode_properties(Properties(user_properties=pairs), PacketType.PUBLISH)
    found, end = read_properties(section, 0, len(section), PacketType.PUBLISH, Role.CLIENT)
    assert (found.user_properties, end) == (pairs, len(section))


def test_no_properties_are_one_shared_value_and_one_byte() -> None:
    found, end = read_properties(b"\0rest", 0, 5, PacketType.PUBLISH, Role.CLIENT)
    assert found is NO_PROPERTIES and end == 1
    assert encode_properties(Properties(), PacketType.PUBLISH) == b"\0"


def test_properties_show_what_is_present_and_nothing_else() -> None:
    found = Properties(topic_alias=1, maximum_qos=0, user_properties=(("k", "v"),))
    assert repr(found) == "Properties(topic_alias=1, maximum_qos=0, user_properties=(('k', 'v'),))"
    assert repr(NO_PROPERTIES) == "Properties()"


# MQTT 5 table 2-6 and §3.14.2.1, §3.15.2.1 by hand: packet number, codes.
REASONS_BY_PACKET = {
    2: "00 80 81 82 83 84 85 86 87 88 89 8a 8c 90 95 97 99 9a 9b 9c 9d 9f",
    4: "00 10 80 83 87 90 91 97 99",
    5: "00 10 80 83 87 90 91 97 99",
    6: "00 92",
    7: "00 92",
    9: "00 01 02 80 83 87 8f 91 97 9e a1 a2",
    11: "00 11 80 83 87 8f 91",
}
DISCONNECT_BY_BOTH = "00 80 81 82 83 90 93 94 95 96 97 98 99"
DISCONNECT_BY_SERVER = "87 89 8b 8c 8d 8e 8f 9a 9b 9c 9d 9e 9f a0 a1 a2"


@pytest.mark.parametrize("packet_type", PacketType)
def test_the_reason_table_is_the_specifications_table(packet_type: PacketType) -> None:
    codes = REASONS_BY_PACKET.get(packet_type, "")
    by_client, by_server = set(bytes.fromhex(codes)), set(bytes.fromhex(codes))
    if packet_type is PacketType.DISCONNECT:
        by_client = set(bytes.fromhex(DISCONNECT_BY_BOTH + "04"))
        by_server = set(bytes.fromhex(DISCONNECT_BY_BOTH + DISCONNECT_BY_SERVER))
    if packet_type is PacketType.AUTH:
        by_client, by_server = {0x18, 0x19}, {0x00, 0x18}
    assert set(LEGAL_REASONS[packet_type, Role.CLIENT]) == by_client
    assert set(LEGAL_REASONS[packet_type, Role.SERVER]) == by_server


def test_every_reason_is_legal_somewhere_and_describes_itself() -> None:
    used = {reason for legal in LEGAL_REASONS.values() for reason in legal.values()}
    assert used == set(Reason)
    for reason in Reason:
        assert re.fullmatch(r"[a-z0-9 ]+ \(0x[0-9a-f]{2}\)", describe(reason))


def test_return_codes_translate_both_ways() -> None:
    assert sorted(REASONS_BY_RETURN_CODE) == [0, 1, 2, 3, 4, 5]
    for code, reason in REASONS_BY_RETURN_CODE.items():
        assert RETURN_CODES[reason] == code
    codes = {int(reason): code for reason, code in RETURN_CODES.items()}
    assert codes == {
        **{0x00: 0, 0x84: 1, 0x85: 2, 0x86: 4},
        **dict.fromkeys((0x88, 0x89, 0x97, 0x9C, 0x9D, 0x9F), 3),
        **dict.fromkeys((0x87, 0x8A, 0x8C), 5),
    }
    assert set(RETURN_CODES) <= set(LEGAL_REASONS[PacketType.CONNACK, Role.SERVER].values())


def test_the_first_bytes_of_each_version_are_the_specifications() -> None:
    publish = {0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3B, 0x3C, 0x3D}
    fixed = {0x10, 0x20, 0x40, 0x50, 0x62, 0x70, 0x82, 0x90, 0xA2, 0xB0, 0xC0, 0xD0, 0xE0}
    legal = [{byte for byte in range(256) if flags[byte]} for flags in FIRST_BYTES]
    # The flags of CONNECT mean nothing in MQTT 3.1; a QoS of 3 is reserved in every version.
    assert legal[0] == {0x10 | flags for flags in range(16) if flags & 6 != 6}
    assert legal[4] == publish | fixed
    assert legal[3] == publish | fixed | {0x6A, 0x8A, 0xAA}
    assert legal[5] == publish | fixed | {0xF0}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_variable_byte_integers_are_those_of_the_specifications_table(
    value: int, text: str
) -> None:
    raw = bytes.fromhex(text)
    assert write_varint(value) == raw
    assert read_varint(b"x" + raw + b"x", 1, 1 + len(raw)) == (value, 1 + len(raw))
    for end in range(len(raw)):
        with pytest.raises(ProtocolViolation):
            read_varint(raw, 0, end)
