"""PUBLISH: its flags, its answer, and who is handed the message in which shape."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from penstock.core.naming.names import matches
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe
from penstock.mqtt.packets import Subscription as Wanted
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import BOTH, come_back, join
from tests.doors.hosted import Hosted


@BOTH
def test_dup_at_qos_0_is_malformed_and_never_sent(broker: Hosted, name: str, version: int) -> None:
    """Is DUP 0 in all QoS 0 messages, those of the broker and those it takes?"""
    with join(broker, name, version) as client:
        client.subscribe(name)
        for flags, packet_id in ((0, None), (spelled.QOS_1 | 8, 1), (spelled.QOS_2 | 8, 2)):
            packet = spelled.publish(version, name, b"x", flags=flags, packet_id=packet_id)
            client.send_bytes(packet)
            client.pick(Publish)
            assert client.raw[0] == 0x30
    with join(broker, name, version) as client:
        client.send_bytes(spelled.publish(version, name, b"x", flags=8))
        client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_of_the_publisher_is_not_handed_on(
    broker: Hosted, name: str, version: int, qos: int
) -> None:
    """Has a message that its publisher repeats no DUP at a subscriber who gets it first now?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(name, qos=2)
        writer.send(Publish(name, b"x", qos, dup=True, packet_id=9))
        message = client.receive()
        assert (message.payload, message.qos, message.dup) == (b"x", qos, False)


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_message_sent_again_has_dup(broker: Hosted, name: str, version: int, qos: int) -> None:
    """Is DUP 0 at the first delivery and 1 at every later one?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(name, qos=qos)
    with join(broker, name + "p", version) as writer:
        writer.publish(name, b"x", qos)
    first_bytes = []
    for _ in range(3):
        client.pick(Publish)
        first_bytes.append(client.raw[0])
        client.close()
        client, _ = come_back(broker, name, version)
    assert first_bytes == [0x30 | qos << 1, 0x38 | qos << 1, 0x38 | qos << 1]
    client.close()


@BOTH
@pytest.mark.parametrize("flags", [6, 7, 14, 15])
def test_qos_3_closes(broker: Hosted, name: str, version: int, flags: int) -> None:
    """Is a PUBLISH with both QoS bits set malformed?"""
    with join(broker, name, version) as client:
        client.send_bytes(spelled.publish(version, name, b"x", flags=flags, packet_id=1))
        client.assert_ended(Reason.MALFORMED_PACKET)


@BOTH
@pytest.mark.parametrize("wrong", ["#", "+", "a/#", "a/+/b", "a#", "+a"])
def test_name_with_a_wildcard_closes(broker: Hosted, name: str, version: int, wrong: str) -> None:
    """Are wildcards for filters only?"""
    with join(broker, name, version) as client, join(broker, name + "w", version) as witness:
        witness.subscribe(f"{name}/#", qos=1)
        client.send_bytes(spelled.publish(version, f"{name}/{wrong}", b"x"))
        client.assert_ended(Reason.TOPIC_NAME_INVALID)
        assert witness.settle() == []


@BOTH
def test_name_that_is_sent_matches_the_filter(broker: Hosted, name: str, version: int) -> None:
    """Does each subscriber get exactly the names that its filter matches, and get them as names?"""
    names = ["a", "a/b", "a/b/c", "b", "/a", "a/", "a//c", "b/b", "A"]
    filters = ["a", "a/+", "a/#", "+", "+/b", "#", "a/+/c", "/+", "+/+", "b/#"]
    readers = {filter: join(broker, f"{name}{at}", version) for at, filter in enumerate(filters)}
    for filter, reader in readers.items():
        reader.subscribe(f"{name}/{filter}")
    with join(broker, name + "p", version) as writer:
        for one in names:
            writer.publish(f"{name}/{one}", one.encode())
        writer.publish(f"{name}/end", b"", 1)
    for filter, reader in readers.items():
        got = [packet.name for packet in reader.settle() if isinstance(packet, Publish)]
        wanted = [one for one in (*names, "end") if _matches(filter, one)]
        assert got == [f"{name}/{one}" for one in wanted], filter
        reader.close()


def _matches(filter: str, name: str) -> bool:
    return matches(f"x/{filter}", f"x/{name}")


@BOTH
def test_answer_depends_on_the_qos(broker: Hosted, name: str, version: int) -> None:
    """Is a message answered with nothing, PUBACK or PUBREC, and a PUBREL with PUBCOMP?"""
    with join(broker, name, version) as client:
        client.send(Publish(name, b"x"))
        assert client.settle() == []
        client.send(Publish(name, b"x", 1, packet_id=1))
        assert client.expect(Puback).packet_id == 1
        client.send(Publish(name, b"x", 2, packet_id=2))
        assert client.expect(Pubrec).packet_id == 2
        client.send(Pubrel(2))
        assert client.expect(Pubcomp).packet_id == 2
        assert client.settle() == []


@BOTH
def test_overlapping_filters_bring_the_highest_qos(broker: Hosted, name: str, version: int) -> None:
    """Does a message that several filters match come at the highest QoS they allow, and once?"""
    for at, qos in enumerate(itertools.permutations((0, 1, 2))):
        here = f"{name}/{at}"
        with join(broker, name, version) as client:
            for filter, allowed in zip((f"{here}/+", f"{here}/#", f"{here}/x"), qos, strict=True):
                client.subscribe(filter, qos=allowed)
            client.publish(f"{here}/x", b"x", 2)
            assert client.receive().qos == 2
            assert client.settle() == []


def test_one_copy_has_the_identifiers_of_all_filters_that_match(broker: Hosted, name: str) -> None:
    """Has it every identifier there is, and none of a filter that does not match?"""
    with join(broker, name) as client:
        for identifier, filter in ((1, "+"), (268_435_455, "#"), (0, "a"), (3, "b")):
            asked = Properties(subscription_identifiers=(identifier,) if identifier else ())
            client.send(Subscribe(1, (Wanted(f"{name}/{filter}", 1),), asked))
            client.expect(Suback)
        for qos in (0, 1):
            client.publish(f"{name}/a", b"x", qos)
            message = client.receive()
            assert sorted(message.properties.subscription_identifiers) == [1, 268_435_455]
        assert client.settle() == []


def test_identifier_of_the_single_filter_that_matches_comes_along(
    broker: Hosted, name: str
) -> None:
    """Is it that of the newest SUBSCRIBE of the filter, and gone if that had none?"""
    with join(broker, name) as client:
        for identifiers in ((5,), (6,), ()):
            asked = Properties(subscription_identifiers=identifiers)
            client.send(Subscribe(1, (Wanted(name, 0),), asked))
            client.expect(Suback)
            client.publish(name, b"x")
            assert client.receive().properties.subscription_identifiers == identifiers


def test_client_may_not_send_a_subscription_identifier(broker: Hosted, name: str) -> None:
    """Is a PUBLISH with a subscription identifier a protocol error?"""
    with join(broker, name) as client:
        client.send_bytes(spelled.publish(MQTT_5, name, b"x", said=b"\x0b\x01"))
        client.assert_ended(Reason.PROTOCOL_ERROR)


def test_message_that_may_not_be_published_before_mqtt_5_closes(broker: Hosted, name: str) -> None:
    """Is 3.1.1, which cannot be told of a refusal, closed rather than acknowledged?"""
    for qos in (1, 2):
        with join(broker, name, MQTT_3_1_1) as client:
            client.send(Publish("$SYS/forbidden", b"x", qos, packet_id=1))
            assert client.ends_without_a_word()


def test_messages_of_one_publisher_stay_in_order(broker: Hosted, name: str) -> None:
    """Do messages of a name come in the order in which each publisher sent them, at each QoS?"""
    writers = [join(broker, f"{name}{at}", 4 + at % 2) for at in range(4)]
    readers = [join(broker, f"{name}r{at}", 4 + at % 2) for at in range(4)]
    for at, reader in enumerate(readers):
        reader.subscribe(name, qos=1 + at % 2)
    for turn in range(100):
        for at, writer in enumerate(writers):
            payload = b"%d %d" % (at, turn)
            writer.send(Publish(name, payload, 1 + at % 2, packet_id=1 + turn))
    for reader in readers:
        got: dict[bytes, list[int]] = {}
        for _ in range(400):
            at, turn = reader.receive().payload.split()
            got.setdefault(at, []).append(int(turn))
        assert list(got.values()) == [list(range(100))] * 4
    for one in (*writers, *readers):
        one.close()


@BOTH
def test_order_holds_for_what_is_sent_again(broker: Hosted, name: str, version: int) -> None:
    """Are unacknowledged messages sent again in their first order, before anything newer?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(name, qos=2)
    with join(broker, name + "p", version) as writer:
        for number in range(10):
            writer.publish(name, b"%d" % number, 1 + number % 2)
        sent = [client.expect(Publish) for _ in range(10)]
        client.send(Puback(sent[4].packet_id), Pubrec(sent[7].packet_id))
        assert client.expect(Pubrel).packet_id == sent[7].packet_id
        client.close()
        writer.publish(name, b"10", 1)
    client, _ = come_back(broker, name, version)
    expected = [b"%d" % number for number in range(11) if number not in (4, 7)]
    assert [client.pick(Publish).payload for _ in expected] == expected
    client.close()


@BOTH
def test_message_taken_survives_the_broker(tmp_path: Path, version: int) -> None:
    """Is an acknowledged message still there for its subscriber when the broker was stopped?"""
    with Hosted(tmp_path) as broker:
        client, _ = come_back(broker, "reader", version)
        client.subscribe("a", qos=2)
        client.close()
        with join(broker, "writer", version) as writer:
            writer.publish("a", b"1", 1)
            writer.publish("a", b"2", 2)
    with Hosted(tmp_path) as broker:
        client, is_present = come_back(broker, "reader", version)
        assert is_present
        assert [client.receive().payload for _ in range(2)] == [b"1", b"2"]
        client.close()


@BOTH
def test_empty_payload_and_empty_levels_are_as_good_as_others(
    broker: Hosted, name: str, version: int
) -> None:
    """Does a message of no bytes arrive, and names with levels of no characters?"""
    with join(broker, name, version) as client:
        client.subscribe(f"/{name}//+", qos=1)
        for one in (f"/{name}//", f"/{name}/", f"/{name}//a", f"{name}//"):
            client.publish(one, b"", 1)
        got = [client.receive() for _ in range(2)]
        assert [one.name for one in got] == [f"/{name}//", f"/{name}//a"]
        assert [one.payload for one in got] == [b"", b""]
        assert client.settle() == []
