"""Shared subscriptions: does each message go to one member, whoever comes, goes or says nothing?"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.deliver.shared_members import burst, client, joined, members, messages, taken
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
QOS = pytest.mark.parametrize("qos", [0, 1, 2])


def test_connack_says_that_shared_subscriptions_are_there(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as wire:
        assert wire.connect().properties.shared_subscription_available == 1


@QOS
def test_each_message_goes_to_one_member_and_all_members_take_turns(
    broker: Hosted, name: str, qos: int
) -> None:
    with ExitStack() as stack:
        readers = members(broker, stack, f"$share/g/{name}", 3, qos)
        writer = stack.enter_context(client(broker, name))
        writer.publish_all(name, 9, qos)
        got = [taken(reader) for reader in readers]
        assert [len(one) for one in got] == [3, 3, 3]
        assert sorted(joined(got)) == sorted(b"%d" % number for number in range(9))
        assert all(one == sorted(one) for one in got)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_burst_is_spread_over_all_members(broker: Hosted, name: str, qos: int) -> None:
    with ExitStack() as stack:
        readers = members(broker, stack, f"$share/g/{name}", 4, 1)
        writer = stack.enter_context(client(broker, name))
        burst(writer, name, range(64), qos)
        got = [taken(reader) for reader in readers]
        assert [len(one) for one in got] == [16, 16, 16, 16]
        assert sorted(map(int, joined(got))) == list(range(64))


def test_two_groups_and_a_plain_subscription_each_get_everything(broker: Hosted, name: str) -> None:
    with ExitStack() as stack:
        one = members(broker, stack, f"$share/one/{name}/#", 2, 1)
        two = members(broker, stack, f"$share/two/{name}/#", 3, 1)
        other = members(
            broker, stack, f"$share/one/{name}/+", 1, 1
        )  # another filter: another group
        plain = stack.enter_context(client(broker, name + "r"))
        plain.subscribe(f"{name}/#", qos=1)
        writer = stack.enter_context(client(broker, name))
        writer.publish_all(f"{name}/x", 12, 1)
        expected = sorted(b"%d" % number for number in range(12))
        for readers in (one, two, other, [plain]):
            assert sorted(joined(taken(reader) for reader in readers)) == expected


def test_a_member_that_also_subscribes_plainly_gets_both_copies_with_their_identifiers(
    broker: Hosted, name: str
) -> None:
    with client(broker, name) as wire:
        for identifier, filter in ((7, f"$share/g/{name}"), (8, name)):
            asked = Properties(subscription_identifiers=(identifier,))
            wire.send(Subscribe(wire.take_id(), (Subscription(filter, 1),), asked))
            wire.expect(Suback)
        with client(broker, name + "w") as writer:
            writer.publish(name, b"x", 1)
        found = messages(wire.settle())
        identifiers = [one.properties.subscription_identifiers for one in found]
        assert sorted(identifiers) == [(7,), (8,)]
        assert len({one.packet_id for one in found}) == 2
        wire.send(*[Puback(one.packet_id) for one in found])


def test_members_may_have_different_qos_and_versions(broker: Hosted, name: str) -> None:
    with ExitStack() as stack:
        key = f"$share/g/{name}"
        readers = []
        for qos, version in ((0, MQTT_5), (1, MQTT_3_1_1), (2, MQTT_5)):
            reader = stack.enter_context(client(broker, f"{name}{qos}", version))
            assert reader.subscribe(key, qos=qos).reasons == (Reason(qos),)
            readers.append(reader)
        writer = stack.enter_context(client(broker, name))
        writer.publish_all(name, 6, 2)
        got = [messages(reader.settle()) for reader in readers]
        assert [[one.qos for one in found] for found in got] == [[0, 0], [1, 1], [2, 2]]
        assert len({one.payload for found in got for one in found}) == 6


def test_nobody_is_given_retained_messages(broker: Hosted, name: str) -> None:
    with client(broker, name) as wire, client(broker, name + "w") as writer:
        writer.publish(name, b"old", 1, retain=True)
        wire.subscribe(f"$share/g/{name}", qos=1)
        assert wire.settle() == []
        writer.publish(name, b"new", 1, retain=True)
        message = wire.receive()
        assert (message.payload, message.retain) == (b"new", False)
        writer.publish(name, b"", 1, retain=True)


@pytest.mark.parametrize(
    "filter",
    [
        "$share/",
        "$share/g",
        "$share/g/",
        "$share//x",
        "$share/a+/x",
        "$share/#/x",
        "$share/g/a/#/b",
    ],
)
def test_a_shared_filter_that_is_none_is_refused(broker: Hosted, name: str, filter: str) -> None:
    with client(broker, name) as new, client(broker, name + "o", MQTT_3_1_1) as old:
        assert new.subscribe(filter).reasons == (Reason.TOPIC_FILTER_INVALID,)
        assert [int(reason) for reason in old.subscribe(filter).reasons] == [0x80]


# Coming and going


def test_who_unsubscribes_gets_nothing_more_and_the_others_everything(
    broker: Hosted, name: str
) -> None:
    key = f"$share/g/{name}"
    with ExitStack() as stack:
        first, second = members(broker, stack, key, 2, 1)
        writer = stack.enter_context(client(broker, name))
        writer.publish_all(name, 4, 1)
        assert (len(taken(first)), len(taken(second))) == (2, 2)
        first.send(Unsubscribe(first.take_id(), (key, "$share/h/" + name)))
        reasons = first.expect(Unsuback).reasons
        assert reasons == (Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)
        writer.publish_all(name, 4, 1)
        assert (len(taken(first)), len(taken(second))) == (0, 4)


def test_a_group_ends_with_its_last_member_and_a_new_one_begins_at_the_end(
    broker: Hosted, name: str
) -> None:
    key = f"$share/g/{name}"
    shares = broker.exchange.store.shares
    before = broker.call(lambda: len(shares))
    with ExitStack() as stack:
        (reader,) = members(broker, stack, key, 1, 1)
        writer = stack.enter_context(client(broker, name))
        writer.publish(name, b"never acknowledged", 1)
        reader.expect(Publish)
        reader.send(Unsubscribe(reader.take_id(), (key,)))
        reader.expect(Unsuback)
        assert broker.call(lambda: len(shares)) == before
        writer.publish(name, b"for nobody", 1)
        reader.subscribe(key, qos=1)
        writer.publish(name, b"new", 1)
        assert reader.expect(Publish).payload == b"new"
    broker.wait_idle()
    assert broker.call(lambda: len(shares)) == before
    assert broker.call(lambda: [one for one in shares._of if one.startswith(key)]) == []
    assert broker.call(lambda: [one for one in shares.behind if one.key == key]) == []


def test_subscribing_again_with_another_qos_replaces_and_loses_nothing(
    broker: Hosted, name: str
) -> None:
    key = f"$share/g/{name}"
    with ExitStack() as stack:
        (reader,) = members(broker, stack, key, 1, 1)
        writer = stack.enter_context(client(broker, name))
        writer.publish(name, b"0", 2)
        assert reader.expect(Publish).qos == 1
        assert reader.subscribe(key, qos=2).reasons == (Reason.GRANTED_QOS_2,)
        writer.publish(name, b"1", 2)
        second = reader.expect(Publish)
        assert (second.qos, second.payload) == (2, b"1")
        assert reader.settle() == []


@VERSIONS
def test_what_a_dying_member_had_not_acknowledged_goes_to_another(
    broker: Hosted, name: str, version: int
) -> None:
    key = f"$share/g/{name}"
    with ExitStack() as stack:
        dying = client(broker, name + "d", version)
        dying.subscribe(key, qos=1)
        (other,) = members(broker, stack, key, 1, 1)
        writer = stack.enter_context(client(broker, name))
        writer.publish_all(name, 10, 1)
        mine = messages(dying.settle())
        dying.send(Puback(mine[0].packet_id))
        dying.settle()
        dying.close()
        expected = {b"%d" % number for number in range(10)} - {mine[0].payload}
        got: list[bytes] = []
        while len(got) < 9:
            message = other.receive()
            assert not message.dup  # it is new to this client
            got.append(message.payload)
        assert set(got) == expected and other.settle() == []


def test_a_member_that_never_acknowledges_stalls_nobody(broker: Hosted, name: str) -> None:
    key = f"$share/g/{name}"
    with ExitStack() as stack:
        silent = stack.enter_context(client(broker, name + "s", window=5))
        silent.subscribe(key, qos=1)
        (busy,) = members(broker, stack, key, 1, 1)
        writer = stack.enter_context(client(broker, name))
        held: list[bytes] = []
        got: list[bytes] = []
        for number in range(50):
            writer.publish(name, b"%d" % number, 1)
            held += [one.payload for one in messages(silent.settle())]
            got += taken(busy)
        assert len(held) == 5 and len(got) == 45
        silent.close()
        while len(got) < 50:
            got.append(busy.receive().payload)
        assert sorted(map(int, got)) == list(range(50))


@pytest.mark.parametrize("qos", [0, 1])
def test_a_member_that_does_not_read_is_passed_over(broker: Hosted, name: str, qos: int) -> None:
    key = f"$share/g/{name}"
    before = broker.dropped["queue_full"]
    count, payload = 400, b"x" * 65_536
    with ExitStack() as stack:
        (busy,) = members(broker, stack, key, 1, 1)
        asleep = stack.enter_context(client(broker, name + "a"))
        asleep.take_slowly()
        asleep.subscribe(key, qos=1)
        writer = stack.enter_context(client(broker, name))
        got: Counter[bytes] = Counter()
        for number in range(count):
            writer.publish(name, b"%d " % number + payload, qos)
            writer.settle()
            got.update(message[:10] for message in taken(busy))
        assert len(got) > count * 5 // 8  # half of all until the other's connection was full
        assert broker.dropped["queue_full"] == before
        asleep.close()
        if qos == 1:
            while len(got) < count:
                got[busy.receive().payload[:10]] += 1
            assert busy.settle() == []
        assert set(got.values()) == {1}


@pytest.mark.parametrize("qos", [1, 2])
def test_an_error_acknowledgement_discards_for_everybody(
    broker: Hosted, name: str, qos: int
) -> None:
    key = f"$share/g/{name}"
    with ExitStack() as stack:
        readers = members(broker, stack, key, 2, qos)
        writer = stack.enter_context(client(broker, name))
        writer.publish(name, b"unwanted", qos)
        found = [messages(one.settle()) for one in readers]
        refusing, other = readers if found[0] else reversed(readers)
        (message,) = found[0] or found[1]
        answer = Puback if qos == 1 else Pubrec
        refusing.send(answer(message.packet_id, Reason.UNSPECIFIED_ERROR))
        assert refusing.settle() == []
        refusing.close()
        writer.publish(name, b"next", qos)
        assert other.receive().payload == b"next"
        assert other.settle() == []
