"""Clients that break a rule: is the connection closed, is the reason told, is nobody else hurt?"""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Disconnect, Publish
from penstock.mqtt.reasons import FAILURE, Reason
from tests.conformance import spelled
from tests.conformance.talk import BOTH, Talk, join
from tests.doors.hosted import Hosted

# What no client may say once it is connected, in either version.
VIOLATIONS = {
    "a reserved packet type": b"\x00\x00",
    "a packet of the server": b"\x20\x02\x00\x00",
    "an answer of the server": b"\xd0\x00",
    "a second CONNECT": spelled.connect(4, "x"),
    "a length without an end": b"\x30\xff\xff\xff\xff\x7f",
    "a PINGREQ with a body": b"\xc0\x01\x00",
    "a PUBLISH at QoS 3": b"\x36\x05\x00\x01a\x00\x01",
    "a SUBSCRIBE to nothing": b"\x82\x02\x00\x01",
    "a name past the end": b"\x30\x04\x00\x09ab",
}


@BOTH
@pytest.mark.parametrize("packet", VIOLATIONS.values(), ids=VIOLATIONS)
def test_violation_closes_the_connection_on_which_it_came(
    broker: Hosted, name: str, version: int, packet: bytes
) -> None:
    """Is the connection closed, and MQTT 5 told a reason, while others go on?"""
    with join(broker, name, version) as client, join(broker, name + "2", version) as other:
        other.subscribe(name)
        client.send_bytes(packet)
        client.assert_ended(Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR, Reason.PACKET_TOO_LARGE)
        other.send(Publish(name, b"x"))
        assert other.expect(Publish).payload == b"x"


def test_refusing_reason_is_followed_by_the_end(broker: Hosted, name: str) -> None:
    """Is a connection closed behind every CONNACK and DISCONNECT of 0x80 or above?"""
    for packet in (
        spelled.connect(MQTT_5, name, flags=0x03),
        spelled.connect(MQTT_5, name, asked=b"\x21\x00\x00"),
        spelled.connect(MQTT_5, name, asked=b"\x15" + spelled.text("SCRAM")),
    ):
        with Talk(broker.port, name, MQTT_5) as client:
            client.send_bytes(packet)
            assert client.expect(Connack).reason >= FAILURE
            assert client.ends_without_a_word()
    for packet in VIOLATIONS.values():
        with join(broker, name) as client:
            client.send_bytes(packet)
            assert client.expect(Disconnect).reason >= FAILURE
            assert client.ends_without_a_word()


def test_disconnect_of_the_broker_says_nothing_it_must_not(broker: Hosted, name: str) -> None:
    """Has a DISCONNECT from the broker a listed reason, and never a session expiry?"""
    for packet in (*VIOLATIONS.values(), spelled.publish(MQTT_5, "a/#", b"")):
        with join(broker, name, MQTT_5, session_expiry_interval=100) as client:
            client.send_bytes(packet)
            answer = client.expect(Disconnect)
            assert answer.reason in (0x81, 0x82, 0x90, 0x95)
            assert answer.properties.session_expiry_interval is None
            assert b"\x11" not in client.raw[3:]


@BOTH
def test_nothing_is_read_behind_a_violation(broker: Hosted, name: str, version: int) -> None:
    """Does what came before it count, and nothing that came after it?"""
    with join(broker, name + "w", version) as witness:
        witness.subscribe(f"{name}/#", qos=1)
        with join(broker, name, version) as client:
            good, bad = (
                spelled.publish(version, f"{name}/{word}", b"", flags=spelled.QOS_1, packet_id=1)
                for word in ("before", "after")
            )
            client.send_bytes(good + b"\xc0\x01\x00" + bad)
            assert witness.receive().name == f"{name}/before"
        assert witness.settle() == []


def test_violation_before_mqtt_5_is_closed_without_a_word(broker: Hosted, name: str) -> None:
    """Does 3.1.1, which knows no DISCONNECT from the server, get none?"""
    for packet in VIOLATIONS.values():
        with join(broker, name, MQTT_3_1_1) as client:
            client.send_bytes(packet)
            assert client.ends_without_a_word()
