"""Fields that several packet types share: packet ids, filters, outcomes, and the packet's end."""

from __future__ import annotations

from penstock.mqtt.errors import ProtocolViolation, malformed, protocol_error
from penstock.mqtt.kinds import PacketType, Role
from penstock.mqtt.primitives import decode_text, read_binary, read_byte, read_u16
from penstock.mqtt.properties import NO_PROPERTIES, Properties, read_properties
from penstock.mqtt.reasons import LEGAL_REASONS, Reason


def read_outcome(
    body: bytes, pos: int, packet_type: PacketType, sender: Role
) -> tuple[Reason, Properties, int]:
    """A reason and properties; a packet may end before either (MQTT 5 §3.4.2.1, §3.14.2.1)."""
    end = len(body)
    code = 0
    properties = NO_PROPERTIES
    if pos < end:
        code, pos = read_byte(body, pos, end)
    reason = legal_reason(packet_type, sender, code)
    if pos < end:
        properties, pos = read_properties(body, pos, end, packet_type, sender)
    return reason, properties, pos


def legal_reason(packet_type: PacketType, sender: Role, code: int) -> Reason:
    """The reason with this code, if `sender` may give it in this packet."""
    reason = LEGAL_REASONS[packet_type, sender].get(code)
    if reason is None:
        raise protocol_error(
            f"{packet_type.name} from the {sender.name.lower()} with reason {code:#04x}"
        )
    return reason


def read_reasons(
    body: bytes, pos: int, legal: dict[int, Reason], packet_type: PacketType
) -> tuple[Reason, ...]:
    """The reasons that fill the rest of the body, at least one."""
    codes = body[pos:]
    if not codes:
        raise protocol_error(f"{packet_type.name} without a reason")
    for code in codes:
        if code not in legal:
            raise protocol_error(f"{packet_type.name} with reason {code:#04x}")
    return tuple([legal[code] for code in codes])


def read_packet_id(body: bytes, pos: int) -> tuple[int, int]:
    """A packet id, which is never 0."""
    packet_id, pos = read_u16(body, pos, len(body))
    if packet_id == 0:
        raise protocol_error("packet id 0", "MQTT-2.2.1-3")
    return packet_id, pos


def read_filter(body: bytes, pos: int) -> tuple[str, int]:
    """Text that is not empty; whether its wildcards stand well is for the filters to say."""
    raw, pos = read_binary(body, pos, len(body))
    if not raw:
        raise ProtocolViolation(
            Reason.TOPIC_FILTER_INVALID, "a filter has at least one character", "MQTT-4.7.3-1"
        )
    return decode_text(raw), pos


def check_end(body: bytes, pos: int, packet_type: PacketType) -> None:
    """Nothing may follow the last field."""
    if pos != len(body):
        raise malformed(f"{packet_type.name} with {len(body) - pos} bytes too many")
