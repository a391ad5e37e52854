"""Does the broker start jobs when they are due, one at a time, and take them along when it ends?"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.catalog.reports import read_reports
from penstock.model.runs import DONE, FAILED, INTERRUPTED, RUNNING, PipelineRun
from tests.doors.served import Served

WAIT_S = 120.0  # a job that has not begun or ended by then does not
pytestmark = pytest.mark.java


def settings(tmp_path: Path, **entries: dict[str, str]) -> str:
    lines = ["[spark]", "jobs_max = 1", "[spark.schedule]"]
    for name, entry in entries.items():
        pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in entry.items())
        lines.append(f"{name} = {{ {pairs} }}")
    file = tmp_path / "p.toml"
    file.write_text("\n".join(lines))
    return str(file)


def wait_for(
    data: Path, wanted: Callable[[list[PipelineRun]], bool], what: str
) -> list[PipelineRun]:
    deadline = time.monotonic() + WAIT_S
    while not wanted(found := read_reports(data)):
        assert time.monotonic() < deadline, f"{what}: {found}"
        time.sleep(0.05)
    return found


def is_any(state: str) -> Callable[[list[PipelineRun]], bool]:
    return lambda runs: any(run.state == state for run in runs)


def listed(data: Path) -> list[dict[str, Any]]:
    """What `penstock pipeline list` says while the broker runs."""
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "list", "--json"]
    answer = subprocess.run([*command, "--at", str(data)], capture_output=True, check=True)
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def test_a_job_that_fails_is_seen_and_is_tried_again_in_its_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    file = settings(tmp_path, bad={"every": "1s", "run": "dispatch nothing"})
    with Served(data, "--config", file):
        wait_for(data, lambda runs: len(runs) >= 2, "it was not tried again")
        wait_for(data, lambda runs: runs[0].state == FAILED, "it did not fail")
        (first, *_) = listed(data)
        assert (first["job"], first["state"]) == ("dispatch", FAILED)
        assert "topic 'nothing' is not declared" in first["error"]
    said = capfd.readouterr().err
    assert "info    schedule: scheduled job 'bad' (dispatch) starts" in said
    assert "error   schedule: scheduled job 'bad' (dispatch) failed: topic 'nothing'" in said
    runs = read_reports(data)
    assert all(run.state in (FAILED, INTERRUPTED) for run in runs)
    starts = [run.started_at for run in runs]
    # Due every second; a start that was late on a busy machine makes the next pause shorter.
    assert all(later - earlier >= 300_000 for earlier, later in itertools.pairwise(starts))


def test_a_job_is_done_and_the_broker_goes_on_with_it_after_a_restart_when_it_is_due(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with Broker(data) as broker:
        broker.create_topic("t")
        broker.publish_many(["x"] * 5, "t")
    table = tmp_path / "table"
    file = settings(tmp_path, keep={"every": "1d", "run": f"archive t --to {table}"})
    with Served(data, "--config", file):
        (run,) = wait_for(data, is_any(DONE), "it did not end")
        assert (run.job, run.rows) == ("archive", 5)
    with Served(data, "--config", file) as broker:
        time.sleep(1.5)  # nothing to wait for: it must not start
        assert broker.pid
    assert [run.run_id for run in read_reports(data)] == [run.run_id]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_job_ends_with_its_broker_however_that_ends(tmp_path: Path, how: str) -> None:
    data = tmp_path / "data"
    with Broker(data) as broker:
        broker.create_topic("t")
        broker.publish("x", "t")  # else Spark is not started
    one = {"every": "1d", "run": f"stats t --to {tmp_path / 'one'}"}
    other = {"every": "1d", "run": f"stats t --to {tmp_path / 'other'}"}
    served = Served(data, "--config", settings(tmp_path, one=one, other=other)).start()
    runs = wait_for(data, is_any(RUNNING), "it did not start")
    assert len(runs) == 1  # the other waits for its turn
    getattr(served, how)()
    runs = wait_for(data, lambda runs: not is_any(RUNNING)(runs), "it did not end")
    assert [run.state for run in runs] == [INTERRUPTED]


def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """Starting Spark alone takes longer."""
    data = tmp_path / "data"
    with Broker(data) as broker:
        broker.create_topic("t")
        broker.publish("x", "t")  # else Spark is not started
    run = f"stats t --to {tmp_path / 'table'}"
    file = settings(tmp_path, slow={"every": "1d", "run": run, "at_most": "1s"})
    with Served(data, "--config", file):
        (ended,) = wait_for(data, is_any(FAILED), "it was not ended")
        assert ended.error == "it took longer than 1 s and was ended"
