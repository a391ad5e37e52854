"""Does the memory of a broker come back after large answers, and stay bounded for many names?

Bounds are far above what was measured (in brackets) and far below what it was once: how much
pages and pieces of the interpreter's heap stay in use is up to chance.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.model.limits import MIB
from penstock.mqtt.packets import Pingreq, Pingresp
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.http.asking import Asking

SETTLE_S = 60.0  # the heap is looked at every 5 s, caches are emptied after at most 60
NAMES = 240_000
CHUNK = 2_000  # messages that are sent at once

Publishing = Callable[[Served, Iterator[str]], None]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as served:
        yield served


def settled_bytes(broker: Served, enough: int) -> int:
    """Its memory, once that is not more than enough; or whatever it is in the end."""
    until_s = time.monotonic() + SETTLE_S
    while (found := broker.memory_bytes) > enough and time.monotonic() < until_s:
        time.sleep(0.2)
    return found


def test_memory_of_large_pages_comes_back(broker: Served) -> None:
    with Asking(broker.http_port) as client:
        assert client.ask("PUT", "/v1/topics/large", {}).status == 201
        messages = [{"name": "a/b", "payload": "x" * 1_000}] * 1_000
        for _ in range(20):
            assert client.ask("POST", "/v1/topics/large/records", messages).status == 200
        before = broker.memory_bytes
        for _ in range(5):
            answer = client.ask("GET", "/v1/topics/large/records?from=earliest&limit=10000")
            assert answer.status == 200 and len(answer.body) > 8 * MIB
        assert settled_bytes(broker, before + 8 * MIB) - before <= 8 * MIB  # (-3)


def publish_mqtt(broker: Served, names: Iterator[str]) -> None:
    """Half of them at QoS 0, half at QoS 1, thousands in one send."""
    with Wire(broker.port) as client:
        client.connect()
        for qos in (0, 1):
            for _ in range(NAMES // 2 // CHUNK):
                ids = range(1, CHUNK + 1)
                client.send_bytes(b"".join(publish_bytes(next(names), qos, one) for one in ids))
                acknowledged = 0
                while acknowledged < CHUNK * qos:
                    acknowledged += len(client.take())
        client.send(Pingreq())
        client.expect(Pingresp)


def publish_bytes(name: str, qos: int, packet_id: int) -> bytes:
    """A short PUBLISH packet."""
    id_bytes = struct.pack(">H", packet_id) if qos else b""
    body = struct.pack(">H", len(name)) + name.encode() + id_bytes + b"21.5"
    return bytes([0x30 | qos << 1, len(body)]) + body


def publish_http(broker: Served, names: Iterator[str]) -> None:
    with Asking(broker.http_port) as client:
        client.ask("PUT", "/v1/topics/names", {})
        for _ in range(NAMES // CHUNK):
            messages = [{"name": next(names), "payload": "21.5"} for _ in range(CHUNK)]
            assert client.ask("POST", "/v1/topics/names/records", messages).status == 200


@pytest.mark.parametrize("publish", [publish_mqtt, publish_http])
def test_distinct_names_take_bounded_memory(broker: Served, publish: Publishing) -> None:
    """350 bytes for each of the first names, and nothing for all that come after them."""
    before = broker.memory_bytes
    for plant in range(3):
        publish(broker, (f"plant/{plant}/device/{number}/temperature" for number in range(NAMES)))
        enough = NAMES * 350  # (at most 290, when the routes are about to be full; over HTTP 80)
        assert settled_bytes(broker, before + enough) - before <= enough
