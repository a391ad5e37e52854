"""SUBSCRIBE and UNSUBSCRIBE, and what their answers promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
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
from tests.conformance import spelled
from tests.conformance.talk import BOTH, Talk, come_back, join
from tests.doors.hosted import Hosted


@BOTH
def test_subscribe_without_a_filter_closes(broker: Hosted, name: str, version: int) -> None:
    """Must the payload have at least one filter?"""
    with join(broker, name, version) as client:
        client.send_bytes(spelled.subscribe(version, 1))
        client.assert_ended(Reason.PROTOCOL_ERROR)


@BOTH
@pytest.mark.parametrize("options", [0x40, 0x80, 0xC1])
def test_reserved_bits_of_the_options_are_zero(
    broker: Hosted, name: str, version: int, options: int
) -> None:
    """Is a SUBSCRIBE malformed in which any of its filters has a reserved bit set?"""
    with join(broker, name, version) as client:
        client.send_bytes(spelled.subscribe(version, 1, ("a", 1), ("b", options)))
        client.assert_ended(Reason.MALFORMED_PACKET)


def test_options_of_mqtt_5_are_reserved_before_it(broker: Hosted, name: str) -> None:
    """Does 3.1.1 take nothing but a QoS of 0, 1 or 2?"""
    for options in (0x04, 0x08, 0x10, 0x03):
        with join(broker, name, MQTT_3_1_1) as client:
            client.send_bytes(spelled.subscribe(MQTT_3_1_1, 1, ("a", options)))
            client.assert_ended()


def test_qos_3_and_retain_handling_3_are_no_options(broker: Hosted, name: str) -> None:
    """Is a value that means nothing a protocol error in MQTT 5?"""
    for options in (0x03, 0x30):
        with join(broker, name) as client:
            client.send_bytes(spelled.subscribe(MQTT_5, 1, ("a", options)))
            client.assert_ended(Reason.PROTOCOL_ERROR)


@BOTH
def test_subscribe_is_answered_with_suback(broker: Hosted, name: str, version: int) -> None:
    """Is there one SUBACK for each SUBSCRIBE, in their order, also for one that is repeated?"""
    with join(broker, name, version) as client:
        for packet_id in (9, 3, 65_535, 3):
            client.send_bytes(spelled.subscribe(version, packet_id, (name, 1)))
        for packet_id in (9, 3, 65_535, 3):
            assert client.expect(Suback) == Suback(packet_id, (Reason.GRANTED_QOS_1,))
        assert client.settle() == []


@BOTH
def test_same_filter_replaces_the_subscription(broker: Hosted, name: str, version: int) -> None:
    """Is there one subscription for a filter, with the QoS that was asked for last?"""
    with join(broker, name, version) as client:
        for qos in (2, 0, 1):
            client.subscribe(name, qos=qos)
            client.publish(name, b"x", 2)
            assert client.receive().qos == qos
            assert client.settle() == []
        client.send(Unsubscribe(9, (name,)))
        client.expect(Unsuback)
        client.publish(name, b"x", 2)
        assert client.settle() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_is_not_lost_when_the_subscription_is_replaced_at_qos_0(
    broker: Hosted, name: str, qos: int
) -> None:
    """Does all of it come, once and in order, before what is published afterwards?"""
    with join(broker, name, receive_maximum=1) as client, join(broker, name + "p") as writer:
        client.subscribe(name, qos=qos)
        for number in range(4):
            writer.publish(name, b"%d" % number, qos)
        first = client.expect(Publish)
        assert client.subscribe(name, qos=0).reasons == (0,)
        writer.publish(name, b"4", qos)
        assert client.settle() == []
        client.acknowledge(first)
        rest = [client.receive() for _ in range(4)]
        assert [(one.payload, one.qos) for one in rest] == [(b"%d" % n, 0) for n in range(1, 5)]
        for number in range(3):  # and from then on as ever, whatever its QoS
            writer.publish(name, b"%d" % number, number)
            assert client.receive() == Publish(name, b"%d" % number)
        assert client.subscribe(name, qos=qos).reasons == (qos,)
        writer.publish(name, b"9", qos)
        last = client.receive()
        assert (last.payload, last.qos) == (b"9", qos)
        assert client.settle() == []


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_what_waited_for_an_absent_client_is_not_lost_when_it_subscribes_again_at_qos_0(
    broker: Hosted, name: str, version: int, qos: int
) -> None:
    """Does it come also if the SUBSCRIBE follows the CONNECT before anything could be sent?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(name, qos=qos)
    client.disconnect()
    with join(broker, name + "p") as writer:
        for number in range(4):
            writer.publish(name, b"%d" % number, qos)
        writer.publish(name, b"not kept", 0)
    back = Talk(broker.port, name, version)
    properties = Properties(session_expiry_interval=3600) if version == MQTT_5 else NO_PROPERTIES
    connect = Connect(name, False, version=version, properties=properties)
    back.send(connect, Subscribe(1, (Subscription(name, 0),)))
    assert back.expect(Connack).session_present
    assert back.pick(Suback).reasons == (0,)
    assert [back.receive().payload for _ in range(4)] == [b"%d" % number for number in range(4)]
    assert back.settle() == []
    back.close()


@BOTH
def test_many_filters_are_as_many_requests_with_one_answer(
    broker: Hosted, name: str, version: int
) -> None:
    """Is each filter of a SUBSCRIBE subscribed, the last of equal ones counting?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        for part in "ab":
            writer.publish(f"{name}/{part}", b"kept", 1, retain=True)
        wanted = ((f"{name}/a", 1), (f"{name}/b", 2), (f"{name}/c", 0), (f"{name}/a", 2))
        client.send_bytes(spelled.subscribe(version, 7, *wanted))
        answer = client.pick(Suback)
        assert (answer.packet_id, answer.reasons) == (7, (1, 2, 0, 2))
        got = [client.receive().name for _ in range(3)]  # `a` was subscribed twice
        assert sorted(got) == [f"{name}/a", f"{name}/a", f"{name}/b"]
        for part, qos in (("a", 2), ("b", 2), ("c", 0)):
            writer.publish(f"{name}/{part}", b"live", 2)
            assert client.receive().qos == qos
        assert client.settle() == []


@BOTH
def test_suback_has_a_code_for_each_filter_in_their_order(
    broker: Hosted, name: str, version: int
) -> None:
    """Does each code show the QoS granted, or that this filter failed and others did not?"""
    wanted = (("a", 2), ("a/#/b", 1), ("b", 0), ("c+", 2), ("d", 1))
    with join(broker, name, version) as client:
        client.send_bytes(
            spelled.subscribe(version, 1, *((f"{name}/{one}", qos) for one, qos in wanted))
        )
        codes = spelled.body(client.next_raw())[-5:]
        failed = Reason.TOPIC_FILTER_INVALID if version == MQTT_5 else 0x80
        assert list(codes) == [2, failed, 0, failed, 1]
        for one in "abd":
            client.publish(f"{name}/{one}", b"x", 2)
            assert client.receive().name == f"{name}/{one}"


@BOTH
def test_suback_uses_the_codes_of_its_version(tmp_path: Path, version: int) -> None:
    """Is every failure 0x80 in 3.1.1, and a listed reason code in 5?"""
    wrong = ["a/#/b", "#a", "+a", "/".join("a" * 129), "$share//a"]
    with Hosted(tmp_path) as broker, join(broker, "x", version) as client:
        client.send_bytes(spelled.subscribe(version, 1, *((one, 1) for one in wrong)))
        codes = spelled.body(client.next_raw())[-len(wrong) :]
        listed = {0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
        assert set(codes) <= (listed if version == MQTT_5 else {0x80})


@BOTH
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_message_comes_at_the_lower_of_both_qos(
    broker: Hosted, name: str, version: int, published: int, granted: int
) -> None:
    """Is it the smaller of the QoS it was published with and the one granted?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        assert client.subscribe(name, qos=granted).reasons == (granted,)
        writer.publish(name, b"live", published)
        assert client.receive().qos == min(published, granted)
        writer.publish(name + "/r", b"kept", published, retain=True)
        writer.settle()
        client.subscribe(name + "/r", qos=granted)
        assert client.receive().qos == min(published, granted)


def test_no_local_is_about_the_client_id(broker: Hosted, name: str) -> None:
    """Are messages of the same client id left out, and those of everybody else delivered?"""
    client, _ = come_back(broker, name, MQTT_5)
    client.subscribe(Subscription(name, 2, no_local=True))
    with join(broker, name + "2") as other:
        for qos in range(3):
            client.publish(name, b"own", qos)
            other.publish(name, b"other", qos)
            assert client.receive().payload == b"other"
    client.publish(name, b"own", 1, retain=True)
    client.close()
    client, _ = come_back(broker, name, MQTT_5)
    client.publish(name, b"own again", 1)
    client.subscribe(Subscription(name, 2, no_local=True))
    assert client.settle() == []
    client.close()


def test_no_local_leaves_other_filters_of_the_client_alone(broker: Hosted, name: str) -> None:
    """Does an own message come through a filter without it, as if that were the only one?"""
    client, _ = come_back(broker, name, MQTT_5)
    for number, filter, no_local in ((1, "+", True), (2, "#", False)):
        asked = Properties(subscription_identifiers=(number,))
        wanted = Subscription(f"{name}/{filter}", 3 - number, no_local=no_local)
        client.send(Subscribe(number, (wanted,), asked))
        client.expect(Suback)
    for qos in (0, 1, 2):
        client.publish(f"{name}/x", b"own", qos)
        message = client.receive()
        assert (message.qos, message.properties.subscription_identifiers) == (min(qos, 1), (2,))
    with join(broker, name + "2") as other:
        other.publish(f"{name}/x", b"other", 2)
    message = client.receive()
    assert (message.qos, sorted(message.properties.subscription_identifiers)) == (2, [1, 2])
    assert client.settle() == []
    client.close()


def test_no_local_cannot_be_shared(broker: Hosted, name: str) -> None:
    """Is no local on a shared subscription a protocol error?"""
    with join(broker, name) as client:
        client.send_bytes(spelled.subscribe(MQTT_5, 1, ("a", 1), ("$share/g/a", 0x05)))
        client.assert_ended(Reason.PROTOCOL_ERROR)


@BOTH
def test_wildcards_may_be_subscribed_to(broker: Hosted, name: str, version: int) -> None:
    """Does the broker take every filter with a wildcard, and so never has to reject one for it?"""
    filters = ("#", "+", f"{name}/#", f"+/{name}/+", "/+", f"{name}/+/#")
    with join(broker, name, version) as client:
        assert client.subscribe(*filters, qos=1).reasons == (1,) * len(filters)


# UNSUBSCRIBE


@BOTH
def test_unsubscribe_without_a_filter_closes(broker: Hosted, name: str, version: int) -> None:
    """Must the payload have at least one filter?"""
    with join(broker, name, version) as client:
        client.send_bytes(spelled.unsubscribe(version, 1))
        client.assert_ended(Reason.PROTOCOL_ERROR)


@BOTH
def test_unsubscribe_compares_filters_character_by_character(
    broker: Hosted, name: str, version: int
) -> None:
    """Does it delete the filter that is written the same, and none that merely matches?"""
    filters = (f"{name}/a", f"{name}/+", f"{name}/A", f"{name}/#")
    with join(broker, name, version) as client:
        client.subscribe(*filters, qos=1)
        for others in ("#", "+/a", f"{name}/a/", f"{name}//a", f"/{name}/a"):
            client.send_bytes(spelled.unsubscribe(version, 5, others))
            client.expect(Unsuback)
        sessions = broker.exchange.sessions.connected
        assert set(broker.call(lambda: set(sessions[name].subscriptions))) == set(filters)
        client.send_bytes(spelled.unsubscribe(version, 5, f"{name}/+", f"{name}/a"))
        client.expect(Unsuback)
        left = {f"{name}/A", f"{name}/#"}
        assert broker.call(lambda: set(sessions[name].subscriptions)) == left


@BOTH
def test_unsubscribed_filter_brings_nothing_new(broker: Hosted, name: str, version: int) -> None:
    """Is nothing added for delivery after the UNSUBACK, to a session that is kept or not?"""
    for is_kept in (False, True):
        client = come_back(broker, name, version)[0] if is_kept else join(broker, name, version)
        client.subscribe(name, qos=2)
        with join(broker, name + "p", version) as writer:
            writer.publish(name, b"before", 1)
            assert client.receive().payload == b"before"
            client.send(Unsubscribe(9, (name,)))
            client.expect(Unsuback)
            for qos in range(3):
                writer.publish(name, b"after", qos)
        assert client.settle() == []
        client.close()


@BOTH
def test_delivery_that_has_begun_is_completed_after_unsubscribe(
    broker: Hosted, name: str, version: int
) -> None:
    """Do QoS 1 and 2 messages that were sent before it go on, also over a reconnect?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(name, qos=2)
    with join(broker, name + "p", version) as writer:
        for number, qos in enumerate((1, 2, 2)):
            writer.publish(name, b"%d" % number, qos)
    one, two, three = (client.expect(Publish) for _ in range(3))
    client.send(Pubrec(three.packet_id))
    client.expect(Pubrel)
    client.send(Unsubscribe(9, (name,)))
    client.expect(Unsuback)
    client.send(Pubcomp(three.packet_id), Pubrec(two.packet_id))
    assert client.expect(Pubrel).packet_id == two.packet_id
    client.close()
    client, _ = come_back(broker, name, version)
    assert client.pick(Publish).packet_id == one.packet_id
    client.send(Puback(one.packet_id))
    assert client.pick(Pubrel).packet_id == two.packet_id
    client.send(Pubcomp(two.packet_id))
    assert client.settle() == []
    client.close()


@BOTH
def test_unsubscribe_is_always_answered(broker: Hosted, name: str, version: int) -> None:
    """Is there an UNSUBACK with its id, whether or not there was anything to delete?"""
    with join(broker, name, version) as client:
        client.subscribe(name)
        for packet_id, filter in ((7, name), (8, name), (65_535, "never/had")):
            client.send_bytes(spelled.unsubscribe(version, packet_id, filter))
            assert client.expect(Unsuback).packet_id == packet_id
        assert client.settle() == []


@BOTH
def test_many_filters_given_back_are_as_many_requests_with_one_answer(
    broker: Hosted, name: str, version: int
) -> None:
    """Is each filter of an UNSUBSCRIBE deleted, and one UNSUBACK sent for all?"""
    filters = [f"{name}/{part}" for part in "abc"]
    with join(broker, name, version) as client:
        client.subscribe(*filters, qos=1)
        client.send_bytes(spelled.unsubscribe(version, 9, filters[0], filters[2], filters[0]))
        assert client.expect(Unsuback).packet_id == 9
        for one in filters:
            client.publish(one, one.encode(), 1)
        assert client.receive().name == filters[1]
        assert client.settle() == []


def test_unsuback_has_a_listed_code_for_each_filter_in_their_order(
    broker: Hosted, name: str
) -> None:
    """Does it say for each filter whether there was a subscription?"""
    with join(broker, name) as client:
        client.subscribe(f"{name}/a", f"{name}/b")
        wanted = (f"{name}/b", "never/had", f"{name}/a", f"{name}/b")
        client.send_bytes(spelled.unsubscribe(MQTT_5, 9, *wanted))
        assert spelled.body(client.next_raw()) == b"\x00\x09\x00" + b"\x00\x11\x00\x11"
