"""Packets of a client that are neither messages nor plain acknowledgements, read one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.doors.mqtt.answers import refusal
from penstock.mqtt.decode import decode_packet
from penstock.mqtt.errors import ProtocolViolation, protocol_error
from penstock.mqtt.handshake import answer_version
from penstock.mqtt.kinds import MQTT_3_1, UNKNOWN_VERSION
from penstock.mqtt.packets import Packet
from penstock.mqtt.scanner import Chunk, PacketSpan
from penstock.mqtt.state import State

if TYPE_CHECKING:
    from penstock.doors.mqtt.connection import Connection

COST_PER_TURN: Final = 256  # of packets that a client may bring before others have their turn
SUBSCRIBE_COST: Final = 16  # of one, and 1 more for each SUBSCRIBE_BYTES; any other packet costs 1
SUBSCRIBE_BYTES: Final = 32

_CONNECT: Final = 0x10
_SUBSCRIBE: Final = 0x82
_UNSUBSCRIBE: Final = 0xA2


def cost_of(item: PacketSpan) -> int:
    """How much of its client's turn a packet takes."""
    if item.first_byte in (_SUBSCRIBE, _UNSUBSCRIBE):
        return SUBSCRIBE_COST + (item.end - item.body) // SUBSCRIBE_BYTES
    return 1


def decoded(connection: Connection, chunk: Chunk, item: PacketSpan) -> Packet:
    """The packet; a CONNECT that cannot be accepted is answered, where its sender reads it."""
    first_byte = item.first_byte
    if first_byte & 0xF0 == _CONNECT and connection.state != State.WAIT_CONNECT:
        raise protocol_error("a second CONNECT", "MQTT-3.1.0-2")
    body = chunk.data[item.body : item.end]
    try:
        return decode_packet(first_byte, body, connection.version)
    except ProtocolViolation as violation:
        if connection.state == State.WAIT_CONNECT:
            version = connection.version = answer_version(body)
            is_connect = first_byte == _CONNECT or version == MQTT_3_1
            if version != UNKNOWN_VERSION and is_connect:
                connection.put_packet(refusal(violation))
        raise
