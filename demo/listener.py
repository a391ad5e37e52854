"""An MQTT client that subscribes to the averages, and knows nothing of Spark."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from demo.story import Failed


class Listener:
    """Keeps what arrives, and shows a window once the averages of all devices are there."""

    def __init__(self, port: int, devices: int, show: Callable[[str], None]) -> None:
        self.averages: list[dict[str, Any]] = []
        self._devices = devices
        self._show = show
        self._windows: dict[str, dict[str, float]] = defaultdict(dict)
        self._subscribed = threading.Event()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id="listener", protocol=mqtt.MQTTv5
        )
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        if not self._subscribed.wait(20):
            raise Failed("the listener could not subscribe over MQTT")

    @property
    def windows(self) -> int:
        """How many different windows have come."""
        return len({average["since"] for average in self.averages})

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, *_: Any) -> None:
        self._client.subscribe("averages/#", qos=1)

    def _on_subscribe(self, *_: Any) -> None:
        self._subscribed.set()

    def _on_message(self, client: Any, context: Any, message: mqtt.MQTTMessage) -> None:
        average = json.loads(message.payload)
        self.averages.append(average)
        window = self._windows[average["since"]]
        window[average["device"]] = average["celsius"]
        if len(window) == self._devices:
            self._show(_line(average["since"], window))


def _line(since: str, averages: dict[str, float]) -> str:
    time = datetime.fromisoformat(since).strftime("%H:%M:%S")
    shown = "  ".join(
        f"{device} {celsius:5.1f}{'!' if celsius > 80 else ' '}"
        for device, celsius in sorted(averages.items())
    )
    return f"{time}  {shown}"
