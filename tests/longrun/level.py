"""Does the memory of a broker stay level while all its doors are in use?

`python -m tests.longrun.level MINUTES [SEED]`; `make nightly` asks for 30 minutes. Publishers and
readers of every kind come and go at random, at a bounded rate and with a bounded number of names.
Nine times they pause until the caches are empty and what is free has gone back, and memory is
looked at. Single values differ by some MiB, because the heap is fragmented differently each time;
so the median of the last three pauses is compared with that of the three before: it may be larger
by LEVEL_BYTES. The first three pauses do not count: the log and the retained messages grow to their
bounds. Then many readers read everything back and leave, and memory has to return to where it was
in the last pauses, as far as RETURN_BYTES.
"""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from penstock import Bus
from penstock.model.limits import MIB
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Publish
from tests.doors.served import Served
from tests.doors.wire import Wire, connect_kept
from tests.http.asking import Asking
from tests.http.events import Events

STEPS_PER_S = 50  # at most: a small machine has time for other things
NAMES = 2_000
STREAM_RECORDS = 100  # that the reader of a stream takes before it turns lazy
PARTS = 9  # of a run
PAUSE_S = 66.0  # caches are emptied after at most 60 s, and the heap is looked at every 5 s
LEVEL_BYTES = 8 * MIB  # what the interpreter's heap goes up and down by
RETURN_BYTES = 24 * MIB  # pauses of one run differ by up to 20 MiB: the heap is fragmented
RETURN_S = 120.0  # caches are emptied after at most 60 s
TOPIC = "/v1/topics/level"


class Sample(NamedTuple):
    """The memory of a broker that has nothing to do."""

    bytes: int
    cached_bytes: int  # of these, in caches

    @property
    def beyond_bytes(self) -> int:
        return self.bytes - self.cached_bytes


class Level:
    """One run: a broker, its clients, and its memory by time."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.samples: list[Sample] = []  # one after each part
        self.steps = 0
        bus_path = directory / "bus"
        # Topics that are trimmed within the first minutes: the log is level, too.
        settings = {
            "PENSTOCK_TOPICS__DEFAULTS__RETENTION_BYTES": "16MiB",
            "PENSTOCK_LOG__SEGMENT_BYTES": "4MiB",
            "PENSTOCK_LOG_OUTPUT__LEVEL": "warning",
        }
        self.broker = Served(
            directory / "data", "--bus", str(bus_path), env=os.environ | settings
        ).start()
        port = self.broker.port
        self._http = Asking(self.broker.http_port)
        self._ask("PUT", TOPIC, {})
        self._ask("PUT", f"{TOPIC}/consumers/reader", {})
        for _ in range(STREAM_RECORDS // 20):
            self._publish_http()
        self._publishers = [Wire(port, f"p{n}", (MQTT_3_1_1, MQTT_5)[n % 2]) for n in range(4)]
        for wire in self._publishers:
            wire.connect()
        self._readers: list[Wire | None] = [None] * 6
        self._streams: list[Events] = []
        self._bus = Bus.connect(bus_path)
        self._bus.subscribe(5, lambda id, data: None)
        self._actions: list[Callable[[], None]] = [
            *(self._publish, self._publish, self._publish, self._publish_many),
            *(self._publish_http, self._publish_bus, self._take, self._take, self._come_and_go),
            *(self._page, self._fetch, self._fetch_group, self._stream),
        ]

    def run(self, minutes: float) -> None:
        """Take steps for so long, with a pause after each part."""
        for _ in range(PARTS):
            begin_s, before = time.monotonic(), self.steps
            while (now_s := time.monotonic() - begin_s) < 60 * minutes / PARTS - PAUSE_S:
                self.chance.choice(self._actions)()
                self.steps += 1
                time.sleep(max(0.0, (self.steps - before) / STEPS_PER_S - now_s))
            self._pause()
            self.samples.append(self._sample())
            print(_shown(self.samples[-1]), flush=True)

    def _pause(self) -> None:
        """Nothing waits for a client, and the heap is looked at."""
        self._close_streams()
        self._take()
        self._http.close()
        time.sleep(PAUSE_S)
        self._http = Asking(self.broker.http_port)

    def _sample(self) -> Sample:
        return Sample(self.broker.memory_bytes, sum(self.caches().values()))

    @property
    def growth_bytes(self) -> int:
        """By how much memory beyond the caches has grown in the last third."""
        beyond = [sample.beyond_bytes for sample in self.samples]
        return round(median(beyond[-3:]) - median(beyond[-6:-3]))

    # Steps

    def _name(self) -> str:
        return f"level/{self.chance.randrange(NAMES)}/value"

    def _payload(self) -> bytes:
        return self.chance.randbytes(self.chance.choice((8, 100, 2_000)))

    def _publish(self) -> None:
        wire = self.chance.choice(self._publishers)
        is_retained = self.chance.random() < 0.1
        wire.publish(self._name(), self._payload(), self.chance.randrange(3), retain=is_retained)

    def _publish_many(self) -> None:
        """Several names in one send."""
        wire = self.chance.choice(self._publishers)
        wire.send(*[Publish(self._name(), self._payload()) for _ in range(50)])

    def _publish_http(self) -> None:
        messages = [{"name": self._name(), "payload": "x" * 200} for _ in range(20)]
        self._ask("POST", f"{TOPIC}/records", messages)

    def _publish_bus(self) -> None:
        self._bus.publish(5, self._payload())

    def _take(self) -> None:
        """Readers take what has come."""
        for wire in self._readers:
            while wire is not None and (packet := wire.poll(0.001)) is not None:
                if isinstance(packet, Publish):
                    wire.acknowledge(packet)

    def _come_and_go(self) -> None:
        """A reader leaves, or comes; sessions of two of them outlive their connections."""
        number = self.chance.randrange(len(self._readers))
        wire, self._readers[number] = self._readers[number], None
        if wire is not None:
            wire.close()
            return
        if number < 2:
            wire, _ = connect_kept(self.broker.port, f"kept{number}", MQTT_5)
            filter, qos = "level/+/value", 1 + number
        else:
            wire = Wire(self.broker.port, f"r{number}", MQTT_5)
            wire.connect()
            filter, qos = ("level/#", 0) if number < 4 else ("$share/s/level/#", 1)
        wire.subscribe_later(filter, qos)
        self._readers[number] = wire

    def _ask(self, method: str, path: str, body: Any = b"") -> Any:
        answer = self._http.ask(method, path, body)
        assert answer.status < 300, answer
        return answer.json if answer.body else None

    def _page(self) -> None:
        limit = self.chance.choice((10, 100, 10_000))
        self._ask("GET", f"{TOPIC}/records?from=earliest&limit={limit}")

    def _fetch(self) -> None:
        self._ask("POST", f"{TOPIC}/consumers/reader/fetch", {"limit": 500})

    def _fetch_group(self) -> None:
        given = self._ask("POST", f"{TOPIC}/groups/g/fetch", {"limit": 100})
        offsets = [record["offset"] for record in given["records"]]
        if offsets:
            taken = {"receipt": given["receipt"], "offsets": offsets}
            self._ask("POST", f"{TOPIC}/groups/g/ack", taken)

    def _stream(self) -> None:
        """A stream begins, or the oldest one ends."""
        if len(self._streams) >= 3:
            self._streams.pop(0).close()
            return
        stream = Events(self.broker.http_port, f"{TOPIC}/stream?from=earliest")
        for _ in range(STREAM_RECORDS):
            stream.next()
        self._streams.append(stream)

    # The end

    def read_all_back(self) -> int:
        """Many readers read all there is, and leave; how much memory stays above the last pause."""
        self._leave()
        streams = [Events(self.broker.http_port, f"{TOPIC}/stream?from=earliest") for _ in range(8)]
        end = self._ask("GET", TOPIC)["end_offset"]
        for stream in streams:
            while int(stream.next().id) < end - 1:
                pass
        place = "earliest"
        while place != str(end):
            page = self._ask("GET", f"{TOPIC}/records?from={place}&limit=10000")
            place = str(page["next_offset"])
        for stream in streams:
            stream.close()
        level = round(median(sample.bytes for sample in self.samples[-3:]))
        until_s = time.monotonic() + RETURN_S
        while self.broker.memory_bytes > level + RETURN_BYTES and time.monotonic() < until_s:
            time.sleep(1)
        return self.broker.memory_bytes - level

    def _leave(self) -> None:
        for wire in [*self._readers, *self._publishers]:
            if wire is not None:
                wire.close()
        self._close_streams()
        self._bus.close()

    def _close_streams(self) -> None:
        while self._streams:
            self._streams.pop().close()

    def caches(self) -> dict[str, int]:
        """The sizes of all caches, as the broker tells them."""
        text = self._http.ask("GET", "/metrics").body.decode()
        found = re.findall(r'^penstock_cache_bytes{cache="(\w+)"} (\d+)$', text, re.MULTILINE)
        return {cache: int(size) for cache, size in found}


def _shown(sample: Sample) -> str:
    return (
        f"{sample.bytes / MIB:7.1f} MiB, of these {sample.cached_bytes / MIB:5.1f} in caches"
        f" and {sample.beyond_bytes / MIB:5.1f} beyond"
    )


def main(minutes: float, seed: int) -> int:
    print(f"{minutes:g} minutes of memory, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        level = Level(Path(directory), seed)
        level.run(minutes)
        caches = level.caches()
        stayed = level.read_all_back()
        level.broker.stop()
    print(f"{level.steps:,} steps; the last third grew by {level.growth_bytes / MIB:.1f} MiB")
    print(f"{stayed / MIB:.1f} MiB more than before when all readers had left")
    if level.growth_bytes <= LEVEL_BYTES and stayed <= RETURN_BYTES:
        return 0
    print(f"memory is not level; its caches: {caches}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    sys.exit(main(float(sys.argv[1]), chosen))
