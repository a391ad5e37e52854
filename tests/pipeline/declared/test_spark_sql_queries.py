"""Do the queries of a declared pipeline go on, end and fail together, and count every row once?"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from penstock import RefusedError, UnavailableError, connect
from penstock.cli.main import main
from penstock.pipeline import sql
from penstock.pipeline.declared.running import Queries
from penstock.pipeline.jobs import Progress
from penstock.pipeline.jobs.sql import job
from tests.doors.served import Served
from tests.pipeline.declared.declaring import COPY, Declare, make_topics, publish, rows_of, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_topics(tmp_path / "data")


def test_no_query_shares_a_plan_with_another(
    spark: SparkSession, data: Path, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark changes plans while they run: two threads in one of them break it, now and then."""
    started: list[dict[str, DataFrame]] = []
    monkeypatch.setattr(Queries, "start", lambda self, outputs: started.append(outputs))
    sql(declare(COPY), path=data, once=True, spark=spark)
    (outputs,) = started
    assert set(outputs) == {"topic", "table"}
    assert outputs["topic"].sparkSession is not outputs["table"].sparkSession


def test_with_a_trigger_it_goes_on_until_it_is_stopped_beside_a_broker_that_serves(
    spark: SparkSession, data: Path, declare: Declare, tmp_path: Path
) -> None:
    stop = threading.Event()
    with Served(data) as served, connect(f"http://127.0.0.1:{served.http_port}") as client:
        client.publish("first", "sensors")

        def report(progress: Progress) -> None:
            if progress.offsets == {"sensors": 1} and client.size("sensors") == 1:
                client.publish("second", "sensors")
            if progress.offsets == {"sensors": 2}:  # of both queries
                stop.set()

        done = sql(declare(COPY), path=data, spark=spark, report=report, stop=stop)
        assert done.offsets == {"sensors": 2}
        assert [record.value for record in client.read("out")] == ["first", "second"]
        # Tasks on other machines see no files: all of it by address.
        client.publish("third", "sensors")
        sql(declare(COPY), url=f"http://127.0.0.1:{served.http_port}", once=True, spark=spark)
        assert [record.value for record in client.read("out")] == ["first", "second", "third"]
    assert [row["payload"] for row in rows_of(tmp_path / "table")] == ["first", "second", "third"]
    assert spark.streams.active == []


MODES = (
    COPY
    + """
[steps.counts]
sql = "SELECT count(*) AS n FROM readings"

[sinks.updates]
step = "counts"
topic = "rooms"
mode = "update"

[sinks.totals]
step = "counts"
table = "./totals"
mode = "complete"
"""
)


def test_a_micro_batch_whose_end_spark_never_noted_is_not_written_twice(
    spark: SparkSession, data: Path, declare: Declare, tmp_path: Path
) -> None:
    """The sink's commit was done and Spark's was not: the forced failure between the two."""
    file = declare(MODES)
    publish(data, "first", "second")
    sql(file, path=data, once=True, spark=spark)
    for sink in ("topic", "table", "updates", "totals"):
        last = max((tmp_path / "flow.checkpoint" / sink / "commits").glob("[0-9]*"))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    publish(data, "third")
    sql(file, path=data, once=True, spark=spark)
    assert values(data) == ["first", "second", "third"]
    rows = [row["payload"] for row in rows_of(tmp_path / "table")]
    assert rows == ["first", "second", "third"]
    assert values(data, "rooms") == [{"n": 2}, {"n": 3}]
    assert rows_of(tmp_path / "totals") == [{"n": 3}]
    assert len(DeltaTable(str(tmp_path / "totals")).history()) == 3  # made, and two commits


WINDOWS = """
[sources.readings]
topic = "sensors"
payload = "at timestamp"
event_time = "payload.at"
watermark = "1s"

[steps.windows]
sql = "SELECT count(*) AS n FROM readings GROUP BY window(event_time, '10 seconds')"

[sinks.topic]
step = "windows"
topic = "out"
"""


def test_windows_that_were_complete_when_it_was_killed_come_out_without_a_new_record(
    spark: SparkSession, data: Path, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without micro-batches without data Spark ends where a kill would end it: between the two."""
    file = declare(WINDOWS)
    publish(data, *[{"at": f"2026-01-01T10:00:{second:02}Z"} for second in range(25)])
    with monkeypatch.context() as changed:
        changed.setitem(job._SETTINGS, "spark.sql.streaming.noDataMicroBatches.enabled", "false")
        sql(file, path=data, once=True, spark=spark)
    assert values(data) == []
    sql(file, path=data, once=True, spark=spark)
    assert values(data) == [{"n": 10}, {"n": 10}]
    sql(file, path=data, once=True, spark=spark)
    assert values(data) == [{"n": 10}, {"n": 10}]


def test_a_query_that_fails_ends_the_others_and_says_why(
    spark: SparkSession, data: Path, declare: Declare
) -> None:
    publish(data, "x")
    file = declare(
        COPY.replace("SELECT payload, name", "SELECT nullif(payload, 'x') AS payload, name")
    )
    with pytest.raises(
        RefusedError, match="^sink 'topic' failed: topic 'out': a row has no payload"
    ):
        sql(file, path=data, spark=spark)
    assert spark.streams.active == []


def test_a_pipeline_runs_once_at_a_time(spark: SparkSession, data: Path, declare: Declare) -> None:
    file = declare(COPY)
    again: list[BaseException] = []
    stop = threading.Event()

    def report(progress: Progress) -> None:
        with pytest.raises(UnavailableError, match="this pipeline is already running") as refused:
            sql(file, path=data, spark=spark)
        again.append(refused.value)
        stop.set()

    publish(data, "x")
    sql(file, path=data, spark=spark, report=report, stop=stop)
    assert len(again) >= 1


def test_the_command_runs_a_pipeline_and_keeps_what_it_did(
    spark: SparkSession, data: Path, declare: Declare, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(data, "x", "y")
    file = declare(COPY)
    assert main(["pipeline", "run", "sql", str(file), "--once", "--at", str(data)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sql: 2 rows · ") and "offset sensors 2 · lag 0 · 2 batches" in out
    assert main(["pipeline", "status", "--at", str(data), "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert (run["job"], run["state"], run["rows"], run["offsets"]) == (
        "sql",
        "done",
        2,
        {"sensors": 2},
    )
    shutil.rmtree(file.parent / "flow.checkpoint")
    file.write_text(COPY.replace("sensors", "sensor"))
    assert main(["pipeline", "run", "sql", str(file), "--at", str(data)]) == 1
    assert "flow.toml:6: topic 'sensor' is not declared in " in capsys.readouterr().err
