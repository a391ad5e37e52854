"""A topic whose files are missing at the start: do MQTT clients lose nothing by it?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Disconnect, Puback, Publish, Subscribe, Subscription, Will
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.session.test_mqtt_wills import stored_wills
from tests.doors.wire import Wire, kept


@contextmanager
def missing(data: Path) -> Iterator[None]:
    """While the files of topic `bad` are elsewhere."""
    (directory,) = (data / "default").glob("bad-*")
    away = data / "away"
    directory.rename(away)
    yield
    away.rename(directory)


def come_back(broker: Hosted, client_id: str) -> Wire:
    wire = Wire(broker.port, client_id, MQTT_5)
    assert wire.connect(clean=False, properties=kept()).session_present
    return wire


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Topic `bad`, and sessions that stand at different places in it."""
    with Hosted(tmp_path) as broker:
        broker.run(lambda server: server.broker.create_topic("bad"))
        readers = {}
        for client_id in ("level", "behind", "out"):
            wire = readers[client_id] = Wire(broker.port, client_id, MQTT_5)
            wire.connect(clean=False, properties=kept())
            wire.subscribe("#", qos=2)
        with Wire(broker.port, "writer", MQTT_5) as writer:
            writer.connect()
            writer.publish("bad/a", b"one", 1)
            assert readers["level"].receive().payload == b"one"
            assert readers["behind"].receive().payload == b"one"
            readers["behind"].disconnect()
            writer.publish("bad/a", b"two", 2)
            assert readers["level"].receive().payload == b"two"
            assert readers["out"].expect(Publish).payload == b"one"  # and is never acknowledged
            assert readers["out"].expect(Publish).payload == b"two"
            writer.publish("bad/kept", b"retained", 1, retain=True)
            assert readers["level"].receive().payload == b"retained"
        for client_id in ("level", "out"):
            readers[client_id].close()
        broker.wait_idle()
    return tmp_path


def test_only_publishes_to_that_topic_are_refused(data: Path) -> None:
    with missing(data), Hosted(data) as broker:
        with (
            Wire(broker.port, "reader", MQTT_5) as reader,
            Wire(broker.port, "w", MQTT_5) as writer,
        ):
            reader.connect()
            reader.subscribe("+/a", qos=1)
            writer.connect()
            writer.send(Publish("bad/a", b"x", 1, packet_id=1))
            answer = writer.expect(Puback)
            assert (answer.packet_id, answer.reason) == (1, Reason.QUOTA_EXCEEDED)
            writer.publish("bad/a", b"x", 0)
            writer.publish("good/a", b"y", 1)
            assert reader.receive().payload == b"y"
            assert reader.settle() == []
            assert broker.dropped["log_unavailable"] == 2
        with Wire(broker.port, "old", MQTT_3_1_1) as old:
            old.connect()
            old.send(Publish("bad/a", b"x", 1, packet_id=1))
            assert old.is_closed()


def test_history_of_the_other_topics_can_be_asked_for(data: Path) -> None:
    with missing(data), Hosted(data) as broker, Wire(broker.port, "w", MQTT_5) as wire:
        wire.connect()
        wire.publish("good/a", b"y", 1)
        asked = Properties(user_properties=(("from", "-1h"),))
        wire.send(Subscribe(1, (Subscription("good/#", 1),), asked))
        assert wire.pick(Publish).payload == b"y"


def test_every_session_keeps_its_place_until_the_files_are_back(data: Path) -> None:
    with missing(data):
        for number in range(2):
            with Hosted(data) as broker:
                for client_id in ("level", "behind", "out"):
                    with come_back(broker, client_id) as wire:
                        wire.publish("good/a", b"%d" % number, 1)
                        messages = [wire.receive().payload]
                        while messages[-1] != b"%d" % number:
                            messages.append(wire.receive().payload)
                        assert b"one" not in messages and b"two" not in messages
                        if number:
                            wire.send(Disconnect())
                broker.wait_idle()
    with Hosted(data) as broker:
        with Wire(broker.port, "last", MQTT_5) as last:
            last.connect()
            last.publish("bad/a", b"last", 1)
        expected = {
            "level": [b"last"],
            "behind": [b"two", b"retained", b"last"],
            "out": [b"one", b"two", b"retained", b"last"],
        }
        for client_id, payloads in expected.items():
            with come_back(broker, client_id) as wire:
                seen = []
                while b"last" not in seen:
                    message = wire.receive()
                    if message.name.startswith("bad/"):
                        seen.append(message.payload)
                        assert message.dup == (client_id == "out" and len(seen) <= 3)
                assert seen == payloads, client_id


def test_retained_messages_of_that_topic_are_still_given(data: Path) -> None:
    with missing(data), Hosted(data) as broker, Wire(broker.port, "reader", MQTT_5) as reader:
        reader.connect()
        reader.subscribe("bad/#", qos=1)
        assert reader.receive().payload == b"retained"


def test_a_will_waits_for_its_topic(data: Path) -> None:
    with missing(data), Hosted(data) as broker:
        lost = Wire(broker.port, "lost", MQTT_5)
        lost.connect(will=Will("bad/will", b"gone", 1))
        lost.close()
        broker.wait_idle()
        broker.wait_past_us(1_500_000)
        assert stored_wills(data) == ["bad/will"]
    with Hosted(data, mqtt__will_grace_s=0) as broker, come_back(broker, "level") as reader:
        assert reader.receive().payload == b"gone"
    assert stored_wills(data) == []
