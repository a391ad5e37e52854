"""The server log: what is written at which level, in which form, and what never is."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker
from penstock.broker.limited_log import OTHERS_MAX, WARNINGS_MAX, LimitedLog
from penstock.cli.server.log_output import LINES_MAX, LogOutput
from penstock.doors.loop import DoorLoop
from penstock.doors.selector import DoorSelector

LOG = logging.getLogger("penstock.test")
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class Output:
    """A file that a log is written to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT)

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    one = Output(tmp_path / "log")
    yield one
    os.close(one.fd)


def test_a_line_of_text_has_time_level_part_and_sentence(output: Output) -> None:
    with LogOutput("info", "text", output.fd):
        LOG.info("client %(client)r came", {"event": "came", "client": "a"})
        LOG.debug("too small to be said")
    (line,) = output.lines()
    assert re.fullmatch(rf"{STAMP} info    test: client 'a' came", line)


def test_a_line_of_json_has_the_sentence_and_its_values(output: Output) -> None:
    with LogOutput("debug", "json", output.fd):
        LOG.debug("%(count)d clients", {"event": "counted", "count": 3})
    (line,) = output.lines()
    shown = json.loads(line)
    assert re.fullmatch(STAMP, shown.pop("time"))
    assert shown == {
        "level": "debug",
        "logger": "penstock.test",
        "message": "3 clients",
        "event": "counted",
        "count": 3,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_control_characters_reach_no_terminal(output: Output, form: str) -> None:
    nasty = "\x1b[2J\r\nfake line\x9b\u2028"
    with LogOutput("info", form, output.fd):
        LOG.info("name %(name)s", {"name": nasty})
        try:
            raise ValueError(nasty)
        except ValueError:
            LOG.exception("mistake")
    text = "\n".join(output.lines())
    assert all(char.isprintable() or char == "\n" for char in text)
    assert not [line for line in text.split("\n") if line.startswith("fake")]


def test_a_level_that_is_off_writes_nothing_and_formats_nothing(output: Output) -> None:
    class Counted:
        shown = 0

        def __repr__(self) -> str:
            Counted.shown += 1
            return "counted"

    with LogOutput("error", "text", output.fd):
        LOG.warning("%(what)r", {"what": Counted()})
    assert output.lines() == [] and Counted.shown == 0


def test_a_reader_that_stops_reading_does_not_stop_the_server() -> None:
    """More is logged than the pipe and the queue hold together: none of the calls waits."""
    reader, writer = os.pipe()
    lines: list[str] = []

    def read() -> None:
        with os.fdopen(reader) as file:
            lines.extend(file)

    with LogOutput("info", "text", writer):
        for _ in range(2 * LINES_MAX):
            LOG.info("x" * 200)
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
    os.close(writer)
    reading.join(30)
    assert len(lines) < 2 * LINES_MAX
    assert "log lines were lost: standard error was not read fast enough" in "".join(lines)


def test_a_reader_that_is_gone_does_not_stop_the_server() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    logged = 0
    with LogOutput("info", "text", writer):
        for _ in range(100):
            LOG.info("nobody reads this")
            logged += 1
    os.close(writer)
    assert logged == 100


def test_a_flood_of_one_event_is_cut_and_counted(output: Output) -> None:
    loop = DoorLoop(DoorSelector())
    log = LimitedLog("penstock.test", loop)
    with LogOutput("info", "json", output.fd):
        for number in range(100):
            log.warning("flood", "wrong number %(number)d", {"number": number})
        log.warning("drop", "another event", {})
        for number in range(OTHERS_MAX + 5):
            log.info("flood", "right number %(number)d", {"number": number})
        log.close()
    loop.close()
    lines = [json.loads(line) for line in output.lines()]
    told = [one for one in lines if "number" in one and one["level"] == "warning"]
    assert [one["number"] for one in told] == list(range(WARNINGS_MAX))
    assert [one for one in lines if one["event"] == "drop"]
    counted = {one["level"]: one["suppressed"] for one in lines if "suppressed" in one}
    assert counted == {"warning": 100 - WARNINGS_MAX, "info": 5}


def test_a_broker_inside_a_program_configures_no_logging(tmp_path: Path) -> None:
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    before = list(root.handlers), list(ours.handlers), ours.level
    with Broker(tmp_path) as broker:
        broker.create_topic("a")
        broker.publish("x", "a")
    assert (list(root.handlers), list(ours.handlers), ours.level) == before
    code = (
        "import logging; from penstock import Broker; "
        "logging.getLogger('penstock.x').error('unheard')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
