"""The packets, one value each: what MQTT 3.1, 3.1.1 and 5 can say, in MQTT 5's terms.

A packet means the same in every version; the encoder leaves out what an older version cannot say
and the decoder fills in the defaults. `packet_id` is 1 to 65,535 where the packet has one; a
PUBLISH at QoS 0 has 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.mqtt.kinds import MQTT_5, PacketType
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason


@dataclass(frozen=True, slots=True)
class Will:
    """What the server publishes for a client that goes without saying so."""

    name: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Connect:
    """A client asks for a session. `clean_start` is 3.1.1's clean session."""

    client_id: str
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    version: int = MQTT_5
    properties: Properties = NO_PROPERTIES
    is_bridge: bool = False  # another broker, which has said so (before MQTT 5)


@dataclass(frozen=True, slots=True)
class Connack:
    """The server's answer to CONNECT."""

    session_present: bool = False
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Publish:
    """A message, in either direction. An empty `name` means the topic alias in `properties`."""

    name: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Puback:
    """A QoS 1 message has arrived."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Pubrec:
    """A QoS 2 message has arrived (first answer)."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Pubrel:
    """The sender has seen PUBREC and will not send that QoS 2 message again."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Pubcomp:
    """The receiver has seen PUBREL; the packet id is free."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Subscription:
    """One filter of a SUBSCRIBE and its options."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0  # retained: 0 at every subscribe, 1 only at a new one, 2 never


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A client asks for messages."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Suback:
    """One reason per subscription, in their order: the granted QoS or a failure."""

    packet_id: int
    reasons: tuple[Reason, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A client gives filters back."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Unsuback:
    """One reason per filter, in their order; before MQTT 5 there are none on the wire."""

    packet_id: int
    reasons: tuple[Reason, ...] = ()
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Pingreq:
    """A client shows that it lives."""


@dataclass(frozen=True, slots=True)
class Pingresp:
    """So does the server."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The last packet of a connection. Before MQTT 5 only a client sends it."""

    reason: Reason = Reason.NORMAL_DISCONNECTION
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Auth:
    """A step of an extended authentication (MQTT 5 only)."""

    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


Ack = Puback | Pubrec | Pubrel | Pubcomp
Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)

PACKET_TYPES: Final[dict[type[Packet], PacketType]] = {
    Connect: PacketType.CONNECT,
    Connack: PacketType.CONNACK,
    Publish: PacketType.PUBLISH,
    Puback: PacketType.PUBACK,
    Pubrec: PacketType.PUBREC,
    Pubrel: PacketType.PUBREL,
    Pubcomp: PacketType.PUBCOMP,
    Subscribe: PacketType.SUBSCRIBE,
    Suback: PacketType.SUBACK,
    Unsubscribe: PacketType.UNSUBSCRIBE,
    Unsuback: PacketType.UNSUBACK,
    Pingreq: PacketType.PINGREQ,
    Pingresp: PacketType.PINGRESP,
    Disconnect: PacketType.DISCONNECT,
    Auth: PacketType.AUTH,
}

ACKS: Final[dict[PacketType, type[Ack]]] = {
    PacketType.PUBACK: Puback,
    PacketType.PUBREC: Pubrec,
    PacketType.PUBREL: Pubrel,
    PacketType.PUBCOMP: Pubcomp,
}
