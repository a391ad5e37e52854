"""queue_qos0: are messages of QoS 0 kept for sessions whose clients are away, and only then?"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from penstock.broker.session.backlog import describe_sessions
from penstock.doors.mqtt.connection import Connection
from penstock.doors.mqtt.unsent import OUT_BYTES_MAX
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Publish, Subscription
from penstock.mqtt.properties import Properties
from tests.doors.hosted import Hosted
from tests.doors.served import Served
from tests.doors.wire import Wire, connect_kept

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
EFFECTIVE = pytest.mark.parametrize(("published", "subscribed"), [(0, 0), (0, 1), (0, 2), (1, 0)])


def queueing(data: Path) -> Hosted:
    return Hosted(data, mqtt__queue_qos0=True)


def connected(stack: ExitStack, broker: Hosted | Served, client_id: str = "") -> Wire:
    wire = stack.enter_context(Wire(broker.port, client_id))
    wire.connect()
    return wire


def away(broker: Hosted | Served, filter: str, qos: int = 0, version: int = MQTT_3_1_1) -> None:
    """A session `reader` with one filter, whose client has gone."""
    reader, _ = connect_kept(broker.port, "reader", version)
    reader.subscribe(filter, qos=qos)
    reader.disconnect()


def publish_large(publisher: Wire, count: int) -> None:
    """Numbered messages of 64 KiB to `a`; returns when all of them are stored."""
    body = bytes(64 * 1024)
    for number in range(count):
        publisher.publish("a", b"%012d" % number + body)
    publisher.publish("end", b"", 1)


def numbers(wire: Wire, count: int) -> list[int]:
    return [int(wire.receive().payload[:12]) for _ in range(count)]


@VERSIONS
@EFFECTIVE
def test_what_came_while_away_is_sent_once_in_order_and_at_qos_0(
    tmp_path: Path, version: int, published: int, subscribed: int
) -> None:
    with queueing(tmp_path) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        away(broker, "a/#", subscribed, version)
        publisher.publish_all("a/b", 20, published)
        publisher.publish("other", b"not wanted")
        publisher.settle()
        reader, is_present = connect_kept(broker.port, "reader", version)
        assert is_present
        for number in range(20):
            message = reader.expect(Publish)
            assert (message.payload, message.qos) == (b"%d" % number, 0)
            assert not message.dup and not message.retain
        publisher.publish("a/c", b"live")
        assert reader.receive().payload == b"live"
        reader.disconnect()
        reader, _ = connect_kept(broker.port, "reader", version)
        assert reader.settle() == []
        reader.disconnect()


@EFFECTIVE
def test_without_the_setting_only_what_is_above_qos_0_is_kept(
    tmp_path: Path, published: int, subscribed: int
) -> None:
    with Hosted(tmp_path) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        away(broker, "#", subscribed)
        publisher.publish_all("a", 5, published)
        publisher.publish("end", b"end", 2)
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        publisher.publish("live", b"live", 2)
        for expected in (b"end", b"live") if subscribed else (b"live",):
            assert reader.receive().payload == expected
        reader.close()


def test_messages_of_every_qos_come_in_the_order_they_were_published(tmp_path: Path) -> None:
    with queueing(tmp_path) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        away(broker, "a", 2)
        for number in range(60):
            publisher.publish("a", b"%d" % number, number % 3)
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        assert sorted(numbers(reader, 60)) == list(range(60))
        reader.close()


def test_what_is_kept_survives_kill_9_and_a_stop_of_the_broker(tmp_path: Path) -> None:
    with_setting = {"PENSTOCK_MQTT__QUEUE_QOS0": "true"}
    broker = Served(tmp_path, env={**os.environ, **with_setting}).start()
    away(broker, "a")
    with Wire(broker.port) as publisher:
        publisher.connect()
        for number in range(30):
            publisher.publish("a", b"%d" % number)
        publisher.publish("last", b"", 1)  # QoS 0 before it is on disk with it
    broker.kill()
    broker.start()
    with Wire(broker.port) as publisher:
        publisher.connect()
        for number in range(30, 40):
            publisher.publish("a", b"%d" % number)
        publisher.publish("last", b"", 1)
    broker.stop()
    broker.start()
    reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
    assert numbers(reader, 40) == list(range(40))
    assert reader.settle() == []
    reader.close()
    broker.stop()


def test_a_client_that_comes_and_goes_gets_every_message_once(tmp_path: Path) -> None:
    seed = 20_260_731
    print(f"seed {seed}")
    random = Random(seed)
    got: list[int] = []
    with queueing(tmp_path) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        away(broker, "a", 1)
        sent = 0
        for _ in range(40):
            reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
            for _ in range(random.randrange(5)):
                publisher.publish("a", b"%d" % sent, random.choice((0, 0, 1)))
                sent += 1
            got += numbers(reader, sent - len(got))  # reads all before it goes
            reader.disconnect()
            for _ in range(random.randrange(5)):
                publisher.publish("a", b"%d" % sent, random.choice((0, 0, 1)))
                sent += 1
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        got += numbers(reader, sent - len(got))
        assert reader.settle() == []
        reader.close()
    assert got == list(range(sent))


def test_a_client_that_reads_slowly_is_paced_and_nothing_is_dropped(tmp_path: Path) -> None:
    count = 400  # more than may wait for one client
    with queueing(tmp_path) as broker, ExitStack() as stack:
        away(broker, "a")
        publish_large(connected(stack, broker), count)
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        for number in range(count):
            assert numbers(reader, 1) == [number]
            if number % 50 == 0:
                assert broker.call(lambda: _out_bytes(broker)) <= OUT_BYTES_MAX
        reader.close()
        assert broker.dropped["queue_full"] == 0


def test_a_client_that_goes_while_it_catches_up_is_sent_nothing_twice(tmp_path: Path) -> None:
    count = 300
    with queueing(tmp_path) as broker, ExitStack() as stack:
        away(broker, "a")
        publish_large(connected(stack, broker), count)
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        got = numbers(reader, 50)
        reader.close()  # what was on its way to it is lost, as QoS 0 is
        broker.wait_idle()
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        while got[-1] < count - 1:
            got += numbers(reader, 1)
        assert reader.settle() == []
        reader.close()
        assert got == sorted(set(got))


def test_a_connected_client_that_does_not_read_lags_and_gets_all_of_it_later(
    tmp_path: Path,
) -> None:
    count = 400
    with queueing(tmp_path) as broker, ExitStack() as stack:
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        reader.subscribe("a")
        publish_large(connected(stack, broker), count)
        assert numbers(reader, count) == list(range(count))
        reader.close()
        assert broker.dropped["queue_full"] == 0


def test_a_message_that_expired_meanwhile_does_not_come(tmp_path: Path) -> None:
    with queueing(tmp_path) as broker, ExitStack() as stack:
        away(broker, "a")
        publisher = stack.enter_context(Wire(broker.port, "", MQTT_5))
        publisher.connect()
        publisher.send(Publish("a", b"short", properties=Properties(message_expiry_interval=1)))
        publisher.publish("a", b"for ever")
        publisher.publish("end", b"", 1)
        broker.wait_past_us(1_100_000)
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        assert reader.receive().payload == b"for ever"
        reader.close()
        assert broker.dropped["expired"] == 1


def test_no_local_holds_for_what_is_kept(tmp_path: Path) -> None:
    with queueing(tmp_path) as broker:
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe(Subscription("a", 0, no_local=True), Subscription("a/#", 0))
        reader.publish("a", b"own")  # comes back through the other filter
        assert reader.receive().payload == b"own"
        reader.disconnect()
        with Wire(broker.port) as publisher:
            publisher.connect()
            publisher.publish("a", b"of another", 1)
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        assert reader.receive().payload == b"of another"
        assert reader.settle() == []
        reader.close()


def test_a_share_whose_members_are_all_away_keeps_what_comes(tmp_path: Path) -> None:
    with queueing(tmp_path) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        away(broker, "$share/g/a", version=MQTT_5)
        publisher.publish_all("a", 50, 0)
        publisher.publish("end", b"", 1)
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        assert numbers(reader, 50) == list(range(50))
        publisher.publish("a", b"50")
        assert numbers(reader, 1) == [50]
        assert reader.settle() == []
        reader.close()


def test_clients_without_a_kept_session_get_qos_0_as_ever(tmp_path: Path) -> None:
    with queueing(tmp_path) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        reader = connected(stack, broker, "clean")
        reader.subscribe("a", "$SYS/broker/version", qos=1)
        assert reader.receive().name == "$SYS/broker/version"
        publisher.publish_all("a", 100, 0)
        assert numbers(reader, 100) == list(range(100))
        reader.disconnect()
        publisher.publish("a", b"while away", 1)
        reader = connected(stack, broker, "clean")
        assert reader.settle() == []


def test_sessions_that_are_kept_hear_sys_as_ever(tmp_path: Path) -> None:
    with Hosted(tmp_path, mqtt__queue_qos0=True, mqtt__sys_interval_s=1) as broker:
        reader, _ = connect_kept(broker.port, "reader", MQTT_3_1_1)
        reader.subscribe("$SYS/broker/uptime")
        first, second = reader.receive(), reader.receive()
        assert first.name == second.name == "$SYS/broker/uptime"
        reader.close()


def test_what_waits_at_qos_0_is_counted_for_operators(tmp_path: Path) -> None:
    with queueing(tmp_path) as broker, ExitStack() as stack:
        publisher = connected(stack, broker)
        away(broker, "a")
        publisher.publish_all("a", 7, 0)
        publisher.publish("a", b"7", 1)
        (report,) = broker.run(lambda server: describe_sessions(broker.exchange, ["reader"]))
        assert (report.waiting, report.is_exact) == (8, True)


def _out_bytes(broker: Hosted) -> int:
    outbox = broker.exchange.sessions.connected["reader"].outbox
    assert isinstance(outbox, Connection)
    return outbox._out_bytes
