"""Does one failed sync fence what it belongs to: nothing acknowledged after it, reads go on?

A real process under a preloaded library that lets one sync fail (failing_sync.c).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock import Broker
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs, log_directory
from penstock.log.files.upkeep.verify import verify_log
from tests.peers.disk import fenced_child
from tests.powerloss.run import compile_library

SETTINGS = {"segment_bytes": 64 * 1024, "upkeep_s": 3_600}


@pytest.fixture(scope="module")
def failing_sync(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("failing_sync.c")
    return compile_library(source, tmp_path_factory.mktemp("shim") / "failing_sync.so")


def run_child(
    directory: Path, library: Path, path: str, at: int, ending: str
) -> list[tuple[str, str]]:
    """What it said: (word, rest) of each line."""
    env = os.environ | {
        "LD_PRELOAD": str(library),
        "FAIL_WHEN": str(directory.with_name("set-up")),
        "FAIL_PATH": path,
        "FAIL_AT": str(at),
    }
    argv = [sys.executable, str(fenced_child.__file__), str(directory), ending]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = [line.partition(" ") for line in ended.stdout.splitlines()]
    return [(word, rest) for word, _, rest in lines]


def ends_of(said: Sequence[tuple[str, str]], word: str, topic: str) -> list[int]:
    pairs = [rest.split() for one, rest in said if one == word]
    return [int(end) for name, end in pairs if name == topic]


def check_recovered(directory: Path, ends: dict[str, int]) -> dict[str, int]:
    """Everything acknowledged is there, publishing works again; where the consumers stand."""
    with Broker(directory, **SETTINGS) as broker:
        positions = {}
        for topic, end in ends.items():
            payloads = [record.payload for record in broker.read(topic)]
            assert len(payloads) >= end
            assert payloads == [fenced_child.message(topic, n) for n in range(len(payloads))]
            assert broker.publish(b"again", topic) == len(payloads)
            positions[topic] = broker.consumers(topic)[0].next_offset
    for identity in find_logs(RealDisk(), directory):
        assert verify_log(RealDisk(), log_directory(directory, identity)).problems == []
    return positions


@pytest.mark.parametrize("ending", ["close", "die"])
@pytest.mark.parametrize(
    ("path", "at"),
    [
        ("orders-1/00000000000000000000.log", 7),  # a commit
        ("orders-1/00000000000000000000.log", 16),  # the truncation of a full segment
        ("orders-1/00000000000000000015.log.tmp", 1),  # the next segment
        ("orders-1", 1),  # the entry of the next segment
    ],
)
def test_failed_sync_fences_its_log_and_no_other(
    path: str, at: int, ending: str, failing_sync: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    said = run_child(directory, failing_sync, path, at, ending)
    refusals = [rest for word, rest in said if word == "refused"]
    assert refusals and all(one.startswith("orders a sync failed") for one in refusals)
    first_refusal = next(n for n, (word, _) in enumerate(said) if word == "refused")
    assert ends_of(said[first_refusal:], "published", "orders") == []
    (end,) = ends_of(said[:first_refusal], "published", "orders")[-1:]
    assert end > 3
    assert set(ends_of(said[first_refusal:], "read", "orders")) == {end}
    assert ends_of(said, "published", "events") == list(range(1, fenced_child.ATTEMPTS + 1))
    positions = check_recovered(directory, {"orders": end, "events": fenced_child.ATTEMPTS})
    assert positions["events"] == fenced_child.ATTEMPTS


@pytest.mark.parametrize("ending", ["close", "die"])
def test_failed_sync_of_the_catalog_fences_positions_and_no_log(
    ending: str, failing_sync: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    said = run_child(directory, failing_sync, "catalog.db-wal", 5, ending)
    committed = [int(rest) for word, rest in said if word == "committed"]
    first_refusal = next(n for n, (word, _) in enumerate(said) if word == "uncommitted")
    assert "committed" not in [word for word, _ in said[first_refusal:]]
    for topic in fenced_child.TOPICS:
        assert ends_of(said, "published", topic) == list(range(1, fenced_child.ATTEMPTS + 1))
    positions = check_recovered(directory, dict.fromkeys(fenced_child.TOPICS, 40))
    assert committed and committed[-1] <= positions["events"] <= fenced_child.ATTEMPTS
