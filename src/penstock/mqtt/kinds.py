"""What kinds of things MQTT speaks of: packet types, the two roles, the protocol versions.

`FIRST_BYTES[version]` is the one rule for the first byte of a packet: 256 flags, indexed by the
byte. The scanner and the decoder both ask it, so they cannot disagree.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

UNKNOWN_VERSION: Final = 0  # before CONNECT was read
MQTT_3_1: Final = 3  # "MQIsdp"
MQTT_3_1_1: Final = 4
MQTT_5: Final = 5
BRIDGE: Final = 0x80  # added to the protocol level by Mosquitto's bridges before MQTT 5

PACKET_ID_MAX: Final = 65_535
FILTERS_MAX: Final = 8_192  # of one packet: a few ms to read, where 16 MiB of them would be seconds
USER_PROPERTIES_MAX: Final = 1_024  # of one packet, for the same reason
REMAINING_LENGTH_MAX: Final = 268_435_455  # four length bytes of seven bits (MQTT 5 §2.1.4)


class PacketType(IntEnum):
    """The upper four bits of a packet's first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Role(IntEnum):
    """The two ends of a connection."""

    CLIENT = 0
    SERVER = 1


# The lower four bits, PUBLISH aside, are fixed per type (MQTT 5 §2.1.3).
_WITH_FLAG_2: Final = (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE)
_DUP: Final = 8


def first_byte(packet_type: PacketType) -> int:
    """The first byte of every packet type whose flags are fixed (all but PUBLISH)."""
    return packet_type << 4 | (2 if packet_type in _WITH_FLAG_2 else 0)


def publish_first_byte(qos: int, retain: bool = False, dup: bool = False) -> int:
    """The first byte of a PUBLISH."""
    assert 0 <= qos <= 2 and (qos > 0 or not dup), (qos, dup)
    return PacketType.PUBLISH << 4 | dup << 3 | qos << 1 | retain


def _legal_first_bytes(version: int) -> bytes:
    legal = bytearray(256)
    if version == UNKNOWN_VERSION:
        # MQTT 3.1 §3.1 does not use the flags of CONNECT; later versions want them to be 0, which
        # is known once the packet has said its version. A QoS of 3 is reserved in all of them, and
        # begins a hello of TLS.
        for flags in range(16):
            legal[first_byte(PacketType.CONNECT) | flags] = flags & 6 != 6
        return bytes(legal)
    for packet_type in PacketType:
        legal[first_byte(packet_type)] = 1
    if version == MQTT_3_1:  # MQTT 3.1 §2.1: these are sent at QoS 1 and may be repeated with DUP
        for packet_type in _WITH_FLAG_2:
            legal[first_byte(packet_type) | _DUP] = 1
    if version != MQTT_5:
        legal[first_byte(PacketType.AUTH)] = 0
    for qos in range(3):
        for dup in range(2 if qos else 1):  # [MQTT-3.3.1-2]: no DUP at QoS 0
            for retain in range(2):
                legal[publish_first_byte(qos, bool(retain), bool(dup))] = 1
    return bytes(legal)


FIRST_BYTES: Final[tuple[bytes, ...]] = tuple(_legal_first_bytes(version) for version in range(6))
