"""Numbers, text and binary data as MQTT writes them (MQTT 5 §1.5).

A reader takes `data`, a position and the end it may not pass, and returns the value with the
position after it. Whatever the bytes are, it returns a value of its type or raises
ProtocolViolation. A writer's arguments are our own: it asserts.
"""

from __future__ import annotations

from penstock.mqtt.errors import ProtocolViolation, malformed, protocol_error
from penstock.mqtt.kinds import MQTT_5, REMAINING_LENGTH_MAX
from penstock.mqtt.reasons import Reason


def read_byte(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """One byte."""
    if pos >= end:
        raise malformed("the packet ends where a byte is expected")
    return data[pos], pos + 1


def read_u16(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A two-byte integer, big end first."""
    if pos + 2 > end:
        raise malformed("the packet ends inside a two-byte integer")
    return data[pos] << 8 | data[pos + 1], pos + 2


def read_u32(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A four-byte integer, big end first."""
    if pos + 4 > end:
        raise malformed("the packet ends inside a four-byte integer")
    return int.from_bytes(data[pos : pos + 4], "big"), pos + 4


def read_varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A variable byte integer: at most four bytes, and as few as possible."""
    value = 0
    shift = 0
    while pos < end:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                raise malformed(
                    "a variable byte integer takes more bytes than it needs", "MQTT-1.5.5-1"
                )
            return value, pos
        shift += 7
        if shift == 28:
            raise malformed("a variable byte integer has more than four bytes", "MQTT-1.5.5-1")
    raise malformed("the packet ends inside a variable byte integer")


def read_binary(data: bytes, pos: int, end: int) -> tuple[bytes, int]:
    """Up to 65,535 bytes after their two-byte length."""
    length, pos = read_u16(data, pos, end)
    stop = pos + length
    if stop > end:
        raise malformed(f"a field of {length} bytes has only {end - pos} left in the packet")
    return data[pos:stop], stop


def read_text(data: bytes, pos: int, end: int) -> tuple[str, int]:
    """UTF-8 text after its two-byte length. A BOM is text like any other [MQTT-1.5.4-3]."""
    raw, pos = read_binary(data, pos, end)
    return decode_text(raw), pos


def decode_text(raw: bytes) -> str:
    """`raw` as text; ill-formed UTF-8, surrogates and U+0000 are malformed."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed(
            f"text is not UTF-8: {error.reason} at byte {error.start}", "MQTT-1.5.4-1"
        ) from None
    if "\0" in text:
        raise malformed("text contains U+0000", "MQTT-1.5.4-2")
    return text


def decode_name(raw: bytes) -> str:
    """`raw` as a name that can be published under: text, not empty, without wildcards."""
    text = decode_text(raw)
    if not text:
        raise ProtocolViolation(
            Reason.TOPIC_NAME_INVALID, "a name has at least one character", "MQTT-4.7.3-1"
        )
    if "+" in text or "#" in text:
        raise ProtocolViolation(
            Reason.TOPIC_NAME_INVALID,
            f"name {text[:100]!r} contains a wildcard: + and # belong in filters",
            "MQTT-3.3.2-2",
        )
    return text


def decode_publish_name(raw: bytes, version: int, has_alias: bool) -> str:
    """The name of a PUBLISH; only MQTT 5 may leave it empty, and only with a topic alias."""
    if raw or version != MQTT_5:
        return decode_name(raw)
    if not has_alias:
        raise protocol_error("PUBLISH with neither a name nor a topic alias", "MQTT 5 §3.3.2.1")
    return ""


def write_u16(value: int) -> bytes:
    """A two-byte integer, big end first."""
    assert 0 <= value <= 0xFFFF, value
    return value.to_bytes(2, "big")


def write_u32(value: int) -> bytes:
    """A four-byte integer, big end first."""
    assert 0 <= value <= 0xFFFF_FFFF, value
    return value.to_bytes(4, "big")


def write_varint(value: int) -> bytes:
    """A variable byte integer, in as few bytes as it takes."""
    assert 0 <= value <= REMAINING_LENGTH_MAX, value
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_binary(raw: bytes) -> bytes:
    """Bytes after their two-byte length."""
    return write_u16(len(raw)) + raw


def write_text(text: str) -> bytes:
    """Text as UTF-8 after its two-byte length."""
    assert "\0" not in text, text
    return write_binary(text.encode())
