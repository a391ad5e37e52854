"""Two brokers and a bridge between them, as a test describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Publish
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.waiting import wait_until

BOTH_WAYS = """
[[bridges.topics]]
filter = "up/#"

[[bridges.topics]]
filter = "down/#"
direction = "in"

[[bridges.topics]]
filter = "both/#"
direction = "both"
qos = 2
"""


def bridge_file(directory: Path, address: str, topics: str = BOTH_WAYS, **keys: object) -> Path:
    """A settings file with one bridge, `plant`."""
    lines = ["[[bridges]]", 'name = "plant"', f'address = "{address}"']
    for key, value in keys.items():
        shown = str(value).lower() if isinstance(value, bool | int) else f'"{value}"'
        lines.append(f"{key} = {shown}")
    path = directory / "bridge.toml"
    path.write_text("\n".join(lines) + topics)
    return path


def bridge_of(http_port: int) -> dict[str, Any]:
    """The bridge as `/v1/bridges` shows it."""
    with Asking(http_port) as client:
        (shown,) = client.ask("GET", "/v1/bridges").json["bridges"]
    return dict(shown)


def wait_connected(http_port: int) -> None:
    wait_until(lambda: bridge_of(http_port)["state"] == "connected")


def wait_away(http_port: int) -> None:
    wait_until(lambda: bridge_of(http_port)["state"] != "connected")


def reader(port: int, *filters: str, qos: int = 2, client_id: str = "") -> Wire:
    wire = Wire(port, client_id, MQTT_5)
    wire.connect()
    wire.subscribe(*filters, qos=qos)
    return wire


def publish(port: int, name: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
    with Wire(port, "", MQTT_5) as wire:
        wire.connect()
        wire.publish(name, payload, qos, retain=retain)


def taken(wire: Wire) -> tuple[str, bytes, int]:
    message = wire.receive()
    assert isinstance(message, Publish)
    return message.name, message.payload, message.qos


def hosted(directory: Path, name: str, config: Path | None = None, **settings: Any) -> Hosted:
    return Hosted(directory / name, config=config, **settings)
