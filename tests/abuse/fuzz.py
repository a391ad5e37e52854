"""`python -m tests.abuse.fuzz COUNT [SEED]`: broken packets, by the million if you like.

Only a PeerError may come out of the decoder, whatever bytes go in. Every thousandth input also goes
to a real broker, whose healthy client must still be served.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from penstock.model.errors import PeerError
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1, MQTT_3_1_1, MQTT_5, Role
from penstock.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.scanner import Intake
from penstock.mqtt.unpacking import unpack
from tests.doors.served import Served
from tests.doors.wire import Wire

VERSIONS = (MQTT_3_1, MQTT_3_1_1, MQTT_5)
LIVE_EVERY = 1_000
PACKET_BYTES_MAX = 1 << 20


def good_packets(version: int) -> list[Packet]:
    """One of each kind that a client sends, with properties where the version has them."""
    rich = Properties()
    asked = Properties()
    if version == MQTT_5:
        rich = Properties(
            user_properties=(("a", "b"),), content_type="x", message_expiry_interval=5
        )
        asked = Properties(session_expiry_interval=3)
    packets: list[Packet] = [
        Connect("fuzz", will=Will("w", b"w", 1), keep_alive_s=5, username="u", version=version),
        Publish("a/b", b"payload", 0, properties=rich),
        Publish("a/b", b"payload", 1, packet_id=5, properties=rich),
        Publish("a/b", b"", 2, True, packet_id=6),
        Puback(5),
        Pubrec(6),
        Pubrel(6),
        Subscribe(7, (Subscription("a/#", 2), Subscription("+/b", 1))),
        Unsubscribe(8, ("a/#", "+")),
        Pingreq(),
        Disconnect(properties=asked),
    ]
    return [*packets, Auth()] if version == MQTT_5 else packets


def broken(chance: random.Random, goods: list[bytes]) -> bytes:
    """A few good packets with a few bytes changed, taken out or put in."""
    data = bytearray(b"".join(chance.choices(goods, k=chance.randint(1, 3))))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        change = chance.randrange(4)
        if change == 0:
            data[at] = chance.randrange(256)
        elif change == 1:
            del data[at : at + chance.randint(1, 4)]
            data += b"\0"
        elif change == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 4))
        else:
            data[at] ^= 1 << chance.randrange(8)
    return bytes(data)


def feed(data: bytes, version: int, cut: int) -> None:
    """Through the decoder in two pieces; anything but a PeerError is a bug."""
    intake = Intake(version, PACKET_BYTES_MAX, Role.CLIENT)
    with suppress(PeerError):
        for piece in (data[:cut], data[cut:]):
            chunk = intake.feed(piece)
            unpack(chunk)


def check_packets(count: int, seed: int, *, is_loud: bool = True) -> None:
    print(f"{count:,} inputs, seed {seed}", flush=True)
    chance = random.Random(seed)
    goods = {v: [encode(packet, v) for packet in good_packets(v)] for v in VERSIONS}
    begun_s = said_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as directory,
        Served(Path(directory) / "data") as broker,
        Wire(broker.port, "witness", MQTT_5) as witness,
    ):
        witness.connect()
        witness.subscribe("witness", qos=1)
        for number in range(count):
            version = chance.choice(VERSIONS)
            data = broken(chance, goods[version])
            try:
                feed(data, version, chance.randrange(len(data) + 1))
            except BaseException:
                print(f"input {number}: version {version}, {data.hex()}", flush=True)
                raise
            if number % LIVE_EVERY == 0:
                _send(broker.port, chance, version, data)
                witness.publish("witness", b"%d" % number, 1)
                assert witness.receive().payload == b"%d" % number
            if is_loud and time.monotonic() - said_s > 2:
                said_s = time.monotonic()
                rate = number / (said_s - begun_s)
                print(f"\r{number:,} of {count:,} ({rate:,.0f} /s)", end="", flush=True)
    print(f"\r{count:,} inputs did no harm", flush=True)


def _send(port: int, chance: random.Random, version: int, data: bytes) -> None:
    version = max(version, MQTT_3_1_1)
    with (
        Wire(port, "fuzz", version) as client,
        suppress(EOFError, ConnectionError, PeerError),
    ):
        if chance.random() < 0.9:
            client.connect()
        client.send_bytes(data)
        client.poll(0.001)


if __name__ == "__main__":
    check_packets(
        int(sys.argv[1].replace(",", "").replace("_", "")),
        int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32),
    )
