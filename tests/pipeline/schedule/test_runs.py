"""Is it known of every run how it goes, and how it went, whatever became of its process?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Broker
from penstock.catalog.reports import KEPT_S, REPORTS, read_reports, remove_old_reports
from penstock.model.clock import ManualClock
from penstock.model.errors import Gap
from penstock.model.runs import DONE, FAILED, INTERRUPTED, RUNNING
from penstock.pipeline.jobs import Progress
from penstock.pipeline.recorder import ERROR_CHARS_MAX, Recorder, reason

PROGRESS = Progress(10, 2, 5.0, {"t": 10}, 3)


def test_a_run_is_reported_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    clock = ManualClock()
    with Recorder(tmp_path, "archive", ["t"], clock) as recorder:
        (begun,) = read_reports(tmp_path)
        assert (begun.state, begun.rows, begun.ended_at) == (RUNNING, 0, 0)
        assert begun.run_id.startswith("archive-")
        recorder.tell(PROGRESS)
        (told,) = read_reports(tmp_path)
        assert (told.rows, told.batches, told.lag, told.offsets) == (10, 2, 3, {"t": 10})
    (ended,) = read_reports(tmp_path)
    assert (ended.state, ended.error, ended.ended_at) == (DONE, "", clock.now_us())


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(Gap), Recorder(tmp_path, "archive", [], ManualClock()):
        raise Gap("offsets 1 to 2 are gone")
    (run,) = read_reports(tmp_path)
    assert (run.state, run.error) == (FAILED, "offsets 1 to 2 are gone")


def test_a_reason_is_the_sentence_inside_what_spark_says() -> None:
    said = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance: Traceback\n"
        '  File "x.py", line 1\n'
        "penstock.model.errors.TopicNotFound: topic 'a' is not declared: create it\n SQLSTATE: 38\n"
    )
    assert reason(RuntimeError(said)) == "topic 'a' is not declared: create it"
    assert reason(RuntimeError("x\ny")) == "x"
    assert reason(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(reason(RuntimeError("x" * 9_999))) == ERROR_CHARS_MAX
    assert reason(None) == ""


CHILD = """
import sys
from pathlib import Path
from penstock.model.clock import SystemClock
from penstock.pipeline.recorder import Recorder
with Recorder(Path(sys.argv[1]), "archive", [], SystemClock()):
    print("started", flush=True)
    sys.stdin.read()
"""


def test_a_run_whose_process_was_killed_is_interrupted(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        assert [run.state for run in read_reports(tmp_path)] == [RUNNING]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    (run,) = read_reports(tmp_path)
    assert run.state == INTERRUPTED and run.ended_at == run.updated_at


def test_a_run_that_ctrl_c_ends_is_interrupted_and_did_not_fail(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Recorder(tmp_path, "stats", [], ManualClock()):
        raise KeyboardInterrupt
    (run,) = read_reports(tmp_path)
    assert (run.state, run.error) == (INTERRUPTED, "")


def test_a_directory_that_may_only_be_read_has_no_reports_and_the_job_runs(tmp_path: Path) -> None:
    (tmp_path / REPORTS).write_text("in the way")
    with Recorder(tmp_path, "archive", [], ManualClock()) as recorder:
        recorder.tell(PROGRESS)
    assert recorder.run.state == DONE


def test_a_broker_keeps_what_was_reported_in_its_catalog(tmp_path: Path) -> None:
    with Broker(tmp_path, upkeep_s=0.05) as broker:
        assert broker.pipeline_runs() == []
        with Recorder(tmp_path, "archive", ["t"], ManualClock()) as recorder:
            assert [run.state for run in broker.pipeline_runs()] == [RUNNING]
        assert broker.pipeline_runs() == [recorder.run]
    for path in (tmp_path / REPORTS).iterdir():
        path.unlink()
    with Broker(tmp_path) as broker:
        assert broker.pipeline_runs() == [recorder.run]


def test_reports_of_runs_that_ended_long_ago_are_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    with Recorder(tmp_path, "archive", [], clock):
        pass
    remove_old_reports(tmp_path, clock.age_us)
    assert len(read_reports(tmp_path)) == 1
    clock.advance(KEPT_S + 1)
    remove_old_reports(tmp_path, clock.age_us)
    assert os.listdir(tmp_path / REPORTS) == []


def test_a_file_that_is_no_report_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / REPORTS).mkdir()
    (tmp_path / REPORTS / "notes.json").write_text("not ours")
    assert read_reports(tmp_path) == []
    remove_old_reports(tmp_path, lambda _: 2**62)
    assert os.listdir(tmp_path / REPORTS) == ["notes.json"]


def test_progress_is_one_line_for_people() -> None:
    many = Progress(1_000, 2, 500.0, {"t": 1_000}, 3)
    assert many.words() == "1,000 rows · 500/s · offset t 1,000 · lag 3 · 2 batches"
    one = Progress(5, 1, 0.4, says="done")
    assert one.words() == "5 rows · 0/s · offset – · lag 0 · 1 batch · done"
