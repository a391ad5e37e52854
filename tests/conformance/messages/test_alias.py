"""Topic aliases: does each side keep to the numbers that the other takes?"""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Publish
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import Talk, join
from tests.doors.hosted import Hosted


def alias(number: int) -> bytes:
    return b"\x23" + spelled.u16(number)


def test_alias_0_closes(broker: Hosted, name: str) -> None:
    """Is a topic alias of 0 refused, with a name or without one?"""
    for one in (name, ""):
        with join(broker, name) as client:
            client.send_bytes(spelled.publish(MQTT_5, one, b"x", said=alias(0)))
            client.assert_ended(Reason.TOPIC_ALIAS_INVALID)


def test_alias_beyond_the_maximum_closes(broker: Hosted, name: str) -> None:
    """Is the first alias refused that the CONNACK did not allow, and the largest there is?"""
    with Talk(broker.port, name, MQTT_5) as client:
        most = client.connect().properties.topic_alias_maximum or 0
    for number in (most + 1, 65_535):
        with join(broker, name) as client:
            client.send_bytes(spelled.publish(MQTT_5, name, b"x", said=alias(number)))
            client.assert_ended(Reason.TOPIC_ALIAS_INVALID)


def test_every_alias_up_to_the_maximum_is_taken(broker: Hosted, name: str) -> None:
    """Can all numbers from 1 to the maximum stand for a name of their own at once?"""
    with Talk(broker.port, name, MQTT_5) as client:
        most = client.connect().properties.topic_alias_maximum or 0
        assert most > 0
        client.subscribe(f"{name}/+")
        for turn in ("named", ""):
            for number in range(1, most + 1):
                one = turn and f"{name}/{number}"
                client.send_bytes(spelled.publish(MQTT_5, one, b"x", said=alias(number)))
        for _ in range(2):
            got = [client.receive().name for _ in range(most)]
            assert got == [f"{name}/{number}" for number in range(1, most + 1)]


@pytest.mark.parametrize("most", [1, 3])
def test_broker_keeps_to_the_aliases_a_client_takes(broker: Hosted, name: str, most: int) -> None:
    """Is none of the broker's aliases 0 or beyond what CONNECT allowed, and each name clear?"""
    with join(broker, name, topic_alias_maximum=most) as client, join(broker, name + "p") as writer:
        client.subscribe(f"{name}/+", qos=1)
        names: dict[int, str] = {}
        for turn in range(60):
            expected = f"{name}/{turn % 6}"
            writer.publish(expected, b"x", turn % 2)
            message = client.receive()
            number = message.properties.topic_alias
            if number is not None:
                assert 1 <= number <= most
                names[number] = message.name or names[number]
            assert (message.name or names.get(number or 0)) == expected


def test_client_that_takes_no_alias_gets_none(broker: Hosted, name: str) -> None:
    """Has no message an alias for a client that allowed none, or said nothing about it?"""
    for asked in (Properties(), Properties(topic_alias_maximum=0)):
        with Talk(broker.port, name, MQTT_5) as client:
            client.connect(properties=asked)
            client.subscribe(name, qos=1)
            for turn in range(20):
                client.publish(name, b"x", turn % 2)
                message = client.receive()
                assert isinstance(message, Publish)
                assert (message.name, message.properties.topic_alias) == (name, None)
