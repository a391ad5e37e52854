"""Acknowledgements of a client: checked, then taken off the list of what was sent to it.

Whether it may send them is asked of a whole run at once, by the table of mqtt.state.

Nearly all acknowledgements fit; only a run with one that may not is looked through one by one. An
acknowledgement of nothing is no violation: it may be late, from before a crash or a takeover.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.session.session import Session
from penstock.doors.mqtt.receive.publishing import PUBACK, PUBCOMP, PUBREC, PUBREL
from penstock.mqtt.errors import protocol_error
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.reasons import Reason
from penstock.mqtt.state import Answer, Outgoing, State, next_outgoing

if TYPE_CHECKING:
    from penstock.doors.mqtt.connection import Connection

_CONNECTED: Final = State.CONNECTED  # compiled code finds its own names sooner


def take_acks(connection: Connection, first_byte: int, packet_ids: list[int]) -> None:
    """Acknowledgements of one kind; ProtocolViolation if they do not fit what was sent."""
    session = connection.session
    if session is None or connection.state is not _CONNECTED:
        raise protocol_error("an acknowledgement before CONNECT", "MQTT-3.1.0-1")
    if first_byte in (PUBACK, PUBCOMP):
        if first_byte == PUBACK:
            check_pubacks(session, packet_ids)
        else:
            check_pubcomps(session, packet_ids)
        if connection.watch is not None:
            connection.watch.acknowledged(session, packet_ids)
        session.acknowledge(packet_ids)
        if session.is_behind:
            connection.exchange.sessions.resume(session)
    elif first_byte == PUBREC:
        unknown = unknown_pubrecs(session, packet_ids)
        if unknown and connection.version == MQTT_5:
            packet_ids = [one for one in packet_ids if one in session.twice]
            connection.put_acks(PUBREL, unknown, Reason.PACKET_IDENTIFIER_NOT_FOUND)
        if packet_ids:
            session.received(packet_ids)
    else:
        connection.publishing().release(packet_ids)


def outgoing_state(session: Session, packet_id: int) -> Outgoing:
    """Where a message to the client is, by its packet id."""
    if session.window.tag_of(packet_id) < 0:
        return Outgoing.FREE
    if packet_id not in session.twice:
        return Outgoing.WAIT_PUBACK
    return Outgoing.WAIT_PUBCOMP if session.is_released(packet_id) else Outgoing.WAIT_PUBREC


def check_pubacks(session: Session, packet_ids: list[int]) -> None:
    """ProtocolViolation if one of them was sent at QoS 2."""
    if session.twice and not session.twice.isdisjoint(packet_ids):
        _look_up(session, packet_ids, Answer.PUBACK)


def check_pubcomps(session: Session, packet_ids: list[int]) -> None:
    """ProtocolViolation if one of them is out, but does not wait for PUBCOMP."""
    if session.released is None or not session.released.issuperset(packet_ids):
        _look_up(session, packet_ids, Answer.PUBCOMP)


def unknown_pubrecs(session: Session, packet_ids: list[int]) -> list[int]:
    """Those that are not out; ProtocolViolation if one of them was sent at QoS 1."""
    if session.twice.issuperset(packet_ids):
        return []
    _look_up(session, packet_ids, Answer.PUBREC)
    return [one for one in packet_ids if one not in session.twice]


def check_refused(session: Session, packet_id: int) -> None:
    """ProtocolViolation if the client may not refuse this message with its PUBREC."""
    _look_up(session, [packet_id], Answer.PUBREC_REFUSED)


def _look_up(session: Session, packet_ids: list[int], answer: Answer) -> None:
    for packet_id in packet_ids:
        next_outgoing(outgoing_state(session, packet_id), answer)
