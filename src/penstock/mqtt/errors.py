"""The one error of this room: the peer broke a rule of MQTT.

It carries the MQTT 5 reason code for the closing DISCONNECT or CONNACK, and the clause it breaks.
Older versions have no place for the code on the wire; there the connection is just closed.
"""

from __future__ import annotations

from penstock.model.errors import PeerError
from penstock.mqtt.kinds import MQTT_5, UNKNOWN_VERSION, PacketType
from penstock.mqtt.reasons import Reason


class ProtocolViolation(PeerError):
    """The peer broke a rule of MQTT; the connection ends with `reason`."""

    def __init__(self, reason: Reason, message: str, clause: str = "") -> None:
        super().__init__(f"{message} [{clause}]" if clause else message)
        self.reason = reason
        self.clause = clause


def malformed(message: str, clause: str = "") -> ProtocolViolation:
    """The bytes cannot be read as the specification says (0x81)."""
    return ProtocolViolation(Reason.MALFORMED_PACKET, message, clause)


def protocol_error(message: str, clause: str = "") -> ProtocolViolation:
    """The packet can be read, but may not say this, or not now (0x82)."""
    return ProtocolViolation(Reason.PROTOCOL_ERROR, message, clause)


def too_many(what: str, count_max: int) -> ProtocolViolation:
    """More of something than this codec reads from one packet (0x97)."""
    return ProtocolViolation(Reason.QUOTA_EXCEEDED, f"more than {count_max} {what} in one packet")


def bad_first_byte(first_byte: int, version: int) -> ProtocolViolation:
    """What is wrong with a first byte that FIRST_BYTES does not allow."""
    packet_type = first_byte >> 4
    if version == UNKNOWN_VERSION:
        if packet_type == PacketType.CONNECT:
            return malformed(f"CONNECT with flags {first_byte & 15:#x}", "MQTT-2.1.3-1")
        return protocol_error("the first packet is not CONNECT", "MQTT-3.1.0-1")
    if packet_type == 0 or (packet_type == PacketType.AUTH and version != MQTT_5):
        return malformed(f"packet type {packet_type} is reserved")
    if packet_type != PacketType.PUBLISH:
        name = PacketType(packet_type).name
        return malformed(f"{name} with flags {first_byte & 15:#x}", "MQTT-2.1.3-1")
    if first_byte & 6 == 6:
        return malformed("PUBLISH with QoS 3", "MQTT-3.3.1-4")
    return malformed("PUBLISH at QoS 0 with DUP", "MQTT-3.3.1-2")
