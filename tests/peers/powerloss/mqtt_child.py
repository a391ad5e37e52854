"""An MQTT client that says on standard output what the broker has promised it, as it happens."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.doors.wire import Wire, connect_kept

MESSAGES = 24
WINDOW = 4


def tell(*words: object) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def subscribe(port: int) -> None:
    for number in range(3):
        reader, _ = connect_kept(port, f"reader-{number}", MQTT_5)
        tell("session", f"reader-{number}")
        reader.subscribe(f"q/{number}", "q/all", qos=2)
        tell("subscribed", f"reader-{number}", f"q/{number}")
        reader.disconnect()


def publish_qos1(writer: Wire) -> None:
    """A few in flight, retained now and then."""
    for first in range(0, MESSAGES, WINDOW):
        numbers = range(first, first + WINDOW)
        for number in numbers:
            name = f"r/{number % 3}" if number % 2 else "q/all"
            payload = b"one %d" % number
            writer.send(Publish(name, payload, 1, number % 2 == 1, packet_id=number + 1))
        for _ in numbers:
            number = writer.expect(Puback).packet_id - 1
            tell("stored", f"one {number}")
            if number % 2:
                tell("retained", f"r/{number % 3}", number)


def publish_qos2(writer: Wire) -> None:
    for number in range(MESSAGES // 2):
        packet_id = 100 + number
        writer.send(Publish("q/all", b"two %d" % number, 2, packet_id=packet_id))
        writer.expect(Pubrec)
        tell("received", f"two {number}", packet_id)
        if number % 3 == 0:
            continue  # left open
        tell("releasing", packet_id)
        writer.send(Pubrel(packet_id))
        writer.expect(Pubcomp)
        tell("released", packet_id)


def read_some(port: int) -> None:
    """A session that takes a few messages, each all the way, and leaves the rest."""
    reader, _ = connect_kept(port, "reader-0", MQTT_5)
    for _ in range(MESSAGES // 2 + 6):
        message = reader.pick(Publish)
        reader.acknowledge(message)
        if message.qos == 2:
            tell("taken", message.payload.decode())
    reader.close()


def main(port: int) -> None:
    subscribe(port)
    writer, _ = connect_kept(port, "writer", MQTT_5)
    publish_qos1(writer)
    publish_qos2(writer)
    read_some(port)
    publish_qos1(writer)
    writer.disconnect()
    tell("done")


main(int(sys.argv[1]))
