"""Does an archive hold every record exactly once although its driver is killed again and again?"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock import Broker
from penstock.catalog.reports import read_reports
from penstock.model.runs import DONE
from tests.pipeline.killed.drivers import (
    BATCHES,
    ROUNDS,
    SEED,
    kill_again_and_again,
    run_to_its_death,
    run_to_the_end,
)
from tests.pipeline.schedule.test_schedule_runs import WAIT_S, wait_for

RECORDS = 100 * (2 + BATCHES)  # in batches of 100; six are there before the random rounds begin


def prepare(tmp_path: Path) -> tuple[str, ...]:
    """A topic to archive; how to start the driver."""
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("in")
        broker.publish_many([str(number) for number in range(RECORDS)], "in")
    places = (str(tmp_path / name) for name in ("data", "table", "scratch"))
    return ("tests.pipeline.killed.archiving_child", *places)


def archived(tmp_path: Path) -> list[tuple[int, int]]:
    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["offset", "payload"])
    return sorted((row["offset"], int(row["payload"])) for row in table.to_pylist())


@pytest.mark.java
@pytest.mark.timeout(600 + 120 * ROUNDS)
def test_a_table_holds_every_record_once_after_its_driver_was_killed(tmp_path: Path) -> None:
    """First beside the commit: Spark's files are there and the commit is not; then the commit is,
    and nobody heard of it. Then, if more rounds are asked for, at any moment."""
    print(f"PENSTOCK_SEED={SEED}")
    arguments = prepare(tmp_path)
    count = 0
    for death in (("before", "2"), ("after", "3")):
        run_to_its_death(*arguments, *death)
        found = archived(tmp_path)
        assert count < len(found) < RECORDS
        count = len(found)
        assert found == [(number, number) for number in range(count)]
    chance = random.Random(SEED)
    deaths = kill_again_and_again(chance, *arguments, rounds=ROUNDS - 1, longest_s=15.0)
    run_to_the_end(*arguments)
    assert archived(tmp_path) == [(number, number) for number in range(RECORDS)], deaths


@pytest.mark.java
def test_ctrl_c_ends_an_archive_that_follows_in_good_order(tmp_path: Path) -> None:
    data, table = tmp_path / "data", tmp_path / "table"
    with Broker(data) as broker:
        broker.create_topic("in")
        broker.publish_many([b"x"] * 3, "in")
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "run", "archive", "in"]
    with subprocess.Popen(
        [*command, "--to", str(table), "--follow", "--every", "3600", "--at", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        try:
            wait_for(data, lambda runs: any(run.rows == 3 for run in runs), "archived")
        finally:
            job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=WAIT_S)
    assert job.returncode == 0 and out.startswith("archive: 3 rows"), err
    assert "incubator" not in err
    (run,) = read_reports(data)
    assert (run.state, run.error, run.rows) == (DONE, "", 3)
