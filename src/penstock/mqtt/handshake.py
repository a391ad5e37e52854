"""Reading CONNECT and CONNACK, the two packets that settle which version is spoken."""

from __future__ import annotations

from typing import Final

from penstock.mqtt.errors import ProtocolViolation, bad_first_byte, malformed, protocol_error
from penstock.mqtt.fields import check_end, legal_reason
from penstock.mqtt.kinds import (
    BRIDGE,
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    UNKNOWN_VERSION,
    PacketType,
    Role,
)
from penstock.mqtt.packets import Connack, Connect, Will
from penstock.mqtt.primitives import decode_name, read_binary, read_byte, read_text, read_u16
from penstock.mqtt.properties import NO_PROPERTIES, WILL, read_properties
from penstock.mqtt.reasons import REASONS_BY_RETURN_CODE, Reason

_VERSIONS: Final = {
    (b"MQIsdp", 3): MQTT_3_1,
    (b"MQIsdp", 3 | BRIDGE): MQTT_3_1,
    (b"MQTT", 4): MQTT_3_1_1,
    (b"MQTT", 4 | BRIDGE): MQTT_3_1_1,
    (b"MQTT", 5): MQTT_5,
}


def answer_version(body: bytes) -> int:
    """In which version to answer a CONNECT that cannot be accepted; UNKNOWN_VERSION: not at all."""
    try:
        protocol, pos = read_binary(body, 0, len(body))
        level, pos = read_byte(body, pos, len(body))
    except ProtocolViolation:
        return UNKNOWN_VERSION
    if protocol == b"MQIsdp":
        return MQTT_3_1
    if protocol == b"MQTT":
        return MQTT_5 if level & ~BRIDGE >= MQTT_5 else MQTT_3_1_1
    return UNKNOWN_VERSION


def read_connect(first_byte: int, body: bytes, version: int, sender: Role) -> Connect:
    end = len(body)
    protocol, pos = read_binary(body, 0, end)
    level, pos = read_byte(body, pos, end)
    version = _VERSIONS.get((protocol, level), UNKNOWN_VERSION)
    if version == UNKNOWN_VERSION:
        raise ProtocolViolation(
            Reason.UNSUPPORTED_PROTOCOL_VERSION,
            f"protocol {protocol[:20]!r} level {level} is not MQTT 3.1, 3.1.1 or 5",
            "MQTT-3.1.2-2",
        )
    if first_byte & 0x0F and version != MQTT_3_1:
        raise bad_first_byte(first_byte, UNKNOWN_VERSION)
    flags, pos = read_byte(body, pos, end)
    _check_connect_flags(flags, version)
    keep_alive_s, pos = read_u16(body, pos, end)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = read_properties(body, pos, end, PacketType.CONNECT, sender)
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise protocol_error("authentication data without a method", "MQTT 5 §3.1.2.11.10")
    client_id, pos = read_text(body, pos, end)
    clean_start = bool(flags & 0x02)
    if not client_id and (version == MQTT_3_1 or (version == MQTT_3_1_1 and not clean_start)):
        raise ProtocolViolation(
            Reason.CLIENT_IDENTIFIER_NOT_VALID,
            "an empty client id needs clean session and at least MQTT 3.1.1",
            "MQTT-3.1.3-8",
        )
    will = None
    if flags & 0x04:
        will, pos = _read_will(flags, body, pos, version, sender)
    # MQTT 3.1 §3.1: the length takes precedence over these two flags, so the fields may be absent.
    if version == MQTT_3_1 and pos == end:
        flags &= 0x3F
    username = password = None
    if flags & 0x80:
        username, pos = read_text(body, pos, end)
    if version == MQTT_3_1 and pos == end:
        flags &= 0x3F
    if flags & 0x40:
        password, pos = read_binary(body, pos, end)
    check_end(body, pos, PacketType.CONNECT)
    is_bridge = level & BRIDGE != 0
    return Connect(
        client_id=client_id,
        clean_start=clean_start,
        keep_alive_s=keep_alive_s,
        will=will,
        username=username,
        password=password,
        version=version,
        properties=properties,
        is_bridge=is_bridge,
    )


def _check_connect_flags(flags: int, version: int) -> None:
    if flags & 0x18 == 0x18:
        raise malformed("a will at QoS 3", "MQTT-3.1.2-12")
    if flags & 0xC0 == 0x40 and version != MQTT_5:
        raise malformed("a password without a user name", "MQTT-3.1.2-22")
    if version == MQTT_3_1:  # which has the bits below ignored
        return
    if flags & 0x01:
        raise malformed("CONNECT with its reserved flag set", "MQTT-3.1.2-3")
    if not flags & 0x04 and flags & 0x38:
        raise malformed("QoS or retain of a will, but no will", "MQTT-3.1.2-11")


def _read_will(flags: int, body: bytes, pos: int, version: int, sender: Role) -> tuple[Will, int]:
    end = len(body)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = read_properties(body, pos, end, WILL, sender)
    name, pos = read_binary(body, pos, end)
    payload, pos = read_binary(body, pos, end)
    will = Will(decode_name(name), payload, flags >> 3 & 3, bool(flags & 0x20), properties)
    return will, pos


def read_connack(first_byte: int, body: bytes, version: int, sender: Role) -> Connack:
    end = len(body)
    flags, pos = read_byte(body, 0, end)
    code, pos = read_byte(body, pos, end)
    if version == MQTT_3_1:
        flags = 0  # reserved there, with no rule for its value
    if flags > 1:
        raise malformed(f"CONNACK with flags {flags:#x}", "MQTT-3.2.2-1")
    properties = NO_PROPERTIES
    if version == MQTT_5:
        reason = legal_reason(PacketType.CONNACK, sender, code)
        properties, pos = read_properties(body, pos, end, PacketType.CONNACK, sender)
    elif code in REASONS_BY_RETURN_CODE:
        reason = REASONS_BY_RETURN_CODE[code]
    else:
        raise protocol_error(f"CONNACK with return code {code}", "MQTT 3.1.1 §3.2.2.3")
    check_end(body, pos, PacketType.CONNACK)
    if flags and reason:
        raise protocol_error("CONNACK refuses, yet has a session present", "MQTT-3.2.2-6")
    return Connack(bool(flags), reason, properties)
