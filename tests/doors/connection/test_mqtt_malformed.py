"""A client that breaks the rules: is it told why and closed, and does nobody else notice?"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from penstock.mqtt.encode import encode
from penstock.mqtt.errors import ProtocolViolation
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire

# (bytes after a CONNECT of MQTT 5, reason it is closed with)
BROKEN = {
    "reserved packet type": (b"\x00\x00", Reason.MALFORMED_PACKET),
    "PUBLISH at QoS 3": (b"\x36\x05\x00\x01a\x00\x01", Reason.MALFORMED_PACKET),
    "PUBLISH at QoS 0 with DUP": (b"\x38\x04\x00\x01a\x00", Reason.MALFORMED_PACKET),
    "PUBLISH shorter than its name": (b"\x30\x03\x00\x09a", Reason.MALFORMED_PACKET),
    "PUBLISH with packet id 0": (b"\x32\x06\x00\x01a\x00\x00\x00", Reason.PROTOCOL_ERROR),
    "PUBLISH with a wildcard": (b"\x30\x04\x00\x01#\x00", Reason.TOPIC_NAME_INVALID),
    "PUBLISH without a name": (b"\x30\x03\x00\x00\x00", Reason.PROTOCOL_ERROR),
    "PUBLISH with U+0000": (b"\x30\x04\x00\x01\x00\x00", Reason.MALFORMED_PACKET),
    "PUBLISH not in UTF-8": (b"\x30\x04\x00\x01\xff\x00", Reason.MALFORMED_PACKET),
    "PUBLISH with topic alias 0": (
        b"\x30\x07\x00\x01a\x03\x23\x00\x00",
        Reason.TOPIC_ALIAS_INVALID,
    ),
    "PUBLISH with an unknown property": (b"\x30\x06\x00\x01a\x02\x7f\x00", Reason.MALFORMED_PACKET),
    "PUBLISH with a deep name": (
        encode(Publish("/".join("a" * 129), b""), MQTT_5),
        Reason.TOPIC_NAME_INVALID,
    ),
    "PUBLISH with a wildcard to answer to": (
        b"\x30\x0a\x00\x01a\x06\x08\x00\x03a/#",
        Reason.TOPIC_NAME_INVALID,
    ),
    "PUBACK with packet id 0": (b"\x40\x02\x00\x00", Reason.PROTOCOL_ERROR),
    "PUBACK without a packet id": (b"\x40\x00", Reason.MALFORMED_PACKET),
    "PUBACK with an unknown reason": (b"\x40\x03\x00\x01\x7f", Reason.PROTOCOL_ERROR),
    "PUBREL with wrong flags": (b"\x60\x02\x00\x01", Reason.MALFORMED_PACKET),
    "SUBSCRIBE with wrong flags": (b"\x80\x07\x00\x01\x00\x00\x01a\x00", Reason.MALFORMED_PACKET),
    "SUBSCRIBE without a filter": (b"\x82\x03\x00\x01\x00", Reason.PROTOCOL_ERROR),
    "SUBSCRIBE at QoS 3": (b"\x82\x07\x00\x01\x00\x00\x01a\x03", Reason.PROTOCOL_ERROR),
    "SUBSCRIBE with reserved bits": (b"\x82\x07\x00\x01\x00\x00\x01a\xc0", Reason.MALFORMED_PACKET),
    "SUBSCRIBE with an empty filter": (
        b"\x82\x06\x00\x01\x00\x00\x00\x00",
        Reason.TOPIC_FILTER_INVALID,
    ),
    "UNSUBSCRIBE without a filter": (b"\xa2\x03\x00\x01\x00", Reason.PROTOCOL_ERROR),
    "PINGREQ with a body": (b"\xc0\x01\x00", Reason.MALFORMED_PACKET),
    "DISCONNECT with a server's reason": (b"\xe0\x01\x8b", Reason.PROTOCOL_ERROR),
    "AUTH out of the blue": (b"\xf0\x00", Reason.PROTOCOL_ERROR),
    "CONNECT again": (encode(Connect("again"), MQTT_5), Reason.PROTOCOL_ERROR),
    "CONNECT again in another version": (
        b"\x10\x0d\x00\x04MQTT\x09\x02\x00\x00\x00\x00\x00",
        Reason.PROTOCOL_ERROR,
    ),
    "CONNACK from a client": (encode(Connack(), MQTT_5), Reason.PROTOCOL_ERROR),
    "SUBACK from a client": (encode(Suback(1, (Reason.SUCCESS,)), MQTT_5), Reason.PROTOCOL_ERROR),
    "UNSUBACK from a client": (
        encode(Unsuback(1, (Reason.SUCCESS,)), MQTT_5),
        Reason.PROTOCOL_ERROR,
    ),
    "PINGRESP from a client": (encode(Pingresp(), MQTT_5), Reason.PROTOCOL_ERROR),
    "a length of five bytes": (b"\x30\xff\xff\xff\xff\x01", Reason.MALFORMED_PACKET),
    "a length with padding": (b"\xc0\x80\x00", Reason.MALFORMED_PACKET),
    "a packet larger than announced": (b"\x30\xff\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
    "properties of 100 KB": (
        encode(
            Publish("a", b"", properties=Properties(user_properties=(("k", "v" * 50_000),) * 2)),
            MQTT_5,
        ),
        Reason.PACKET_TOO_LARGE,
    ),
}

BROKEN_CONNECT = {
    "reserved flag": (lambda raw: raw[:9] + bytes((raw[9] | 1,)) + raw[10:], 0x81),
    "will at QoS 3": (lambda raw: raw[:9] + bytes((raw[9] | 0x1C,)) + raw[10:], 0x81),
    "receive maximum 0": (
        lambda raw: (
            encode(Connect("x", version=MQTT_5), MQTT_5)[:12] + b"\x03\x21\x00\x00\x00\x01x"
        ),
        0x82,
    ),
    "bytes too many": (lambda raw: bytes((raw[0], raw[1] + 1)) + raw[2:] + b"x", 0x81),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_packet_is_closed_with_its_reason(broker: Hosted, name: str, case: str) -> None:
    data, reason = BROKEN[case]
    with Wire(broker.port, name, MQTT_5) as client, Wire(broker.port, name + "2") as other:
        client.connect()
        other.connect()
        client.send_bytes(data)
        assert client.expect(Disconnect).reason == reason
        assert client.is_closed()
        assert other.settle() == []


@pytest.mark.parametrize("case", BROKEN)
def test_what_came_before_a_broken_packet_counts(broker: Hosted, name: str, case: str) -> None:
    with Wire(broker.port, name, MQTT_5) as client, Wire(broker.port, name + "2") as other:
        client.connect()
        other.connect()
        other.subscribe(name, qos=1)
        good = encode(Publish(name, b"good", 1, packet_id=1), MQTT_5)
        client.send_bytes(good + BROKEN[case][0])
        assert other.receive().payload == b"good"


@pytest.mark.parametrize("case", BROKEN_CONNECT)
def test_broken_connect_is_answered_with_its_reason(broker: Hosted, case: str) -> None:
    change, reason = BROKEN_CONNECT[case]
    raw = encode(Connect("x", version=MQTT_5), MQTT_5)
    data = bytearray(change(raw))
    data[1] = len(data) - 2
    with Wire(broker.port, version=MQTT_5) as client:
        client.send_bytes(bytes(data))
        assert client.expect(Connack).reason == reason
        assert client.is_closed()


def _packets() -> list[Packet]:
    full = Properties(user_properties=(("a", "b"),), content_type="x", message_expiry_interval=5)
    return [
        Connect("fuzz", will=Will("w", b"w", 1), keep_alive_s=5, username="u", password=b"p"),
        Publish("a/b", b"payload", 0),
        Publish("a/b", b"payload", 1, packet_id=5, properties=full),
        Publish("a/b", b"payload", 2, True, packet_id=6),
        Puback(5),
        Pubrec(6),
        Pubrel(6),
        Subscribe(7, (Subscription("a/#", 2), Subscription("+/b", 1))),
        Unsubscribe(8, ("a/#",)),
        Disconnect(properties=Properties(session_expiry_interval=3)),
    ]


def test_random_changes_of_good_packets_never_hurt_others(broker: Hosted) -> None:
    """Whatever bytes come, is it only their sender that is closed?"""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Wire(broker.port, "witness", MQTT_5) as witness:
        witness.connect()
        witness.subscribe("witness", qos=1)
        for number in range(150):
            version = chance.choice([MQTT_3_1_1, MQTT_5])
            data = bytearray()
            for packet in chance.sample(_packets(), chance.randint(1, 6)):
                data += encode(packet, version)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(data))
                change = chance.randrange(3)
                if change == 0:
                    data[at] = chance.randrange(256)
                elif change == 1:
                    del data[at : at + chance.randint(1, 4)]
                    data += b"\0"
                else:
                    data[at:at] = chance.randbytes(chance.randint(1, 4))
            with Wire(broker.port, f"fuzz{number}", version) as client:
                if chance.random() < 0.9:
                    client.connect()
                with suppress(EOFError, ConnectionError, ProtocolViolation):
                    client.send_bytes(bytes(data))
                    client.poll(0.001)
            witness.publish("witness", b"%d" % number, 1)
            assert witness.receive().payload == b"%d" % number
    assert broker.troubles == []
