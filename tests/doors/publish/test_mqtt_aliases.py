"""Topic aliases: does a number stand for the right name, each way, and never longer than it may?"""

from __future__ import annotations

import random

import pytest

from penstock.doors.mqtt.aliases import ALIASES_MAX, OutgoingAliases
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_5, Role
from penstock.mqtt.packets import Disconnect, Packet, Puback, Publish, Subscription
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from penstock.mqtt.scanner import Intake
from penstock.mqtt.unpacking import unpack
from tests.doors.deliver.test_mqtt_delivery import client
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept, kept


def aliased(name: str, payload: bytes, alias: int, qos: int = 0, packet_id: int = 0) -> Publish:
    return Publish(
        name, payload, qos, packet_id=packet_id, properties=Properties(topic_alias=alias)
    )


# From the client


def test_connack_says_how_many_aliases_are_taken(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as writer:
        assert writer.connect().properties.topic_alias_maximum == ALIASES_MAX


@pytest.mark.parametrize("qos", [0, 1])
def test_alias_stands_for_the_name_it_was_sent_with(broker: Hosted, name: str, qos: int) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        reader.subscribe(f"{name}/#", qos=qos)
        for alias, last in ((1, "a"), (ALIASES_MAX, "b")):
            writer.send(aliased(f"{name}/{last}", b"0", alias, qos, qos))
        for number in range(1, 200):
            alias = 1 if number % 3 else ALIASES_MAX
            writer.send(aliased("", b"%d" % number, alias, qos, number if qos else 0))
        received = [reader.receive() for _ in range(201)]
        assert {one.name for one in received[:2]} == {f"{name}/a", f"{name}/b"}
        for number, message in enumerate(received[2:], 1):
            last = "a" if number % 3 else "b"
            assert (message.name, message.payload) == (f"{name}/{last}", b"%d" % number)
            assert message.properties.topic_alias is None  # the writer's is no business of ours


def test_alias_can_be_given_another_name(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        reader.subscribe(f"{name}/#", qos=0)
        for last in ("a", "b", "a"):
            writer.send(aliased(f"{name}/{last}", b"", 7), aliased("", b"", 7))
        names = [reader.receive().name for _ in range(6)]
        assert names == [f"{name}/{last}" for last in "aabbaa"]


def test_aliased_messages_are_stored_under_their_name(broker: Hosted, name: str) -> None:
    """Does a session that was away get the name, with the other properties of the message?"""
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe(name, qos=1)
    reader.disconnect()
    with client(broker, name + "p") as writer:
        said = Properties(topic_alias=3, content_type="text", user_properties=(("k", "v"),))
        for packet_id, used in ((1, name), (2, "")):
            writer.send(Publish(used, b"x", 1, packet_id=packet_id, properties=said))
            writer.expect(Puback)
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    for _ in range(2):
        message = reader.receive()
        assert message.name == name
        assert message.properties == Properties(content_type="text", user_properties=(("k", "v"),))
    reader.close()


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (aliased("", b"", 5), Reason.PROTOCOL_ERROR),
        (aliased("a", b"", ALIASES_MAX + 1), Reason.TOPIC_ALIAS_INVALID),
        (aliased("", b"", 65_535), Reason.TOPIC_ALIAS_INVALID),
        (aliased("a", b"", 0), Reason.TOPIC_ALIAS_INVALID),
        (aliased("/".join("a" * 129), b"", 1), Reason.TOPIC_NAME_INVALID),
    ],
    ids=["unknown", "too large", "far too large", "zero", "of a deep name"],
)
def test_alias_that_cannot_be_closes_with_its_reason(
    broker: Hosted, name: str, packet: Packet, reason: Reason
) -> None:
    with client(broker, name) as writer:
        writer.send(packet)
        assert writer.expect(Disconnect).reason == reason
        assert writer.is_closed()


def test_aliases_do_not_outlive_their_connection(broker: Hosted, name: str) -> None:
    """Is an alias of an earlier connection unknown, also in a session that was kept?"""
    writer, _ = connect_kept(broker.port, name, MQTT_5)
    writer.send(aliased(name, b"", 1, 1, 1))
    writer.expect(Puback)
    writer.disconnect()
    writer, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present
    writer.send(aliased("", b"", 1, 1, 2))
    assert writer.expect(Disconnect).reason == Reason.PROTOCOL_ERROR


def test_aliases_of_two_clients_are_their_own(broker: Hosted, name: str) -> None:
    with (
        client(broker, name) as reader,
        client(broker, name + "1") as one,
        client(broker, name + "2") as two,
    ):
        reader.subscribe(f"{name}/+")
        for writer, last in ((one, "a"), (two, "b")):
            writer.send(aliased(f"{name}/{last}", b"", 1))
            assert reader.receive().name == f"{name}/{last}"
        for writer, last in ((one, "a"), (two, "b")):
            writer.send(aliased("", b"", 1))
            assert reader.receive().name == f"{name}/{last}"


# To the client


class Learning:
    """A client's side of the aliases: the names of messages, and how many came without one."""

    def __init__(self, aliases_max: int) -> None:
        self._aliases_max = aliases_max
        self._names: dict[int, str] = {}
        self.short = 0

    def name(self, message: Publish) -> str:
        alias = message.properties.topic_alias
        if alias is None:
            return message.name
        assert 1 <= alias <= self._aliases_max
        if message.name:
            self._names[alias] = message.name
        else:
            self.short += 1
        return self._names[alias]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_names_sent_often_become_aliases_for_a_client_that_takes_them(
    broker: Hosted, name: str, qos: int
) -> None:
    with client(broker, name + "p") as writer, client(broker, name, topic_alias_maximum=3) as wire:
        wire.subscribe(f"{name}/+", qos=qos)
        learning = Learning(3)
        expected = [f"{name}/{number % 3}" for number in range(30)]
        for number, one in enumerate(expected):
            writer.publish(one, b"%d" % number, qos)
        received = [wire.receive() for _ in expected]
        assert [learning.name(one) for one in received] == expected
        assert [one.payload for one in received] == [b"%d" % n for n in range(30)]
        assert learning.short == 27  # all but the first of each


def test_first_message_of_a_name_tells_its_alias_while_there_are_free_ones(
    broker: Hosted, name: str
) -> None:
    """One alias, two names: has the first one the alias from its first message on?"""
    with client(broker, name + "p") as writer, client(broker, name, topic_alias_maximum=1) as wire:
        wire.subscribe(f"{name}/+", qos=2)
        for qos in range(3):
            writer.publish(f"{name}/a", b"x", qos)
        received = [wire.receive() for _ in range(3)]
        assert [one.name for one in received] == [f"{name}/a", "", ""]
        assert {one.properties.topic_alias for one in received} == {1}
        writer.publish(f"{name}/b", b"x", 0)  # none is free: a name that comes once takes none away
        later = wire.receive()
        assert (later.name, later.properties.topic_alias) == (f"{name}/b", None)
        writer.publish(f"{name}/a", b"x", 0)
        assert wire.receive().name == ""


def test_client_that_takes_no_alias_gets_none(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as plain:
        plain.subscribe(name, qos=1)
        for qos in (0, 1, 0, 1, 0, 1):
            writer.publish(name, b"x", qos)
        received = [plain.receive() for _ in range(6)]
        assert {(one.name, one.properties) for one in received} == {(name, Properties())}


def test_aliases_do_not_reach_readers_beside(broker: Hosted, name: str) -> None:
    """One name, readers with and without aliases, one of whom sees none of its own: all right?"""
    with (
        client(broker, name + "p") as writer,
        client(broker, name + "1") as plain,
        client(broker, name + "2", topic_alias_maximum=10) as short,
        client(broker, name + "3", topic_alias_maximum=10) as local,
    ):
        plain.subscribe(name)
        short.subscribe(name)
        local.subscribe(Subscription(name, 0, no_local=True))
        learning, own = Learning(10), Learning(10)
        for number in range(20):
            sender = local if number % 2 else writer
            sender.publish(name, b"%d" % number, 0)
            assert plain.receive().name == name
            assert learning.name(short.receive()) == name
        received = [local.receive() for _ in range(10)]
        assert [own.name(one) for one in received] == [name] * 10
        assert [one.payload for one in received] == [b"%d" % n for n in range(0, 20, 2)]
        assert learning.short == 19


def test_properties_and_identifiers_come_beside_an_alias(broker: Hosted, name: str) -> None:
    said = Properties(content_type="text", user_properties=(("k", "v" * 200),))
    with client(broker, name + "p") as writer, client(broker, name, topic_alias_maximum=1) as wire:
        wire.subscribe(name, qos=1)
        for packet_id in range(1, 5):
            writer.send(Publish(name, b"x", 1, packet_id=packet_id, properties=said))
            message = wire.receive()
            assert message.properties.content_type == "text"
            assert message.properties.user_properties == said.user_properties
            assert (message.name == "") == (packet_id > 1)


def test_what_is_sent_again_has_its_name(broker: Hosted, name: str) -> None:
    asked = Properties(session_expiry_interval=100, topic_alias_maximum=5)
    reader = Wire(broker.port, name, MQTT_5)
    reader.connect(clean=False, properties=asked)
    reader.subscribe(name, qos=1)
    with client(broker, name + "p") as writer:
        writer.publish_all(name, 5, qos=1)
        for _ in range(5):
            reader.expect(Publish)
        reader.close()
        for given in (asked, kept()):
            reader = Wire(broker.port, name, MQTT_5)
            assert reader.connect(clean=False, properties=given).session_present
            learning = Learning(5)
            again = [reader.expect(Publish) for _ in range(5)]
            assert [(learning.name(one), one.dup) for one in again] == [(name, True)] * 5
            reader.close()


def test_message_that_was_dropped_teaches_no_alias(broker: Hosted, name: str) -> None:
    """Is an alias used only after the packet that tells it was really sent?"""
    asked = {"topic_alias_maximum": 5, "maximum_packet_size": 200}
    with client(broker, name + "p") as writer, client(broker, name, **asked) as wire:
        wire.subscribe(name, qos=1)
        learning = Learning(5)
        expected = []
        for number in range(40):
            large = number % 3 == 1 or number < 5
            payload = b"%d" % number + b"x" * (300 if large else 0)
            writer.publish(name, payload, number % 2)
            if not large:
                expected.append(payload)
        received = [wire.receive() for _ in expected]
        assert [(learning.name(one), one.payload) for one in received] == [
            (name, payload) for payload in expected
        ]
        assert learning.short
        assert wire.settle() == []


def test_packet_never_grows_beyond_what_the_client_takes(broker: Hosted, name: str) -> None:
    """Names with payloads that just fit: does each come, in a packet no larger than allowed?"""
    most = 100
    asked = {"topic_alias_maximum": 5, "maximum_packet_size": most}
    with client(broker, name + "p") as writer, client(broker, name, **asked) as wire:
        wire.subscribe(f"{name[:20]}/#", qos=0)
        learning = Learning(5)
        used = f"{name[:20]}/x"
        fitting = most - len(encode(Publish(used, b""), MQTT_5))
        for less in (0, 1, 2, 3, 4, 5, 6, 0):
            writer.send(Publish(used, b"x" * (fitting - less)))
            message = wire.receive()
            assert (learning.name(message), len(message.payload)) == (used, fitting - less)
            assert len(encode(message, MQTT_5)) <= most


def test_table_is_bounded_and_right_whatever_is_sent() -> None:
    """Random names, more than there are aliases: does the receiver always know which is meant?"""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for count_max in (1, 2, 7, 1000):
        table = OutgoingAliases(count_max)
        learning = Learning(min(count_max, ALIASES_MAX))
        intake = Intake(MQTT_5, 1 << 20, Role.SERVER)
        names = [f"{'long name/' * chance.randint(0, 3)}{n}" for n in range(3 * ALIASES_MAX)]
        for _ in range(3000):
            name = names[min(int(chance.expovariate(0.05)), len(names) - 1)]
            count = chance.randint(1, 3)
            data = encode(Publish(name, chance.randbytes(chance.randint(0, 200))), MQTT_5) * count
            most = chance.choice([50, 1 << 20])
            out = table.shorten(name, data, most)
            assert len(out) <= max(len(data), most)
            received = unpack(intake.feed(out))
            assert [learning.name(one) for one in received if isinstance(one, Publish)] == (
                [name] * count
            )
        assert learning.short
