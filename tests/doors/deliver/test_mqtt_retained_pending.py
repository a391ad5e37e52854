"""A SUBSCRIBE behind retained messages that are not durable yet: is it given them as retained?

The disk of this broker takes its time, so whatever is sent with a publish comes before its commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from tests.doors.connection.test_mqtt_flow import SLOW_DISK
from tests.doors.served import Served
from tests.doors.wire import Wire, connect_kept
from tests.http.asking import Asking
from tests.http.websocket.test_http_mqtt import framed_wire

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])
EACH_QOS = pytest.mark.parametrize("qos", [0, 1, 2])
PACKET_ID = 1_000  # of what these tests send by hand


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    slow = os.environ | {"SYNC_S": "0.1"}
    with Served(tmp_path_factory.mktemp("data"), program=SLOW_DISK, env=slow) as served:
        yield served


def over_tcp(broker: Served, client_id: str, version: int) -> Wire:
    return Wire(broker.port, client_id, version)


def over_websocket(broker: Served, client_id: str, version: int) -> Wire:
    return framed_wire(broker.http_port, client_id, version)


EACH_DOOR = pytest.mark.parametrize("door", [over_tcp, over_websocket])


def retained(name: str, payload: bytes, qos: int) -> Publish:
    return Publish(name, payload, qos, True, packet_id=PACKET_ID if qos else 0)


def subscribe(
    *filters: str, qos: int = 2, handling: int = 0, properties: Properties = NO_PROPERTIES
) -> Subscribe:
    wanted = tuple(Subscription(one, qos, retain_handling=handling) for one in filters)
    return Subscribe(PACKET_ID + 1, wanted, properties)


def rest(client: Wire) -> list[tuple[str, bytes, bool]]:
    """(name, payload, RETAIN) of the messages that come until all that was sent is durable."""
    client.pick(Suback)
    client.publish("fence", b"", 1)
    messages = []
    while said := [one for one in client.settle() if isinstance(one, Publish)]:
        for one in said:
            client.acknowledge(one)
            messages.append((one.name, one.payload, one.retain))
    return messages


@EACH_DOOR
@VERSIONS
@EACH_QOS
def test_a_retained_message_sent_before_the_subscribe_comes_as_retained(
    broker: Served, name: str, qos: int, version: int, door: Callable[[Served, str, int], Wire]
) -> None:
    """In one segment [MQTT-3.3.1-6], and once: not live as well."""
    with door(broker, name, version) as client:
        client.connect()
        client.send(retained(f"{name}/a", b"new", qos), subscribe(f"{name}/+"))
        assert rest(client) == [(f"{name}/a", b"new", True)]


@VERSIONS
def test_a_session_that_stays_is_given_it_too(broker: Served, name: str, version: int) -> None:
    client, _ = connect_kept(broker.port, name, version)
    client.send(retained(f"{name}/a", b"new", 1), subscribe(f"{name}/a"))
    assert rest(client) == [(f"{name}/a", b"new", True)]
    client.disconnect()
    client, is_present = connect_kept(broker.port, name, version)
    assert is_present and client.settle() == []
    client.close()


@EACH_QOS
def test_retain_handling_decides_whether_it_is_given(broker: Served, name: str, qos: int) -> None:
    """Handling 2 is not given it at all, 1 only with a new subscription [MQTT-3.3.1-10, -11]."""
    for handling, given in ((2, []), (1, [(name, b"1", True)]), (0, [(name, b"0", True)])):
        with Wire(broker.port, name, MQTT_5) as client:
            client.connect()
            client.send(retained(name, b"%d" % handling, qos), subscribe(name, handling=handling))
            assert rest(client) == given


@EACH_QOS
def test_who_had_the_subscription_gets_it_live(broker: Served, name: str, qos: int) -> None:
    with Wire(broker.port, name, MQTT_5) as client:
        client.connect()
        client.subscribe(name, qos=2)
        client.send(retained(name, b"x", qos), subscribe(name, handling=1))
        assert rest(client) == [(name, b"x", False)]


@VERSIONS
@EACH_QOS
def test_a_value_that_was_replaced_or_cleared_does_not_come(
    broker: Served, name: str, qos: int, version: int
) -> None:
    with Wire(broker.port, name, version) as client:
        client.connect()
        client.publish(f"{name}/a", b"old", 1, retain=True)
        client.publish(f"{name}/b", b"old", 1, retain=True)
        client.send(
            Publish(f"{name}/b", b"newer", 0, True),
            retained(f"{name}/a", b"", qos),
            subscribe(f"{name}/#"),
        )
        assert rest(client) == [(f"{name}/b", b"newer", True)]


def test_one_that_follows_the_subscribe_comes_live(broker: Served, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as client:
        client.connect()
        after = Publish(f"{name}/b", b"after", 1, True, packet_id=PACKET_ID + 2)
        client.send(retained(f"{name}/a", b"before", 1), subscribe(f"{name}/+"), after)
        heard = rest(client)
        assert heard == [(f"{name}/a", b"before", True), (f"{name}/b", b"after", False)]


def test_a_shared_subscription_is_given_nothing_from_before_it(broker: Served, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as client:
        client.connect()
        client.send(retained(f"{name}/a", b"x", 1), subscribe(f"$share/{name}/{name}/a"))
        assert rest(client) == []


def test_a_subscription_from_the_end_is_given_it_as_retained(broker: Served, name: str) -> None:
    latest = Properties(user_properties=(("from", "latest"),))
    with Wire(broker.port, name, MQTT_5) as client:
        client.connect()
        client.send(retained(f"{name}/a", b"x", 1), subscribe(f"{name}/a", properties=latest))
        assert rest(client) == [(f"{name}/a", b"x", True)]


@VERSIONS
def test_what_is_behind_the_subscribe_waits_with_it(
    broker: Served, name: str, version: int
) -> None:
    """Its answers come in the order in which it asked."""
    with Wire(broker.port, name, version) as client:
        client.connect()
        client.send(
            retained(name, b"x", 1),
            subscribe(name),
            Unsubscribe(PACKET_ID + 2, (name,)),
            subscribe(f"{name}/other"),
            Pingreq(),
        )
        answers: list[Packet] = [client.next() for _ in range(5)]
        kinds: list[Any] = [Puback, Suback, Unsuback, Suback, Pingresp]
        assert [type(one) for one in answers] == kinds


@VERSIONS
@EACH_QOS
def test_one_of_another_client_is_waited_for(
    broker: Served, name: str, qos: int, version: int
) -> None:
    with Wire(broker.port, name, version) as reader, Wire(broker.port, name + "p") as writer:
        reader.connect()
        writer.connect()
        writer.publish(f"{name}/cleared", b"old", 1, retain=True)
        writer.send(retained(f"{name}/a", b"new", qos), Publish(f"{name}/cleared", b"", 0, True))
        writer.settle()  # the broker has them, and the disk does not
        reader.send(subscribe(f"{name}/+"))
        assert rest(reader) == [(f"{name}/a", b"new", True)]


def test_one_that_came_over_http_is_waited_for(broker: Served, name: str) -> None:
    with (
        Wire(broker.port, name, MQTT_5) as reader,
        Asking(broker.http_port) as writer,
        Asking(broker.http_port) as other,
    ):
        reader.connect()
        assert other.ask("PUT", f"/v1/topics/{name}").status in (200, 201)
        body = b'{"payload": "x", "name": "%s/a", "retain": true}' % name.encode()
        head = f"POST /v1/topics/{name}/records HTTP/1.1\r\nHost: localhost\r\n"
        writer.send(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        other.ask("GET", "/healthz")  # by now the broker has read the other request as well
        reader.send(subscribe(f"{name}/a"))
        assert rest(reader) == [(f"{name}/a", b"x", True)]
        assert writer.answer().status == 200


def test_a_stream_of_retained_messages_holds_nobody_up(broker: Served, name: str) -> None:
    """Only those that came before it are waited for: each SUBSCRIBE is answered in its turn."""
    with Wire(broker.port, name, MQTT_5) as reader, Wire(broker.port, name + "p") as writer:
        reader.connect()
        writer.connect()
        answered = 0
        for number in range(5):
            reader.send(subscribe(f"{name}/{number}"))
            while not isinstance(reader.poll(0.02), Suback):
                writer.send(Publish(f"{name}/x", b"%d" % number, 0, True))
            answered += 1
            writer.settle()
        assert answered == 5
