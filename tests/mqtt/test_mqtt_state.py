"""Are the state tables whole: every pair decided, every state reachable, both ends in step?"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from penstock.mqtt.errors import ProtocolViolation
from penstock.mqtt.kinds import PacketType, Role
from penstock.mqtt.packets import Auth, Connack, Connect, Packet, Pingreq, Publish
from penstock.mqtt.reasons import Reason
from penstock.mqtt.state import (
    CONVERSATION,
    INCOMING,
    ON_RESUME,
    OUTGOING,
    Answer,
    Duty,
    Event,
    Incoming,
    Outgoing,
    State,
    answer_of,
    event_of,
    next_incoming,
    next_outgoing,
    next_state,
)
from tests.mqtt.vectors import VECTORS

BOTH = "PUBLISH PUBACK PUBREC PUBREL PUBCOMP DISCONNECT"
CLIENT_SENDS = f"{BOTH} SUBSCRIBE UNSUBSCRIBE PINGREQ"
SERVER_SENDS = f"{BOTH} SUBACK UNSUBACK PINGRESP"

# By hand from MQTT 5 §3.1.4, §3.14.0, §4.12: all that may be said, per state.
ALLOWED = {
    (Role.CLIENT, State.WAIT_CONNECT): "CONNECT",
    (Role.CLIENT, State.WAIT_CONNACK): "DISCONNECT",
    (Role.CLIENT, State.WAIT_AUTH): "AUTH_CONTINUE DISCONNECT",
    (Role.CLIENT, State.CONNECTED): f"{CLIENT_SENDS} AUTH_AGAIN",
    (Role.CLIENT, State.REAUTH_WAIT_SERVER): CLIENT_SENDS,
    (Role.CLIENT, State.REAUTH_WAIT_CLIENT): f"{CLIENT_SENDS} AUTH_CONTINUE",
    (Role.SERVER, State.WAIT_CONNACK): "CONNACK CONNACK_REFUSED AUTH_CONTINUE",
    (Role.SERVER, State.WAIT_AUTH): "CONNACK_REFUSED",
    (Role.SERVER, State.CONNECTED): SERVER_SENDS,
    (Role.SERVER, State.REAUTH_WAIT_SERVER): f"{SERVER_SENDS} AUTH_CONTINUE AUTH_SUCCESS",
    (Role.SERVER, State.REAUTH_WAIT_CLIENT): SERVER_SENDS,
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("sender", Role)
def test_every_pair_of_state_and_packet_is_allowed_or_a_violation(
    sender: Role, state: State
) -> None:
    allowed = set(ALLOWED.get((sender, state), "").split())
    for event in Event:
        if event.name in allowed:
            assert next_state(state, sender, event) in State
        else:
            with pytest.raises(ProtocolViolation) as caught:
                next_state(state, sender, event)
            assert caught.value.reason == Reason.PROTOCOL_ERROR


def test_every_state_has_a_row_for_each_sender_and_can_be_reached_and_left() -> None:
    for sender in Role:
        assert set(CONVERSATION[sender]) == set(State)
    reached = {State.WAIT_CONNECT}
    for _ in State:
        for sender in Role:
            for state in tuple(reached):
                reached |= set(CONVERSATION[sender][state].values())
    assert reached == set(State)
    for state in State:
        ways = [CONVERSATION[sender][state] for sender in Role]
        assert any(ways) == (state is not State.CLOSED)


def walk(state: State, steps: Iterable[tuple[Role, Event]]) -> State:
    for sender, event in steps:
        state = next_state(state, sender, event)
    return state


def test_an_extended_authentication_takes_turns() -> None:
    c, s = Role.CLIENT, Role.SERVER
    challenge = [(s, Event.AUTH_CONTINUE), (c, Event.AUTH_CONTINUE)]
    opened = [(c, Event.CONNECT), *challenge, *challenge, (s, Event.CONNACK)]
    assert walk(State.WAIT_CONNECT, opened) is State.CONNECTED
    again = [(c, Event.AUTH_AGAIN), *challenge, (s, Event.PUBLISH), (s, Event.AUTH_SUCCESS)]
    assert walk(State.CONNECTED, again) is State.CONNECTED


def test_the_first_packet_is_connect_and_there_is_no_second() -> None:
    for event, state, clause in (
        (Event.PUBLISH, State.WAIT_CONNECT, "MQTT-3.1.0-1"),
        (Event.CONNECT, State.CONNECTED, "MQTT-3.1.0-2"),
    ):
        with pytest.raises(ProtocolViolation) as caught:
            next_state(state, Role.CLIENT, event)
        assert caught.value.clause == clause


@pytest.mark.parametrize(
    ("packet", "event"),
    [
        (Connect("c"), Event.CONNECT),
        (Connack(), Event.CONNACK),
        (Connack(False, Reason.BANNED), Event.CONNACK_REFUSED),
        (Publish("a", b""), Event.PUBLISH),
        (Pingreq(), Event.PINGREQ),
        (Auth(), Event.AUTH_SUCCESS),
        (Auth(Reason.CONTINUE_AUTHENTICATION), Event.AUTH_CONTINUE),
        (Auth(Reason.REAUTHENTICATE), Event.AUTH_AGAIN),
    ],
)
def test_a_packet_is_an_event(packet: Packet, event: Event) -> None:
    assert event_of(packet) is event


def test_every_vector_is_an_event_that_its_sender_may_send_in_some_state() -> None:
    for vector in VECTORS:
        event = event_of(vector.packet)
        assert any(event in row for row in CONVERSATION[vector.sender].values()), vector.title


OUTGOING_ANSWERS = (Answer.PUBACK, Answer.PUBREC, Answer.PUBREC_REFUSED, Answer.PUBCOMP)
INCOMING_ANSWERS = (Answer.PUBLISH_QOS_1, Answer.PUBLISH_QOS_2, Answer.PUBREL)


def test_every_answer_is_decided_for_every_state_of_a_packet_id() -> None:
    out = {
        (Outgoing.FREE, Answer.PUBACK): (Outgoing.FREE, Duty.NOTHING),
        (Outgoing.FREE, Answer.PUBREC): (Outgoing.FREE, Duty.SEND_PUBREL_NOT_FOUND),
        (Outgoing.FREE, Answer.PUBREC_REFUSED): (Outgoing.FREE, Duty.NOTHING),
        (Outgoing.FREE, Answer.PUBCOMP): (Outgoing.FREE, Duty.NOTHING),
        (Outgoing.WAIT_PUBACK, Answer.PUBACK): (Outgoing.FREE, Duty.FINISH),
        (Outgoing.WAIT_PUBREC, Answer.PUBREC): (Outgoing.WAIT_PUBCOMP, Duty.SEND_PUBREL),
        (Outgoing.WAIT_PUBREC, Answer.PUBREC_REFUSED): (Outgoing.FREE, Duty.FINISH),
        (Outgoing.WAIT_PUBCOMP, Answer.PUBREC): (Outgoing.WAIT_PUBCOMP, Duty.SEND_PUBREL),
        (Outgoing.WAIT_PUBCOMP, Answer.PUBCOMP): (Outgoing.FREE, Duty.FINISH),
    }
    for state in Outgoing:
        for answer in Answer:
            if (state, answer) in out:
                assert next_outgoing(state, answer) == out[state, answer]
            else:
                with pytest.raises(ProtocolViolation):
                    next_outgoing(state, answer)
    taken = {
        (Incoming.FREE, Answer.PUBLISH_QOS_1): (Incoming.FREE, Duty.TAKE_AND_PUBACK),
        (Incoming.FREE, Answer.PUBLISH_QOS_2): (Incoming.WAIT_PUBREL, Duty.TAKE_AND_PUBREC),
        (Incoming.FREE, Answer.PUBREL): (Incoming.FREE, Duty.SEND_PUBCOMP_NOT_FOUND),
        (Incoming.WAIT_PUBREL, Answer.PUBLISH_QOS_2): (Incoming.WAIT_PUBREL, Duty.SEND_PUBREC),
        (Incoming.WAIT_PUBREL, Answer.PUBREL): (Incoming.FREE, Duty.SEND_PUBCOMP),
    }
    for held in Incoming:
        for answer in Answer:
            if (held, answer) in taken:
                assert next_incoming(held, answer) == taken[held, answer]
            else:
                with pytest.raises(ProtocolViolation):
                    next_incoming(held, answer)
    assert set(ON_RESUME) == set(Outgoing)
    assert set(OUTGOING) == set(Outgoing) and set(INCOMING) == set(Incoming)


def test_a_packet_is_an_answer() -> None:
    assert answer_of(PacketType.PUBLISH, qos=1) is Answer.PUBLISH_QOS_1
    assert answer_of(PacketType.PUBLISH, qos=2) is Answer.PUBLISH_QOS_2
    assert answer_of(PacketType.PUBREC, Reason.NO_MATCHING_SUBSCRIBERS) is Answer.PUBREC
    assert answer_of(PacketType.PUBREC, Reason.QUOTA_EXCEEDED) is Answer.PUBREC_REFUSED
    for name in ("PUBACK", "PUBREL", "PUBCOMP"):
        assert answer_of(PacketType[name]) is Answer[name]


@pytest.mark.parametrize("seed", range(50))
def test_a_qos_2_message_is_taken_once_however_often_the_connection_breaks(seed: int) -> None:
    """Sender and receiver keep their states; a break loses every packet that is under way."""
    chance = random.Random(seed)
    sender, receiver = Outgoing.WAIT_PUBREC, Incoming.FREE
    there, back = [Answer.PUBLISH_QOS_2], list[Answer]()
    taken = 0
    breaks_left = 8
    while sender is not Outgoing.FREE:
        if breaks_left and chance.random() < 0.4:
            breaks_left -= 1
            resend = ON_RESUME[sender]
            there = [Answer.PUBREL if resend is Duty.SEND_PUBREL else Answer.PUBLISH_QOS_2]
            back = []
        elif there and (not back or chance.random() < 0.5):
            receiver, duty = next_incoming(receiver, there.pop(0))
            taken += duty is Duty.TAKE_AND_PUBREC
            released = duty in (Duty.SEND_PUBCOMP, Duty.SEND_PUBCOMP_NOT_FOUND)
            back.append(Answer.PUBCOMP if released else Answer.PUBREC)
        else:
            sender, duty = next_outgoing(sender, back.pop(0))
            if duty is Duty.SEND_PUBREL:
                there.append(Answer.PUBREL)
    assert taken == 1, f"seed {seed}"
    assert receiver is Incoming.FREE
