"""Does the demonstration work, end well, and leave nothing but its picture?"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from demo.story import Story

ROOT = Path(__file__).parents[2]


def start(*arguments: str, scratch: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def running_below(scratch: Path) -> list[str]:
    """Commands of processes that name the directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(scratch) in command:
            found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(400)
def test_a_short_demonstration_tells_its_story_and_draws_a_picture(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    output = tmp_path / "output"
    process = start("--seconds", "12", "--limit", "380", "--to", str(output), scratch=scratch)
    told, errors = process.communicate(timeout=390)
    assert process.returncode == 0, told + errors
    chapters = re.findall(r"^(\d)\. (.*)$", told, re.MULTILINE)
    assert [number for number, _ in chapters] == ["1", "2", "3", "4", "5", "6", "7"]
    sent, archived = re.findall(r"([\d,]+) messages acknowledged, ([\d,]+) rows", told)[0]
    assert sent == archived and int(sent.replace(",", "")) > 100
    (averages,) = re.findall(r"(\d+) averages came back over MQTT, all of them right", told)
    assert int(averages) >= 8  # two windows of four devices
    assert re.search(r"^     \d\d:\d\d:\d\d  boiler-1 +\d+\.\d", told, re.MULTILINE)
    assert "done in" in told.splitlines()[-1]
    assert [path.name for path in output.iterdir()] == ["temperatures.png"]
    picture = (output / "temperatures.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    assert list(scratch.glob("penstock-demo-*")) == []
    assert running_below(scratch) == []


@pytest.mark.slow
def test_a_demonstration_that_is_interrupted_stops_what_it_started(tmp_path: Path) -> None:
    process = start("--to", str(tmp_path / "output"), scratch=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("2. "):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "everything it started is stopped" in errors
    assert running_below(tmp_path) == []
    assert list(tmp_path.glob("penstock-demo-*")) == []


def test_an_interruption_that_python_dropped_is_noticed_at_the_next_chapter() -> None:
    story = Story()
    story.chapter("Before", "goes on")
    with suppress(KeyboardInterrupt):
        story.interrupt()
    with pytest.raises(KeyboardInterrupt):
        story.chapter("After", "does not come")


@pytest.mark.slow
def test_a_demonstration_that_takes_too_long_fails_and_says_so(tmp_path: Path) -> None:
    process = start("--limit", "0", "--to", str(tmp_path / "output"), scratch=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "demo failed: `serve --data" in errors and "took too long" in errors
    assert running_below(tmp_path) == []
