"""Members of a group that die at any moment, over real connections: is anything lost?"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Packet, Puback, Publish
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
KEY = "$share/workers/jobs/#"
COUNT = 3_000
LIVES_S = 30.0


class Worker:
    """Comes, takes some messages, acknowledges most of them, and hangs up without a word."""

    def __init__(self, port: int, number: int) -> None:
        self.done: list[bytes] = []  # acknowledged, and the acknowledgement was read
        self.deaths = 0
        self._port = port
        self._chance = random.Random(SEED + number)
        self._name = f"worker-{number}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._live()
            self.deaths += 1

    def _live(self) -> None:
        chance = self._chance
        version = chance.choice([MQTT_3_1_1, MQTT_5])
        if chance.random() < 0.5:
            wire, _ = connect_kept(self._port, self._name, version)
        else:
            wire = Wire(self._port, self._name, version)
            wire.connect()
        with wire:
            early: list[Packet] = []
            wire.subscribe_later(KEY, 1)
            for _ in range(chance.randint(1, 60)):
                packet = early.pop() if early else wire.poll(0.05)
                if not isinstance(packet, Publish):
                    continue
                if chance.random() < 0.8:
                    wire.send(Puback(packet.packet_id))
                    said = wire.settle()  # the broker has read it
                    self.done.append(packet.payload)
                    early += said

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(LIVES_S)
        assert not self._thread.is_alive()


def test_whoever_dies_every_message_is_acknowledged_by_somebody(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    with Hosted(tmp_path) as broker, Wire(broker.port, "writer", MQTT_5) as writer:
        writer.connect()
        anchor, _ = connect_kept(broker.port, "anchor", MQTT_5)  # holds the group all the time
        anchor.subscribe(KEY, qos=1)
        anchor.disconnect()
        workers = [Worker(broker.port, number) for number in range(5)]
        for start in range(0, COUNT, 100):
            for number in range(start, start + 100):
                writer.send(Publish("jobs/x", b"%d" % number, 1, packet_id=number % 60_000 + 1))
            for _ in range(100):
                writer.expect(Puback)
        expected = {b"%d" % number for number in range(COUNT)}
        deadline = time.monotonic() + LIVES_S
        while sum(worker.deaths for worker in workers) < 60 and time.monotonic() < deadline:
            time.sleep(0.01)
        for worker in workers:
            worker.stop()
        done = {payload for worker in workers for payload in worker.done}
        anchor, present = connect_kept(broker.port, "anchor", MQTT_5)
        assert present
        while done < expected:
            done.add(anchor.receive().payload)
        assert done == expected
        assert sum(worker.deaths for worker in workers) >= 60
