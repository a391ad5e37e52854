"""The broker of the matrix with all its doors, and the words that publishers and readers share.

A publisher has a place of its own: a topic and two names in it. It publishes `PAYLOADS` there; then
the house publishes `END`, so that every reader knows when it has had everything.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import penstock
from penstock.model.blocking import LoopThread
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from tests.cli.mqtt.test_cli_pub_sub import Sub
from tests.doors.hosted import Hosted
from tests.doors.ways import BareWebSocket
from tests.doors.wire import Wire, kept
from tests.http.asking import Asking
from tests.pipeline.source.reading import address
from tests.waiting import WAIT_S

PAYLOADS: Final = (b"plain", b'{"n":1}', "grüße".encode(), b"\xff\x00\n\xfe", b"x" * 300)
TEXTS: Final = (*PAYLOADS[:3], b"more text", *PAYLOADS[4:])
TURNS: Final = (0, 0, 1, 0, 1)  # which of the names each payload has: neighbours and not
END: Final = b"the end"
BUS: Final = "bus"


@dataclass(frozen=True, slots=True)
class Message:
    """What was published, and where it is stored."""

    name: str
    payload: bytes
    qos: int
    retain: bool = False
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Got:
    """What a reader was given; None where a reader of its kind is not told."""

    payload: bytes
    name: str | None = None
    offset: int | None = None
    qos: int | None = None

    def is_of(self, message: Message) -> bool:
        told = (self.name, self.offset, self.qos)
        wanted = (message.name, message.offset, message.qos)
        return self.payload == message.payload and all(
            one is None or one == other for one, other in zip(told, wanted, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where one publisher publishes."""

    key: str  # no other place has it: good for client ids, groups and consumers
    topic: str
    names: tuple[str, str]
    wildcards: tuple[str, ...]
    base: int = 0  # the offset of its first record

    def messages(self, payloads: Sequence[bytes], qos: int, *, retain: bool) -> list[Message]:
        names = [self.names[turn] for turn in TURNS]
        return [Message(*pair, qos, retain) for pair in zip(names, payloads, strict=True)]

    @property
    def numbers(self) -> tuple[int, int]:
        """The bus topics behind its names."""
        first, second = (int(name.rpartition("/")[2]) for name in self.names)
        return first, second


def topic_place(key: str) -> Place:
    return Place(key, key, (f"{key}/a", f"{key}/b/c"), (f"{key}/#",))


def single_place(key: str) -> Place:
    """For those who publish under the name of the topic only."""
    return Place(key, key, (key, key), (f"{key}/#",))


def dead_place(key: str) -> Place:
    dead = f"{key}.dead"
    return Place(key, dead, (f"{dead}/{key}/a", f"{dead}/{key}/b/c"), (f"{dead}/{key}/#",))


def bus_place(key: str, number: int) -> Place:
    numbers = (number, number + 1)
    first, second = (f"{BUS}/{one}" for one in numbers)
    return Place(key, BUS, (first, second), tuple(f"+/{one}" for one in numbers))


class Printing:
    """A `penstock sub` that runs all the time, and what it printed."""

    def __init__(self, port: int, *arguments: str) -> None:
        self._sub = Sub(port, "--json", *arguments)
        self._lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._sub._stderr.read, daemon=True).start()

    def _read(self) -> None:
        output = self._sub._process.stdout
        assert output is not None
        for line in output:
            with self._changed:
                self._lines.append(json.loads(line))
                self._changed.notify_all()

    def lines(self, names: Sequence[str], wait_s: float) -> list[dict[str, Any]]:
        """What came under the names, up to the end."""
        found: list[dict[str, Any]] = []

        def has_ended() -> bool:
            found[:] = [one for one in self._lines if one["name"] in names]
            return any(one.get("payload") == END.decode() for one in found)

        with self._changed:
            self._changed.wait_for(has_ended, wait_s)
        return found

    def close(self) -> None:
        self._sub._process.kill()
        self._sub._process.wait()


class House:
    """A broker with every door open, and one of each client that publishers and readers share."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.scratch = path
        self.data = path / "data"
        self.bus_path = path / "bus"
        self.hosted = Hosted(self.data, bus__path=str(self.bus_path), **settings)
        self.loop = LoopThread("matrix", "the matrix is over")
        self._deadline_s = 0.0
        self.printing: dict[str, Printing] = {}  # running commands, by reader

    def __enter__(self) -> Self:
        self.hosted.__enter__()
        self.asking = Asking(self.http_port)
        self.url = address(self.hosted)
        self.client = penstock.connect(self.url)
        self.aio = penstock.aio.connect(self.url)
        self.loop.call(self.aio.open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for command in self.printing.values():
            command.close()
        self.client.close()
        self.loop.call(self.aio.close())
        self.loop.stop()
        self.asking.close()
        self.hosted.__exit__(kind, error, trace)

    @property
    def http_port(self) -> int:
        return self.hosted.ports["http"]

    def ask(self, method: str, path: str, body: Any = b"", **headers: str) -> Any:
        """One request that is carried out; what its answer holds."""
        answer = self.asking.ask(method, path, body, **headers)
        assert answer.status in (200, 201), answer
        return answer.json

    def declare(self, topic: str) -> int:
        """Have the topic; its end."""
        self.ask("PUT", f"/v1/topics/{topic}")
        end: int = self.ask("GET", f"/v1/topics/{topic}")["end_offset"]
        return end

    def wait_stored(self, topic: str, end: int) -> None:
        """Until the topic holds the record before `end`."""
        path = f"/v1/topics/{topic}/records?from={end - 1}&wait={WAIT_S:.0f}"
        deadline_s = time.monotonic() + WAIT_S
        while True:  # an offset past the end is refused: nobody can wait for it
            answer = self.asking.ask("GET", path)
            if answer.status == 200 and answer.json["records"]:
                return
            assert time.monotonic() < deadline_s, answer
            self.asking.ask("GET", f"/v1/topics/{topic}/records?from=latest&wait=1")

    def dial(
        self, client_id: str, version: int = MQTT_5, way: str = "tcp", *, stays: bool = False
    ) -> Wire:
        """A connected client."""
        web = BareWebSocket(self.http_port) if way == "websocket" else None
        wire = Wire(self.hosted.port, client_id, version, cast(Any, web))
        asked: Properties = kept() if stays and version == MQTT_5 else NO_PROPERTIES
        assert wire.connect(clean=not stays, properties=asked).reason == 0
        return wire

    def finish(self, place: Place, count: int) -> Message:
        """All `count` messages were published: the end follows them, and readers hurry from now."""
        self.wait_stored(place.topic, place.base + count)
        name = place.names[0]
        stored = {"payload": END.decode(), "name": name}
        (result,) = self.ask("POST", f"/v1/topics/{place.topic}/records", stored)["results"]
        self._deadline_s = time.monotonic() + WAIT_S
        return Message(name, END, 1, offset=result["offset"])

    @property
    def is_late(self) -> bool:
        """Did readers use up their time long ago? The others are not waited for then."""
        return time.monotonic() > self._deadline_s + WAIT_S

    @property
    def left_s(self) -> float:
        """For all readers of a publisher together."""
        return max(self._deadline_s - time.monotonic(), 0.05)


def placed(messages: list[Message], base: int) -> list[Message]:
    """As they are stored: one behind the other."""
    return [replace(one, offset=base + at) for at, one in enumerate(messages)]
