"""The properties of MQTT 5: one table says what each is, where it is legal and how often.

`Properties` holds the values of one packet, None or () where a property is absent. Reading and
writing are driven by PROPERTIES alone; a property is not mentioned anywhere else in the codec
unless a rule ties it to something outside its section. Written order is the table's order,
user properties last and in their own order [MQTT-3.3.2-18].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from penstock.mqtt.errors import ProtocolViolation, malformed, protocol_error, too_many
from penstock.mqtt.kinds import REMAINING_LENGTH_MAX, USER_PROPERTIES_MAX, PacketType, Role
from penstock.mqtt.primitives import (
    decode_name,
    read_binary,
    read_byte,
    read_text,
    read_u16,
    read_u32,
    read_varint,
    write_binary,
    write_text,
    write_u16,
    write_u32,
    write_varint,
)
from penstock.mqtt.reasons import Reason

UserProperties = tuple[tuple[str, str], ...]  # ordered; duplicate keys are kept


@dataclass(frozen=True, slots=True, repr=False)
class Properties:
    """The property values of one packet or will. Each field is a row of PROPERTIES."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None  # seconds
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None  # seconds; 0xFFFFFFFF never expires
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None  # seconds
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None  # seconds
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    maximum_packet_size: int | None = None  # bytes of a whole packet
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None
    user_properties: UserProperties = ()

    def __repr__(self) -> str:
        """Only what is present: 27 fields would drown a log line."""
        values = ((row.field, getattr(self, row.field)) for row in PROPERTIES)
        shown = [f"{field}={value!r}" for field, value in values if value not in (None, ())]
        return f"Properties({', '.join(shown)})"


NO_PROPERTIES: Final = Properties()


class Wire(Enum):
    """How a value lies in the packet."""

    BYTE = "byte"
    U16 = "two-byte integer"
    U32 = "four-byte integer"
    VARINT = "variable byte integer"
    TEXT = "UTF-8 text"
    NAME = "UTF-8 text that can be published under"
    BINARY = "binary data"
    PAIR = "two UTF-8 texts"


WILL: Final = 0  # a will's properties lie inside CONNECT but are their own section

_CONNECT: Final = PacketType.CONNECT
_CONNACK: Final = PacketType.CONNACK
_PUBLISH: Final = PacketType.PUBLISH
_SUBSCRIBE: Final = PacketType.SUBSCRIBE
_DISCONNECT: Final = PacketType.DISCONNECT
_AUTH: Final = PacketType.AUTH
_ANSWERS: Final = (
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
)
_EVERYWHERE: Final = (
    WILL,
    _CONNECT,
    _CONNACK,
    _PUBLISH,
    *_ANSWERS,
    _SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
    _DISCONNECT,
    _AUTH,
)


@dataclass(frozen=True, slots=True)
class PropertyRow:
    """One property: its identifier, the field it fills, and the rules for it."""

    id: int
    field: str
    wire: Wire
    legal_in: tuple[int, ...]  # packet types, or WILL
    repeats_in: tuple[int, ...] = ()  # where it may stand more than once
    least: int = 0
    most: int = 0xFFFF_FFFF
    outside_bounds: Reason = Reason.PROTOCOL_ERROR


_MESSAGE: Final = (_PUBLISH, WILL)

# MQTT 5 §2.2.2.2, table 2-4, with the value rules of each property's own section.
PROPERTIES: Final[tuple[PropertyRow, ...]] = (
    PropertyRow(0x01, "payload_format_indicator", Wire.BYTE, _MESSAGE, most=1),
    PropertyRow(0x02, "message_expiry_interval", Wire.U32, _MESSAGE),
    PropertyRow(0x03, "content_type", Wire.TEXT, _MESSAGE),
    PropertyRow(0x08, "response_topic", Wire.NAME, _MESSAGE),
    PropertyRow(0x09, "correlation_data", Wire.BINARY, _MESSAGE),
    PropertyRow(
        0x0B,
        "subscription_identifiers",
        Wire.VARINT,
        (_PUBLISH, _SUBSCRIBE),
        repeats_in=(_PUBLISH,),
        least=1,
        most=REMAINING_LENGTH_MAX,
    ),
    PropertyRow(0x11, "session_expiry_interval", Wire.U32, (_CONNECT, _CONNACK, _DISCONNECT)),
    PropertyRow(0x12, "assigned_client_identifier", Wire.TEXT, (_CONNACK,)),
    PropertyRow(0x13, "server_keep_alive", Wire.U16, (_CONNACK,)),
    PropertyRow(0x15, "authentication_method", Wire.TEXT, (_CONNECT, _CONNACK, _AUTH)),
    PropertyRow(0x16, "authentication_data", Wire.BINARY, (_CONNECT, _CONNACK, _AUTH)),
    PropertyRow(0x17, "request_problem_information", Wire.BYTE, (_CONNECT,), most=1),
    PropertyRow(0x18, "will_delay_interval", Wire.U32, (WILL,)),
    PropertyRow(0x19, "request_response_information", Wire.BYTE, (_CONNECT,), most=1),
    PropertyRow(0x1A, "response_information", Wire.TEXT, (_CONNACK,)),
    PropertyRow(0x1C, "server_reference", Wire.TEXT, (_CONNACK, _DISCONNECT)),
    PropertyRow(0x1F, "reason_string", Wire.TEXT, (_CONNACK, *_ANSWERS, _DISCONNECT, _AUTH)),
    PropertyRow(0x21, "receive_maximum", Wire.U16, (_CONNECT, _CONNACK), least=1, most=0xFFFF),
    PropertyRow(0x22, "topic_alias_maximum", Wire.U16, (_CONNECT, _CONNACK)),
    PropertyRow(
        0x23,
        "topic_alias",
        Wire.U16,
        (_PUBLISH,),
        least=1,
        most=0xFFFF,
        outside_bounds=Reason.TOPIC_ALIAS_INVALID,  # [MQTT-3.3.2-8]
    ),
    PropertyRow(0x24, "maximum_qos", Wire.BYTE, (_CONNACK,), most=1),
    PropertyRow(0x25, "retain_available", Wire.BYTE, (_CONNACK,), most=1),
    PropertyRow(0x27, "maximum_packet_size", Wire.U32, (_CONNECT, _CONNACK), least=1),
    PropertyRow(0x28, "wildcard_subscription_available", Wire.BYTE, (_CONNACK,), most=1),
    PropertyRow(0x29, "subscription_identifier_available", Wire.BYTE, (_CONNACK,), most=1),
    PropertyRow(0x2A, "shared_subscription_available", Wire.BYTE, (_CONNACK,), most=1),
    PropertyRow(0x26, "user_properties", Wire.PAIR, _EVERYWHERE, repeats_in=_EVERYWHERE),
)

# Fields that hold all values of a property, in order, rather than one.
_COLLECTED: Final = frozenset({"subscription_identifiers", "user_properties"})

# (where, field) that only one side may send.
_ONLY_FROM: Final[dict[tuple[int, str], tuple[Role, str]]] = {
    (_PUBLISH, "subscription_identifiers"): (Role.SERVER, "MQTT-3.3.4-6"),
    (_DISCONNECT, "session_expiry_interval"): (Role.CLIENT, "MQTT-3.14.2-2"),
    (_DISCONNECT, "server_reference"): (Role.SERVER, ""),
}


def _read_name(data: bytes, pos: int, end: int) -> tuple[str, int]:
    raw, pos = read_binary(data, pos, end)
    return decode_name(raw), pos


def _read_pair(data: bytes, pos: int, end: int) -> tuple[tuple[str, str], int]:
    key, pos = read_text(data, pos, end)
    value, pos = read_text(data, pos, end)
    return (key, value), pos


def _write_byte(value: int) -> bytes:
    return bytes((value,))


def _write_pair(pair: tuple[str, str]) -> bytes:
    return write_text(pair[0]) + write_text(pair[1])


_READ: Final[dict[Wire, Callable[[bytes, int, int], tuple[Any, int]]]] = {
    Wire.BYTE: read_byte,
    Wire.U16: read_u16,
    Wire.U32: read_u32,
    Wire.VARINT: read_varint,
    Wire.TEXT: read_text,
    Wire.NAME: _read_name,
    Wire.BINARY: read_binary,
    Wire.PAIR: _read_pair,
}

_WRITE: Final[dict[Wire, Callable[[Any], bytes]]] = {
    Wire.BYTE: _write_byte,
    Wire.U16: write_u16,
    Wire.U32: write_u32,
    Wire.VARINT: write_varint,
    Wire.TEXT: write_text,
    Wire.NAME: write_text,
    Wire.BINARY: write_binary,
    Wire.PAIR: _write_pair,
}

# where → identifier → row, and where → rows in written order.
_BY_ID: Final[dict[int, dict[int, PropertyRow]]] = {
    where: {row.id: row for row in PROPERTIES if where in row.legal_in} for where in _EVERYWHERE
}
_ROWS: Final[dict[int, tuple[PropertyRow, ...]]] = {
    where: tuple(row for row in PROPERTIES if where in row.legal_in) for where in _EVERYWHERE
}


def read_properties(
    data: bytes, pos: int, end: int, where: int, sender: Role
) -> tuple[Properties, int]:
    """The property section at `pos`: its length, then the properties."""
    length, pos = read_varint(data, pos, end)
    if length == 0:
        return NO_PROPERTIES, pos
    if pos + length > end:
        raise malformed(f"{length} bytes of properties, but {end - pos} bytes left in the packet")
    return decode_properties(data[pos : pos + length], where, sender), pos + length


def decode_properties(section: bytes, where: int, sender: Role) -> Properties:
    """A property section without its length. `where` is a packet type or WILL."""
    rows = _BY_ID[where]
    found: dict[str, Any] = {}
    pos = 0
    end = len(section)
    while pos < end:
        identifier, pos = read_varint(section, pos, end)
        row = rows.get(identifier)
        if row is None:
            raise malformed(f"property 0x{identifier:02x} does not belong here", "MQTT 5 §2.2.2.2")
        value, pos = _READ[row.wire](section, pos, end)
        _check(row, value, where, sender)
        if row.field not in _COLLECTED:
            if row.field in found:
                raise protocol_error(f"{row.field} occurs more than once")
            found[row.field] = value
        elif row.field not in found:
            found[row.field] = [value]
        elif where in row.repeats_in:
            found[row.field].append(value)
            if len(found[row.field]) > USER_PROPERTIES_MAX:
                raise too_many(row.field, USER_PROPERTIES_MAX)
        else:
            raise protocol_error(f"{row.field} occurs more than once")
    for field in _COLLECTED & found.keys():
        found[field] = tuple(found[field])
    return Properties(**found)


def _check(row: PropertyRow, value: object, where: int, sender: Role) -> None:
    if isinstance(value, int) and not row.least <= value <= row.most:
        raise ProtocolViolation(
            row.outside_bounds,
            f"{row.field} is {value}: it must be from {row.least} to {row.most}",
        )
    only = _ONLY_FROM.get((where, row.field))
    if only is not None and only[0] is not sender:
        raise protocol_error(f"{row.field} may not be sent by the {sender.name.lower()}", only[1])


def encode_properties(properties: Properties, where: int) -> bytes:
    """The property section with its length; one zero byte when there are none.

    A property that does not belong in `where` is left out.
    """
    if properties is NO_PROPERTIES:
        return b"\0"
    parts = []
    for row in _ROWS[where]:
        value = getattr(properties, row.field)
        if value is None or value == ():
            continue
        identifier = bytes((row.id,))
        write = _WRITE[row.wire]
        for one in value if row.field in _COLLECTED else (value,):
            parts.append(identifier)
            parts.append(write(one))
    section = b"".join(parts)
    return write_varint(len(section)) + section
