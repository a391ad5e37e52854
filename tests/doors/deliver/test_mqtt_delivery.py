"""What a subscriber is handed: at which QoS, how often, in which order, with which properties."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1, MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Puback,
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
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept, kept

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])

FULL = Properties(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answers/here",
    correlation_data=bytes(range(256)),
    user_properties=(("b", "2"), ("a", "1"), ("a", "1"), ("", "")),
)


def client(broker: Hosted, name: str, version: int = MQTT_5, **asked: int) -> Wire:
    wire = Wire(broker.port, name, version)
    wire.connect(properties=Properties(**asked) if asked else NO_PROPERTIES)
    return wire


# QoS


@VERSIONS
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_message_arrives_at_the_lower_of_both_qos(
    broker: Hosted, name: str, version: int, published: int, granted: int
) -> None:
    with client(broker, name + "p", version) as writer, client(broker, name, version) as reader:
        assert reader.subscribe(name, qos=granted).reasons == (Reason(granted),)
        for number in range(3):
            writer.publish(name, b"%d" % number, published)
        for number in range(3):
            message = reader.receive()
            assert (message.payload, message.qos) == (b"%d" % number, min(published, granted))
            assert not message.dup and not message.retain
        assert reader.settle() == []


@pytest.mark.parametrize(
    ("writing", "reading"),
    list(itertools.permutations([MQTT_3_1, MQTT_3_1_1, MQTT_5], 2)),
)
def test_versions_mix(broker: Hosted, name: str, writing: int, reading: int) -> None:
    with client(broker, name + "p", writing) as writer, client(broker, name, reading) as reader:
        reader.subscribe(name, qos=2)
        for qos in range(3):
            writer.publish(name, b"%d" % qos, qos)
        received = [reader.receive() for _ in range(3)]
        assert [(one.payload, one.qos) for one in received] == [(b"0", 0), (b"1", 1), (b"2", 2)]


def test_one_batch_goes_to_readers_of_every_kind(broker: Hosted, name: str) -> None:
    """Is one run encoded rightly for each version, QoS and set of options at once?"""
    kinds = list(itertools.product([MQTT_3_1, MQTT_3_1_1, MQTT_5], [0, 1, 2], [False, True]))
    readers = []
    for number, (version, qos, as_published) in enumerate(kinds):
        reader = client(broker, f"{name}{number}", version)
        reader.subscribe(Subscription(name, qos, retain_as_published=as_published))
        readers.append(reader)
    with client(broker, name) as writer:
        writer.send(
            *[Publish(name, b"%d" % n, 1, n % 7 == 0, packet_id=1 + n) for n in range(50)],
        )
        for _ in range(50):
            writer.expect(Puback)
    for reader, (version, qos, as_published) in zip(readers, kinds, strict=True):
        received = [reader.receive() for _ in range(50)]
        assert [one.payload for one in received] == [b"%d" % n for n in range(50)]
        assert {one.qos for one in received} == {min(qos, 1)}
        retained = [n for n, one in enumerate(received) if one.retain]
        shows_retain = version == MQTT_5 and as_published
        assert retained == (list(range(0, 50, 7)) if shows_retain else [])
        assert reader.settle() == []
        reader.close()


# Who gets it, and how often


def test_overlapping_subscriptions_bring_one_copy_at_the_highest_qos(
    broker: Hosted, name: str
) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        for identifier, filter, qos in ((7, f"{name}/#", 0), (9, f"{name}/+", 2), (0, "+/x", 1)):
            asked = Properties(subscription_identifiers=(identifier,)) if identifier else None
            reader.send(Subscribe(1, (Subscription(filter, qos),), asked or NO_PROPERTIES))
            reader.expect(Suback)
        for qos in range(3):
            writer.publish(f"{name}/x", b"%d" % qos, qos)
        for qos in range(3):
            message = reader.receive()
            assert (message.payload, message.qos) == (b"%d" % qos, qos)
            assert sorted(message.properties.subscription_identifiers) == [7, 9]
        assert reader.settle() == []


def test_no_local_keeps_own_messages_away(broker: Hosted, name: str) -> None:
    with client(broker, name) as one, client(broker, name + "2") as other:
        one.subscribe(Subscription(name, 1, no_local=True))
        other.subscribe(Subscription(name, 1))
        for qos in range(3):
            one.publish(name, b"own", qos)
            other.publish(name, b"other", qos)
        assert [one.receive().payload for _ in range(3)] == [b"other"] * 3
        assert one.settle() == []


def test_own_messages_do_not_come_back_to_a_no_local_session_later(
    broker: Hosted, name: str
) -> None:
    session, _ = connect_kept(broker.port, name, MQTT_5)
    session.subscribe(Subscription(name, 1, no_local=True))
    session.disconnect()
    with client(broker, name + "2") as other:
        other.publish(name, b"other", 1)
    session, _ = connect_kept(broker.port, name, MQTT_5)
    session.publish(name, b"own", 1)
    assert session.receive().payload == b"other"
    assert session.settle() == []


def test_retain_is_shown_only_to_who_asked_for_it(broker: Hosted, name: str) -> None:
    with client(broker, name) as plain, client(broker, name + "2") as asking:
        plain.subscribe(name, qos=1)
        asking.subscribe(Subscription(name, 1, retain_as_published=True))
        for qos in range(3):
            asking.publish(name, b"x", qos, retain=True)
        assert [plain.receive().retain for _ in range(3)] == [False] * 3
        assert [asking.receive().retain for _ in range(3)] == [True] * 3


def test_unsubscribed_filter_brings_nothing_more(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        reader.subscribe(f"{name}/a", f"{name}/+", qos=1)
        reader.send(Unsubscribe(5, (f"{name}/+", "never/had")))
        assert reader.expect(Unsuback).reasons == (Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)
        writer.publish(f"{name}/b", b"no", 1)
        writer.publish(f"{name}/a", b"yes", 1)
        assert reader.receive().payload == b"yes"
        assert reader.settle() == []


def test_subscribing_again_replaces_the_options(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        reader.subscribe(name, qos=2)
        reader.subscribe(name, qos=0)
        writer.publish(name, b"x", 2)
        assert reader.receive().qos == 0
        assert reader.settle() == []


def test_dollar_names_are_hidden_from_leading_wildcards(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        reader.subscribe(f"+/{name}", "#", qos=1)
        with client(broker, name + "2") as direct:
            direct.subscribe(f"$own/{name}/#", qos=1)
            writer.publish(f"$own/{name}", b"x", 1)
            assert direct.receive().payload == b"x"
        said = [one.name for one in reader.settle() if isinstance(one, Publish)]
        assert [one for one in said if one.startswith("$")] == []


def test_suback_says_why_a_filter_is_refused(broker: Hosted, name: str) -> None:
    filters = ("ok", "a/#/b", "a+", "$share/g", "/".join("a" * 129), "/".join("a" * 128))
    with client(broker, name) as new, client(broker, name + "o", MQTT_3_1_1) as old:
        assert new.subscribe(*filters, qos=1).reasons == (
            Reason.GRANTED_QOS_1,
            Reason.TOPIC_FILTER_INVALID,
            Reason.TOPIC_FILTER_INVALID,
            Reason.TOPIC_FILTER_INVALID,
            Reason.TOPIC_FILTER_INVALID,
            Reason.GRANTED_QOS_1,
        )
        codes = [0x80 if reason >= 0x80 else reason for reason in old.subscribe(*filters).reasons]
        assert codes == [0, 0x80, 0x80, 0x80, 0x80, 0]


# Acknowledgements


@VERSIONS
def test_acks_come_in_the_order_of_arrival_across_topics(tmp_path: Path, version: int) -> None:
    """Does a slow topic hold back the acks of what was sent after it, and of nothing before?"""
    with Hosted(tmp_path) as broker, Wire(broker.port, "x", version) as writer:
        broker.run(lambda server: server.broker.create_topic("loose", durability="os"))
        broker.run(lambda server: server.broker.create_topic("strict"))
        writer.connect()
        names = ["strict/a", "loose/b", "default", "loose/c"]
        packets = []
        for number in range(1, 201):
            qos = 1 + number % 2
            packets.append(Publish(names[number % 4], b"x", qos, packet_id=number))
        writer.send(*packets)
        for number in range(1, 201):
            answer = writer.next()
            assert isinstance(answer, Pubrec if number % 2 else Puback)
            assert answer.packet_id == number
        writer.send(*[Pubrel(number) for number in range(1, 201, 2)])
        assert [writer.expect(Pubcomp).packet_id for _ in range(100)] == list(range(1, 201, 2))


@VERSIONS
def test_qos2_message_sent_twice_is_stored_once(broker: Hosted, name: str, version: int) -> None:
    """Also when both copies come at once, or the repeat forgets its DUP."""
    with client(broker, name + "p", version) as writer, client(broker, name) as reader:
        reader.subscribe(name, qos=2)
        once = Publish(name, b"once", 2, packet_id=3)
        writer.send(once, once, Publish(name, b"once", 2, dup=True, packet_id=3))
        assert [writer.expect(Pubrec).packet_id for _ in range(3)] == [3, 3, 3]
        writer.send(Pubrel(3))
        assert writer.expect(Pubcomp).packet_id == 3
        writer.send(Pubrel(3))  # a repeat of it is answered as well
        assert writer.expect(Pubcomp).packet_id == 3
        writer.publish(name, b"end", 1)
        assert [reader.receive().payload for _ in range(2)] == [b"once", b"end"]


def test_acks_of_unknown_packet_ids_are_harmless(broker: Hosted, name: str) -> None:
    with client(broker, name) as reader:
        reader.subscribe(name, qos=2)
        reader.send(Puback(9), Pubcomp(9), Pubrec(9), Puback(65535, Reason.SUCCESS))
        assert reader.settle() == [Pubrel(9, Reason.PACKET_IDENTIFIER_NOT_FOUND)]
        reader.send(Pubrec(8, Reason.UNSPECIFIED_ERROR), Puback(8, Reason.QUOTA_EXCEEDED))
        reader.publish(name, b"x", 2)
        assert reader.receive().payload == b"x"


def test_client_that_refuses_a_qos2_message_frees_its_place(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer, client(broker, name, receive_maximum=1) as reader:
        reader.subscribe(name, qos=2)
        writer.publish(name, b"no", 2)
        writer.publish(name, b"yes", 2)
        refused = reader.expect(Publish)
        reader.send(Pubrec(refused.packet_id, Reason.QUOTA_EXCEEDED))
        assert reader.receive().payload == b"yes"
        assert reader.settle() == []


# The client's bounds


@pytest.mark.parametrize("qos", [1, 2])
def test_receive_maximum_of_the_client_is_respected(broker: Hosted, name: str, qos: int) -> None:
    with client(broker, name + "p") as writer, client(broker, name, receive_maximum=2) as reader:
        reader.subscribe(name, qos=qos)
        for number in range(9):
            writer.publish(name, b"%d" % number, qos)
        held: list[Publish] = [reader.expect(Publish), reader.expect(Publish)]
        for number in range(9):
            assert reader.settle() == []  # no third one while two are not acknowledged
            message = held.pop(0)
            assert message.payload == b"%d" % number
            reader.acknowledge(message)
            if number < 7:
                held.append(reader.pick(Publish))


def test_receive_maximum_also_holds_for_what_is_sent_again(broker: Hosted, name: str) -> None:
    session, _ = connect_kept(broker.port, name, MQTT_5)
    session.subscribe(name, qos=1)
    with client(broker, name + "p") as writer:
        writer.publish_all(name, 6, qos=1)
        for _ in range(6):
            session.expect(Publish)
        session.close()
        session = Wire(broker.port, name, MQTT_5)
        asked = Properties(session_expiry_interval=100, receive_maximum=2)
        assert session.connect(clean=False, properties=asked).session_present
        writer.publish(name, b"6", 1)
        for number in range(0, 6, 2):
            pair = [session.expect(Publish), session.expect(Publish)]
            assert [one.payload for one in pair] == [b"%d" % number, b"%d" % (number + 1)]
            assert all(one.dup for one in pair)
            assert session.poll(0.05) is None
            for one in pair:
                session.acknowledge(one)
        assert session.receive().payload == b"6"
        session.close()


@VERSIONS
def test_new_messages_wait_for_those_that_are_sent_again(
    broker: Hosted, name: str, version: int
) -> None:
    session, _ = connect_kept(broker.port, name, version)
    session.subscribe(name, qos=1)
    with client(broker, name + "p") as writer:
        writer.publish_all(name, 100, qos=1)
        for _ in range(100):
            session.expect(Publish)
        for round_number in range(5):
            session.close()
            session = Wire(broker.port, name, version)
            writer.send(Publish(name, b"%d" % (100 + round_number), 1, packet_id=9))
            properties = kept() if version == MQTT_5 else NO_PROPERTIES
            session.connect(clean=False, properties=properties)
            writer.expect(Puback)
            expected = [b"%d" % number for number in range(101 + round_number)]
            assert [session.expect(Publish).payload for _ in expected] == expected
    session.close()


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("is_away", [False, True])
def test_messages_too_large_for_a_client_are_dropped_and_others_arrive(
    broker: Hosted, name: str, published: int, is_away: bool
) -> None:
    """Is what is too large counted and treated as sent [MQTT-3.1.2-25], and only that?"""
    if is_away and published == 0:
        return  # not kept for those away
    before = broker.dropped["too_large"]
    sizes = [10, 500, 20, 2000, 30, 5000, 1, 1]
    reader = Wire(broker.port, name, MQTT_5)
    asked = Properties(maximum_packet_size=300, session_expiry_interval=100, receive_maximum=2)
    reader.connect(properties=asked)
    reader.subscribe(name, qos=published)
    with client(broker, name + "p") as writer:
        if is_away:
            reader.disconnect()
        packets = [
            Publish(name, b"x" * size, published, packet_id=number if published else 0)
            for number, size in enumerate(sizes, 1)
        ]
        writer.send(*packets)
        if published == 1:
            [writer.expect(Puback) for _ in packets]
        elif published == 2:
            [writer.expect(Pubrec) for _ in packets]
        else:
            writer.settle()
        if is_away:
            reader = Wire(broker.port, name, MQTT_5)
            assert reader.connect(clean=False, properties=asked).session_present
        small = [size for size in sizes if size < 200]
        assert [len(reader.receive().payload) for _ in small] == small
        assert reader.settle() == []
        assert broker.dropped["too_large"] - before == len(sizes) - len(small)
    reader.close()


def test_retained_message_too_large_for_a_client_is_left_out(broker: Hosted, name: str) -> None:
    with client(broker, name + "p") as writer:
        writer.publish(f"{name}/1", b"x" * 1000, 1, retain=True)
        writer.publish(f"{name}/2", b"x", 1, retain=True)
        for qos in (0, 1):
            with client(broker, name, maximum_packet_size=200) as reader:
                reader.subscribe(f"{name}/+", qos=qos)
                assert reader.receive().name == f"{name}/2"
                assert reader.settle() == []


# How bytes come


def test_bytes_one_by_one_are_as_good_as_many(broker: Hosted, name: str) -> None:
    with client(broker, name) as writer:
        writer.subscribe(name, qos=1)
        packets = [
            Publish(name, b"one", 1, packet_id=1, properties=FULL),
            Publish(name, b"", 0),
            Publish(name, b"x" * 300, 1, packet_id=2),
        ]
        for byte in b"".join(encode(packet, MQTT_5) for packet in packets):
            writer.send_bytes(bytes((byte,)))
        received = sorted(writer.pick(Publish).payload for _ in range(3))
        assert received == [b"", b"one", b"x" * 300]


def test_half_a_packet_holds_nobody_up(broker: Hosted, name: str) -> None:
    data = encode(Publish(name, b"x" * 100, 1, packet_id=5), MQTT_5)
    with client(broker, name + "h") as halfway, client(broker, name) as reader:
        reader.subscribe(name, qos=1)
        halfway.send_bytes(data[:50])
        reader.publish(name, b"other", 1)
        assert reader.receive().payload == b"other"
        halfway.send_bytes(data[50:])
        assert halfway.expect(Puback).packet_id == 5
        assert reader.receive().payload == b"x" * 100
        halfway.send_bytes(data[:50])
    with client(broker, name) as again:
        assert again.settle() == []


# Sessions that lag


def test_session_that_lagged_only_for_lack_of_buffer_goes_on(broker: Hosted, name: str) -> None:
    """Is a QoS 1 message behind a large QoS 0 one delivered with nothing else to wake it?"""
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        reader.subscribe(name, qos=1)
        for number in range(5):
            writer.send(
                Publish(name, b"a", 1, packet_id=1),
                Publish(name, bytes(1_200_000), 0),
                Publish(name, b"b%d" % number, 1, packet_id=2),
            )
            received = [reader.receive().payload for _ in range(3)]
            assert sorted(map(len, received)) == [1, 2, 1_200_000]
            assert received[-1] == b"b%d" % number
            writer.expect(Puback), writer.expect(Puback)
