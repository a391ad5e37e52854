"""Many packets at once, written without an object a message: PUBLISH runs and runs of acks.

A run is encoded once for all receivers that want it alike (same version, QoS, retain and
properties); above QoS 0 only the packet ids differ between them, and `put_packet_ids` fills those
into a copy. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

import struct
from typing import Final, final

from mypy_extensions import i64

from penstock.mqtt.primitives import read_varint, write_u16, write_varint

PLAIN_ACK_BYTES: Final = 4
_ID_BYTES: Final = 2
_DUP: Final = 0x08
_TOPIC_ALIAS: Final = 0x23  # the property (MQTT 5 §3.3.2.3.4)


@final
class EncodedRun:
    """PUBLISH packets one after the other; above QoS 0 their packet ids are still blank."""

    __slots__ = ("id_positions", "packet_bytes", "packet_bytes_max", "packet_ends", "raw", "tail")

    def __init__(self, raw: bytes, packet_ends: list[int], id_positions: list[int]) -> None:
        self.raw = raw
        self.packet_ends = packet_ends  # one past each packet, in `raw`
        self.id_positions = id_positions  # of each packet's id in `raw`; empty at QoS 0
        self.packet_bytes_max = 0  # the longest packet
        self.packet_bytes = 0  # of each packet, if all are of one size; else 0
        self.tail = b""  # of a large packet, behind its id: the same for all receivers


def encode_publish_run(
    first_byte: int,
    name: bytes,
    section: bytes,
    data: bytes,
    payload_starts: list[int],
    payload_lengths: list[int],
    first_message: int,
    end_message: int,
) -> EncodedRun:
    """Messages `[first_message, end_message)` of the columns over `data` as PUBLISH packets.

    `first_byte` holds QoS, retain and DUP; `section` is the property section with its length,
    empty before MQTT 5 (see `encode.property_section`).
    """
    with_ids = first_byte & 6 != 0
    field = len(name).to_bytes(2, "big") + name
    rest = b"\0\0" + section if with_ids else section
    lead = bytes((first_byte,))
    if end_message - first_message == 1:
        at, only = payload_starts[first_message], payload_lengths[first_message]
        body = len(field) + len(rest) + only
        start_bytes = lead + (bytes((body,)) if body < 0x80 else write_varint(body)) + field
        alone = start_bytes + rest + data[at : at + only]
        run = EncodedRun(alone, [len(alone)], [len(start_bytes)] if with_ids else [])
        run.packet_bytes_max = run.packet_bytes = len(alone)
        return run
    parts: list[bytes] = []
    ends: list[int] = []
    id_positions: list[int] = []
    head = b""
    head_bytes: i64 = 0
    head_length: i64 = -1  # the payload length that `head` was made for
    sizes: i64 = 0  # how many different heads were made
    size_max: i64 = 0
    pos: i64 = 0
    for index in range(first_message, end_message):
        length: i64 = payload_lengths[index]
        if length != head_length:
            size = len(field) + len(rest) + length
            head = lead + (bytes((size,)) if size < 0x80 else write_varint(size)) + field + rest
            head_bytes = len(head)
            head_length = length
            sizes += 1
            if head_bytes + length > size_max:
                size_max = head_bytes + length
        if with_ids:
            id_positions.append(pos + head_bytes - len(rest))
        start: i64 = payload_starts[index]
        parts.append(head)
        parts.append(data[start : start + length])
        pos += head_bytes + length
        ends.append(pos)
    run = EncodedRun(b"".join(parts), ends, id_positions)
    run.packet_bytes_max = size_max
    run.packet_bytes = size_max if sizes == 1 else 0
    return run


def put_packet_ids(run: EncodedRun, first: int, packet_ids: list[int]) -> bytes:
    """The packets `[first, first + len(packet_ids))` of a run above QoS 0, with these ids."""
    count = len(packet_ids)
    if count == 0:
        return b""
    assert 0 not in packet_ids and run.id_positions
    begin = 0 if first == 0 else run.packet_ends[first - 1]
    out = bytearray(run.raw[begin : run.packet_ends[first + count - 1]])
    ids = struct.pack(f">{count}H", *packet_ids)
    size = run.packet_bytes
    if size:
        place = run.id_positions[0]
        out[place::size] = ids[::_ID_BYTES]
        out[place + 1 :: size] = ids[1::_ID_BYTES]
        return bytes(out)
    for index in range(count):
        place = run.id_positions[first + index] - begin
        out[place : place + _ID_BYTES] = ids[index * _ID_BYTES : (index + 1) * _ID_BYTES]
    return bytes(out)


def large_head(run: EncodedRun, packet_id: int, dup: bool) -> bytes:
    """The only packet of a run, up to its id; `run.tail` is the rest of it."""
    raw = run.raw
    place = run.id_positions[0]
    if not run.tail:
        run.tail = raw[place + _ID_BYTES :]
    first = raw[0] | _DUP if dup else raw[0]
    return bytes((first,)) + raw[1:place] + packet_id.to_bytes(_ID_BYTES, "big")


def alias_packets(data: bytes, alias: int, teaches: bool) -> bytes:
    """MQTT 5 PUBLISH packets of one name with an alias instead of it.

    With `teaches` the first of them keeps the name, so that the receiver learns the alias.
    """
    field = bytes((_TOPIC_ALIAS,)) + write_u16(alias)
    end: i64 = len(data)
    parts: list[bytes] = []
    pos: i64 = 0
    while pos < end:
        length, body = read_varint(data, pos + 1, end)
        packet_end: i64 = body + length
        name_end: i64 = body + 2 + (data[body] << 8 | data[body + 1])
        section: i64 = name_end + (_ID_BYTES if data[pos] & 6 else 0)
        section_bytes, properties = read_varint(data, section, packet_end)
        name = data[body:name_end] if teaches else b"\0\0"
        ids = data[name_end:section]
        prefix = write_varint(section_bytes + len(field))
        rest = data[properties:packet_end]
        size = len(name) + len(ids) + len(prefix) + len(field) + len(rest)
        parts += (data[pos : pos + 1], write_varint(size), name, ids, prefix, field, rest)
        teaches = False
        pos = packet_end
    return b"".join(parts)


def encode_acks(first_byte: int, packet_ids: list[int], reason: int = 0) -> bytes:
    """One PUBACK, PUBREC, PUBREL or PUBCOMP (by `kinds.first_byte`) for each packet id.

    Plain ones unless there is a reason, which only MQTT 5 can say.
    """
    count = len(packet_ids)
    assert 0 not in packet_ids
    one = bytes((first_byte, _ID_BYTES, 0, 0))
    if reason:
        one = bytes((first_byte, _ID_BYTES + 1, 0, 0, reason))
    out = bytearray(one * count)
    ids = struct.pack(f">{count}H", *packet_ids)
    out[2 :: len(one)] = ids[::_ID_BYTES]
    out[3 :: len(one)] = ids[1::_ID_BYTES]
    return bytes(out)
