"""Is a message that either broker acknowledged on both brokers, however often each is killed?"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_5
from tests.bridges.bridged import bridge_file, wait_connected
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.waiting import wait_until

TOPICS = """
[[bridges.topics]]
filter = "twice/#"
direction = "both"
qos = 1

[[bridges.topics]]
filter = "once/#"
direction = "both"
qos = 2
"""
ROUNDS = 3
EACH_ROUND = 40  # acknowledged messages of each publisher before the next kill


class Publisher:
    """Publishes numbers to one broker, over and over connected again; knows which were taken."""

    def __init__(self, served: Served, name: str, qos: int) -> None:
        self._served = served
        self.name = name
        self._qos = qos
        self.acknowledged: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            with suppress(OSError, EOFError), Wire(self._served.port, "", MQTT_5) as wire:
                wire.connect()
                while not self._stop.is_set():
                    number += 1  # one that was not acknowledged is never sent again
                    payload = b"%d" % number
                    wire.publish(self.name, payload, self._qos)
                    self.acknowledged.append(payload)
            time.sleep(0.02)

    def wait_more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)


def stored(served: Served) -> Counter[tuple[str, bytes]]:
    """How often each message is in the log of a broker."""
    found: Counter[tuple[str, bytes]] = Counter()
    offset = 0
    with Asking(served.http_port) as client:
        while True:
            path = f"/v1/topics/default/records?from={offset}&limit=1000"
            records = client.ask("GET", path).json["records"]
            if not records:
                return found
            found.update((one["name"], str(one["payload"]).encode()) for one in records)
            offset = records[-1]["offset"] + 1


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["near", "far"])
def test_nothing_acknowledged_is_lost_and_qos_2_comes_once_however_often_one_side_is_killed(
    tmp_path: Path, killed: str
) -> None:
    with Served(tmp_path / "far") as far:
        config = bridge_file(tmp_path, f"mqtt://127.0.0.1:{far.port}", TOPICS)
        with Served(tmp_path / "near", "--config", str(config)) as near:
            wait_connected(near.http_port)
            publishers = [
                Publisher(served, f"{kind}/{side}", qos)
                for side, served in (("near", near), ("far", far))
                for kind, qos in (("once", 2), ("twice", 1))
            ]
            victim = near if killed == "near" else far
            for _ in range(ROUNDS):
                for publisher in publishers:
                    publisher.wait_more(EACH_ROUND)
                victim.kill()
                victim.start()
            for publisher in publishers:
                publisher.wait_more(EACH_ROUND)
                publisher.stop()
            check_both(near, far, publishers)


def check_both(near: Served, far: Served, publishers: list[Publisher]) -> None:
    acknowledged = {
        (publisher.name, payload) for publisher in publishers for payload in publisher.acknowledged
    }

    def has_all(served: Served) -> Callable[[], bool]:
        return lambda: acknowledged <= stored(served).keys()

    for served in (near, far):
        wait_until(has_all(served))
    for served in (near, far):
        twice = {one: count for one, count in stored(served).items() if count > 1}
        assert [one for one in twice if one[0].startswith("once/")] == []
