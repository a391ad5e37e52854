"""Packets to bytes: one writer per packet type, chosen by a table.

What a version cannot say is left out: properties and reasons before MQTT 5, and a CONNACK whose
reason has no return code there is no bytes at all. A packet that no peer may be sent (packet id
0, QoS 3, a reason outside the packet's table) is our own mistake and asserts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock.mqtt.kinds import (
    BRIDGE,
    MQTT_3_1,
    MQTT_5,
    PACKET_ID_MAX,
    REMAINING_LENGTH_MAX,
    PacketType,
    Role,
    first_byte,
    publish_first_byte,
)
from penstock.mqtt.packets import (
    PACKET_TYPES,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.mqtt.primitives import write_binary, write_text, write_u16, write_varint
from penstock.mqtt.properties import WILL, Properties, encode_properties
from penstock.mqtt.reasons import (
    FAILURE,
    LEGAL_REASONS,
    RETURN_CODES,
    SUBACK_RETURN_CODES,
    Reason,
)

_ANSWERS: Final = (Connack, Puback, Pubrec, Pubrel, Pubcomp, Suback, Unsuback, Disconnect, Auth)


def encode(packet: Packet, version: int) -> bytes:
    """The packet in this version; a CONNECT is written in its own."""
    return _WRITERS[type(packet)](packet, version)


def encode_within(packet: Packet, version: int, packet_bytes_max: int) -> bytes:
    """The packet if it fits what the peer takes, at worst without the texts that explain it.

    Empty bytes when it cannot fit: then it must not be sent (MQTT 5 §3.1.2.11.4). Only answers
    can do without; in requests and messages user properties mean something [MQTT-3.3.2-17].
    """
    raw = encode(packet, version)
    if len(raw) <= packet_bytes_max:
        return raw
    if not isinstance(packet, _ANSWERS):
        return b""
    properties = replace(packet.properties, reason_string=None, user_properties=())
    raw = encode(replace(packet, properties=properties), version)
    return raw if len(raw) <= packet_bytes_max else b""


def property_section(properties: Properties, where: int, version: int) -> bytes:
    """The property section with its length as `version` writes it: nothing before MQTT 5."""
    return encode_properties(properties, where) if version == MQTT_5 else b""


def _frame(head: int, body: bytes) -> bytes:
    assert len(body) <= REMAINING_LENGTH_MAX, len(body)
    return bytes((head,)) + write_varint(len(body)) + body


def _packet_id(packet_id: int) -> bytes:
    assert 0 < packet_id <= PACKET_ID_MAX, packet_id
    return packet_id.to_bytes(2, "big")


def _write_connect(packet: Connect, version: int) -> bytes:
    version = packet.version
    will = packet.will
    assert packet.password is None or packet.username is not None or version == MQTT_5
    flags = packet.clean_start << 1
    flags |= (packet.username is not None) << 7 | (packet.password is not None) << 6
    if will is not None:
        assert 0 <= will.qos <= 2, will.qos
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    parts = [
        write_text("MQIsdp" if version == MQTT_3_1 else "MQTT"),
        bytes((version | BRIDGE if packet.is_bridge else version, flags)),
        write_u16(packet.keep_alive_s),
        property_section(packet.properties, PacketType.CONNECT, version),
        write_text(packet.client_id),
        _will(will, version),
    ]
    if packet.username is not None:
        parts.append(write_text(packet.username))
    if packet.password is not None:
        parts.append(write_binary(packet.password))
    return _frame(first_byte(PacketType.CONNECT), b"".join(parts))


def _will(will: Will | None, version: int) -> bytes:
    if will is None:
        return b""
    properties = property_section(will.properties, WILL, version)
    return properties + write_text(will.name) + write_binary(will.payload)


def _write_connack(packet: Connack, version: int) -> bytes:
    if version == MQTT_5:
        assert packet.reason in LEGAL_REASONS[PacketType.CONNACK, Role.SERVER], packet.reason
        code = int(packet.reason)
    elif packet.reason in RETURN_CODES:
        code = RETURN_CODES[packet.reason]
    else:
        return b""
    assert not (packet.session_present and packet.reason), packet
    session_present = packet.session_present and version != MQTT_3_1
    body = bytes((session_present, code))
    section = property_section(packet.properties, PacketType.CONNACK, version)
    return _frame(first_byte(PacketType.CONNACK), body + section)


def _write_publish(packet: Publish, version: int) -> bytes:
    assert (packet.packet_id == 0) == (packet.qos == 0), packet
    assert packet.name or (version == MQTT_5 and packet.properties.topic_alias), packet
    body = b"".join(
        (
            write_text(packet.name),
            _packet_id(packet.packet_id) if packet.qos else b"",
            property_section(packet.properties, PacketType.PUBLISH, version),
            packet.payload,
        )
    )
    return _frame(publish_first_byte(packet.qos, packet.retain, packet.dup), body)


def _write_ack(packet: Ack, version: int) -> bytes:
    packet_type = PACKET_TYPES[type(packet)]
    body = _packet_id(packet.packet_id)
    if version == MQTT_5:
        body += _outcome(packet.reason, packet.properties, packet_type)
    return _frame(first_byte(packet_type), body)


def _outcome(reason: Reason, properties: Properties, packet_type: PacketType) -> bytes:
    """As short as it can be: a success without properties is nothing at all."""
    assert any(reason in LEGAL_REASONS[packet_type, sender] for sender in Role), reason
    section = encode_properties(properties, packet_type)
    if section != b"\0":
        return bytes((reason,)) + section
    return bytes((reason,)) if reason else b""


def _write_subscribe(packet: Subscribe, version: int) -> bytes:
    assert packet.subscriptions
    parts = [
        _packet_id(packet.packet_id),
        property_section(packet.properties, PacketType.SUBSCRIBE, version),
    ]
    for one in packet.subscriptions:
        assert one.filter and 0 <= one.qos <= 2 and 0 <= one.retain_handling <= 2, one
        options = one.qos
        if version == MQTT_5:
            options |= one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4
        parts.append(write_text(one.filter))
        parts.append(bytes((options,)))
    return _frame(first_byte(PacketType.SUBSCRIBE), b"".join(parts))


def _write_suback(packet: Suback, version: int) -> bytes:
    assert packet.reasons
    legal = LEGAL_REASONS[PacketType.SUBACK, Role.SERVER]
    assert all(reason in legal for reason in packet.reasons), packet.reasons
    codes = bytes(packet.reasons)
    if version != MQTT_5:
        codes = bytes([code if code in SUBACK_RETURN_CODES else FAILURE for code in codes])
    section = property_section(packet.properties, PacketType.SUBACK, version)
    body = _packet_id(packet.packet_id) + section + codes
    return _frame(first_byte(PacketType.SUBACK), body)


def _write_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    assert packet.filters and all(packet.filters)
    parts = [
        _packet_id(packet.packet_id),
        property_section(packet.properties, PacketType.UNSUBSCRIBE, version),
        *(write_text(one) for one in packet.filters),
    ]
    return _frame(first_byte(PacketType.UNSUBSCRIBE), b"".join(parts))


def _write_unsuback(packet: Unsuback, version: int) -> bytes:
    body = _packet_id(packet.packet_id)
    if version == MQTT_5:
        assert packet.reasons
        legal = LEGAL_REASONS[PacketType.UNSUBACK, Role.SERVER]
        assert all(reason in legal for reason in packet.reasons), packet.reasons
        body += encode_properties(packet.properties, PacketType.UNSUBACK) + bytes(packet.reasons)
    return _frame(first_byte(PacketType.UNSUBACK), body)


def _write_pingreq(packet: Pingreq, version: int) -> bytes:
    return _frame(first_byte(PacketType.PINGREQ), b"")


def _write_pingresp(packet: Pingresp, version: int) -> bytes:
    return _frame(first_byte(PacketType.PINGRESP), b"")


def _write_disconnect(packet: Disconnect, version: int) -> bytes:
    body = b""
    if version == MQTT_5:
        body = _outcome(packet.reason, packet.properties, PacketType.DISCONNECT)
    return _frame(first_byte(PacketType.DISCONNECT), body)


def _write_auth(packet: Auth, version: int) -> bytes:
    assert version == MQTT_5, version
    return _frame(
        first_byte(PacketType.AUTH), _outcome(packet.reason, packet.properties, PacketType.AUTH)
    )


_WRITERS: Final[dict[type[Packet], Callable[[Any, int], bytes]]] = {
    Connect: _write_connect,
    Connack: _write_connack,
    Publish: _write_publish,
    Puback: _write_ack,
    Pubrec: _write_ack,
    Pubrel: _write_ack,
    Pubcomp: _write_ack,
    Subscribe: _write_subscribe,
    Suback: _write_suback,
    Unsubscribe: _write_unsubscribe,
    Unsuback: _write_unsuback,
    Pingreq: _write_pingreq,
    Pingresp: _write_pingresp,
    Disconnect: _write_disconnect,
    Auth: _write_auth,
}
