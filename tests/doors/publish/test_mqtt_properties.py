"""What travels with a message: properties through the log and back, and the time it has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Puback, Publish, Subscription
from penstock.mqtt.properties import Properties
from tests.doors.deliver.test_mqtt_delivery import FULL, client
from tests.doors.hosted import Hosted
from tests.doors.wire import SentAt, connect_kept


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_of_a_message_arrive_live(broker: Hosted, name: str, qos: int) -> None:
    with (
        client(broker, name + "p") as writer,
        client(broker, name) as reader,
        client(broker, name + "o", MQTT_3_1_1) as old,
    ):
        reader.subscribe(name, qos=qos)
        old.subscribe(name, qos=qos)
        writer.send(Publish(name, b"x", qos, packet_id=1 if qos else 0, properties=FULL))
        assert reader.receive().properties == FULL
        assert old.receive().payload == b"x"


def test_properties_of_a_message_arrive_later(broker: Hosted, name: str) -> None:
    """Through the log to a session that was away, again with DUP, and as a retained message."""
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe(Subscription(name, 1, retain_as_published=True))
    reader.disconnect()
    with client(broker, name + "p") as writer:
        writer.send(Publish(name, b"x", 1, True, packet_id=1, properties=FULL))
        writer.expect(Puback)
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    first = reader.expect(Publish)
    assert (first.properties, first.retain, first.dup) == (FULL, True, False)
    reader.close()
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    again = reader.receive()
    assert (again.properties, again.retain, again.dup) == (FULL, True, True)
    assert again.packet_id == first.packet_id
    with client(broker, name + "2") as late:
        late.subscribe(name, qos=1)
        retained = late.receive()
        assert (retained.properties, retained.retain) == (FULL, True)
    reader.close()


@pytest.mark.parametrize(
    "pair",
    [
        ("mqtt.correlation-data", "a"),
        ("mqtt.correlation-data", "\u00fc"),
        ("mqtt.response-topic", "a/#"),
        ("mqtt.payload-format", "7"),
        ("mqtt.content-type", ""),
    ],
)
def test_user_property_with_a_reserved_name_does_no_harm(
    broker: Hosted, name: str, pair: tuple[str, str]
) -> None:
    with client(broker, name + "p") as writer, client(broker, name) as reader:
        reader.subscribe(name, qos=1)
        odd = Properties(user_properties=(pair, ("k", "v")))
        for qos in (0, 1):
            writer.send(Publish(name, b"x", qos, packet_id=qos, properties=odd))
            message = reader.receive()
            assert message.payload == b"x"
            assert ("k", "v") in message.properties.user_properties


def test_headers_that_mqtt_cannot_say_do_not_stop_a_session(tmp_path: Path) -> None:
    """A message of another door may hold text that no MQTT packet can."""
    with Hosted(tmp_path) as broker:
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe("default", qos=1)
        reader.disconnect()
        for headers in ({"a": "\0"}, {"\0": "a"}, {"k": "v" * 65_530}, {"k": "ü" * 32_767}):
            broker.run(lambda s, h=headers: s.broker.publish(b"x", "default", headers=h))
        odd = {"mqtt.response-topic": "a/#", "mqtt.correlation-data": "?", "k": "v"}
        broker.run(lambda server: server.broker.publish(b"x", "default", headers=odd))
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        received = [reader.receive() for _ in range(5)]
        assert [one.payload for one in received] == [b"x"] * 5
        assert ("k", "v") in received[4].properties.user_properties
        reader.close()


def test_time_that_is_left_is_told_and_what_has_expired_does_not_come(
    broker: Hosted, name: str
) -> None:
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe(name, qos=1)
    with client(broker, name + "p") as writer:
        for packet_id, expiry_s in ((1, 100), (2, 1), (3, None)):
            asked = Properties(message_expiry_interval=expiry_s)
            sent = SentAt()
            writer.send(Publish(name, b"%d" % packet_id, 1, packet_id=packet_id, properties=asked))
            writer.expect(Puback)
            left_s = reader.receive().properties.message_expiry_interval
            if expiry_s is None:
                assert left_s is None
            else:
                sent.check_left(left_s, expiry_s)
        reader.disconnect()
        sent = SentAt()
        for packet_id, expiry_s in ((1, 100), (2, 1), (3, None), (4, 0)):
            asked = Properties(message_expiry_interval=expiry_s)
            message = Publish(name, b"%d" % packet_id, 1, True, packet_id=packet_id)
            writer.send(Publish(f"{name}/r/{packet_id}", b"r", 0, True, properties=asked))
            writer.send(
                Publish(message.name, message.payload, 1, packet_id=packet_id, properties=asked)
            )
            writer.expect(Puback)
        before = broker.dropped["expired"]
        broker.wait_past_us(1_100_000)
        reader, _ = connect_kept(broker.port, name, MQTT_5)
        first, last = reader.receive(), reader.receive()
        assert (first.payload, last.payload) == (b"1", b"3")
        sent.check_left(first.properties.message_expiry_interval, 100, waited_s=1)
        assert reader.settle() == []
        assert broker.dropped["expired"] - before == 2
        with client(broker, name + "2") as late:
            late.subscribe(f"{name}/r/+")
            retained = {late.receive().name, late.receive().name}
            assert retained == {f"{name}/r/1", f"{name}/r/3"}
            assert late.settle() == []
    reader.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_expiry_of_one_second_arrives_as_one(broker: Hosted, name: str, qos: int) -> None:
    """A second that has only begun is not taken off, for plain and for shared subscriptions."""
    with (
        client(broker, name + "p") as writer,
        client(broker, name) as plain,
        client(broker, name + "s") as member,
    ):
        plain.subscribe(name, qos=qos)
        member.subscribe(f"$share/{name}/{name}", qos=qos)
        sent = SentAt()
        asked = Properties(message_expiry_interval=1)
        writer.send(Publish(name, b"x", qos, packet_id=1 if qos else 0, properties=asked))
        for reader in (plain, member):
            sent.check_left(reader.receive().properties.message_expiry_interval, 1)


@pytest.mark.parametrize("qos", [1, 2])
def test_stored_and_retained_messages_lose_only_whole_seconds(
    broker: Hosted, name: str, qos: int
) -> None:
    away, _ = connect_kept(broker.port, name, MQTT_5)
    away.subscribe(name, qos=qos)
    away.disconnect()
    with client(broker, name + "p") as writer, client(broker, name + "r") as reader:
        sent = SentAt()
        asked = Properties(message_expiry_interval=500)
        writer.send(Publish(name, b"x", 1, True, packet_id=1, properties=asked))
        writer.expect(Puback)
        reader.subscribe(name, qos=qos)
        sent.check_left(reader.receive().properties.message_expiry_interval, 500)
        no_retained = Subscription(name, qos, retain_handling=2)
        reader.subscribe_feed(no_retained, from_="earliest")
        sent.check_left(reader.receive().properties.message_expiry_interval, 500)
        away, _ = connect_kept(broker.port, name, MQTT_5)
        sent.check_left(away.receive().properties.message_expiry_interval, 500)
        away.close()
