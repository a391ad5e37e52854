"""Who may send what, when: the conversation and the QoS flows as tables.

A protocol state is a row; a pair that is not listed is a violation. The states are the
conversation's, so one table serves both ends: look up by who sent the packet. Each end moves its
own copy, in the order in which it sends and receives.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from penstock.mqtt.errors import protocol_error
from penstock.mqtt.kinds import PacketType, Role
from penstock.mqtt.packets import PACKET_TYPES, Auth, Connack, Packet
from penstock.mqtt.reasons import FAILURE, Reason


class State(IntEnum):
    """Where a connection is."""

    WAIT_CONNECT = 0  # nothing was said
    WAIT_CONNACK = 1  # the server is to answer; it reads nothing meanwhile
    WAIT_AUTH = 2  # the client is to answer a challenge
    CONNECTED = 3
    REAUTH_WAIT_SERVER = 4  # connected; the client asked to authenticate again
    REAUTH_WAIT_CLIENT = 5  # connected; the client is to answer a challenge
    CLOSED = 6  # nothing more is said


class Event(IntEnum):
    """A packet, told apart by outcome where the next state depends on it.

    The value of a plain one is its packet type.
    """

    CONNECT = 1
    CONNACK = 2  # with success
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
    CONNACK_REFUSED = 16
    AUTH_CONTINUE = 17
    AUTH_AGAIN = 18
    AUTH_SUCCESS = 19


def _staying(state: State, *events: Event) -> dict[Event, State]:
    return dict.fromkeys(events, state)


_BOTH_SEND: Final = (Event.PUBLISH, Event.PUBACK, Event.PUBREC, Event.PUBREL, Event.PUBCOMP)
_CLIENT_SENDS: Final = (*_BOTH_SEND, Event.SUBSCRIBE, Event.UNSUBSCRIBE, Event.PINGREQ)
_SERVER_SENDS: Final = (*_BOTH_SEND, Event.SUBACK, Event.UNSUBACK, Event.PINGRESP)

# sender → state → event → next state (MQTT 5 §3.1.4, §4.12).
CONVERSATION: Final[dict[Role, dict[State, dict[Event, State]]]] = {
    Role.CLIENT: {
        State.WAIT_CONNECT: {Event.CONNECT: State.WAIT_CONNACK},
        State.WAIT_CONNACK: {Event.DISCONNECT: State.CLOSED},
        State.WAIT_AUTH: {
            Event.AUTH_CONTINUE: State.WAIT_CONNACK,
            Event.DISCONNECT: State.CLOSED,
        },
        State.CONNECTED: {
            **_staying(State.CONNECTED, *_CLIENT_SENDS),
            Event.AUTH_AGAIN: State.REAUTH_WAIT_SERVER,
            Event.DISCONNECT: State.CLOSED,
        },
        State.REAUTH_WAIT_SERVER: {
            **_staying(State.REAUTH_WAIT_SERVER, *_CLIENT_SENDS),
            Event.DISCONNECT: State.CLOSED,
        },
        State.REAUTH_WAIT_CLIENT: {
            **_staying(State.REAUTH_WAIT_CLIENT, *_CLIENT_SENDS),
            Event.AUTH_CONTINUE: State.REAUTH_WAIT_SERVER,
            Event.DISCONNECT: State.CLOSED,
        },
        State.CLOSED: {},
    },
    Role.SERVER: {
        State.WAIT_CONNECT: {},
        State.WAIT_CONNACK: {
            Event.CONNACK: State.CONNECTED,
            Event.CONNACK_REFUSED: State.CLOSED,
            Event.AUTH_CONTINUE: State.WAIT_AUTH,
        },  # no DISCONNECT before a CONNACK of success [MQTT-3.14.0-1]
        State.WAIT_AUTH: {Event.CONNACK_REFUSED: State.CLOSED},
        State.CONNECTED: {
            **_staying(State.CONNECTED, *_SERVER_SENDS),
            Event.DISCONNECT: State.CLOSED,
        },
        State.REAUTH_WAIT_SERVER: {
            **_staying(State.REAUTH_WAIT_SERVER, *_SERVER_SENDS),
            Event.AUTH_CONTINUE: State.REAUTH_WAIT_CLIENT,
            Event.AUTH_SUCCESS: State.CONNECTED,
            Event.DISCONNECT: State.CLOSED,
        },
        State.REAUTH_WAIT_CLIENT: {
            **_staying(State.REAUTH_WAIT_CLIENT, *_SERVER_SENDS),
            Event.DISCONNECT: State.CLOSED,
        },
        State.CLOSED: {},
    },
}

_AUTH_EVENTS: Final[dict[Reason, Event]] = {
    Reason.SUCCESS: Event.AUTH_SUCCESS,
    Reason.CONTINUE_AUTHENTICATION: Event.AUTH_CONTINUE,
    Reason.REAUTHENTICATE: Event.AUTH_AGAIN,
}


def event_of(packet: Packet) -> Event:
    """The event that a packet is."""
    if isinstance(packet, Auth):
        return _AUTH_EVENTS[packet.reason]
    if isinstance(packet, Connack) and packet.reason:
        return Event.CONNACK_REFUSED
    return Event(PACKET_TYPES[type(packet)])


def next_state(state: State, sender: Role, event: Event) -> State:
    """The state after `sender` sent this; ProtocolViolation if it may not."""
    following = CONVERSATION[sender][state].get(event)
    if following is None:
        raise protocol_error(
            f"{event.name} from the {sender.name.lower()} in state {state.name}",
            _CLAUSES.get((state, event), ""),
        )
    return following


_CLAUSES: Final = {
    **{(State.WAIT_CONNECT, event): "MQTT-3.1.0-1" for event in Event},
    (State.CONNECTED, Event.CONNECT): "MQTT-3.1.0-2",
}


class Outgoing(IntEnum):
    """A packet id of messages we send."""

    FREE = 0
    WAIT_PUBACK = 1  # QoS 1, sent
    WAIT_PUBREC = 2  # QoS 2, sent
    WAIT_PUBCOMP = 3  # QoS 2, released: never sent again


class Incoming(IntEnum):
    """A packet id of messages we receive."""

    FREE = 0
    WAIT_PUBREL = 1  # QoS 2, taken: a repeat is answered, not taken again


class Answer(IntEnum):
    """What the other side's packet says about a message."""

    PUBACK = 0
    PUBREC = 1
    PUBREC_REFUSED = 2  # with a reason of 0x80 or above: the flow ends here [MQTT-4.3.3-4]
    PUBCOMP = 3
    PUBLISH_QOS_1 = 4
    PUBLISH_QOS_2 = 5
    PUBREL = 6


class Duty(IntEnum):
    """What is to be done about it."""

    NOTHING = 0
    FINISH = 1  # the message is done with; its packet id is free
    SEND_PUBREL = 2
    SEND_PUBREL_NOT_FOUND = 3  # reason 0x92
    TAKE_AND_PUBACK = 4
    TAKE_AND_PUBREC = 5
    SEND_PUBREC = 6
    SEND_PUBCOMP = 7
    SEND_PUBCOMP_NOT_FOUND = 8  # reason 0x92
    RESEND_PUBLISH = 9  # with DUP


class OutgoingStep(NamedTuple):
    """One cell of the sender's table."""

    state: Outgoing
    duty: Duty


class IncomingStep(NamedTuple):
    """One cell of the receiver's table."""

    state: Incoming
    duty: Duty


# state → answer → step (MQTT 5 §4.3). An answer for a free id may be late, from before a crash or a
# takeover: no violation.
OUTGOING: Final[dict[Outgoing, dict[Answer, OutgoingStep]]] = {
    Outgoing.FREE: {
        Answer.PUBACK: OutgoingStep(Outgoing.FREE, Duty.NOTHING),
        Answer.PUBREC: OutgoingStep(Outgoing.FREE, Duty.SEND_PUBREL_NOT_FOUND),
        Answer.PUBREC_REFUSED: OutgoingStep(Outgoing.FREE, Duty.NOTHING),
        Answer.PUBCOMP: OutgoingStep(Outgoing.FREE, Duty.NOTHING),
    },
    Outgoing.WAIT_PUBACK: {
        Answer.PUBACK: OutgoingStep(Outgoing.FREE, Duty.FINISH),
    },
    Outgoing.WAIT_PUBREC: {
        Answer.PUBREC: OutgoingStep(Outgoing.WAIT_PUBCOMP, Duty.SEND_PUBREL),
        Answer.PUBREC_REFUSED: OutgoingStep(Outgoing.FREE, Duty.FINISH),
    },
    Outgoing.WAIT_PUBCOMP: {
        Answer.PUBREC: OutgoingStep(Outgoing.WAIT_PUBCOMP, Duty.SEND_PUBREL),
        Answer.PUBCOMP: OutgoingStep(Outgoing.FREE, Duty.FINISH),
    },
}

INCOMING: Final[dict[Incoming, dict[Answer, IncomingStep]]] = {
    Incoming.FREE: {
        Answer.PUBLISH_QOS_1: IncomingStep(Incoming.FREE, Duty.TAKE_AND_PUBACK),
        Answer.PUBLISH_QOS_2: IncomingStep(Incoming.WAIT_PUBREL, Duty.TAKE_AND_PUBREC),
        Answer.PUBREL: IncomingStep(Incoming.FREE, Duty.SEND_PUBCOMP_NOT_FOUND),
    },
    Incoming.WAIT_PUBREL: {
        Answer.PUBLISH_QOS_2: IncomingStep(Incoming.WAIT_PUBREL, Duty.SEND_PUBREC),
        Answer.PUBREL: IncomingStep(Incoming.FREE, Duty.SEND_PUBCOMP),
    },
}

# What a session sends again when its client comes back [MQTT-4.4.0-1].
ON_RESUME: Final[dict[Outgoing, Duty]] = {
    Outgoing.FREE: Duty.NOTHING,
    Outgoing.WAIT_PUBACK: Duty.RESEND_PUBLISH,
    Outgoing.WAIT_PUBREC: Duty.RESEND_PUBLISH,
    Outgoing.WAIT_PUBCOMP: Duty.SEND_PUBREL,
}


def answer_of(packet_type: PacketType, reason: int = 0, qos: int = 0) -> Answer:
    """What a PUBLISH above QoS 0 or one of its four followers is in the tables."""
    if packet_type == PacketType.PUBLISH:
        return Answer.PUBLISH_QOS_2 if qos == 2 else Answer.PUBLISH_QOS_1
    if packet_type == PacketType.PUBREC and reason >= FAILURE:
        return Answer.PUBREC_REFUSED
    return Answer[packet_type.name]


def next_outgoing(state: Outgoing, answer: Answer) -> OutgoingStep:
    """What an answer does to a message we sent; ProtocolViolation if it does not fit."""
    step = OUTGOING[state].get(answer)
    if step is None:
        raise protocol_error(f"{answer.name} for a packet id in state {state.name}")
    return step


def next_incoming(state: Incoming, answer: Answer) -> IncomingStep:
    """What a packet does to a message we receive; ProtocolViolation if it does not fit.

    A PUBLISH that we refuse with a PUBREC of 0x80 or above leaves the state as it was.
    """
    step = INCOMING[state].get(answer)
    if step is None:
        raise protocol_error(f"{answer.name} for a packet id in state {state.name}")
    return step
