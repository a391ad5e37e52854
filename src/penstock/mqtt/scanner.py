"""The hot loop: one chunk of bytes in, every complete packet in it out, with no object a message.

`Intake` is the receiving side of one connection: bytes in as they come, chunks of whole packets
out. Every byte fed is in exactly one chunk's consumed part or still held there, in order; at most
one incomplete packet is held once the version is known, so what is held is bounded by
`packet_bytes_max` plus one feed. A large packet that comes in many pieces is joined once, not once
a piece; one that arrives in small parts takes no more memory than its bytes.

`scan` finds all packet boundaries of a chunk. Consecutive PUBLISH packets with the same first
byte, the same name and the same properties are one PublishRun; consecutive plain acks of one type
are one AckRun; any other packet is a PacketSpan for decode_packet. Runs are valid when they come
out: name, properties and packet ids have been checked, the name and the properties once a run.

Invariant: the items cover `data[start:consumed]` without a gap, in order; each packet lies in
exactly one item; a violation stands at `consumed` and says nothing about the items before it.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from penstock.model.limits import KIB
from penstock.mqtt.errors import ProtocolViolation, bad_first_byte, malformed, protocol_error
from penstock.mqtt.kinds import FIRST_BYTES, MQTT_5, PacketType, Role
from penstock.mqtt.primitives import decode_publish_name, read_varint
from penstock.mqtt.properties import NO_PROPERTIES, Properties, decode_properties
from penstock.mqtt.reasons import Reason

PIECE_BYTES_MAX: Final = 4 * KIB  # smaller pieces are joined: each costs some 50 bytes
# Compiled code finds its own names sooner than those of other modules.
_FIRST_BYTES: Final = FIRST_BYTES
_NO_PROPERTIES: Final = NO_PROPERTIES
_PUBLISH: Final = 3
_PUBACK: Final = 4
_PUBCOMP: Final = 7
_TOPIC_ALIAS: Final = 0x23  # the property (MQTT 5 §3.3.2.3.4)
_ALIAS_BYTES: Final = 3
_LONE_ALIASES_MAX: Final = 1_024
_KNOWN_NAMES_MAX: Final = 4_096
_KNOWN_NAMES: Final[set[bytes]] = set()  # checked before; most clients publish under few names
_LONE_ALIASES: Final[dict[bytes, Properties]] = {}  # sections that hold nothing but an alias


@final
class PublishRun:
    """Consecutive PUBLISH packets that differ only in packet id and payload.

    Message i of the run is message `first + i` of the chunk: its payload is
    `data[s : s + n]` with s and n from `payload_starts` and `payload_lengths`, and its packet
    ends where its payload does. Above QoS 0 its packet id is `packet_ids[first_id + i]`.
    """

    __slots__ = (
        "end",
        "end_message",
        "first_byte",
        "first_id",
        "first_message",
        "name",
        "packet_bytes_max",
        "properties",
        "property_bytes",
        "start",
    )

    def __init__(
        self,
        first_byte: int,
        name: bytes,
        property_bytes: bytes,
        properties: Properties,
        start: int,
        first_message: int,
        first_id: int,
    ) -> None:
        self.first_byte = first_byte
        self.name = name  # UTF-8; empty only with a topic alias
        self.property_bytes = property_bytes  # the section without its length
        self.properties = properties
        self.start = start  # of the first packet in the chunk's data
        self.end = start  # one past the last packet
        self.first_message = first_message  # index into the chunk's payload columns
        self.end_message = first_message  # one past the last message
        self.first_id = first_id  # index into the chunk's packet ids
        self.packet_bytes_max = 0  # the longest packet of the run

    @property
    def count(self) -> int:
        """How many messages."""
        return self.end_message - self.first_message

    @property
    def qos(self) -> int:
        return self.first_byte >> 1 & 3

    @property
    def retain(self) -> bool:
        return self.first_byte & 1 == 1

    @property
    def dup(self) -> bool:
        return self.first_byte & 8 == 8


@final
class AckRun:
    """Consecutive four-byte PUBACK, PUBREC, PUBREL or PUBCOMP packets of one type, all successes.

    Their packet ids are `packet_ids[first_id:end_id]` of the chunk.
    """

    __slots__ = ("end", "end_id", "first_byte", "first_id", "start")

    def __init__(self, first_byte: int, start: int, end: int, first_id: int, end_id: int) -> None:
        self.first_byte = first_byte
        self.start = start
        self.end = end
        self.first_id = first_id
        self.end_id = end_id


@final
class PacketSpan:
    """One packet of any kind: `decode_packet(span.first_byte, data[body:end], …)` reads it."""

    __slots__ = ("body", "end", "first_byte", "start")

    def __init__(self, first_byte: int, start: int, body: int, end: int) -> None:
        self.first_byte = first_byte
        self.start = start
        self.body = body  # where the bytes after the length begin
        self.end = end


Item = PublishRun | AckRun | PacketSpan


@final
class Chunk:
    """What `scan` found in `data`."""

    __slots__ = (
        "consumed",
        "data",
        "items",
        "packet_bytes_max",
        "packet_ids",
        "payload_lengths",
        "payload_starts",
        "sender",
        "version",
        "violation",
        "wanted",
    )

    def __init__(self, data: bytes, version: int, packet_bytes_max: int, sender: Role) -> None:
        self.data = data
        self.version = version
        self.packet_bytes_max = packet_bytes_max
        self.sender = sender
        self.items: list[Item] = []
        self.payload_starts: list[int] = []
        self.payload_lengths: list[int] = []
        self.packet_ids: list[int] = []
        self.consumed = 0  # one past the last complete packet; what follows is kept for later
        self.wanted = 0  # bytes from `consumed` before another scan can get further; 0: none left
        self.violation: ProtocolViolation | None = None


class Intake:
    """Feeds a connection's bytes to the scanner and keeps what is not complete yet.

    Start a server's with UNKNOWN_VERSION; once the CONNECT is decoded set `version` (and
    `packet_bytes_max`) and feed `b""` to go on with what the client sent behind it.
    """

    __slots__ = ("_held", "_held_bytes", "_wanted", "packet_bytes_max", "sender", "version")

    def __init__(self, version: int, packet_bytes_max: int, sender: Role = Role.CLIENT) -> None:
        self.version = version
        self.packet_bytes_max = packet_bytes_max
        self.sender = sender
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._wanted = 0

    @property
    def held_bytes(self) -> int:
        """How much is kept of packets that are not complete."""
        return self._held_bytes

    def feed(self, data: bytes) -> Chunk:
        """What is complete now. After a violation the connection is over: feed nothing more."""
        if self._held_bytes:
            held = self._held
            if len(held[-1]) + len(data) <= PIECE_BYTES_MAX:
                held[-1] += data
            else:
                held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._wanted:
                return Chunk(b"", self.version, self.packet_bytes_max, self.sender)
            data = b"".join(self._held)
        chunk = scan(data, 0, self.version, self.packet_bytes_max, self.sender)
        rest = data[chunk.consumed :]
        self._held = [rest] if rest else []
        self._held_bytes = len(rest)
        self._wanted = chunk.wanted
        return chunk


def scan(
    data: bytes, start: int, version: int, packet_bytes_max: int, sender: Role = Role.CLIENT
) -> Chunk:
    """Every complete packet of `data` from `start` on.

    `packet_bytes_max` bounds a whole packet, refused as soon as its length is read. With
    UNKNOWN_VERSION it stops after one packet, the CONNECT that will tell the version.
    """
    chunk = Chunk(data, version, packet_bytes_max, sender)
    legal = _FIRST_BYTES[version]
    end: i64 = len(data)
    pos: i64 = start
    while pos < end:
        first: i64 = data[pos]
        kind: i64 = first >> 4
        before: i64 = pos
        if legal[first] == 0:
            chunk.violation = bad_first_byte(first, version)
        elif kind == _PUBLISH:
            pos = _take_publishes(chunk, pos)
        elif _PUBACK <= kind <= _PUBCOMP and pos + 4 <= end and data[pos + 1] == 2:
            pos = _take_acks(chunk, pos)
        else:
            pos = _take_span(chunk, pos)
            if version == 0:
                break
        if pos == before or chunk.violation is not None:
            break
    chunk.consumed = pos
    return chunk


def _take_span(chunk: Chunk, pos: i64) -> i64:
    body, packet_end = _bounds(chunk, pos)
    if body == 0:
        return pos
    chunk.items.append(PacketSpan(chunk.data[pos], pos, body, packet_end))
    return packet_end


def _take_acks(chunk: Chunk, pos: i64) -> i64:
    data = chunk.data
    ids = chunk.packet_ids
    first_id = len(ids)
    start: i64 = pos
    last: i64 = len(data) - 4  # where the last complete ack can start
    first: i64 = data[pos]
    while pos <= last and data[pos] == first and data[pos + 1] == 2:
        packet_id: i64 = data[pos + 2] << 8 | data[pos + 3]
        if packet_id == 0:
            chunk.violation = _no_packet_id()
            break
        ids.append(packet_id)
        pos += 4
    if pos > start:
        chunk.items.append(AckRun(first, start, pos, first_id, len(ids)))
    return pos


def _take_publishes(chunk: Chunk, pos: i64) -> i64:
    """Runs from `pos` on, as long as packets begin with the same byte; returns where it ended."""
    data = chunk.data
    starts = chunk.payload_starts
    end: i64 = len(data)
    first: i64 = data[pos]
    id_bytes: i64 = 0 if first & 6 == 0 else 2
    with_properties = chunk.version == MQTT_5
    run: PublishRun | None = None
    while pos < end and data[pos] == first:
        body, packet_end = _bounds(chunk, pos)
        if body == 0:
            break
        name_start: i64 = body + 2
        name_end: i64 = name_start
        if name_start <= packet_end:
            name_end += data[body] << 8 | data[body + 1]
        section: i64 = name_end + id_bytes
        payload: i64 = section
        if with_properties and section < packet_end:
            if data[section] == 0:
                section += 1
                payload = section
            else:
                section, payload = _section(chunk, section, packet_end)
        elif with_properties:
            payload = packet_end + 1
        if payload > packet_end:
            if chunk.violation is None:
                chunk.violation = malformed("PUBLISH ends before its payload")
            break
        if id_bytes > 0 and data[name_end] == 0 and data[name_end + 1] == 0:
            chunk.violation = _no_packet_id()
            break
        name = data[name_start:name_end]
        properties = data[section:payload]
        if run is None or name != run.name or properties != run.property_bytes:
            run = _new_run(chunk, pos, name, properties, run)
            if run is None:
                break
            chunk.items.append(run)
        size: i64 = packet_end - pos
        if id_bytes == 0:
            pos = _take_alike(chunk, pos, payload, size)
        else:
            pos = _take_alike_with_ids(chunk, pos, name_end, payload, size)
        run.end = pos
        run.end_message = len(starts)
        if size > run.packet_bytes_max:
            run.packet_bytes_max = size
    return pos


def _new_run(
    chunk: Chunk, pos: i64, name: bytes, property_bytes: bytes, last: PublishRun | None
) -> PublishRun | None:
    """An empty run at `pos`, its name and properties checked; None after a violation."""
    properties = _NO_PROPERTIES
    try:
        if property_bytes:
            if last is not None and property_bytes == last.property_bytes:
                properties = last.properties
            else:
                properties = _decoded(property_bytes, chunk.sender)
        if name not in _KNOWN_NAMES:
            decode_publish_name(name, chunk.version, properties.topic_alias is not None)
            if name:
                if len(_KNOWN_NAMES) >= _KNOWN_NAMES_MAX:
                    _KNOWN_NAMES.clear()
                _KNOWN_NAMES.add(name)
    except ProtocolViolation as violation:
        chunk.violation = violation
        return None
    return PublishRun(
        chunk.data[pos],
        name,
        property_bytes,
        properties=properties,
        start=pos,
        first_message=len(chunk.payload_starts),
        first_id=len(chunk.packet_ids),
    )


def _decoded(section: bytes, sender: Role) -> Properties:
    """The properties of a PUBLISH; a lone topic alias is read once, since it is sent for speed."""
    if len(section) != _ALIAS_BYTES or section[0] != _TOPIC_ALIAS:
        return decode_properties(section, PacketType.PUBLISH, sender)
    known = _LONE_ALIASES.get(section)
    if known is None:
        known = decode_properties(section, PacketType.PUBLISH, sender)
        if len(_LONE_ALIASES) < _LONE_ALIASES_MAX:
            _LONE_ALIASES[section] = known
    return known


def _take_alike(chunk: Chunk, pos: i64, payload: i64, size: i64) -> i64:
    """The packet at `pos` and all after it whose bytes up to the payload are the same."""
    data = chunk.data
    starts = chunk.payload_starts
    lengths = chunk.payload_lengths
    head = data[pos:payload]
    length = size - (payload - pos)
    last: i64 = len(data) - size  # where the last complete packet of this size can start
    while True:
        starts.append(payload)
        lengths.append(length)
        pos += size
        payload += size
        if pos > last or data[pos:payload] != head:
            return pos


def _take_alike_with_ids(chunk: Chunk, pos: i64, name_end: i64, payload: i64, size: i64) -> i64:
    """The same above QoS 0: a packet id stands between the name and the properties."""
    data = chunk.data
    starts = chunk.payload_starts
    lengths = chunk.payload_lengths
    ids = chunk.packet_ids
    head = data[pos:name_end]
    section = data[name_end + 2 : payload]
    length = size - (payload - pos)
    last: i64 = len(data) - size
    packet_id: i64 = data[name_end] << 8 | data[name_end + 1]
    while True:
        ids.append(packet_id)
        starts.append(payload)
        lengths.append(length)
        pos += size
        name_end += size
        payload += size
        if pos > last or data[pos:name_end] != head or data[name_end + 2 : payload] != section:
            return pos
        packet_id = data[name_end] << 8 | data[name_end + 1]
        if packet_id == 0:
            return pos  # its own turn will say so


def _bounds(chunk: Chunk, pos: i64) -> tuple[i64, i64]:
    """(body start, packet end) of the packet at `pos`; (0, 0) if not complete, or not legal."""
    data = chunk.data
    end: i64 = len(data)
    body: i64 = pos + 1
    length: i64 = 0
    shift: i64 = 0
    while body < end:
        byte: i64 = data[body]
        body += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                # MQTT 3.1.1 §2.2.3 gives each number of bytes its range: no padding there either.
                chunk.violation = malformed(
                    "a length takes more bytes than it needs", "MQTT-1.5.5-1"
                )
                return 0, 0
            packet_end: i64 = body + length
            if packet_end - pos > chunk.packet_bytes_max:
                chunk.violation = _too_large(packet_end - pos, chunk.packet_bytes_max)
                return 0, 0
            if packet_end > end:
                chunk.wanted = packet_end - pos
                return 0, 0
            return body, packet_end
        shift += 7
        if shift == 28:
            chunk.violation = malformed("a length has more than four bytes", "MQTT 5 §2.1.4")
            return 0, 0
    chunk.wanted = end - pos + 1
    return 0, 0


def _section(chunk: Chunk, pos: i64, packet_end: i64) -> tuple[i64, i64]:
    """(start, end) of the properties whose length stands at `pos`; past the packet if malformed."""
    try:
        length, start = read_varint(chunk.data, pos, packet_end)
    except ProtocolViolation as violation:
        chunk.violation = violation
        return 0, packet_end + 1
    return start, start + length


def _no_packet_id() -> ProtocolViolation:
    return protocol_error("packet id 0", "MQTT-2.2.1-3")


def _too_large(size: int, packet_bytes_max: int) -> ProtocolViolation:
    return ProtocolViolation(
        Reason.PACKET_TOO_LARGE,
        f"a packet of {size} bytes is too large: at most {packet_bytes_max} bytes are allowed",
        "MQTT-3.1.2-24",
    )
