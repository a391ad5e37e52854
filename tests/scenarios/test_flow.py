"""Fast and slow clients together: is nobody drowned, starved or held up?"""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Publish, Pubrec, Suback, Subscribe, Subscription
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.scenarios.actors import BOTH, Actor, numbers


@pytest.mark.parametrize("qos", [1, 2])
def test_reader_that_takes_one_at_a_time(broker: Hosted, name: str, qos: int) -> None:
    """Receive maximum 1 under a fast publisher: does it get all, in order, one by one?"""
    with (
        Actor(broker, name, MQTT_5, receive_maximum=1) as slow,
        Actor(broker, name + "2", MQTT_5) as fast,
        Actor(broker, name + "p", MQTT_5) as writer,
    ):
        slow.subscribe(name, qos=qos)
        fast.subscribe(name, qos=qos)
        writer.publish_all(name, 30, qos=qos)
        assert fast.receive_all(30) == numbers(0, 30)
        for number in range(30):
            message = slow.expect(Publish)
            assert message.payload == b"%d" % number
            assert slow.settle() == []
            slow.acknowledge(message)


@BOTH
def test_reader_that_never_acknowledges_holds_up_nobody(
    broker: Hosted, name: str, version: int
) -> None:
    """A thousand messages out and no PUBACK: do the others get theirs, and it the rest later?"""
    with (
        Actor(broker, name, version) as lazy,
        Actor(broker, name + "2", version) as other,
        Actor(broker, name + "p", version) as writer,
    ):
        lazy.subscribe(name, qos=1)
        other.subscribe(name, qos=1)
        writer.send(*[Publish(name, b"%d" % n, 1, packet_id=1 + n) for n in range(1500)])
        assert other.receive_all(1500) == numbers(0, 1500)
        out = [one for one in lazy.settle() if isinstance(one, Publish)]
        assert [one.payload for one in out] == numbers(0, len(out))
        lazy.send(*[Puback(one.packet_id) for one in out])
        assert lazy.receive_all(1500 - len(out)) == numbers(len(out), 1500)


def test_reader_that_refuses_messages_gets_the_others(broker: Hosted, name: str) -> None:
    """Every third message is refused with an error: is it dropped, and the next one sent?"""
    reader = Actor(broker, name, MQTT_5, stays=True, receive_maximum=2)
    reader.subscribe(name, qos=2)
    with Actor(broker, name + "p", MQTT_5) as writer:
        for number in range(30):
            writer.publish(name, b"%d" % number, 1 + number % 2)
    taken = []
    for number in range(30):
        message = reader.pick(Publish)
        if number % 3:
            reader.acknowledge(message)
            taken.append(message.payload)
        elif message.qos == 1:
            reader.send(Puback(message.packet_id, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
        else:
            reader.send(Pubrec(message.packet_id, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
    assert taken == [b"%d" % number for number in range(30) if number % 3]
    reader.settle()
    reader.close()
    reader = Actor(broker, name, MQTT_5, stays=True)
    assert reader.heard() == []
    reader.close()


def test_reader_of_small_packets_gets_small_messages(broker: Hosted, name: str) -> None:
    """Some messages are too large for it: do the others come, and others get them all?"""
    sizes = [10, 3000, 20, 30, 4000, 5000, 40]
    with (
        Actor(broker, name, MQTT_5, maximum_packet_size=500) as small,
        Actor(broker, name + "2", MQTT_5) as other,
        Actor(broker, name + "p", MQTT_5) as writer,
    ):
        for reader in (small, other):
            reader.subscribe(name, qos=2)
        for at, size in enumerate(sizes):
            writer.publish(name, bytes(size), at % 3)
        assert sorted(map(len, other.receive_all(7))) == sorted(sizes)
        assert sorted(map(len, small.receive_all(4))) == [10, 20, 30, 40]
        assert small.settle() == []


# Requests and answers


def test_answers_find_who_asked(broker: Hosted, name: str) -> None:
    """Several ask one service: does each get the answers to its own questions, and all of them?"""
    asking = [Actor(broker, f"{name}{at}", MQTT_5) for at in range(3)]
    with Actor(broker, name, MQTT_5) as service:
        service.subscribe(f"{name}/service", qos=1)
        for at, client in enumerate(asking):
            client.subscribe(f"{name}/answers/{at}", qos=1)
            for number in range(5):
                question = Properties(
                    response_topic=f"{name}/answers/{at}", correlation_data=b"%d" % number
                )
                client.send(Publish(f"{name}/service", b"%d" % number, 0, properties=question))
        for _ in range(15):
            request = service.receive()
            said = request.properties
            assert said.response_topic is not None
            answer = Properties(correlation_data=said.correlation_data)
            service.send(Publish(said.response_topic, request.payload * 2, 0, properties=answer))
        for client in asking:
            for number in range(5):
                reply = client.receive()
                assert reply.properties.correlation_data == b"%d" % number
                assert reply.payload == b"%d" % number * 2
            client.close()


def test_identifiers_say_why_a_message_came(broker: Hosted, name: str) -> None:
    """A client with a handler for each filter: do the identifiers name all that match?"""
    filters = {1: f"{name}/a/#", 2: f"{name}/+/x", 3: f"{name}/b/x"}
    reader = Actor(broker, name, MQTT_5, stays=True)
    for number, filter in filters.items():
        asked = Properties(subscription_identifiers=(number,))
        reader.send(Subscribe(number, (Subscription(filter, 1),), asked))
        reader.expect(Suback)
    with Actor(broker, name + "p", MQTT_5) as writer:
        for is_away in (False, True):
            if is_away:
                reader.close()
            for one in ("a/x", "b/x", "a/y", "b/y"):
                writer.publish(f"{name}/{one}", one.encode(), 1)
            if is_away:
                reader = Actor(broker, name, MQTT_5, stays=True)
            why = {}
            for _ in range(3):
                message = reader.receive()
                why[message.payload] = sorted(message.properties.subscription_identifiers)
            assert why == {b"a/x": [1, 2], b"b/x": [2, 3], b"a/y": [1]}
    reader.close()


def test_orders_that_came_too_late_are_not_carried_out(broker: Hosted, name: str) -> None:
    """Commands with an expiry to a device that is away: does it get those that still count?"""
    robot = Actor(broker, name, MQTT_5, stays=True)
    robot.subscribe(name, qos=2)
    robot.close()
    with Actor(broker, name + "p", MQTT_5) as writer:
        for packet_id, (order, expiry_s) in enumerate(
            (("stop", 1), ("turn", 600), ("go", None), ("wait", 1)), 1
        ):
            asked = Properties(message_expiry_interval=expiry_s)
            writer.send(Publish(name, order.encode(), 1, packet_id=packet_id, properties=asked))
            writer.expect(Puback)
        broker.wait_past_us(1_200_000)
    robot = Actor(broker, name, MQTT_5, stays=True)
    assert robot.receive_all(2) == [b"turn", b"go"]
    assert robot.settle() == []
    robot.close()


def test_chat_without_an_echo(broker: Hosted, name: str) -> None:
    """With no local, does everybody hear the others and nobody itself?"""
    talking = [Actor(broker, f"{name}{at}", MQTT_5) for at in range(4)]
    for client in talking:
        client.subscribe(Subscription(name, 1, no_local=True))
    for at, client in enumerate(talking):
        for qos in range(3):
            client.publish(name, b"%d" % at, qos)
    for at, client in enumerate(talking):
        others = sorted(b"%d" % other for other in range(4) if other != at) * 3
        assert sorted(client.receive_all(9)) == sorted(others)
        assert client.settle() == []
        client.close()
