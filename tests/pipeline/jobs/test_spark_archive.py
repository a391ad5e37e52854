"""Does a Delta table hold every record of its topics once, and can everybody read it?"""

from __future__ import annotations

import json
import os
import random
import threading
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from penstock import Broker, RefusedError, TopicNotFound
from penstock.cli.main import main
from penstock.model.record import Record
from penstock.pipeline import archive
from penstock.pipeline.delta.following import DATE
from penstock.pipeline.delta.table import ArchiveTable
from penstock.pipeline.jobs import Progress
from penstock.pipeline.source.offsets import Place, Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("Orders")
        for number in range(100):
            broker.publish({"n": number}, "orders", name=f"orders/{number % 3}", headers={"k": "ü"})
    return tmp_path / "data"


def records(data: Path, topic: str = "orders") -> list[Record]:
    with Broker(data) as broker:
        return broker.read(topic)


def rows_of(table: Path) -> list[dict[str, Any]]:
    found = (
        DeltaTable(str(table))
        .to_pyarrow_table()
        .sort_by([("topic", "ascending"), ("offset", "ascending")])
    )
    rows: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
    return rows


def same(rows: list[dict[str, Any]], wanted: list[Record]) -> bool:
    """Whether the rows are the records, no more and no less."""
    return [
        (r["topic"], r["partition"], r["offset"], r["timestamp"], r["name"], r["payload"])
        for r in rows
    ] == [(r.topic, r.partition, r.offset, r.time, r.name, r.payload) for r in wanted] and all(
        row["headers"] == dict(record.headers)
        and row["publisher"] == record.publisher
        and row["date"] == record.time.astimezone(UTC).date()
        for row, record in zip(rows, wanted, strict=True)
    )


def test_a_table_holds_what_the_topic_holds_and_goes_on_where_it_ended(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    told: list[Progress] = []
    done = archive(
        "orders", tmp_path / "table", path=data, batch_records=40, spark=spark, report=told.append
    )
    assert (done.rows, done.batches, done.offsets, done.lag) == (100, 3, {"Orders": 100}, 0)
    assert [(one.rows, one.lag) for one in told] == [(40, 60), (80, 20), (100, 0)]
    assert same(rows_of(tmp_path / "table"), records(data))
    assert archive("orders", tmp_path / "table", path=data, spark=spark).rows == 0
    with Broker(data) as broker:
        broker.publish_many(["more"] * 10, "orders")
    assert archive("ORDERS", str(tmp_path / "table"), path=str(data), spark=spark).rows == 10
    assert same(rows_of(tmp_path / "table"), records(data))
    assert ArchiveTable(tmp_path / "table").place("Orders") == Place(110, 1, 1)


def test_every_batch_is_written_once(
    spark: SparkSession, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ArchiveTable.append
    written: list[int] = []

    def counted(self: ArchiveTable, rows: DataFrame, places: Places, *rest: Any) -> int:
        written.append(places["Orders"].offset)
        return real(self, rows, places, *rest)

    monkeypatch.setattr(ArchiveTable, "append", counted)
    archive("orders", tmp_path / "table", path=data, batch_records=20, spark=spark)
    assert written == [20, 40, 60, 80, 100]


def test_rows_and_commits_are_durable_when_the_job_reports_them(
    spark: SparkSession, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    real = os.fsync

    def noted(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr("penstock.pipeline.delta.table.SMALL_FILES_MAX", 2)  # merging commits, too
    table = tmp_path / "table"

    def is_durable(path: Path) -> bool:
        folders = [one for one in path.parents if one.is_relative_to(table)]
        known = len(synced) - synced[::-1].index(path)
        return all(folder in synced[known:] for folder in folders)

    def report(progress: Progress) -> None:
        assert all(map(is_durable, map(Path, DeltaTable(str(table)).file_uris())))
        assert all(map(is_durable, (table / "_delta_log").iterdir()))

    archive("orders", table, path=data, batch_records=30, spark=spark, report=report)
    report(Progress(0, 0, 0.0))


def test_duckdb_polars_and_pandas_read_the_table(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    archive("orders", tmp_path / "table", path=data, spark=spark)
    wanted = records(data)
    total = sum(record.value["n"] for record in wanted)
    dataset = DeltaTable(str(tmp_path / "table")).to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.register("archive", dataset)
    found = connection.sql(
        "SELECT count(*), min(timestamp), sum(CAST(json_extract(decode(payload), '$.n') AS int))"
        " FROM archive WHERE name LIKE 'orders/%'"
    ).fetchall()
    assert found[0][0] == 100
    assert found[0][1].astimezone(UTC) == wanted[0].time
    assert found[0][2] == total
    frame = polars.read_delta(str(tmp_path / "table")).sort("offset")
    assert frame["payload"].to_list() == [record.payload for record in wanted]
    assert frame["timestamp"].to_list() == [record.time for record in wanted]
    table = DeltaTable(str(tmp_path / "table")).to_pandas().sort_values("offset")
    assert table["name"].tolist() == [record.name for record in wanted]
    assert {str(day) for day in table["date"]} == {str(datetime.now(UTC).date())} | {
        str(record.time.date()) for record in wanted
    }
    again = spark.read.parquet(*DeltaTable(str(tmp_path / "table")).file_uris())
    assert again.count() == 100


def days_from(spark: SparkSession, first: datetime, count: int) -> DataFrame:
    """Rows of an archive, twelve hours apart; more tasks than rows."""
    stamp = f"timestamp_micros({int(first.timestamp() * 1e6)} + id * 43200000000) AS timestamp"
    return spark.range(0, count, 1, 8).selectExpr(
        "'t' AS topic", "0 AS partition", "id AS offset", stamp, "'t' AS name",
        "CAST(map() AS map<string,string>) AS headers", "CAST('p' AS binary) AS payload",
        "'' AS publisher", "CAST(NULL AS timestamp) AS expires_at",
    ).selectExpr("*", DATE)  # fmt: skip


@pytest.mark.parametrize(
    ("count", "days"), [(2, ["2026-03-01"] * 2), (3, ["2026-03-01", "2026-03-01", "2026-03-02"])]
)
def test_rows_are_filed_under_their_day_whatever_it_was_believed_to_be(
    spark: SparkSession, tmp_path: Path, count: int, days: list[str]
) -> None:
    table = ArchiveTable(tmp_path / "table")
    rows = days_from(spark, datetime(2026, 3, 1, 11, 59, 59, 999_999, UTC), count)
    assert table.append(rows, {"t": Place(count, 1, 1)}, date(2026, 3, 1)) == count
    assert [str(row["date"]) for row in rows_of(table.path)] == days
    files = sorted(path for path in table.path.rglob("*.parquet"))
    assert len(files) == count
    named = DeltaTable(str(table.path)).file_uris()
    assert sorted(str(path) for path in files) == sorted(named)


def test_several_topics_share_a_table_each_with_its_place(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    with Broker(data) as broker:
        broker.create_topic("other")
        broker.publish_many(["x"] * 7, "other")
    archive("orders", tmp_path / "table", path=data, spark=spark)
    done = archive(["orders", "other"], tmp_path / "table", path=data, spark=spark)
    assert (done.rows, done.offsets) == (7, {"Orders": 100, "other": 7})
    assert same(rows_of(tmp_path / "table"), [*records(data), *records(data, "other")])


def test_small_files_are_merged_and_nothing_else_changes(
    spark: SparkSession, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.delta.table.SMALL_FILES_MAX", 4)
    archive("orders", tmp_path / "table", path=data, batch_records=15, spark=spark)
    assert len(DeltaTable(str(tmp_path / "table")).file_uris()) <= 4
    assert same(rows_of(tmp_path / "table"), records(data))
    assert archive("orders", tmp_path / "table", path=data, spark=spark).rows == 0


def test_following_adds_what_comes_until_it_is_stopped(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    stop = threading.Event()
    seen: list[int] = []

    def report(progress: Progress) -> None:
        seen.append(progress.rows)
        if progress.rows >= 130:
            stop.set()
        else:
            with Broker(data) as broker:
                broker.publish_many(["more"] * 10, "orders")

    archive(
        "orders", tmp_path / "table", path=data, follow=True, every_s=0.05, spark=spark,
        report=report, stop=stop,
    )  # fmt: skip
    assert seen == [100, 110, 120, 130]
    assert same(rows_of(tmp_path / "table"), records(data))


def test_a_commit_that_another_job_overtook_adds_nothing_twice(
    spark: SparkSession, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between this job's planning and its commit, another one archives the same records."""
    real = ArchiveTable.append
    other = []

    def overtaken(self: ArchiveTable, *arguments: Any) -> int:
        if not other:
            other.append(True)
            archive("orders", tmp_path / "table", path=data, batch_records=60, spark=spark)
        return real(self, *arguments)

    monkeypatch.setattr(ArchiveTable, "append", overtaken)
    archive("orders", tmp_path / "table", path=data, batch_records=60, spark=spark)
    assert same(rows_of(tmp_path / "table"), records(data))


def test_records_that_are_gone_are_named_and_may_be_skipped(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    noise = random.Random(1)
    with Broker(data, segment_bytes="64 KiB", upkeep_s=0.05) as broker:
        broker.create_topic("t")
        broker.publish("a", "t")
        archive("t", tmp_path / "table", path=data, spark=spark)
        broker.alter_topic("t", retention_bytes="64 KiB")
        while broker.topics()[0].first_offset < 2:
            broker.publish(noise.randbytes(60_000), "t")
    first = records(data, "t")[0].offset
    with pytest.raises(PySparkException, match=f"offsets 1 to {first - 1} are gone"):
        archive("t", tmp_path / "table", path=data, spark=spark)
    archive("t", tmp_path / "table", path=data, spark=spark, fail_on_data_loss=False)
    kept = [row["offset"] for row in rows_of(tmp_path / "table")]
    assert kept == [0, *(record.offset for record in records(data, "t"))]


def test_an_empty_topic_makes_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("t")
    done = archive("t", tmp_path / "table", path=tmp_path / "data", spark=spark)
    assert (done.rows, done.batches) == (0, 0)
    assert rows_of(tmp_path / "table") == []


def test_a_directory_that_is_something_else_is_refused(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(RefusedError, match="contains files but is not a Delta table"):
        archive("orders", tmp_path / "full", path=data, spark=spark)
    DeltaTable.create(str(tmp_path / "strange"), pa.schema([pa.field("a", pa.int32())]))
    with pytest.raises(RefusedError, match="has the columns a and an archive topic, partition"):
        archive("orders", tmp_path / "strange", path=data, spark=spark)
    with pytest.raises(TopicNotFound, match="did you mean 'Orders'"):
        archive("order", tmp_path / "table", path=data, spark=spark)


def test_the_command_archives_and_tells_how_far_it_is(
    spark: SparkSession, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    at = ["--at", str(data), "--json"]
    table = str(tmp_path / "table")
    assert main(["pipeline", "run", "archive", "orders", "--to", table, *at]) == 0
    done = json.loads(capfd.readouterr().out)
    assert (done["state"], done["rows"], done["offsets"]) == ("done", 100, {"Orders": 100})
    assert done["arguments"][:3] == ["orders", "--to", table]
    assert main(["pipeline", "run", "archive", "order", "--to", table, *at]) == 1
    assert "did you mean 'Orders'" in capfd.readouterr().err
    assert main(["pipeline", "list", *at]) == 0
    listed = json.loads(capfd.readouterr().out)
    assert [run["state"] for run in listed] == ["done", "failed"]
    assert "did you mean 'Orders'" in listed[1]["error"]
