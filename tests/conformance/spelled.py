"""Packets spelled byte by byte, by nothing but the specification's own words.

The tests here judge the codec as well, so what they send and compare is not made by it.
"""

from __future__ import annotations

from typing import Final

QOS_1: Final = 0x02
QOS_2: Final = 0x04
CONNECT_4: Final = b"\x00\x04MQTT\x04"
CONNECT_5: Final = b"\x00\x04MQTT\x05"


def length(value: int) -> bytes:
    """A variable byte integer, in as few bytes as it takes."""
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def frame(first_byte: int, *parts: bytes) -> bytes:
    """A packet: its first byte, the length of the rest, the rest."""
    body = b"".join(parts)
    return bytes((first_byte,)) + length(len(body)) + body


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def text(value: str | bytes) -> bytes:
    """Text behind its two-byte length; bytes go as they are, also where they are no UTF-8."""
    raw = value.encode() if isinstance(value, str) else value
    return u16(len(raw)) + raw


def properties(version: int, *parts: bytes) -> bytes:
    """A property section with its length; nothing before MQTT 5."""
    if version < 5:
        assert not parts
        return b""
    body = b"".join(parts)
    return length(len(body)) + body


def connect(
    version: int,
    client_id: str | bytes,
    *behind: bytes,
    flags: int = 0x02,
    keep_alive_s: int = 0,
    asked: bytes = b"",
) -> bytes:
    """A CONNECT; `behind` stands after the client id: will, user name, password."""
    head = CONNECT_5 if version == 5 else CONNECT_4
    section = properties(version, asked) if version == 5 else b""
    return frame(0x10, head, bytes((flags,)), u16(keep_alive_s), section, text(client_id), *behind)


def publish(
    version: int,
    name: str | bytes,
    payload: bytes,
    *,
    flags: int = 0,
    packet_id: int | None = None,
    said: bytes = b"",
) -> bytes:
    """A PUBLISH; `flags` are the lower four bits of its first byte."""
    identifier = b"" if packet_id is None else u16(packet_id)
    section = properties(version, said) if version == 5 else b""
    return frame(0x30 | flags, text(name), identifier, section, payload)


def subscribe(
    version: int, packet_id: int, *filters: tuple[str | bytes, int], first_byte: int = 0x82
) -> bytes:
    """A SUBSCRIBE of (filter, options)."""
    wanted = [text(filter) + bytes((options,)) for filter, options in filters]
    return frame(first_byte, u16(packet_id), properties(version), *wanted)


def unsubscribe(
    version: int, packet_id: int, *filters: str | bytes, first_byte: int = 0xA2
) -> bytes:
    given_back = [text(filter) for filter in filters]
    return frame(first_byte, u16(packet_id), properties(version), *given_back)


def ack(first_byte: int, packet_id: int) -> bytes:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP that says nothing else."""
    return frame(first_byte, u16(packet_id))


def split(data: bytes) -> tuple[bytes, bytes] | None:
    """The first packet of `data` and what follows it; None while it is not whole."""
    value = shift = 0
    for at in range(1, len(data)):
        value |= (data[at] & 0x7F) << shift
        shift += 7
        if data[at] < 0x80:
            end = at + 1 + value
            return (data[:end], data[end:]) if len(data) >= end else None
    return None


def body(packet: bytes) -> bytes:
    """What stands behind the length."""
    at = 1
    while packet[at] >= 0x80:
        at += 1
    return packet[at + 1 :]
