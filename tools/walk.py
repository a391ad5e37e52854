"""Counts what one message costs in calls: functions, files, and crossings between rooms.

    .venv/bin/python -m tools.walk            # the table for docs/ARCHITECTURE.md
    .venv/bin/python -m tools.walk qos1 --list

A broker runs in a thread of this process, interpreted, at its default settings. Every Python
function of Penstock that any of its threads enters is counted, from the moment the client sends
until the answers came and nothing moves. A *crossing* is a call from a function of one
room to a function of another. The smallest of several rounds counts: timers that fire meanwhile
are no part of the walk.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROUNDS: Final = 7
WARM_UP: Final = 20  # messages before the first one that counts: routes are made, files are there
PAYLOAD: Final = b"x" * 50
QUIET_S: Final = 0.03  # no call for this long: the walk is over
INSIDE: Final = "PENSTOCK_EXPECT_ENGINE"  # set by tools.interpreted


@dataclass
class Walk:
    """The calls of one round, in order."""

    calls: list[tuple[str, str]] = field(default_factory=list)  # (file below the package, function)
    crossings: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    def row(self) -> tuple[int, int, int, int]:
        """Calls, functions, files, crossings."""
        functions = set(self.calls)
        return len(self.calls), len(functions), len(self.files), self.crossings.total()


class Tracer:
    """Notes calls in all threads that begin after `install`."""

    def __init__(self, package: Path) -> None:
        self._prefix = f"{package}{os.sep}"
        self._walk: Walk | None = None
        self._last_s = 0.0

    def install(self) -> None:
        threading.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        walk = self._walk
        if walk is None or event != "call":
            return
        file = frame.f_code.co_filename
        if not file.startswith(self._prefix):
            return
        self._last_s = time.monotonic()
        below = file[len(self._prefix) :]
        walk.calls.append((below, frame.f_code.co_qualname))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self._prefix):
            caller = caller.f_back
        if caller is not None:
            rooms = _room(caller.f_code.co_filename[len(self._prefix) :]), _room(below)
            if rooms[0] != rooms[1]:
                walk.crossings[rooms] += 1

    def record(self, work: Callable[[], None]) -> Walk:
        """What is called from now until `work` has returned and all is quiet."""
        walk = self._walk = Walk()
        self._last_s = time.monotonic()
        work()
        while time.monotonic() - self._last_s < QUIET_S:
            time.sleep(QUIET_S / 10)
        self._walk = None
        return walk


def _room(below: str) -> str:
    first = below.split(os.sep)[0]
    return first.removesuffix(".py")


# The walks


def qos1(broker: Any) -> Iterator[Callable[[], None]]:
    """One QoS 1 message: publish to PUBACK, and delivery to a QoS 1 subscriber."""
    from penstock.mqtt.packets import Puback, Publish
    from tests.doors.wire import Wire

    with Wire(broker.port, "walk-reader") as reader, Wire(broker.port, "walk-writer") as writer:
        reader.connect()
        writer.connect()
        reader.subscribe("walk/1", qos=1)

        got: list[Publish] = []

        def once() -> None:
            writer.send(Publish("walk/1", PAYLOAD, 1, packet_id=1))
            writer.expect(Puback)
            got.append(reader.expect(Publish))

        while True:
            yield once
            reader.acknowledge(got.pop())
            reader.settle()


def post(broker: Any) -> Iterator[Callable[[], None]]:
    """One message over HTTP: POST /v1/topics/walk/records to its answer."""
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", broker.ports["http"])
    connection.request("PUT", "/v1/topics/walk")
    connection.getresponse().read()

    def once() -> None:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/topics/walk/records", b'{"payload":"x"}', headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()

    while True:
        yield once


def session(broker: Any) -> Iterator[Callable[[], None]]:
    """A session that comes back to one QoS 1 message: CONNECT to its delivery."""
    from penstock.mqtt.packets import Puback, Publish
    from tests.doors.wire import Wire

    with Wire(broker.port, "walk-sender") as writer:
        writer.connect()
        back = Wire(broker.port, "walk-away")
        back.connect(clean=False)
        back.subscribe("walk/2", qos=1)

        def once() -> None:
            nonlocal back
            back = Wire(broker.port, "walk-away")
            back.connect(clean=False)
            back.expect(Publish)

        while True:
            back.disconnect()
            broker.wait_idle()
            writer.publish("walk/2", PAYLOAD, 1)
            yield once
            back.send(Puback(1))
            back.settle()


WALKS: Final = {"qos1": qos1, "post": post, "session": session}


@contextmanager
def hosted(tracer: Tracer) -> Iterator[Any]:
    tracer.install()
    from tests.doors.hosted import Hosted

    with (
        tempfile.TemporaryDirectory(prefix="penstock-walk-") as directory,
        Hosted(Path(directory) / "data") as broker,
    ):
        yield broker


def measure(names: list[str]) -> dict[str, Walk]:
    """The smallest walk of each kind."""
    import penstock

    tracer = Tracer(Path(penstock.__file__).parent)
    found: dict[str, Walk] = {}
    with hosted(tracer) as broker:
        for name in names:
            rounds = WALKS[name](broker)
            for _ in range(WARM_UP):
                next(rounds)()
            walks = [tracer.record(next(rounds)) for _ in range(ROUNDS)]
            found[name] = min(walks, key=lambda walk: len(walk.calls))
    return found


def show(walks: dict[str, Walk], *, with_list: bool) -> None:
    print("| walk | calls | functions | files | crossings |")
    print("|---|---|---|---|---|")
    for name, walk in walks.items():
        says = (WALKS[name].__doc__ or "").rstrip(".")
        print(f"| {says} | {' | '.join(str(number) for number in walk.row())} |")
    if with_list:
        for name, walk in walks.items():
            print(f"\n{name}")
            for file, function in walk.calls:
                print(f"  {file:<36} {function}")
            for (one, other), count in sorted(walk.crossings.items()):
                print(f"  {one} -> {other}: {count}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the calls that one message makes.")
    parser.add_argument("walks", nargs="*", metavar="WALK", help=f"{', '.join(WALKS)} (all)")
    parser.add_argument("--list", action="store_true", help="print every call in order")
    options = parser.parse_args()
    if os.environ.get(INSIDE) != "interpreted":
        command = [sys.executable, "-m", "tools.interpreted", sys.executable, "-m", "tools.walk"]
        return subprocess.run([*command, *sys.argv[1:]], check=False).returncode
    if unknown := set(options.walks) - set(WALKS):
        parser.error(f"unknown walk {unknown.pop()!r}: use {', '.join(WALKS)}")
    show(measure(options.walks or list(WALKS)), with_list=options.list)
    return 0


if __name__ == "__main__":
    sys.exit(main())
