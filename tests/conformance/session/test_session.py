"""Sessions: when are they made, kept, found again and thrown away?"""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Disconnect, Puback, Publish, Pubrec, Pubrel, Unsubscribe
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.conformance.talk import BOTH, Talk, come_back, join
from tests.doors.hosted import Hosted


@BOTH
def test_session_is_taken_up_where_it_was_left(broker: Hosted, name: str, version: int) -> None:
    """Are subscriptions, unacknowledged messages and half finished QoS 2 still there?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(f"{name}/#", qos=2)
    with join(broker, name + "p", version) as writer:
        writer.publish(f"{name}/1", b"unacknowledged", 1)
        writer.publish(f"{name}/2", b"released", 2)
        out = [client.expect(Publish), client.expect(Publish)]
        client.send(Pubrec(out[1].packet_id))
        client.expect(Pubrel)
        client.send(Publish(f"{name}/own", b"half", 2, packet_id=77))
        client.pick(Pubrec)
        client.close()
        writer.publish(f"{name}/3", b"missed", 1)
    client, is_present = come_back(broker, name, version)
    assert is_present
    client.send(Pubrel(77), Publish(f"{name}/own", b"half", 2, dup=True, packet_id=78))
    got = [client.pick(Publish) for _ in range(4)]
    assert [one.payload for one in got] == [b"unacknowledged", b"half", b"missed", b"half"]
    assert got[0].dup and got[0].packet_id == out[0].packet_id
    assert client.pick(Pubrel).packet_id == out[1].packet_id
    client.close()


@BOTH
def test_session_is_made_where_there_is_none(broker: Hosted, name: str, version: int) -> None:
    """Does a first CONNECT without clean start make a session that is kept, and say so?"""
    client, is_present = come_back(broker, name, version)
    assert not is_present
    client.subscribe(name, qos=1)
    client.disconnect()
    client, is_present = come_back(broker, name, version)
    assert is_present
    client.publish(name, b"x", 1)
    assert client.receive().payload == b"x"
    client.close()


@BOTH
def test_clean_start_is_told_that_no_session_is_present(
    broker: Hosted, name: str, version: int
) -> None:
    """Is a kept session gone after a clean start, whether or not anybody was connected?"""
    for is_connected in (False, True):
        kept, _ = come_back(broker, name, version)
        kept.subscribe(name, qos=1)
        if not is_connected:
            kept.disconnect()
        with Talk(broker.port, name, version) as clean:
            answer = clean.connect(clean=True)
            assert (answer.session_present, answer.reason) == (False, Reason.SUCCESS)
            clean.publish(name, b"nobody reads it", 1)
            assert clean.settle() == []
        kept.close()


def test_state_of_a_clean_session_is_not_used_again(broker: Hosted, name: str) -> None:
    """Does a 3.1.1 session with clean session end with its connection?"""
    with join(broker, name, 4) as client:
        client.subscribe(name, qos=1)
        client.send(Publish(name, b"half", 2, packet_id=5))
        client.pick(Pubrec)
    with join(broker, name + "p", 4) as writer:
        writer.publish(name, b"missed", 1)
    client, is_present = come_back(broker, name, 4)
    assert not is_present
    assert client.settle() == []
    client.subscribe(name, qos=2)
    client.send(Publish(name, b"another", 2, packet_id=5))
    client.pick(Pubrec)
    assert client.pick(Publish).payload == b"another"
    client.close()


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_for_somebody_away_are_stored(
    broker: Hosted, name: str, version: int, qos: int
) -> None:
    """Are QoS 1 and 2 messages kept for every subscription the client had when it went?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(f"{name}/a", f"{name}/+/b", qos=qos)
    client.subscribe(f"{name}/given-back", qos=qos)
    client.send(Unsubscribe(9, (f"{name}/given-back",)))
    client.next()
    client.close()
    with join(broker, name + "p", version) as writer:
        for number, topic in enumerate(("a", "x/b", "given-back", "a", "other")):
            writer.publish(f"{name}/{topic}", b"%d" % number, qos)
    client, _ = come_back(broker, name, version)
    got = [client.receive() for _ in range(3)]
    assert [(one.payload, one.qos) for one in got] == [(b"0", qos), (b"1", qos), (b"3", qos)]
    assert client.settle() == []
    client.close()


@BOTH
def test_retained_messages_do_not_go_with_a_session(
    broker: Hosted, name: str, version: int
) -> None:
    """Does what a client retained outlive its session, however that ends?"""
    with join(broker, name, version) as client:
        client.publish(f"{name}/1", b"stays", 1, retain=True)
        client.disconnect()
    kept, _ = come_back(broker, name, version)
    kept.publish(f"{name}/2", b"stays", 1, retain=True)
    kept.close()
    with Talk(broker.port, name, version) as clean:
        clean.connect(clean=True)
    with join(broker, name + "r", version) as reader:
        reader.subscribe(f"{name}/+", qos=1)
        assert {reader.receive().name for _ in range(2)} == {f"{name}/1", f"{name}/2"}


@BOTH
def test_session_lasts_as_long_as_its_connection(broker: Hosted, name: str, version: int) -> None:
    """Is the state of a session there for as long as its client is, even if it is not kept?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(name, qos=2)
        client.send(Publish(name + "/own", b"", 2, packet_id=3))
        client.expect(Pubrec)
        writer.publish(name, b"first", 2)
        first = client.expect(Publish)
        for number in range(50):
            with Talk(broker.port, f"{name}{number}", version) as passing:
                passing.connect()
        writer.publish(name, b"second", 1)
        assert client.receive().payload == b"second"
        client.send(Pubrec(first.packet_id))
        assert client.expect(Pubrel).packet_id == first.packet_id
        client.send(Publish(name + "/own", b"", 2, dup=True, packet_id=3))
        assert client.expect(Pubrec).reason == Reason.SUCCESS
        client.send(Pubrel(3))
        client.next()
        assert client.settle() == []


def test_session_expires_after_its_interval_and_not_before(broker: Hosted, name: str) -> None:
    """Is the state thrown away once the expiry has passed, and kept until then?"""
    for expiry_s, is_kept in ((3600, True), (0xFFFF_FFFF, True), (1, False)):
        client_id = f"{name}{expiry_s}"
        client, _ = come_back(broker, client_id, MQTT_5, session_expiry_interval=expiry_s)
        client.subscribe(client_id, qos=1)
        client.close()
        if not is_kept:
            broker.wait_past_us(2_200_000)
        client, is_present = come_back(broker, client_id, MQTT_5, session_expiry_interval=5)
        assert is_present is is_kept
        client.publish(client_id, b"x", 1)
        assert len(client.settle()) == is_kept
        client.close()


def test_session_without_an_expiry_is_not_stored(broker: Hosted, name: str) -> None:
    """Does an MQTT 5 session end with its connection if its expiry is absent or 0?"""
    for properties in (Properties(), Properties(session_expiry_interval=0)):
        with Talk(broker.port, name, MQTT_5) as client:
            client.connect(clean=False, properties=properties)
            client.subscribe(name, qos=1)
        with Talk(broker.port, name, MQTT_5) as client:
            assert not client.connect(clean=False).session_present


@BOTH
def test_message_taken_is_added_to_every_matching_session(
    broker: Hosted, name: str, version: int
) -> None:
    """Does an acknowledged message reach those connected, those away, and nobody else?"""
    away, _ = come_back(broker, name + "away", version)
    away.subscribe(f"{name}/+", qos=2)
    away.close()
    readers = [join(broker, f"{name}{number}", version) for number in range(4)]
    for number, filter in enumerate(("#", "a", "+", "b")):
        readers[number].subscribe(f"{name}/{filter}", qos=number % 3)
    with join(broker, name + "p", version) as writer:
        writer.publish(f"{name}/a", b"x", 1)
    for reader in readers[:3]:
        assert reader.receive().payload == b"x"
    assert readers[3].settle() == []
    away, _ = come_back(broker, name + "away", version)
    assert away.receive().payload == b"x"
    for reader in (*readers, away):
        reader.close()


@BOTH
def test_unacknowledged_packets_are_sent_again_at_reconnect_and_only_then(
    broker: Hosted, name: str, version: int
) -> None:
    """Is nothing repeated while the connection stays, and each PUBLISH and PUBREL after it?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(name, qos=2)
    with join(broker, name + "p", version) as writer:
        for qos in (1, 2, 2):
            writer.publish(name, b"%d" % qos, qos)
        one, two, three = (client.expect(Publish) for _ in range(3))
        client.send(Pubrec(three.packet_id))
        assert client.expect(Pubrel).packet_id == three.packet_id
        broker.wait_past_us(1_200_000)  # longer than any timer of the broker
        writer.publish(name, b"later", 0)
        assert [type(packet) for packet in client.settle()] == [Publish]
    client.close()
    client, _ = come_back(broker, name, version)
    again = client.settle()
    released = [packet.packet_id for packet in again if isinstance(packet, Pubrel)]
    sent = [packet for packet in again if isinstance(packet, Publish)]
    assert released == [three.packet_id]
    assert [packet.packet_id for packet in sent] == [one.packet_id, two.packet_id]
    assert all(packet.dup for packet in sent)
    client.close()


def test_message_refused_by_its_receiver_is_not_sent_again(broker: Hosted, name: str) -> None:
    """Is a PUBACK or PUBREC of 0x80 or above the end of that message?"""
    client, _ = come_back(broker, name, MQTT_5)
    client.subscribe(name, qos=2)
    with join(broker, name + "p") as writer:
        writer.publish(name, b"1", 1)
        writer.publish(name, b"2", 2)
        one, two = client.expect(Publish), client.expect(Publish)
        client.send(Puback(one.packet_id, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
        client.send(Pubrec(two.packet_id, Reason.QUOTA_EXCEEDED))
        assert client.settle() == []
        client.close()
        client, is_present = come_back(broker, name, MQTT_5)
        assert is_present
        writer.publish(name, b"3", 1)
        assert client.receive().payload == b"3"
        assert client.settle() == []
    client.close()


def test_disconnect_may_change_how_long_a_session_is_kept(broker: Hosted, name: str) -> None:
    """Is the interval of a DISCONNECT the one that counts?"""
    client, _ = come_back(broker, name, MQTT_5)
    client.send(Disconnect(properties=Properties(session_expiry_interval=0)))
    assert client.ends_without_a_word()
    _, is_present = come_back(broker, name, MQTT_5)
    assert not is_present
