"""$SYS: does the broker say about itself what Mosquitto's users look for, and only to those who
ask for it?
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import __version__
from penstock.core.access import RECEIVE, Principal, authorise
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Puback, Publish, Subscription
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept

WELL_KNOWN = [
    "bytes/received",
    "bytes/sent",
    "clients/connected",
    "clients/disconnected",
    "clients/expired",
    "clients/maximum",
    "clients/total",
    "heap/current",
    "heap/maximum",
    "messages/received",
    "messages/sent",
    "messages/stored",
    "publish/bytes/received",
    "publish/bytes/sent",
    "publish/messages/dropped",
    "publish/messages/received",
    "publish/messages/sent",
    "subscriptions/count",
    "shared_subscriptions/count",
    "version",
    "uptime",
    "load/bytes/received/1min",
    "load/bytes/sent/5min",
    "load/connections/15min",
    "load/messages/received/1min",
    "load/messages/sent/1min",
    "load/publish/dropped/1min",
    "load/publish/received/5min",
    "load/publish/sent/15min",
    "load/sockets/1min",
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A broker that looked at itself once, for those who come."""
    with Hosted(tmp_path_factory.mktemp("data"), mqtt__sys_interval_s=3600) as hosted:
        yield hosted


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Hosted]:
    """A broker that looks at itself every second."""
    with Hosted(tmp_path, mqtt__sys_interval_s=1) as hosted:
        yield hosted


def client(broker: Hosted, client_id: str = "", version: int = MQTT_5) -> Wire:
    wire = Wire(broker.port, client_id, version)
    wire.connect()
    return wire


def values(wire: Wire) -> dict[str, bytes]:
    """What has been said up to now, the newest of each name."""
    said = [packet for packet in wire.settle() if isinstance(packet, Publish)]
    return {message.name.removeprefix("$SYS/broker/"): message.payload for message in said}


def look(broker: Hosted) -> dict[str, bytes]:
    """All values as they stand."""
    with client(broker) as reader:
        reader.subscribe("$SYS/broker/#")
        return values(reader)


def wait_for(wire: Wire, name: str, payload: bytes) -> None:
    for _ in range(500):  # so many values are said in a few seconds
        message = wire.expect(Publish)
        if (message.name, message.payload) == (f"$SYS/broker/{name}", payload):
            return
    raise AssertionError(f"{name} does not become {payload!r}")


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_new_subscriber_is_given_every_well_known_value_as_retained(
    broker: Hosted, version: int
) -> None:
    with client(broker, version=version) as reader:
        reader.subscribe("$SYS/#")
        said = [packet for packet in reader.settle() if isinstance(packet, Publish)]
        assert all(message.retain and message.qos == 0 for message in said)
        names = [message.name for message in said]
        assert len(names) == len(set(names))
        assert {f"$SYS/broker/{name}" for name in WELL_KNOWN} <= set(names)
        assert "$SYS/broker/retained messages/count" in names


def test_values_have_the_form_that_tools_parse(broker: Hosted) -> None:
    with client(broker) as reader:
        reader.subscribe("$SYS/broker/#")
        said = values(reader)
    assert said.pop("version") == f"penstock version {__version__}".encode()
    assert re.fullmatch(rb"\d+ seconds", said.pop("uptime"))
    for name, value in said.items():
        form = rb"\d+\.\d\d" if name.startswith("load/") else rb"\d+"
        assert re.fullmatch(form, value), (name, value)


def test_a_name_or_a_part_of_them_can_be_asked_for(broker: Hosted) -> None:
    with client(broker) as reader:
        reader.subscribe("$SYS/broker/version")
        assert list(values(reader)) == ["version"]
        reader.subscribe("$SYS/broker/clients/+")
        assert all(name.startswith("clients/") for name in values(reader))
        reader.subscribe(Subscription("$SYS/broker/uptime", retain_handling=2))
        assert "uptime" not in values(reader)


def test_a_wildcard_at_the_beginning_does_not_stand_for_it(quick: Hosted) -> None:
    with client(quick) as reader, client(quick) as other:
        reader.subscribe("#", "+/#", "+/broker/uptime")
        other.subscribe("$SYS/broker/uptime")
        for _ in range(3):  # at least one update after the first value
            other.expect(Publish)
        assert reader.settle() == []


def test_what_changes_follows_and_is_not_marked_as_retained(quick: Hosted) -> None:
    with client(quick) as reader:
        reader.subscribe("$SYS/broker/clients/connected", "$SYS/broker/publish/messages/received")
        values(reader)
        with client(quick) as other:
            other.publish("a", b"x", 1)
            messages = [reader.expect(Publish), reader.expect(Publish)]
            assert {(m.name.rsplit("/", 1)[1], m.payload, m.retain) for m in messages} == {
                ("connected", b"2", False),
                ("received", b"1", False),
            }
        wait_for(reader, "clients/connected", b"1")


def test_a_subscriber_reads_itself_as_connected_whatever_the_interval_is(tmp_path: Path) -> None:
    with Hosted(tmp_path, mqtt__sys_interval_s=3600) as broker:
        for connected in (b"1", b"1"):
            with client(broker) as reader:
                reader.subscribe("$SYS/broker/clients/connected")
                message = reader.expect(Publish)
                assert (message.payload, message.retain) == (connected, True)
                reader.disconnect()


def test_clients_that_come_and_go_are_told_without_waiting_for_the_interval(
    tmp_path: Path,
) -> None:
    with Hosted(tmp_path, mqtt__sys_interval_s=3600) as broker, client(broker) as reader:
        reader.subscribe("$SYS/broker/clients/connected", "$SYS/broker/subscriptions/count")
        wait_for(reader, "subscriptions/count", b"2")
        with client(broker) as other:
            wait_for(reader, "clients/connected", b"2")
            other.subscribe("a")
            wait_for(reader, "subscriptions/count", b"3")
        wait_for(reader, "clients/connected", b"1")


def test_a_crowd_that_comes_and_goes_is_told_at_most_once_a_second(tmp_path: Path) -> None:
    with Hosted(tmp_path, mqtt__sys_interval_s=3600) as broker, client(broker) as reader:
        reader.subscribe("$SYS/broker/clients/connected")
        assert reader.expect(Publish).payload == b"1"
        ticks = broker.call(lambda: broker.door.serving.tick)
        for _ in range(50):
            with client(broker) as other:
                other.disconnect()
        said = [packet for packet in reader.settle() if isinstance(packet, Publish)]
        assert len(said) <= broker.call(lambda: broker.door.serving.tick) - ticks


def test_counts_tell_what_happened(quick: Hosted) -> None:
    kept, _ = connect_kept(quick.port, "kept", MQTT_5)
    kept.subscribe("a/#", qos=1)
    kept.subscribe_feed("b/#", qos=1, from_="latest")
    with client(quick) as publisher:
        publisher.publish("a/1", b"0123456789", 1, retain=True)
        publisher.publish("b/1", b"0123456789", 1)
    kept.receive()
    kept.receive()
    with client(quick) as reader:
        reader.subscribe("$SYS/broker/publish/messages/received")
        wait_for(reader, "publish/messages/received", b"2")
        said = look(quick)
        assert int(said["publish/messages/sent"]) >= 2
        assert said["messages/stored"] == b"2"
        assert said["subscriptions/count"] == b"3"  # the one that looks was not there yet
        assert said["retained messages/count"] == b"1"
        assert int(said["publish/bytes/received"]) == 2 * (2 + 2 + 3 + 2 + 1 + 10)
        assert int(said["publish/bytes/sent"]) > 2 * 20
        assert int(said["bytes/received"]) > int(said["publish/bytes/received"])
        assert int(said["messages/received"]) > 6  # CONNECT, SUBSCRIBE, PUBLISH, PUBACK, …
        assert int(said["clients/maximum"]) >= 2
        reader.subscribe("$SYS/broker/load/connections/1min")
        while reader.expect(Publish).payload in (b"0.00", b"2"):
            pass  # averages come with the next interval
    kept.disconnect()
    with client(quick) as reader:
        reader.subscribe("$SYS/broker/clients/disconnected")
        wait_for(reader, "clients/disconnected", b"1")
        said = look(quick)
        assert (said["clients/total"], said["clients/connected"]) == (b"3", b"2")


def test_nothing_of_it_is_stored(quick: Hosted) -> None:
    with client(quick) as reader:
        reader.subscribe("$SYS/broker/uptime", qos=1)
        for _ in range(3):
            assert reader.expect(Publish).qos == 0
    ends = quick.call(lambda: quick.exchange.engine.topics.ends())
    assert set(ends.values()) == {0}
    assert quick.call(lambda: len(quick.exchange.store.retained)) == 0


def test_clients_may_not_speak_in_its_name(broker: Hosted) -> None:
    with client(broker) as speaker, client(broker) as reader:
        reader.subscribe(Subscription("$SYS/#", retain_handling=2))
        speaker.send(Publish("$SYS/broker/version", b"mine", 1, packet_id=7))
        assert speaker.expect(Puback).reason == Reason.NOT_AUTHORIZED
        speaker.publish("$SYS/broker/version", b"mine", 0)
        assert speaker.settle() == []
        assert all(m.payload != b"mine" for m in reader.settle() if isinstance(m, Publish))
    with client(broker, version=MQTT_3_1_1) as old:
        old.publish("$SYS/broker/version", b"mine", 0)  # has no word for no: it is ignored
        assert old.settle() == []


def test_only_who_may_receive_a_name_is_told(quick: Hosted) -> None:
    def no_heap(principal: Principal, action: str, name: str, topic: str) -> bool:
        if action == RECEIVE and "/heap/" in name:
            return False
        return authorise(principal, action, name, topic)

    quick.call(lambda: setattr(quick.exchange, "authorise", no_heap))
    quick.call(lambda: setattr(quick.exchange.router, "_authorise", no_heap))
    with client(quick) as reader:
        reader.subscribe("$SYS/#")
        said = values(reader)
        assert "version" in said and "heap/current" not in said
        wait_for(reader, "uptime", b"2 seconds")
        assert all("heap" not in name for name in values(reader))


def test_without_an_interval_nothing_is_said(tmp_path: Path) -> None:
    with Hosted(tmp_path, mqtt__sys_interval_s=0) as broker, client(broker) as reader:
        reader.subscribe("$SYS/#")
        assert reader.settle() == []


def test_a_session_that_was_away_is_not_sent_old_values(quick: Hosted) -> None:
    reader, _ = connect_kept(quick.port, "kept", MQTT_5)
    reader.subscribe("$SYS/broker/uptime", qos=1)
    reader.expect(Publish)
    reader.disconnect()
    with client(quick) as other:
        other.subscribe("$SYS/broker/uptime")
        for _ in range(3):
            other.expect(Publish)
    reader, is_present = connect_kept(quick.port, "kept", MQTT_5)
    assert is_present
    assert len(reader.settle()) <= 1  # one that is new
    assert not reader.expect(Publish).retain
    reader.close()
