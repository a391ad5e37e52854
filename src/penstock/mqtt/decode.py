"""Bytes to packets: one reader per packet type, chosen by a table.

Whatever the bytes are, `decode_packet` returns a packet or raises ProtocolViolation, nothing else.
A body is read to its last byte: bytes left over are malformed. Whether a packet may come now is
not asked here (see state.py), only whether `sender` may say what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.mqtt.errors import bad_first_byte, malformed, protocol_error, too_many
from penstock.mqtt.fields import check_end, read_filter, read_outcome, read_packet_id, read_reasons
from penstock.mqtt.handshake import read_connack, read_connect
from penstock.mqtt.kinds import FILTERS_MAX, FIRST_BYTES, MQTT_3_1, MQTT_5, PacketType, Role
from penstock.mqtt.packets import (
    ACKS,
    Ack,
    Auth,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.primitives import decode_publish_name, read_binary, read_byte
from penstock.mqtt.properties import NO_PROPERTIES, read_properties
from penstock.mqtt.reasons import LEGAL_REASONS, SUBACK_RETURN_CODES, Reason


def decode_packet(first_byte: int, body: bytes, version: int, sender: Role = Role.CLIENT) -> Packet:
    """The packet with this first byte and body (what follows its length).

    `version` is the connection's, UNKNOWN_VERSION before CONNECT; a CONNECT says its own.
    """
    if not FIRST_BYTES[version][first_byte]:
        raise bad_first_byte(first_byte, version)
    packet_type = PacketType(first_byte >> 4)
    return _READERS[packet_type](first_byte, body, version, sender)


def _read_publish(first_byte: int, body: bytes, version: int, sender: Role) -> Publish:
    end = len(body)
    qos = first_byte >> 1 & 3
    name, pos = read_binary(body, 0, end)
    packet_id = 0
    if qos:
        packet_id, pos = read_packet_id(body, pos)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = read_properties(body, pos, end, PacketType.PUBLISH, sender)
    return Publish(
        name=decode_publish_name(name, version, properties.topic_alias is not None),
        payload=body[pos:],
        qos=qos,
        retain=bool(first_byte & 1),
        dup=bool(first_byte & 8),
        packet_id=packet_id,
        properties=properties,
    )


def _read_ack(first_byte: int, body: bytes, version: int, sender: Role) -> Ack:
    packet_type = PacketType(first_byte >> 4)
    packet_id, pos = read_packet_id(body, 0)
    reason = Reason.SUCCESS
    properties = NO_PROPERTIES
    if version == MQTT_5:
        reason, properties, pos = read_outcome(body, pos, packet_type, sender)
    check_end(body, pos, packet_type)
    return ACKS[packet_type](packet_id, reason, properties)


def _read_subscribe(first_byte: int, body: bytes, version: int, sender: Role) -> Subscribe:
    end = len(body)
    packet_id, pos = read_packet_id(body, 0)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = read_properties(body, pos, end, PacketType.SUBSCRIBE, sender)
    subscriptions = []
    while pos < end:
        text, pos = read_filter(body, pos)
        options, pos = read_byte(body, pos, end)
        subscriptions.append(_subscription(text, options, version))
        if len(subscriptions) > FILTERS_MAX:
            raise too_many("filters", FILTERS_MAX)
    if not subscriptions:
        raise protocol_error("SUBSCRIBE without a filter", "MQTT-3.8.3-2")
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _subscription(text: str, options: int, version: int) -> Subscription:
    if options & (0xC0 if version == MQTT_5 else 0xFC) and version != MQTT_3_1:
        raise malformed(f"subscription options {options:#04x}: reserved bits", "MQTT-3.8.3-5")
    qos = options & 3
    if qos == 3:
        raise protocol_error("a subscription at QoS 3", "MQTT 5 §3.8.3.1")
    if version != MQTT_5:
        return Subscription(text, qos)
    no_local = bool(options & 0x04)
    if no_local and text.startswith("$share/"):
        raise protocol_error("no local on a shared subscription", "MQTT-3.8.3-4")
    retain_handling = options >> 4 & 3
    if retain_handling == 3:
        raise protocol_error("retain handling 3", "MQTT 5 §3.8.3.1")
    return Subscription(text, qos, no_local, bool(options & 0x08), retain_handling)


def _read_unsubscribe(first_byte: int, body: bytes, version: int, sender: Role) -> Unsubscribe:
    end = len(body)
    packet_id, pos = read_packet_id(body, 0)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = read_properties(body, pos, end, PacketType.UNSUBSCRIBE, sender)
    filters = []
    while pos < end:
        text, pos = read_filter(body, pos)
        filters.append(text)
        if len(filters) > FILTERS_MAX:
            raise too_many("filters", FILTERS_MAX)
    if not filters:
        raise protocol_error("UNSUBSCRIBE without a filter", "MQTT-3.10.3-2")
    return Unsubscribe(packet_id, tuple(filters), properties)


def _read_suback(first_byte: int, body: bytes, version: int, sender: Role) -> Suback:
    packet_id, pos = read_packet_id(body, 0)
    properties = NO_PROPERTIES
    legal = SUBACK_RETURN_CODES
    if version == MQTT_5:
        properties, pos = read_properties(body, pos, len(body), PacketType.SUBACK, sender)
        legal = LEGAL_REASONS[PacketType.SUBACK, sender]
    return Suback(packet_id, read_reasons(body, pos, legal, PacketType.SUBACK), properties)


def _read_unsuback(first_byte: int, body: bytes, version: int, sender: Role) -> Unsuback:
    packet_id, pos = read_packet_id(body, 0)
    if version != MQTT_5:
        check_end(body, pos, PacketType.UNSUBACK)
        return Unsuback(packet_id)
    properties, pos = read_properties(body, pos, len(body), PacketType.UNSUBACK, sender)
    legal = LEGAL_REASONS[PacketType.UNSUBACK, sender]
    return Unsuback(packet_id, read_reasons(body, pos, legal, PacketType.UNSUBACK), properties)


def _read_pingreq(first_byte: int, body: bytes, version: int, sender: Role) -> Pingreq:
    check_end(body, 0, PacketType.PINGREQ)
    return Pingreq()


def _read_pingresp(first_byte: int, body: bytes, version: int, sender: Role) -> Pingresp:
    check_end(body, 0, PacketType.PINGRESP)
    return Pingresp()


def _read_disconnect(first_byte: int, body: bytes, version: int, sender: Role) -> Disconnect:
    if version != MQTT_5:
        if sender is Role.SERVER:
            raise protocol_error("DISCONNECT from the server before MQTT 5")
        check_end(body, 0, PacketType.DISCONNECT)
        return Disconnect()
    reason, properties, pos = read_outcome(body, 0, PacketType.DISCONNECT, sender)
    check_end(body, pos, PacketType.DISCONNECT)
    return Disconnect(reason, properties)


def _read_auth(first_byte: int, body: bytes, version: int, sender: Role) -> Auth:
    reason, properties, pos = read_outcome(body, 0, PacketType.AUTH, sender)
    check_end(body, pos, PacketType.AUTH)
    # An AUTH of no bytes is a success without properties (§3.15.2.1); any other names its method.
    if reason and properties.authentication_method is None:
        raise protocol_error("AUTH without an authentication method", "MQTT 5 §3.15.2.2.2")
    return Auth(reason, properties)


_READERS: Final[dict[PacketType, Callable[[int, bytes, int, Role], Packet]]] = {
    PacketType.CONNECT: read_connect,
    PacketType.CONNACK: read_connack,
    PacketType.PUBLISH: _read_publish,
    PacketType.PUBACK: _read_ack,
    PacketType.PUBREC: _read_ack,
    PacketType.PUBREL: _read_ack,
    PacketType.PUBCOMP: _read_ack,
    PacketType.SUBSCRIBE: _read_subscribe,
    PacketType.SUBACK: _read_suback,
    PacketType.UNSUBSCRIBE: _read_unsubscribe,
    PacketType.UNSUBACK: _read_unsuback,
    PacketType.PINGREQ: _read_pingreq,
    PacketType.PINGRESP: _read_pingresp,
    PacketType.DISCONNECT: _read_disconnect,
    PacketType.AUTH: _read_auth,
}
