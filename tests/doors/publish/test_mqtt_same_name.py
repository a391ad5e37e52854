"""The broker keeps the route of the last name of a client: it is the one it would find anew."""

from __future__ import annotations

import pytest

from tests.doors.hosted import Hosted
from tests.doors.wire import Wire


@pytest.mark.parametrize("qos", [0, 1])
def test_readers_that_come_and_go_between_two_messages_of_one_name_are_noticed(
    broker: Hosted, name: str, qos: int
) -> None:
    with Wire(broker.port, f"{name}-p") as publisher, Wire(broker.port, f"{name}-1") as first:
        publisher.connect()
        publisher.publish(name, b"nobody", qos)
        publisher.settle()
        first.connect()
        first.subscribe(name)
        publisher.publish(name, b"one", qos)
        assert first.receive().payload == b"one"
        with Wire(broker.port, f"{name}-2") as second:
            second.connect()
            second.subscribe(name)
            publisher.publish(name, b"two", qos)
            assert [first.receive().payload, second.receive().payload] == [b"two", b"two"]
            second.disconnect()
        publisher.publish(name, b"one again", qos)
        assert first.receive().payload == b"one again"


@pytest.mark.parametrize("qos", [0, 1])
def test_names_that_change_with_every_message_reach_their_own_readers(
    broker: Hosted, name: str, qos: int
) -> None:
    with (
        Wire(broker.port, f"{name}-p") as publisher,
        Wire(broker.port, f"{name}-a") as reader,
        Wire(broker.port, f"{name}-é") as other,
    ):
        publisher.connect()
        for wire, leaf in ((reader, "a"), (other, "é")):
            wire.connect()
            wire.subscribe(f"{name}/{leaf}")
        for number in range(3):
            for leaf in ("a", "é", "é"):
                publisher.publish(f"{name}/{leaf}", b"%d" % number, qos)
                publisher.settle()  # each comes to the broker on its own
        assert [reader.receive().payload for _ in range(3)] == [b"0", b"1", b"2"]
        taken = [other.receive() for _ in range(6)]
        assert {one.name for one in taken} == {f"{name}/é"}
        assert [one.payload for one in taken] == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_a_name_that_is_bound_between_two_messages_is_stored_in_its_new_topic(
    broker: Hosted, name: str
) -> None:
    topic = name.lower()[:40]
    topics = broker.exchange.engine.topics
    with Wire(broker.port, f"{name}-p") as publisher:
        publisher.connect()
        publisher.publish(f"{name}/x", b"before", 1)
        publisher.settle()
        broker.run(lambda server: server.broker.create_topic(topic))
        broker.run(lambda server: server.broker.bind(f"{name}/#", topic))
        publisher.publish(f"{name}/x", b"after", 1)
        publisher.settle()
        assert broker.call(lambda: topics.get(topic).log.bounds().end) == 1
