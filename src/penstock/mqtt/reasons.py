"""Reason codes: every code of MQTT 5, where it is legal and who may send it.

Inside Penstock a packet always carries the MQTT 5 code. Older versions know return codes for
CONNACK and one failure code for SUBACK; the tables here translate, so nothing else has to.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.mqtt.kinds import PacketType, Role

_CONNACK: Final = PacketType.CONNACK
_PUBACK: Final = PacketType.PUBACK
_PUBREC: Final = PacketType.PUBREC
_PUBREL: Final = PacketType.PUBREL
_PUBCOMP: Final = PacketType.PUBCOMP
_SUBACK: Final = PacketType.SUBACK
_UNSUBACK: Final = PacketType.UNSUBACK
_DISCONNECT: Final = PacketType.DISCONNECT
_AUTH: Final = PacketType.AUTH


class Reason(IntEnum):
    """A reason code; 0x80 and above are failures (MQTT 5 §2.4)."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


FAILURE: Final = 0x80  # this code and everything above it

# Reason → the packets that may carry it (MQTT 5 §2.4, table 2-6, and each packet's own table).
_LEGAL: Final[dict[Reason, tuple[PacketType, ...]]] = {
    Reason.SUCCESS: (
        _CONNACK,
        _PUBACK,
        _PUBREC,
        _PUBREL,
        _PUBCOMP,
        _SUBACK,
        _UNSUBACK,
        _DISCONNECT,
        _AUTH,
    ),
    Reason.GRANTED_QOS_1: (_SUBACK,),
    Reason.GRANTED_QOS_2: (_SUBACK,),
    Reason.DISCONNECT_WITH_WILL: (_DISCONNECT,),
    Reason.NO_MATCHING_SUBSCRIBERS: (_PUBACK, _PUBREC),
    Reason.NO_SUBSCRIPTION_EXISTED: (_UNSUBACK,),
    Reason.CONTINUE_AUTHENTICATION: (_AUTH,),
    Reason.REAUTHENTICATE: (_AUTH,),
    Reason.UNSPECIFIED_ERROR: (_CONNACK, _PUBACK, _PUBREC, _SUBACK, _UNSUBACK, _DISCONNECT),
    Reason.MALFORMED_PACKET: (_CONNACK, _DISCONNECT),
    Reason.PROTOCOL_ERROR: (_CONNACK, _DISCONNECT),
    Reason.IMPLEMENTATION_SPECIFIC_ERROR: (
        _CONNACK,
        _PUBACK,
        _PUBREC,
        _SUBACK,
        _UNSUBACK,
        _DISCONNECT,
    ),
    Reason.UNSUPPORTED_PROTOCOL_VERSION: (_CONNACK,),
    Reason.CLIENT_IDENTIFIER_NOT_VALID: (_CONNACK,),
    Reason.BAD_USER_NAME_OR_PASSWORD: (_CONNACK,),
    Reason.NOT_AUTHORIZED: (_CONNACK, _PUBACK, _PUBREC, _SUBACK, _UNSUBACK, _DISCONNECT),
    Reason.SERVER_UNAVAILABLE: (_CONNACK,),
    Reason.SERVER_BUSY: (_CONNACK, _DISCONNECT),
    Reason.BANNED: (_CONNACK,),
    Reason.SERVER_SHUTTING_DOWN: (_DISCONNECT,),
    Reason.BAD_AUTHENTICATION_METHOD: (_CONNACK, _DISCONNECT),
    Reason.KEEP_ALIVE_TIMEOUT: (_DISCONNECT,),
    Reason.SESSION_TAKEN_OVER: (_DISCONNECT,),
    Reason.TOPIC_FILTER_INVALID: (_SUBACK, _UNSUBACK, _DISCONNECT),
    Reason.TOPIC_NAME_INVALID: (_CONNACK, _PUBACK, _PUBREC, _DISCONNECT),
    Reason.PACKET_IDENTIFIER_IN_USE: (_PUBACK, _PUBREC, _SUBACK, _UNSUBACK),
    Reason.PACKET_IDENTIFIER_NOT_FOUND: (_PUBREL, _PUBCOMP),
    Reason.RECEIVE_MAXIMUM_EXCEEDED: (_DISCONNECT,),
    Reason.TOPIC_ALIAS_INVALID: (_DISCONNECT,),
    Reason.PACKET_TOO_LARGE: (_CONNACK, _DISCONNECT),
    Reason.MESSAGE_RATE_TOO_HIGH: (_DISCONNECT,),
    Reason.QUOTA_EXCEEDED: (_CONNACK, _PUBACK, _PUBREC, _SUBACK, _DISCONNECT),
    Reason.ADMINISTRATIVE_ACTION: (_DISCONNECT,),
    Reason.PAYLOAD_FORMAT_INVALID: (_CONNACK, _PUBACK, _PUBREC, _DISCONNECT),
    Reason.RETAIN_NOT_SUPPORTED: (_CONNACK, _DISCONNECT),
    Reason.QOS_NOT_SUPPORTED: (_CONNACK, _DISCONNECT),
    Reason.USE_ANOTHER_SERVER: (_CONNACK, _DISCONNECT),
    Reason.SERVER_MOVED: (_CONNACK, _DISCONNECT),
    Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: (_SUBACK, _DISCONNECT),
    Reason.CONNECTION_RATE_EXCEEDED: (_CONNACK, _DISCONNECT),
    Reason.MAXIMUM_CONNECT_TIME: (_DISCONNECT,),
    Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: (_SUBACK, _DISCONNECT),
    Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: (_SUBACK, _DISCONNECT),
}

# The only codes of a packet type that one side may not send (MQTT 5 tables 3-10 and 3-11).
# 0x00 in a server's DISCONNECT is accepted, though the table leaves it to clients: servers do it.
_NOT_FROM: Final[dict[tuple[PacketType, Role], frozenset[Reason]]] = {
    (_DISCONNECT, Role.SERVER): frozenset({Reason.DISCONNECT_WITH_WILL}),
    (_DISCONNECT, Role.CLIENT): frozenset(
        {
            Reason.NOT_AUTHORIZED,
            Reason.SERVER_BUSY,
            Reason.SERVER_SHUTTING_DOWN,
            Reason.BAD_AUTHENTICATION_METHOD,
            Reason.KEEP_ALIVE_TIMEOUT,
            Reason.SESSION_TAKEN_OVER,
            Reason.TOPIC_FILTER_INVALID,
            Reason.RETAIN_NOT_SUPPORTED,
            Reason.QOS_NOT_SUPPORTED,
            Reason.USE_ANOTHER_SERVER,
            Reason.SERVER_MOVED,
            Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
            Reason.CONNECTION_RATE_EXCEEDED,
            Reason.MAXIMUM_CONNECT_TIME,
            Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
            Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
        }
    ),
    (_AUTH, Role.CLIENT): frozenset({Reason.SUCCESS}),
    (_AUTH, Role.SERVER): frozenset({Reason.REAUTHENTICATE}),
}


def _legal_in(packet_type: PacketType, sender: Role) -> dict[int, Reason]:
    barred = _NOT_FROM.get((packet_type, sender), frozenset())
    return {
        int(reason): reason
        for reason, packet_types in _LEGAL.items()
        if packet_type in packet_types and reason not in barred
    }


# (packet type, sender) → code → Reason: what the decoder accepts.
LEGAL_REASONS: Final[dict[tuple[PacketType, Role], dict[int, Reason]]] = {
    (packet_type, sender): _legal_in(packet_type, sender)
    for packet_type in PacketType
    for sender in Role
}

# CONNACK before MQTT 5 (3.1.1 §3.2.2.3). A reason with no entry is not sent at all: the server
# closes the connection without a CONNACK [MQTT-3.2.2-6].
RETURN_CODES: Final[dict[Reason, int]] = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.SERVER_BUSY: 3,
    Reason.QUOTA_EXCEEDED: 3,
    Reason.USE_ANOTHER_SERVER: 3,
    Reason.SERVER_MOVED: 3,
    Reason.CONNECTION_RATE_EXCEEDED: 3,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
    Reason.BANNED: 5,
    Reason.BAD_AUTHENTICATION_METHOD: 5,
}

REASONS_BY_RETURN_CODE: Final[dict[int, Reason]] = {
    0: Reason.SUCCESS,
    1: Reason.UNSUPPORTED_PROTOCOL_VERSION,
    2: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    3: Reason.SERVER_UNAVAILABLE,
    4: Reason.BAD_USER_NAME_OR_PASSWORD,
    5: Reason.NOT_AUTHORIZED,
}

# SUBACK before MQTT 5 (3.1.1 §3.9.3): the granted QoS, or the one failure.
SUBACK_RETURN_CODES: Final[dict[int, Reason]] = {
    0x00: Reason.GRANTED_QOS_0,
    0x01: Reason.GRANTED_QOS_1,
    0x02: Reason.GRANTED_QOS_2,
    0x80: Reason.UNSPECIFIED_ERROR,
}


def describe(reason: Reason) -> str:
    """The code in words, for logs and reason strings: `packet too large (0x95)`."""
    return f"{reason.name.lower().replace('_', ' ')} (0x{reason:02x})"
