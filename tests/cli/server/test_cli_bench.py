"""`penstock bench`: does it measure what was acknowledged, and leave nothing behind?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.doors.served import Served

RATES = {"single_per_s", "single_ms_median", "single_ms_99", "batch_per_s", "read_per_s"}


def test_a_directory_is_measured_and_left_without_topics(run: Command) -> None:
    outcome = run("bench", "--seconds", "0.05", "--bytes", "10", "--batch", "7", "--json")
    assert outcome.code == 0, outcome
    told = outcome.json
    assert {key: told.pop(key) for key in ("bytes", "batch", "durability")} == {
        "bytes": 10,
        "batch": 7,
        "durability": "fsync",
    }
    assert told.keys() == RATES and all(value > 0 for value in told.values())
    assert run("topic", "list", "--json").json == []


def test_a_running_broker_is_measured_over_http(run: Command, data: Path) -> None:
    with Served(data) as broker:
        url = f"http://127.0.0.1:{broker.http_port}"
        outcome = run("bench", "--seconds", "0.05", "--durability", "os", "--at", url)
        assert outcome.code == 0, outcome
        assert "level os" in outcome.out and outcome.out.count("messages/s") == 3
        assert "bench-" not in run("topic", "list", "--at", url).out


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--bytes", "0", "above 0"),
        ("--bytes", "1048577", "at most 1048576"),
        ("--batch", "10001", "at most 10000"),
        ("--seconds", "nan", "'nan'"),
        ("--seconds", "601", "at most 600"),
        ("--durability", "none", "'fsync', 'os'"),
    ],
)
def test_what_cannot_be_measured_is_a_wrong_command_line(
    run: Command, flag: str, value: str, told: str
) -> None:
    outcome = run("bench", flag, value)
    assert outcome.code == 2 and told in outcome.err
