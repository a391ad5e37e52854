"""May a client acknowledge what it does? Asked of a whole run at once, by the table of mqtt.state.

Nearly all acknowledgements fit; only a run with one that may not is looked through one by one. An
acknowledgement of nothing is no violation: it may be late, from before a crash or a takeover.
"""

from __future__ import annotations

from penstock.broker.session.session import Session
from penstock.mqtt.state import Answer, Outgoing, next_outgoing


def outgoing_state(session: Session, packet_id: int) -> Outgoing:
    """Where a message to the client is, by its packet id."""
    if session.window.tag_of(packet_id) < 0:
        return Outgoing.FREE
    if packet_id not in session.twice:
        return Outgoing.WAIT_PUBACK
    return Outgoing.WAIT_PUBCOMP if packet_id in session.released else Outgoing.WAIT_PUBREC


def check_pubacks(session: Session, packet_ids: list[int]) -> None:
    """ProtocolViolation if one of them was sent at QoS 2."""
    if session.twice and not session.twice.isdisjoint(packet_ids):
        _look_up(session, packet_ids, Answer.PUBACK)


def check_pubcomps(session: Session, packet_ids: list[int]) -> None:
    """ProtocolViolation if one of them is out, but does not wait for PUBCOMP."""
    if not session.released.issuperset(packet_ids):
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
