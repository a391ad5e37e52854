"""Shared subscriptions of sessions that are kept: does a group and what is out survive absence?"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Disconnect,
    Packet,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.properties import Properties
from tests.doors.deliver.shared_members import burst, client, joined, members, messages, taken
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept, kept

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
QOS = pytest.mark.parametrize("qos", [0, 1, 2])


def test_qos_2_waits_for_the_session_that_was_being_sent_it(broker: Hosted, name: str) -> None:
    key = f"$share/g/{name}"
    with ExitStack() as stack:
        mine, _ = connect_kept(broker.port, name + "m", MQTT_5)
        mine.subscribe(key, qos=2)
        writer = stack.enter_context(client(broker, name))
        writer.publish_all(name, 2, 2)
        first, second = mine.expect(Publish), mine.expect(Publish)
        mine.send(Pubrec(first.packet_id))
        assert mine.expect(Pubrel).packet_id == first.packet_id
        mine.close()
        broker.wait_idle()
        (other,) = members(broker, stack, key, 1, 2)
        writer.publish(name, b"2", 2)
        assert other.receive().payload == b"2"
        assert other.settle() == []
        mine, present = connect_kept(broker.port, name + "m", MQTT_5)
        assert present
        assert mine.expect(Pubrel).packet_id == first.packet_id
        mine.send(Pubcomp(first.packet_id))
        again = mine.expect(Publish)
        assert (again.packet_id, again.payload, again.dup) == (second.packet_id, b"1", True)
        mine.acknowledge(again)
        assert (mine.settle(), other.settle()) == ([], [])
        mine.send(Unsubscribe(9, (key,)))
        mine.disconnect()


def test_qos_2_of_a_session_that_ends_goes_to_nobody_else(broker: Hosted, name: str) -> None:
    key = f"$share/g/{name}"
    before = broker.dropped["session_ended"]
    with ExitStack() as stack:
        dying, staying = members(broker, stack, key, 2, 2)
        writer = stack.enter_context(client(broker, name))
        writer.publish_all(name, 4, 2)
        assert len(messages(dying.settle())) == 2
        assert len(taken(staying)) == 2
        dying.close()
        broker.wait_idle()
        writer.publish(name, b"next", 2)
        assert staying.receive().payload == b"next"
        assert staying.settle() == []
    assert broker.dropped["session_ended"] == before + 2


def test_what_was_out_to_a_kept_session_that_is_wiped_goes_to_nobody(
    broker: Hosted, name: str
) -> None:
    """A clean start ends the session: QoS 2 with it, while QoS 1 went to another long before."""
    key = f"$share/g/{name}"
    with ExitStack() as stack:
        mine, _ = connect_kept(broker.port, name + "m", MQTT_5)
        mine.subscribe(key, qos=2)
        writer = stack.enter_context(client(broker, name))
        writer.publish(name, b"twice", 2)
        writer.publish(name, b"once", 1)
        assert [mine.expect(Publish).qos for _ in range(2)] == [2, 1]
        mine.close()
        (other,) = members(broker, stack, key, 1, 2)
        assert other.receive().payload == b"once"
        with client(broker, name + "m"):
            pass
        broker.wait_idle()
        writer.publish(name, b"next", 2)
        assert other.receive().payload == b"next"
        assert other.settle() == []


# Many packets in one write


def stored(data: Path) -> tuple[dict[str, int], list[str]]:
    """What the catalog on disk has: filters with their QoS, and the shares."""
    with sqlite3.connect(f"file:{data}/catalog.db?mode=ro", uri=True) as catalog:
        filters = dict(catalog.execute("select filter, qos from subscriptions").fetchall())
        shares = [filter for (filter,) in catalog.execute("select filter from shares").fetchall()]
    return filters, shares


def asked(packet_id: int, *wanted: tuple[str, int]) -> Subscribe:
    return Subscribe(packet_id, tuple(Subscription(filter, qos) for filter, qos in wanted))


@pytest.mark.parametrize(
    ("first", "then", "left"),
    [
        (asked(1, ("$share/g/x", 1), ("y", 1)), Unsubscribe(2, ("y",)), {"$share/g/x": 1}),
        (asked(1, ("$share/g/x", 1)), Unsubscribe(2, ("$share/g/x",)), {}),
        (asked(1, ("$share/g/x", 1)), asked(2, ("$share/g/x", 0)), {"$share/g/x": 0}),
    ],
)
def test_what_is_asked_for_behind_a_shared_subscription_is_done_after_it(
    tmp_path: Path, first: Packet, then: Packet, left: dict[str, int]
) -> None:
    """Answered in that order, and stored in that order: also in the catalog the last one counts."""
    with Hosted(tmp_path) as broker:
        wire, _ = connect_kept(broker.port, "c", MQTT_5)
        wire.send(first, then)
        answers = [wire.next(), wire.next()]
        assert [type(one) for one in answers] == [
            Unsuback if isinstance(one, Unsubscribe) else Suback for one in (first, then)
        ]
        assert [one.packet_id for one in answers] == [1, 2]
        wire.disconnect()
        broker.wait_idle()
        assert stored(tmp_path) == (left, list(left))


def test_client_that_joins_a_group_and_ends_its_session_in_one_write_leaves_nothing(
    tmp_path: Path,
) -> None:
    with Hosted(tmp_path) as broker:
        for _ in range(5):
            wire, present = connect_kept(broker.port, "c", MQTT_5)
            assert not present
            ending = Disconnect(properties=Properties(session_expiry_interval=0))
            wire.send(asked(1, ("$share/g/x", 1)), ending)
            while not wire.is_closed():
                pass
            wire.close()
            broker.wait_idle()
        assert broker.stored_sessions() == {}
        assert stored(tmp_path) == ({}, [])


# Behind


def test_a_group_with_full_windows_goes_on_from_the_log(broker: Hosted, name: str) -> None:
    key = f"$share/g/{name}"
    count = 3_000
    with ExitStack() as stack:
        readers = []
        for number in range(3):
            reader = stack.enter_context(client(broker, f"{name}{number}", window=10))
            reader.subscribe(key, qos=1)
            readers.append(reader)
        writer = stack.enter_context(client(broker, name))
        burst(writer, name, range(count), 1)
        share = broker.exchange.store.shares._by_key[key]
        assert broker.call(lambda: sum(group.count for group in share.groups.values())) == 30
        assert broker.call(lambda: list(share.lags.values()) != [])
        got: Counter[bytes] = Counter()
        while sum(got.values()) < count:
            for reader in readers:
                got.update(taken(reader))
        assert sorted(map(int, got)) == list(range(count)) and set(got.values()) == {1}
        assert broker.call(lambda: not share.is_behind)
        writer.publish(name, b"live", 1)
        assert joined(taken(reader) for reader in readers) == [b"live"]


@VERSIONS
def test_a_group_whose_members_are_all_away_keeps_its_position(
    tmp_path: Path, version: int
) -> None:
    """Also over a restart of the broker; and each message is given to whoever comes first."""
    key = "$share/g/a/#"
    with Hosted(tmp_path) as broker, client(broker, "writer") as writer:
        for number in range(2):
            wire, _ = connect_kept(broker.port, f"r{number}", version)
            wire.subscribe(key, qos=1)
            if number == 1:
                writer.publish_all("a/x", 2, 1)
                out = [wire.expect(Publish).payload for _ in range(2)]
                assert out == [b"0", b"1"]  # and not acknowledged
            wire.disconnect()
        for number in range(2, 20):
            writer.publish("a/x", b"%d" % number, number % 3)
    with Hosted(tmp_path) as broker:
        first, present = connect_kept(broker.port, "r0", version)
        assert present
        expected = [b"0", b"1"] + [b"%d" % number for number in range(2, 20) if number % 3]
        got = []
        while len(got) < len(expected):
            got.append(first.receive().payload)
        assert got == expected
        second, _ = connect_kept(broker.port, "r1", version)
        assert second.settle() == []
        with client(broker, "writer") as writer:
            writer.publish_all("a/y", 4, 1)
        assert (len(taken(first)), len(taken(second))) == (2, 2)


def test_a_kept_group_ends_when_its_last_session_expires(tmp_path: Path) -> None:
    key = "$share/g/a"
    with Hosted(tmp_path) as broker:
        with Wire(broker.port, "short", MQTT_5) as wire:
            wire.connect(properties=kept(1))
            wire.subscribe(key, qos=1)
        shares = broker.exchange.store.shares
        assert broker.call(lambda: len(shares)) == 1
        while broker.call(lambda: len(shares)):
            broker.wait_past_us(200_000)
        with client(broker, "writer") as writer:
            writer.publish("a", b"for nobody", 1)
            with client(broker, "new") as reader:
                reader.subscribe(key, qos=1)
                writer.publish("a", b"new", 1)
                assert reader.receive().payload == b"new"


def test_at_qos_0_nothing_is_kept_for_a_group_that_is_away(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, client(broker, "writer") as writer:
        wire, _ = connect_kept(broker.port, "r", MQTT_5)
        wire.subscribe("$share/g/a", qos=0)
        wire.disconnect()
        writer.publish("a", b"missed", 1)
        wire, present = connect_kept(broker.port, "r", MQTT_5)
        assert present
        writer.publish("a", b"live", 1)
        assert [one.payload for one in messages(wire.settle())] == [b"live"]


def test_what_is_out_at_qos_2_reaches_its_session_after_a_restart(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, client(broker, "writer") as writer:
        wire, _ = connect_kept(broker.port, "r", MQTT_5)
        wire.subscribe("$share/g/a", qos=2)
        other, _ = connect_kept(broker.port, "other", MQTT_5)
        other.subscribe("$share/g/a", qos=2)
        writer.publish_all("a", 2, 2)
        out = wire.expect(Publish)
        assert other.receive().payload != out.payload
        # Unsubscribed, the client still gets what was begun; the group waits for that alone.
        wire.send(Unsubscribe(5, ("$share/g/a",)))
        wire.expect(Unsuback)
        other.send(Unsubscribe(5, ("$share/g/a",)))
        other.expect(Unsuback)
    with Hosted(tmp_path) as broker:
        wire, present = connect_kept(broker.port, "r", MQTT_5)
        assert present
        again = wire.expect(Publish)
        assert (again.packet_id, again.payload, again.dup) == (out.packet_id, out.payload, True)
        wire.acknowledge(again)
        wire.settle()
        shares = broker.exchange.store.shares
        while broker.call(lambda: len(shares)):
            broker.wait_past_us(200_000)
        wire.disconnect()
