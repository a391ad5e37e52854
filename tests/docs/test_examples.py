"""Do the five example programs do what they say, against a real broker?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.doors.served import Served

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("examples") / "data") as broker:
        yield broker


def run(name: str, *arguments: object) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def url(served: Served) -> str:
    return f"http://127.0.0.1:{served.http_port}"


def test_embedded(tmp_path: Path) -> None:
    assert run("embedded", tmp_path / "data") == [
        "bill order 2 (offset 1)",
        "bill order 3 (offset 2)",
    ]


def test_mqtt_history(served: Served) -> None:
    lines = run("mqtt_history", "127.0.0.1", served.port)
    assert lines == [f"rooms/kitchen/temp {degrees}" for degrees in (19, 21, 24)]


def test_http_only(served: Served) -> None:
    first, second, *rest = run("http_only", url(served))
    assert first == second == "stored at offsets 0 to 2"
    assert rest == ["1 {'meter': 7, 'kwh': 2}", "2 {'meter': 7, 'kwh': 3}"]


def test_workers(served: Served) -> None:
    lines = run("workers", url(served))
    assert "first: job 1 failed" in lines
    assert "second: job 1 done (delivery 2)" in lines
    assert sum("done" in line for line in lines) == 4


def test_alarms_go_on_where_they_were(served: Served) -> None:
    with penstock.connect(url(served)) as broker:
        broker.create_topic("machines")
        broker.publish({"machine": 1, "celsius": 90}, topic="machines")
        broker.publish({"machine": 2, "celsius": 20}, topic="machines")
        broker.publish("done", topic="machines")
        assert run("alarms", url(served)) == ["alarm: machine 1 at 90 °C"]
        assert run("alarms", url(served)) == []


def test_every_example_is_on_the_page() -> None:
    page = (ROOT / "docs" / "EXAMPLES.md").read_text()
    programs = [one.name for one in (ROOT / "examples").glob("*.py") if one.stem != "__init__"]
    assert len(programs) == 5 and all(f"`examples/{one}`" in page for one in programs)
