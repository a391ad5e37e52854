"""Do `pipeline list` and `pipeline status` tell how runs went?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Broker, RefusedError, TopicNotFound
from penstock.app.schedule import WITH_BROKER
from penstock.model.clock import SystemClock
from penstock.pipeline import archive
from penstock.pipeline.jobs import Progress
from penstock.pipeline.recorder import Recorder
from tests.cli.conftest import Command

PROGRESS = Progress(10, 2, 5.0, {"t": 10}, 3)


def test_the_command_lists_runs_and_shows_one(run: Command, data: Path) -> None:
    run("topic", "create", "t")
    assert (
        run("pipeline", "list").out == "no runs yet: start one with `penstock pipeline run JOB`\n"
    )
    assert "there are no runs yet" in run("pipeline", "status").err
    with Recorder(data, "archive", ["t", "--to", "x"], SystemClock()) as recorder:
        recorder.tell(PROGRESS)
    listed = run("pipeline", "list", "--json").json
    assert [one["run_id"] for one in listed] == [recorder.run.run_id]
    shown = run("pipeline", "status", recorder.run.run_id)
    assert "arguments    t --to x\n" in shown.out
    assert "offset in t  10\n" in shown.out
    assert run("pipeline", "status", "--json").json["state"] == "done"
    refused = run("pipeline", "status", "nobody")
    assert refused.code == 1 and "there is no run 'nobody'" in refused.err
    with Broker(data):  # held: the files tell
        assert recorder.run.run_id in run("pipeline", "list").out


def test_the_command_refuses_a_job_and_a_directory_that_do_not_exist(
    run: Command,
    data: Path,
) -> None:
    assert run("pipeline", "run", "nothing").code == 2
    refused = run("pipeline", "run", "archive", "t", "--to", "x")
    assert refused.code == 1 and "data directory" in refused.err


def test_a_job_that_the_broker_started_ends_as_its_work_did(run: Command, data: Path) -> None:
    run("topic", "create", "t")
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "run", "clean", "missing"]
    with subprocess.Popen(
        [*command, "--at", str(data), WITH_BROKER],
        stdin=subprocess.PIPE,  # the broker holds it open
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stderr is not None
        said = job.stderr.read()
        assert job.wait() == 1, said
    assert "Fatal Python error" not in said


def test_the_command_refuses_an_address_where_a_job_needs_files_and_what_is_none(
    run: Command,
) -> None:
    for job in (("clean", "table"), ("replay", "t", "--into", "u", "--checkpoint", "c")):
        refused = run("pipeline", "run", *job, "--at", "http://127.0.0.1:1")
        assert refused.code == 2 and "is a URL, but this command reads files" in refused.err
    refused = run("pipeline", "run", "stats", "--at", "mqtt://127.0.0.1:1")
    assert refused.code == 2 and "use http://HOST:PORT" in refused.err


@pytest.mark.parametrize(
    "job",
    [
        "stats --to {}",
        "stats --to {}/below",
        "dispatch --to {}",
        "replay t --into u --checkpoint {}",
    ],
)
def test_a_file_where_a_directory_is_wanted_is_named_before_spark_is_started(
    run: Command, data: Path, tmp_path: Path, job: str
) -> None:
    with Broker(data) as broker:
        broker.create_topic("t")
        broker.create_topic("u")
    file = tmp_path / "file"
    file.write_text("mine")
    done = run("pipeline", "run", *job.format(file).split())
    assert (done.code, done.err) == (1, f"penstock: {str(file)!r} is a file: give a directory\n")
    assert file.read_text() == "mine"


def test_an_archive_that_cannot_begin_leaves_nothing_behind(data: Path, tmp_path: Path) -> None:
    with Broker(data) as broker:
        broker.create_topic("t")
    with pytest.raises(TopicNotFound, match="'nosuch' is not declared"):
        archive("nosuch", tmp_path / "table", path=data)
    assert not (tmp_path / "table").exists()
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(RefusedError, match="is a file: give a directory"):
        archive("t", file, path=data)
