"""Any packet that one side may send in one version, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.mqtt.kinds import MQTT_3_1, MQTT_5, PacketType, Role
from penstock.mqtt.packets import (
    ACKS,
    Auth,
    Connack,
    Connect,
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
    Will,
)
from penstock.mqtt.properties import NO_PROPERTIES, PROPERTIES, WILL, Properties, PropertyRow, Wire
from penstock.mqtt.reasons import LEGAL_REASONS, REASONS_BY_RETURN_CODE, SUBACK_RETURN_CODES

_LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXT = st.text(_LETTERS, max_size=12)
NAMES = st.sampled_from(["a", "a/b", "sensors/42/temp", "é", "a//", "/"]) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=12
)
FILTERS = st.text(_LETTERS, min_size=1, max_size=12).filter(lambda f: not f.startswith("$share/"))
BINARY = st.binary(max_size=20)
PACKET_IDS = st.integers(1, 65535)
VERSIONS = st.sampled_from([3, 4, 5])
SENDERS = st.sampled_from(list(Role))
PAYLOADS = BINARY | st.binary(min_size=100, max_size=300)

_VALUES: dict[Wire, st.SearchStrategy[Any]] = {
    Wire.TEXT: TEXT,
    Wire.NAME: NAMES,
    Wire.BINARY: BINARY,
    Wire.PAIR: st.tuples(TEXT, TEXT),
}
_TOP = {Wire.BYTE: 0xFF, Wire.U16: 0xFFFF, Wire.U32: 0xFFFFFFFF, Wire.VARINT: 268_435_455}
_FOREIGN = {  # what only the other side may send
    (PacketType.PUBLISH, Role.CLIENT): {"subscription_identifiers"},
    (PacketType.DISCONNECT, Role.SERVER): {"session_expiry_interval"},
    (PacketType.DISCONNECT, Role.CLIENT): {"server_reference"},
}


def _values(row: PropertyRow) -> st.SearchStrategy[Any]:
    if row.wire in _TOP:
        return st.integers(row.least, min(row.most, _TOP[row.wire]))
    return _VALUES[row.wire]


@st.composite
def properties(draw: st.DrawFn, where: int, version: int, sender: Role) -> Properties:
    if version != MQTT_5 or draw(st.booleans()):
        return NO_PROPERTIES
    foreign = _FOREIGN.get((PacketType(where), sender), set()) if where != WILL else set()
    rows = [row for row in PROPERTIES if where in row.legal_in and row.field not in foreign]
    found: dict[str, Any] = {}
    for row in draw(st.lists(st.sampled_from(rows), unique_by=lambda row: row.id)):
        if row.field in ("subscription_identifiers", "user_properties"):
            most = 3 if where in row.repeats_in else 1
            found[row.field] = tuple(draw(st.lists(_values(row), max_size=most)))
        else:
            found[row.field] = draw(_values(row))
    return Properties(**found)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    will = None
    if draw(st.booleans()):
        will = Will(
            draw(NAMES),
            draw(BINARY),
            draw(st.integers(0, 2)),
            draw(st.booleans()),
            draw(properties(WILL, version, Role.CLIENT)),
        )
    clean_start = draw(st.booleans())
    id_needed = version == MQTT_3_1 or (version != MQTT_5 and not clean_start)
    username = draw(st.none() | TEXT)
    password = draw(st.none() | BINARY) if username is not None or version == MQTT_5 else None
    found = draw(properties(PacketType.CONNECT, version, Role.CLIENT))
    if found.authentication_data is not None and found.authentication_method is None:
        found = NO_PROPERTIES
    return Connect(
        draw(st.text(_LETTERS, min_size=int(id_needed), max_size=10)),
        clean_start,
        draw(st.integers(0, 65535)),
        will,
        username,
        password,
        version,
        found,
    )


@st.composite
def connacks(draw: st.DrawFn, version: int) -> Connack:
    legal = REASONS_BY_RETURN_CODE
    if version == MQTT_5:
        legal = LEGAL_REASONS[PacketType.CONNACK, Role.SERVER]
    reason = draw(st.sampled_from(list(legal.values())))
    present = draw(st.booleans()) and not reason and version != MQTT_3_1
    return Connack(present, reason, draw(properties(PacketType.CONNACK, version, Role.SERVER)))


@st.composite
def publishes(draw: st.DrawFn, version: int, sender: Role) -> Publish:
    qos = draw(st.integers(0, 2))
    found = draw(properties(PacketType.PUBLISH, version, sender))
    by_alias = found.topic_alias is not None and draw(st.booleans())
    return Publish(
        "" if by_alias else draw(NAMES),
        draw(PAYLOADS),
        qos,
        draw(st.booleans()),
        qos > 0 and draw(st.booleans()),
        draw(PACKET_IDS) if qos else 0,
        found,
    )


@st.composite
def acks(draw: st.DrawFn, version: int, sender: Role) -> Packet:
    packet_type = draw(st.sampled_from(list(ACKS)))
    ack = ACKS[packet_type]
    if version != MQTT_5 or draw(st.booleans()):
        return ack(draw(PACKET_IDS))
    reason = draw(st.sampled_from(list(LEGAL_REASONS[packet_type, sender].values())))
    return ack(draw(PACKET_IDS), reason, draw(properties(packet_type, version, sender)))


@st.composite
def subscribes(draw: st.DrawFn, version: int) -> Subscribe:
    options = st.builds(Subscription, FILTERS, st.integers(0, 2))
    if version == MQTT_5:
        options = st.builds(
            Subscription,
            FILTERS,
            st.integers(0, 2),
            st.booleans(),
            st.booleans(),
            st.integers(0, 2),
        )
    return Subscribe(
        draw(PACKET_IDS),
        tuple(draw(st.lists(options, min_size=1, max_size=4))),
        draw(properties(PacketType.SUBSCRIBE, version, Role.CLIENT)),
    )


@st.composite
def unsubscribes(draw: st.DrawFn, version: int) -> Unsubscribe:
    return Unsubscribe(
        draw(PACKET_IDS),
        tuple(draw(st.lists(FILTERS, min_size=1, max_size=4))),
        draw(properties(PacketType.UNSUBSCRIBE, version, Role.CLIENT)),
    )


@st.composite
def subacks(draw: st.DrawFn, version: int) -> Packet:
    if version != MQTT_5:
        reasons = st.sampled_from(list(SUBACK_RETURN_CODES.values()))
        codes = tuple(draw(st.lists(reasons, min_size=1, max_size=5)))
        return Suback(7, codes) if draw(st.booleans()) else Unsuback(7)
    kind = draw(st.sampled_from([PacketType.SUBACK, PacketType.UNSUBACK]))
    reasons = st.sampled_from(list(LEGAL_REASONS[kind, Role.SERVER].values()))
    codes = tuple(draw(st.lists(reasons, min_size=1, max_size=5)))
    found = draw(properties(kind, version, Role.SERVER))
    make = Suback if kind is PacketType.SUBACK else Unsuback
    return make(draw(PACKET_IDS), codes, found)


@st.composite
def farewells(draw: st.DrawFn, version: int, sender: Role) -> Packet:
    """DISCONNECT, or AUTH where it exists."""
    if version != MQTT_5:
        return Disconnect()
    kind = draw(st.sampled_from([PacketType.DISCONNECT, PacketType.AUTH]))
    reason = draw(st.sampled_from(list(LEGAL_REASONS[kind, sender].values())))
    found = draw(properties(kind, version, sender))
    if kind is PacketType.DISCONNECT:
        return Disconnect(reason, found)
    if reason and found.authentication_method is None:
        found = Properties(authentication_method="m")
    return Auth(reason, found)


def packets(version: int, sender: Role) -> st.SearchStrategy[Packet]:
    """Whatever `sender` may send once connected, and its part of the handshake."""
    either = [publishes(version, sender), acks(version, sender)]
    if sender is Role.CLIENT:
        return st.one_of(
            *either,
            connects(version),
            subscribes(version),
            unsubscribes(version),
            st.just(Pingreq()),
            farewells(version, sender),
        )
    answers = [connacks(version), subacks(version), st.just(Pingresp())]
    if version == MQTT_5:
        answers.append(farewells(version, sender))
    return st.one_of(*either, *answers)
