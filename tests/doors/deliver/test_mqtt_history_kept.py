"""Feeds in sessions that are kept, and what retention takes from them: do they go on rightly?"""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest

from penstock.doors.mqtt.connection import Connection
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Disconnect,
    Puback,
    Publish,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.properties import Properties
from tests.doors.deliver.history_clients import client, numbers, payloads, publish
from tests.doors.hosted import Hosted
from tests.doors.wire import connect_kept


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_kept_feed_goes_on_where_it_was(broker: Hosted, name: str, qos: int) -> None:
    publish(broker, name, *numbers(0, 10), qos=2)
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe_feed(name, qos=qos, from_="earliest", where="payload <> '5'")
    assert payloads(reader, 9) == numbers(0, 5) + numbers(6, 10)
    reader.disconnect()
    publish(broker, name, *numbers(10, 20), qos=2)
    reader, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present
    assert payloads(reader, 10) == numbers(10, 20)
    publish(broker, name, b"5", b"20", qos=2)
    assert payloads(reader, 1) == [b"20"]
    assert reader.settle() == []
    reader.close()


def test_client_that_subscribes_with_from_and_leaves_in_one_write_has_subscribed(
    broker: Hosted, name: str
) -> None:
    publish(broker, name, *numbers(0, 3), qos=2)
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    asked = Properties(user_properties=(("from", "earliest"),))
    reader.send(Subscribe(1, (Subscription(name, 1),), asked), Disconnect())
    while not reader.is_closed():
        pass  # the answer, as far as it comes before the end
    reader.close()
    broker.wait_idle()
    reader, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present
    assert payloads(reader, 3) == numbers(0, 3)
    assert reader.settle() == []
    reader.close()


def test_client_that_leaves_while_its_feed_is_looked_up_leaves_nothing_behind(
    broker: Hosted, name: str
) -> None:
    asked = Properties(user_properties=(("from", "earliest"),))
    subscribe = Subscribe(1, (Subscription(name, 1),), asked)
    for _ in range(20):
        with client(broker, name) as leaving:
            leaving.send(subscribe, Unsubscribe(2, (name,)), Disconnect())
            while not leaving.is_closed():
                pass
    broker.wait_idle()
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, Connection) and one.is_closed]
    assert len(left) < 5  # a frame may still hold the last


def test_what_a_kept_feed_had_out_comes_again_with_dup_and_its_properties(
    broker: Hosted, name: str
) -> None:
    publish(broker, name, *numbers(0, 4))
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe(f"{name}/#", qos=1)  # a copy of its own, with a packet id of its own
    reader.subscribe_feed(name, qos=1, from_="earliest")
    out = [reader.expect(Publish) for _ in range(4)]
    reader.send(Puback(out[1].packet_id))
    reader.settle()
    reader.close()
    broker.wait_idle()
    publish(broker, name, b"4")
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    again = [reader.receive() for _ in range(3)]
    assert [(m.payload, m.dup, m.packet_id) for m in again] == [
        (m.payload, True, m.packet_id) for m in (out[0], out[2], out[3])
    ]
    assert [m.properties for m in again] == [m.properties for m in (out[0], out[2], out[3])]
    last = [reader.receive(), reader.receive()]  # from the plain subscription, and from the feed
    assert [m.payload for m in last] == [b"4", b"4"]
    assert sorted(len(m.properties.user_properties) for m in last) == [0, 3]
    assert reader.settle() == []
    reader.close()


def test_a_kept_feed_that_was_taken_back_stays_away(broker: Hosted, name: str) -> None:
    publish(broker, name, *numbers(0, 3))
    reader, _ = connect_kept(broker.port, name, MQTT_5)
    reader.subscribe_feed(name, qos=1, from_="earliest")
    payloads(reader, 3)
    reader.send(Unsubscribe(9, (name,)))
    reader.expect(Unsuback)
    reader.disconnect()
    reader, is_present = connect_kept(broker.port, name, MQTT_5)
    assert is_present
    publish(broker, name, b"3")
    assert reader.settle() == []
    reader.close()


def test_retention_that_was_faster_is_counted_and_the_feed_goes_on(tmp_path: Path) -> None:
    settings = {"log__segment_bytes": "64 KiB", "topics__defaults__retention_bytes": "64 KiB"}
    with Hosted(tmp_path, **settings) as broker:
        broker.run(lambda server: server.broker.create_topic("a"))
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe_feed("a/#", qos=1, from_="earliest")
        reader.disconnect()
        broker.wait_idle()
        noise = random.Random(1)  # bytes that no compression makes smaller
        publish(broker, "a/x", *[b"%d " % number + noise.randbytes(40_000) for number in range(8)])
        broker.run(lambda server: server.broker.engine.upkeep.look_after_all())
        first = broker.call(lambda: broker.exchange.engine.topics.get("a").log.bounds().first)
        assert 0 < first < 8
        reader, is_present = connect_kept(broker.port, "reader", MQTT_5)
        assert is_present
        kept = [int(payload.split(b" ")[0]) for payload in payloads(reader, 8 - first)]
        assert kept == list(range(first, 8))
        assert broker.dropped["retention"] == first
        reader.close()
