"""Clients that come and go: what do they find when they are back?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.doors.hosted import Hosted
from tests.scenarios.actors import BOTH, Actor, numbers, seeded


@BOTH
def test_telephone_in_a_tunnel_misses_nothing(broker: Hosted, name: str, version: int) -> None:
    """A reader that loses its connection again and again: does every message come, in order?"""
    chance = seeded()
    reader = Actor(broker, name, version, stays=True)
    reader.subscribe(name, qos=1)
    got: list[bytes] = []
    with Actor(broker, name + "p", version) as writer:
        for number in range(60):
            writer.publish(name, b"%d" % number, 1)
            if chance.random() < 0.4:
                for packet in reader.settle():
                    assert isinstance(packet, Publish)
                    if packet.payload not in got:
                        got.append(packet.payload)
                    if chance.random() < 0.7:
                        reader.send(Puback(packet.packet_id))
                reader.settle() if chance.random() < 0.5 else None
                reader.close()
                reader = Actor(broker, name, version, stays=True)
                assert reader.was_known
    for payload in reader.heard():
        if payload not in got:
            got.append(payload)
    assert got == numbers(0, 60)
    reader.close()


@BOTH
def test_reader_in_a_tunnel_takes_each_qos_2_message_once(
    broker: Hosted, name: str, version: int
) -> None:
    """The connection breaks at any step of the handshake: is each message new exactly once?"""
    chance = seeded()
    reader = Actor(broker, name, version, stays=True)
    reader.subscribe(name, qos=2)
    open_ids: dict[int, bytes] = {}
    taken: list[bytes] = []

    def hear(reader: Actor) -> None:
        for packet in reader.settle():
            if isinstance(packet, Publish):
                if packet.packet_id not in open_ids:
                    open_ids[packet.packet_id] = packet.payload
                    taken.append(packet.payload)
                assert open_ids[packet.packet_id] == packet.payload
                reader.send(Pubrec(packet.packet_id))
            else:
                assert isinstance(packet, Pubrel)
                open_ids.pop(packet.packet_id, None)
                reader.send(Pubcomp(packet.packet_id))

    with Actor(broker, name + "p", version) as writer:
        for number in range(40):
            writer.publish(name, b"%d" % number, 2)
            for _ in range(chance.randrange(3)):
                hear(reader)
            if chance.random() < 0.4:
                reader.close()
                reader = Actor(broker, name, version, stays=True)
    while len(taken) < 40 or open_ids:
        hear(reader)
    assert taken == numbers(0, 40)
    reader.close()


@BOTH
def test_writer_in_a_tunnel_has_each_qos_2_message_stored_once(
    broker: Hosted, name: str, version: int
) -> None:
    """A publisher repeats whatever was not answered: does each message arrive exactly once?"""
    chance = seeded()
    writer = Actor(broker, name + "p", version, stays=True)
    with Actor(broker, name, version) as reader:
        reader.subscribe(name, qos=2)
        for number in range(40):
            packet = Publish(name, b"%d" % number, 2, packet_id=1 + number % 3)
            for step, answer in ((packet, Pubrec), (Pubrel(packet.packet_id), Pubcomp)):
                writer.send(step)
                while chance.random() < 0.3:  # is it lost? then it comes again
                    if chance.random() < 0.5:
                        writer.pick(answer, packet.packet_id)
                    writer.close()
                    writer = Actor(broker, name + "p", version, stays=True)
                    if isinstance(step, Publish):
                        step = Publish(name, step.payload, 2, dup=True, packet_id=step.packet_id)
                    writer.send(step)
                writer.pick(answer, packet.packet_id)
        assert reader.receive_all(40) == numbers(0, 40)
        assert reader.settle() == []
    writer.close()


@BOTH
def test_many_away_find_what_is_theirs(broker: Hosted, name: str, version: int) -> None:
    """Ten clients with filters of their own are away: does each find its messages and no others?"""
    for at in range(10):
        away = Actor(broker, f"{name}{at}", version, stays=True)
        away.subscribe(f"{name}/{at}", f"{name}/even" if at % 2 == 0 else f"{name}/odd", qos=1)
        away.close()
    with Actor(broker, name + "p", version) as writer:
        for number in range(50):
            writer.publish(f"{name}/{number % 10}", b"%d" % number, 1 + number % 2)
        writer.publish(f"{name}/even", b"even", 1)
        writer.publish(f"{name}/odd", b"odd", 2)
    for at in range(10):
        back = Actor(broker, f"{name}{at}", version, stays=True)
        assert back.was_known
        expected = [b"%d" % number for number in range(at, 50, 10)]
        assert back.receive_all(6) == [*expected, b"even" if at % 2 == 0 else b"odd"]
        assert back.settle() == []
        back.close()


@BOTH
def test_newcomer_goes_on_where_the_older_connection_was(
    broker: Hosted, name: str, version: int
) -> None:
    """A second device logs in with the same id: does it get what the first had not acknowledged?"""
    older = Actor(broker, name, version, stays=True)
    older.subscribe(name, qos=1)
    with Actor(broker, name + "p", version) as writer:
        writer.publish_all(name, 10, qos=1)
        first = [older.expect(Publish) for _ in range(10)]
        older.send(*[Puback(one.packet_id) for one in first[:4]])
        older.settle()
        newer = Actor(broker, name, version, stays=True)
        assert newer.was_known
        again = [newer.expect(Publish) for _ in range(6)]
        assert [one.payload for one in again] == numbers(4, 10)
        assert all(one.dup for one in again)
        newer.send(*[Puback(one.packet_id) for one in again])
        writer.publish(name, b"10", 1)
        assert newer.receive().payload == b"10"
    older.close(), newer.close()


@BOTH
def test_clean_visit_leaves_nothing_behind(broker: Hosted, name: str, version: int) -> None:
    """Kept, then clean, then kept again: is there a trace of the first session in the third?"""
    first = Actor(broker, name, version, stays=True)
    first.subscribe(f"{name}/#", qos=2)
    with Actor(broker, name + "p", version) as writer:
        writer.publish(f"{name}/1", b"unacknowledged", 2)
        first.expect(Publish)
        first.send(Publish(f"{name}/own", b"half", 2, packet_id=9))
        first.pick(Pubrec, 9)
        first.close()
        writer.publish(f"{name}/2", b"missed", 1)
        with Actor(broker, name, version) as clean:
            assert not clean.was_known
            clean.disconnect()
        third = Actor(broker, name, version, stays=True)
        assert not third.was_known and third.heard() == []
        third.subscribe(f"{name}/own", qos=2)
        third.send(Publish(f"{name}/own", b"new", 2, packet_id=9))
        third.pick(Pubrec, 9)
        assert third.pick(Publish).payload == b"new"
    third.close()


@BOTH
def test_broker_restart_in_the_middle_of_everything(tmp_path: Path, version: int) -> None:
    """Open handshakes both ways, messages away: does all of it go on after a restart?"""
    with Hosted(tmp_path) as broker:
        reader = Actor(broker, "reader", version, stays=True)
        reader.subscribe("a/#", qos=2)
        writer = Actor(broker, "writer", version, stays=True)
        writer.send(Publish("a/own", b"half", 2, packet_id=7))
        writer.expect(Pubrec)
        assert reader.receive().payload == b"half"
        writer.publish("a/1", b"released", 2)
        released = reader.expect(Publish)
        reader.send(Pubrec(released.packet_id))
        reader.expect(Pubrel)
        writer.publish("a/2", b"sent", 2)
        sent = reader.expect(Publish)
        writer.publish("a/3", b"kept", 1, retain=True)
    with Hosted(tmp_path) as broker:
        reader = Actor(broker, "reader", version, stays=True)
        assert reader.was_known
        again = reader.pick(Publish)
        assert (again.payload, again.packet_id, again.dup) == (b"sent", sent.packet_id, True)
        assert reader.pick(Pubrel, released.packet_id)
        reader.send(Pubcomp(released.packet_id))
        reader.acknowledge(again)
        assert reader.pick(Publish).payload == b"kept"
        writer = Actor(broker, "writer", version, stays=True)
        writer.send(Publish("a/own", b"half", 2, dup=True, packet_id=7))
        assert writer.expect(Pubrec).packet_id == 7
        writer.send(Pubrel(7))
        assert writer.expect(Pubcomp).packet_id == 7
        assert [one for one in reader.settle() if isinstance(one, Publish)] == []
        reader.close(), writer.close()


@BOTH
def test_changed_subscription_is_the_one_that_comes_back(
    broker: Hosted, name: str, version: int
) -> None:
    """A filter is made stronger, another given back: is that what the session has later?"""
    reader = Actor(broker, name, version, stays=True)
    reader.subscribe(f"{name}/a", f"{name}/b", qos=1)
    reader.subscribe(f"{name}/a", qos=2)
    reader.unsubscribe(f"{name}/b")
    reader.subscribe(f"{name}/c", qos=1)
    reader.close()
    with Actor(broker, name + "p", version) as writer:
        for part in "abc":
            writer.publish(f"{name}/{part}", part.encode(), 2)
    reader = Actor(broker, name, version, stays=True)
    got = [reader.receive() for _ in range(2)]
    assert [(one.payload, one.qos) for one in got] == [(b"a", 2), (b"c", 1)]
    assert reader.settle() == []
    reader.close()


@pytest.mark.parametrize("expiry_s", [1, 3600])
def test_who_is_away_too_long_begins_anew(broker: Hosted, name: str, expiry_s: int) -> None:
    """Is a session there within its expiry, and gone with its messages after it?"""
    reader = Actor(broker, name, MQTT_5, stays=True, session_expiry_interval=expiry_s)
    reader.subscribe(name, qos=1)
    reader.close()
    with Actor(broker, name + "p", MQTT_5) as writer:
        writer.publish(name, b"while away", 1)
        if expiry_s == 1:
            broker.wait_past_us(2_200_000)
        reader = Actor(broker, name, MQTT_5, stays=True)
        assert reader.was_known is (expiry_s > 1)
        assert reader.heard() == ([b"while away"] if expiry_s > 1 else [])
    reader.close()
