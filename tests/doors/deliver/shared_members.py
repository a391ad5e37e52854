"""Clients that share a filter, for tests of shared subscriptions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain

from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Packet,
    Puback,
    Publish,
)
from penstock.mqtt.properties import Properties
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire


def client(broker: Hosted, client_id: str, version: int = MQTT_5, window: int = 0) -> Wire:
    wire = Wire(broker.port, client_id, version)
    wire.connect(properties=Properties(receive_maximum=window) if window else Properties())
    return wire


def members(broker: Hosted, stack: ExitStack, key: str, count: int, qos: int) -> list[Wire]:
    """So many clients that share a filter."""
    wires = []
    for number in range(count):
        wires.append(stack.enter_context(client(broker, f"{key}-{number}")))
        assert wires[-1].subscribe(key, qos=qos).reasons[0] == qos
    return wires


def messages(packets: list[Packet]) -> list[Publish]:
    return [packet for packet in packets if isinstance(packet, Publish)]


def taken(wire: Wire) -> list[bytes]:
    """What has come up to now; all acknowledged."""
    got: list[bytes] = []
    while found := messages(wire.settle()):
        got += [message.payload for message in found]
        for message in found:
            wire.acknowledge(message)
    return got


def joined(got: Iterable[list[bytes]]) -> list[bytes]:
    return list(chain.from_iterable(got))


def burst(wire: Wire, name: str, numbers: range, qos: int) -> None:
    """Messages in one write; at QoS 1 all acknowledged."""
    packets = [Publish(name, b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in numbers]
    wire.send_bytes(b"".join(encode(packet, wire.version) for packet in packets))
    if qos:
        for _ in numbers:
            wire.expect(Puback)
    else:
        wire.settle()


# Who gets what
