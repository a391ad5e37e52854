"""Messages between clients that stay connected: who gets what, how often, in which order?"""

from __future__ import annotations

import pytest

from penstock.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.doors.hosted import Hosted
from tests.scenarios.actors import BOTH, EACH_QOS, Actor, numbers


@EACH_QOS
def test_everybody_hears_everybody(broker: Hosted, name: str, qos: int) -> None:
    """Six clients of both versions talk at once: does each hear each message once, its own too?"""
    clients = [Actor(broker, f"{name}{at}", 4 + at % 2) for at in range(6)]
    for at, client in enumerate(clients):
        client.subscribe(f"{name}/#", qos=at % 3)
    for at, client in enumerate(clients):
        client.send(
            *[
                Publish(f"{name}/{at}", b"%d" % number, qos, packet_id=1 + number if qos else 0)
                for number in range(20)
            ]
        )
    for client in clients:
        heard: dict[str, list[bytes]] = {}
        while sum(map(len, heard.values())) < 120:
            packet = client.next()
            if isinstance(packet, Publish):
                heard.setdefault(packet.name, []).append(packet.payload)
                client.acknowledge(packet)
            elif isinstance(packet, Pubrec):
                client.send(Pubrel(packet.packet_id))
        assert list(heard.values()) == [numbers(0, 20)] * 6
        client.close()


@BOTH
@EACH_QOS
def test_long_stream_stays_in_order(broker: Hosted, name: str, version: int, qos: int) -> None:
    """A publisher does not wait for its answers: do 2,000 messages arrive whole and in order?"""
    with Actor(broker, name, version) as reader, Actor(broker, name + "p", version) as writer:
        reader.subscribe(name, qos=qos)
        for start in range(0, 2000, 500):
            writer.send(
                *[
                    Publish(name, b"%d" % number, qos, packet_id=1 + number if qos else 0)
                    for number in range(start, start + 500)
                ]
            )
            assert reader.receive_all(500) == numbers(start, start + 500)
        assert reader.settle() == []


@BOTH
def test_unsubscribing_ends_a_stream_at_its_answer(broker: Hosted, name: str, version: int) -> None:
    """Is nothing delivered behind the UNSUBACK, and nothing missing before it?"""
    with Actor(broker, name, version) as reader, Actor(broker, name + "p", version) as writer:
        reader.subscribe(name, qos=0)
        for _ in range(5):
            writer.send(*[Publish(name, payload) for payload in numbers(0, 50)])
            reader.unsubscribe(name)
            before = [packet for packet in reader.settle() if isinstance(packet, Publish)]
            writer.send(*[Publish(name, payload) for payload in numbers(50, 100)])
            writer.settle()
            assert reader.settle() == []
            got = [packet.payload for packet in before]
            assert got == numbers(0, len(got))
            reader.subscribe(name, qos=0)


@BOTH
def test_strongest_filter_goes_and_the_weaker_one_stays(
    broker: Hosted, name: str, version: int
) -> None:
    """Overlapping filters: one copy at the best QoS, and the next best when that is given back?"""
    with Actor(broker, name, version) as reader, Actor(broker, name + "p", version) as writer:
        filters = [(f"{name}/a/b", 2), (f"{name}/+/b", 1), (f"{name}/#", 0)]
        for filter, qos in filters:
            reader.subscribe(filter, qos=qos)
        for filter, qos in filters:
            writer.publish(f"{name}/a/b", b"x", 2)
            assert reader.receive().qos == qos
            assert reader.settle() == []
            reader.unsubscribe(filter)
        writer.publish(f"{name}/a/b", b"x", 2)
        assert reader.settle() == []


@BOTH
def test_one_bad_filter_spoils_no_other(broker: Hosted, name: str, version: int) -> None:
    """Subscribing to good and bad filters in one packet: do the good ones work?"""
    with Actor(broker, name, version) as reader:
        wanted = (f"{name}/a", f"{name}/#/b", f"{name}/c", "bad+", f"{name}/d")
        failed = [reason >= 0x80 for reason in reader.subscribe(*wanted, qos=1).reasons]
        assert failed == [False, True, False, True, False]
        for part in "acd":
            reader.publish(f"{name}/{part}", part.encode(), 1)
        assert reader.receive_all(3) == [b"a", b"c", b"d"]


@BOTH
def test_large_message_holds_its_place(broker: Hosted, name: str, version: int) -> None:
    """Four megabytes between small messages: does all of it arrive, in its order?"""
    large = bytes(range(256)) * 16_384
    with Actor(broker, name, version) as reader, Actor(broker, name + "p", version) as writer:
        reader.subscribe(name, qos=1)
        for number, payload in enumerate((b"before", large, b"after"), 1):
            writer.send(Publish(name, payload, 1, packet_id=number))
        assert reader.receive_all(3) == [b"before", large, b"after"]
        assert [writer.expect(Puback).packet_id for _ in range(3)] == [1, 2, 3]


@BOTH
def test_qos_2_released_in_any_order(broker: Hosted, name: str, version: int) -> None:
    """A publisher holds fifty QoS 2 messages open and releases them backwards: one copy each?"""
    with Actor(broker, name, version) as reader, Actor(broker, name + "p", version) as writer:
        reader.subscribe(name, qos=2)
        packets = [Publish(name, b"%d" % n, 2, packet_id=1 + n) for n in range(50)]
        writer.send(*packets)
        assert [writer.expect(Pubrec).packet_id for _ in range(50)] == list(range(1, 51))
        writer.send(*packets[::7])  # somebody believes they were lost
        for packet in packets[::7]:
            assert writer.expect(Pubrec).packet_id == packet.packet_id
        writer.send(*[Pubrel(packet_id) for packet_id in range(50, 0, -1)])
        assert [writer.expect(Pubcomp).packet_id for _ in range(50)] == list(range(50, 0, -1))
        assert reader.receive_all(50) == numbers(0, 50)
        assert reader.settle() == []


@BOTH
def test_names_of_several_logs_reach_one_reader(broker: Hosted, name: str, version: int) -> None:
    """Names that are stored in different topics: does one subscription bring them all, in order?"""
    topics = [f"{name}{at}" for at in range(3)]
    for topic in topics:
        broker.run(lambda server, topic=topic: server.broker.create_topic(topic))
    with Actor(broker, name, version) as reader, Actor(broker, name + "p", version) as writer:
        reader.subscribe("+/line", qos=1)
        for number in range(30):
            writer.publish(f"{topics[number % 3]}/line", b"%d" % number, 1)
        heard: dict[str, list[int]] = {}
        for _ in range(30):
            message = reader.receive()
            heard.setdefault(message.name, []).append(int(message.payload))
        assert heard == {f"{topic}/line": list(range(at, 30, 3)) for at, topic in enumerate(topics)}


@pytest.mark.parametrize("reading", [4, 5])
@pytest.mark.parametrize("writing", [4, 5])
def test_names_that_begin_with_a_dollar_stay_among_those_who_ask(
    broker: Hosted, name: str, reading: int, writing: int
) -> None:
    """Does `#` leave them out and `$name/#` bring them, also after a time away?"""
    all_of_it = Actor(broker, name, reading, stays=True)
    all_of_it.subscribe(f"+/{name}/#", qos=1)
    asking = Actor(broker, name + "2", reading, stays=True)
    asking.subscribe(f"$my/{name}/#", qos=1)
    with Actor(broker, name + "p", writing) as writer:
        for turn in range(2):
            writer.publish(f"$my/{name}/x", b"hidden %d" % turn, 1)
            writer.publish(f"my/{name}/x", b"plain %d" % turn, 1)
            if turn == 0:
                assert (all_of_it.heard(), asking.heard()) == ([b"plain 0"], [b"hidden 0"])
                all_of_it.close(), asking.close()
    all_of_it = Actor(broker, name, reading, stays=True)
    asking = Actor(broker, name + "2", reading, stays=True)
    assert (all_of_it.receive().payload, asking.receive().payload) == (b"plain 1", b"hidden 1")
    assert all_of_it.heard() == asking.heard() == []
    all_of_it.close(), asking.close()
