"""Retained messages: kept, replaced, removed; who is sent them, and with which flag?"""

from __future__ import annotations

from penstock.mqtt.packets import Publish, Subscription
from tests.conformance.talk import BOTH, Talk, join
from tests.doors.hosted import Hosted


def retained(broker: Hosted, filter: str, version: int, qos: int = 2) -> list[Publish]:
    """What somebody who subscribes now is sent."""
    with Talk(broker.port, version=version) as reader:
        reader.connect()
        reader.subscribe(filter, qos=qos)
        got = []
        while said := reader.settle():
            for packet in said:
                assert isinstance(packet, Publish)
                reader.acknowledge(packet)
                got.append(packet)
        return got


@BOTH
def test_retained_message_is_stored_with_its_qos_and_replaces_the_older(
    broker: Hosted, name: str, version: int
) -> None:
    """Is the newest message with RETAIN the one that later subscribers get, at its own QoS?"""
    with join(broker, name, version) as writer:
        for qos in (2, 0, 1, 2):
            writer.publish(name, b"at %d" % qos, qos, retain=True)
            writer.publish(f"{name}/end", b"", 1)  # acknowledged: what came before it is stored
            with join(broker, f"{name}-reader", version) as reader:
                reader.subscribe(name, qos=2)
                # Waited for, not settled: at QoS 2 the catalog is told first, and a PINGRESP may
                # overtake that.
                message = reader.receive()
                assert (message.payload, message.qos, message.retain) == (b"at %d" % qos, qos, True)
                assert reader.settle() == []


@BOTH
def test_retained_message_of_qos_0_discards_the_older_one(
    broker: Hosted, name: str, version: int
) -> None:
    """Is a message retained at QoS 2 forgotten when one of QoS 0 comes for its name?"""
    with join(broker, name, version) as writer:
        writer.publish(name, b"old", 2, retain=True)
        writer.publish(name, b"new", 0, retain=True)
        writer.publish(f"{name}/end", b"", 1)
    assert [one.payload for one in retained(broker, name, version)] == [b"new"]


@BOTH
def test_new_subscriber_is_sent_the_last_retained_message_of_each_name(
    broker: Hosted, name: str, version: int
) -> None:
    """Does a filter that matches several names bring the last of each, marked RETAIN?"""
    with join(broker, name, version) as writer:
        for number in range(6):
            writer.publish(f"{name}/{number % 3}", b"%d" % number, 1, retain=True)
        writer.publish(f"{name}/3", b"not retained", 1)
    got = retained(broker, f"{name}/+", version)
    assert {one.name: one.payload for one in got} == {
        f"{name}/{number % 3}": b"%d" % number for number in (3, 4, 5)
    }
    assert len(got) == 3 and all(one.retain for one in got)


@BOTH
def test_message_for_an_established_subscription_has_no_retain(
    broker: Hosted, name: str, version: int
) -> None:
    """Is RETAIN 0 in what is forwarded, whatever the publisher set, unless it was asked for?"""
    with join(broker, name, version) as reader, join(broker, name + "p", version) as writer:
        reader.subscribe(name, qos=2)
        for qos in range(3):
            writer.publish(name, b"x", qos, retain=True)
            assert reader.expect(Publish).retain is False
            assert reader.raw[0] & 1 == 0


def test_retain_as_published_hands_the_flag_on(broker: Hosted, name: str) -> None:
    """Is RETAIN as the publisher set it, for who asked for that?"""
    with join(broker, name) as reader, join(broker, name + "p") as writer:
        reader.subscribe(Subscription(name, 2, retain_as_published=True))
        for qos in range(3):
            for retain in (True, False):
                writer.publish(name, b"x", qos, retain=retain)
                assert reader.receive().retain is retain


@BOTH
def test_empty_retained_message_removes_and_is_delivered(
    broker: Hosted, name: str, version: int
) -> None:
    """Is it handed to those subscribed, and the name without a retained message after it?"""
    with join(broker, name, version) as reader, join(broker, name + "p", version) as writer:
        writer.publish(name, b"x", 1, retain=True)
        reader.subscribe(name, qos=1)
        assert reader.receive().payload == b"x"
        writer.publish(name, b"", 1, retain=True)
        assert reader.receive().payload == b""
    assert retained(broker, name, version) == []


@BOTH
def test_empty_message_is_never_retained(broker: Hosted, name: str, version: int) -> None:
    """Is a retained message of no bytes not kept, also where there was nothing before?"""
    with join(broker, name, version) as writer:
        for qos in range(3):
            writer.publish(f"{name}/{qos}", b"", qos, retain=True)
        writer.publish(f"{name}/end", b"", 1)
    assert retained(broker, f"{name}/#", version) == []


@BOTH
def test_message_without_retain_changes_nothing_that_is_retained(
    broker: Hosted, name: str, version: int
) -> None:
    """Is it neither kept nor does it replace or remove, even with no bytes?"""
    with join(broker, name, version) as writer:
        writer.publish(f"{name}/a", b"kept", 1, retain=True)
        for qos in range(3):
            writer.publish(f"{name}/a", b"passing", qos)
            writer.publish(f"{name}/a", b"", qos)
            writer.publish(f"{name}/b", b"passing", qos)
        writer.publish(f"{name}/end", b"", 1)
    got = retained(broker, f"{name}/#", version)
    assert [(one.name, one.payload) for one in got] == [(f"{name}/a", b"kept")]


@BOTH
def test_subscribing_again_sends_retained_messages_again(
    broker: Hosted, name: str, version: int
) -> None:
    """Are they sent at every SUBSCRIBE, and is no message lost while one replaces another?"""
    with join(broker, name, version) as reader, join(broker, name + "p", version) as writer:
        writer.publish(f"{name}/kept", b"kept", 1, retain=True)
        reader.subscribe(f"{name}/#", qos=1)
        writer.send(*[Publish(f"{name}/live", b"%d" % n, 1, packet_id=n + 1) for n in range(200)])
        for qos in (2, 1, 2, 1, 2):
            reader.subscribe_later(f"{name}/#", qos=qos)
        live, kept = [], 0
        while len(live) < 200 or kept < 6:
            packet = reader.next()
            if isinstance(packet, Publish):
                reader.acknowledge(packet)
                kept += packet.retain
                live += [] if packet.retain else [packet.payload]
        assert live == [b"%d" % number for number in range(200)]
        assert kept == 6


def test_retain_handling_0_sends_them_every_time(broker: Hosted, name: str) -> None:
    """Are retained messages sent when the subscription is new and when it is not?"""
    assert _sent_with(broker, name, 0) == [True, True]


def test_retain_handling_1_sends_them_to_a_new_subscription(broker: Hosted, name: str) -> None:
    """Are they sent at the first SUBSCRIBE and not at the next?"""
    assert _sent_with(broker, name, 1) == [True, False]


def test_retain_handling_2_sends_none(broker: Hosted, name: str) -> None:
    """Are they left out of every SUBSCRIBE?"""
    assert _sent_with(broker, name, 2) == [False, False]


def _sent_with(broker: Hosted, name: str, retain_handling: int) -> list[bool]:
    """Whether the retained message comes at a first and at a second SUBSCRIBE."""
    with join(broker, name) as reader, join(broker, name + "p") as writer:
        writer.publish(name, b"kept", 1, retain=True)
        sent = []
        for _ in range(2):
            reader.subscribe(Subscription(name, 0, retain_handling=retain_handling))
            said = [one.retain for one in reader.settle() if isinstance(one, Publish)]
            assert said in ([], [True])
            sent.append(bool(said))
        writer.publish(name, b"live", 1)
        assert reader.receive().payload == b"live"
        return sent
