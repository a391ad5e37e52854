"""What a client is told when something was not done: the reason, and a sentence that explains it.

Sentences are for people; MQTT 5 clients can ask to be spared them (§3.1.2.11.7).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.model.errors import NotAuthorized
from penstock.mqtt.errors import ProtocolViolation
from penstock.mqtt.kinds import PacketType
from penstock.mqtt.packets import ACKS, Ack, Connack, Packet, Suback, Unsuback
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason

SENTENCE_CHARS_MAX: Final = 300  # names in it may be long


def moved(why: str, elsewhere: str) -> Properties:
    """The same for a client that has to go to another server, with its addresses if known."""
    return replace(explained(why), server_reference=elsewhere or None)


def explained(text: str) -> Properties:
    """The properties that say why."""
    if not text:
        return NO_PROPERTIES
    if len(text) > SENTENCE_CHARS_MAX:
        text = text[: SENTENCE_CHARS_MAX - 1] + "…"
    return Properties(reason_string=text.replace("\0", "\\0"))


def refusal(violation: ProtocolViolation) -> Connack:
    """The answer to a CONNECT that breaks a rule."""
    # A version we do not know may have no such thing as properties.
    is_known = violation.reason != Reason.UNSUPPORTED_PROTOCOL_VERSION
    why = explained(str(violation) if is_known else "")
    return Connack(reason=violation.reason, properties=why)


def acknowledgement(first_byte: int, packet_id: int, reason: Reason, text: str = "") -> Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP with a reason."""
    return ACKS[PacketType(first_byte >> 4)](packet_id, reason, explained(text))


def reason_of(error: Exception) -> Reason:
    """Why a message was not stored."""
    return Reason.NOT_AUTHORIZED if isinstance(error, NotAuthorized) else Reason.QUOTA_EXCEEDED


def unexplained(packet: Packet) -> Packet:
    """The packet for a client that asked to be spared sentences [MQTT-3.1.2-29]."""
    if isinstance(packet, Ack | Suback | Unsuback) and packet.properties is not NO_PROPERTIES:
        return replace(packet, properties=NO_PROPERTIES)
    return packet
