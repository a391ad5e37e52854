"""Simulated boilers: each an MQTT client that publishes its temperature and counts the answers."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from typing import Any, Final

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from demo.story import Failed

EVERY_S: Final = 0.2
ACK_S_MAX: Final = 20.0
SEED: Final = 7


class Boiler:
    """One device, on a connection and a thread of its own."""

    def __init__(self, name: str, port: int, *, overheats: bool) -> None:
        self.name = name
        self.acknowledged = 0
        self._overheats = overheats
        self._sent = 0
        self._chance = random.Random(f"{SEED} {name}")
        self._stop = threading.Event()
        self._connected = threading.Event()
        self._all_acknowledged = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5
        )
        self._client.on_connect = self._on_connect
        self._client.on_publish = self._on_publish
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def start(self) -> None:
        if not self._connected.wait(ACK_S_MAX):
            raise Failed(f"{self.name} could not connect over MQTT")
        self._thread.start()

    def stop(self) -> None:
        """Publish no more, and wait until the broker has acknowledged everything."""
        self._stop.set()
        self._thread.join()
        with self._all_acknowledged:
            if not self._all_acknowledged.wait_for(
                lambda: self.acknowledged == self._sent, ACK_S_MAX
            ):
                raise Failed(f"{self.name}: {self._sent} sent, {self.acknowledged} acknowledged")

    def close(self) -> None:
        self._stop.set()
        self._client.disconnect()
        self._client.loop_stop()

    def _work(self) -> None:
        began_s = time.monotonic()
        while not self._stop.wait(EVERY_S):
            reading = {"device": self.name, "celsius": self._celsius(time.monotonic() - began_s)}
            self._sent += 1
            self._client.publish(f"sensors/{self.name}/temperature", json.dumps(reading), qos=1)

    def _celsius(self, age_s: float) -> float:
        usual = 60 + 4 * math.sin(age_s / 6 + int(self.name[-1]))
        extra = min(35.0, max(0.0, age_s - 12) * 1.5) if self._overheats else 0.0
        return round(usual + extra + self._chance.gauss(0, 1.5), 2)

    def _on_connect(self, *_: Any) -> None:
        self._connected.set()

    def _on_publish(self, *_: Any) -> None:
        with self._all_acknowledged:
            self.acknowledged += 1
            self._all_acknowledged.notify_all()
