"""Clients that ask for history, for tests of feeds."""

from __future__ import annotations

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Publish,
)
from penstock.mqtt.properties import Properties
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire


def client(broker: Hosted, client_id: str = "", properties: Properties | None = None) -> Wire:
    wire = Wire(broker.port, client_id, MQTT_5)
    wire.connect(properties=properties or Properties())
    return wire


def publish(broker: Hosted, name: str, *payloads: bytes, qos: int = 1) -> None:
    with client(broker) as publisher:
        for payload in payloads:
            publisher.publish(name, payload, qos)
        publisher.settle()


def payloads(wire: Wire, count: int) -> list[bytes]:
    return [wire.receive().payload for _ in range(count)]


def said(message: Publish, key: str) -> str:
    (value,) = [value for one, value in message.properties.user_properties if one == key]
    return value


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]
