"""Who plays in the scenarios: clients of one version, with and without a session that stays."""

from __future__ import annotations

import os
import random

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Publish, Unsuback, Unsubscribe, Will
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire

BOTH = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])
EACH_QOS = pytest.mark.parametrize("qos", [0, 1, 2])
SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
STAYS_S = 3600  # of an MQTT 5 session that outlives its connection


class Actor(Wire):
    """A connected client."""

    def __init__(
        self,
        broker: Hosted,
        client_id: str,
        version: int,
        *,
        stays: bool = False,
        will: Will | None = None,
        **asked: int,
    ) -> None:
        super().__init__(broker.port, client_id, version)
        if stays and version == MQTT_5:
            asked.setdefault("session_expiry_interval", STAYS_S)
        properties = Properties(**asked) if asked else NO_PROPERTIES
        answer = self.connect(clean=not stays, properties=properties, will=will)
        assert answer.reason == Reason.SUCCESS
        self.was_known = answer.session_present

    def receive_all(self, count: int) -> list[bytes]:
        """The payloads of so many messages, each acknowledged."""
        return [self.receive().payload for _ in range(count)]

    def heard(self) -> list[bytes]:
        """The payloads of all that is there by now, acknowledged, and of what that brings."""
        payloads = []
        while said := self.settle():
            for packet in said:
                assert isinstance(packet, Publish), packet
                self.acknowledge(packet)
                payloads.append(packet.payload)
        return payloads

    def unsubscribe(self, *filters: str) -> Unsuback:
        self.send(Unsubscribe(self.take_id(), filters))
        return self.pick(Unsuback)


def numbers(first: int, end: int) -> list[bytes]:
    """b"0", b"1" and so on."""
    return [b"%d" % number for number in range(first, end)]


def seeded() -> random.Random:
    """Chance that a failure can replay."""
    print(f"PENSTOCK_SEED={SEED}")
    return random.Random(SEED)
