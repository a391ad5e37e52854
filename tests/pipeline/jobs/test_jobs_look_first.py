"""Does a job that finds nothing to do, or cannot do it, end before Spark is started?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock import Broker, RefusedError, TopicNotFound
from penstock.model.errors import Gap, InvalidPipeline
from penstock.pipeline import archive, clean, dispatch, replay, sql, stats
from penstock.pipeline.connecting import origin_of
from penstock.pipeline.delta.looking import COLUMNS, places_if_all_followed
from penstock.pipeline.delta.table import SCHEMA, ArchiveTable
from penstock.pipeline.source.offsets import Place
from penstock.pipeline.source.options import Connection
from penstock.pipeline.source.origin import Range, Wanted
from tests.pipeline.declared.declaring import COPY, Declare
from tests.pipeline.source.tiering import fill, tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*given: Any, **named: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("penstock.pipeline.spark.session", start)
    monkeypatch.setattr("penstock.pipeline.jobs._active_session", lambda: None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Broker(tmp_path / "data") as broker:
        for topic in ("Orders", "other"):
            broker.create_topic(topic)
        for number in range(100):
            headers = {"k": "ü", "n": str(number)} if number % 2 else {}
            broker.publish({"n": number}, "orders", name=f"orders/{number % 3}", headers=headers)
        broker.publish_many([b"x"] * 5, "other")
    return tmp_path / "data"


def rows_of(table: Path) -> list[dict[str, Any]]:
    order = [("topic", "ascending"), ("offset", "ascending")]
    found = DeltaTable(str(table)).to_pyarrow_table().sort_by(order)
    rows: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
    return rows


@pytest.mark.usefixtures("no_spark")
def test_a_few_records_are_archived_without_spark_and_each_once(data: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    done = archive(["orders", "other"], table, path=data, batch_records=40)
    assert (done.rows, done.batches) == (105, 3)
    assert archive("orders", table, path=data).rows == 0
    with Broker(data) as broker:
        broker.publish_many(["more"] * 10, "orders")
    assert archive("orders", table, path=data).rows == 10
    assert [row["offset"] for row in rows_of(table)] == [*range(110), *range(5)]
    assert ArchiveTable(table).place("Orders") == Place(110, 1, 1)


NOTHING_NEW = """
import sys
from penstock.pipeline import archive
print(archive(["orders", "other"], sys.argv[2], path=sys.argv[1]).words())
print([name for name in ("pyarrow", "deltalake", "pandas", "pyspark") if name in sys.modules])
"""


@pytest.mark.usefixtures("no_spark")
def test_an_archive_that_has_everything_is_recognised_without_large_imports(
    data: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    archive(["orders", "other"], table, path=data, batch_records=40)
    command = [sys.executable, "-c", NOTHING_NEW, str(data), str(table)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    says, imported = ended.stdout.splitlines()
    assert says == "0 rows · 0/s · offset Orders 100, other 5 · lag 0 · 0 batches"
    assert imported == "[]"


def test_an_archive_is_looked_at_by_the_library_where_its_log_says_more(
    data: Path, tmp_path: Path
) -> None:
    archive(["orders", "other"], tmp_path / "table", path=data, batch_records=40)
    log = tmp_path / "table" / "_delta_log"
    states = origin_of(Connection(data)).states(("orders",))
    assert places_if_all_followed(tmp_path / "table", states) == {"Orders": Place(100, 1, 1)}
    assert places_if_all_followed(tmp_path, states) is None  # no table
    behind = [replace(states[0], end=101)]
    assert places_if_all_followed(tmp_path / "table", behind) is None
    anew = [replace(states[0], topic_id=9)]
    assert places_if_all_followed(tmp_path / "table", anew) is None
    (log / f"{0:020}.json").rename(tmp_path / "first")  # a checkpoint may stand for it
    assert places_if_all_followed(tmp_path / "table", states) is None
    (tmp_path / "first").rename(log / f"{0:020}.json")
    text = (log / f"{0:020}.json").read_text()
    (log / f"{0:020}.json").write_text(text.replace('\\"publisher\\"', '\\"sender\\"'))
    assert places_if_all_followed(tmp_path / "table", states) is None  # not an archive


def test_the_columns_of_an_archive_are_known_without_arrow() -> None:
    assert list(COLUMNS) == SCHEMA.names


@pytest.mark.usefixtures("no_spark")
def test_spark_is_started_for_more_records(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.delta.following.COPY_RECORDS_MAX", 99)
    with pytest.raises(AssertionError, match="Spark was started"):
        archive("orders", tmp_path / "table", path=data)


def test_both_ways_make_the_same_table(
    spark: SparkSession, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(["orders", "other"], tmp_path / "spark", path=data, spark=spark)
    monkeypatch.setattr("penstock.pipeline.jobs._active_session", lambda: None)
    archive(["orders", "other"], tmp_path / "copied", path=data)
    copied, written = (DeltaTable(str(tmp_path / name)) for name in ("copied", "spark"))
    assert rows_of(tmp_path / "copied") == rows_of(tmp_path / "spark")
    assert copied.schema() == written.schema()
    assert copied.metadata().partition_columns == written.metadata().partition_columns
    for topic in ("Orders", "other"):
        assert ArchiveTable(tmp_path / "copied").place(topic) == ArchiveTable(
            tmp_path / "spark"
        ).place(topic)


class Slow:
    """An origin whose records came twelve hours apart."""

    def scan(self, piece: Range, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        first = datetime(2026, 3, 1, 11, 59, 59, 999_999, UTC)
        rows = [
            {"topic": piece.topic, "partition": 0, "offset": n, "name": "n", "headers": [],
             "payload": b"p", "publisher": "", "timestamp": first + n * timedelta(hours=12)}
            for n in range(piece.start, piece.end)
        ]  # fmt: skip
        yield pa.RecordBatch.from_pylist(rows, schema=wanted.schema)


def test_records_of_several_days_are_filed_under_their_days(tmp_path: Path) -> None:
    table = ArchiveTable(tmp_path / "table")
    ranges = [Range("t", 7, 2, 0, 3), Range("t", 7, 2, 3, 6)]
    origin: Any = Slow()
    assert table.copy(origin, ranges, {"t": Place(6, 7, 2)}, fails_on_loss=True) == 6
    rows = rows_of(table.path)
    days = [str(row["date"])[-2:] for row in rows]
    assert days == ["01", "01", "02", "02", "03", "03"]
    assert {(row["topic_id"], row["epoch"]) for row in rows} == {(7, 2)}


@pytest.mark.usefixtures("no_spark")
def test_an_unknown_topic_is_refused(data: Path, tmp_path: Path, declare: Declare) -> None:
    for job in (archive, dispatch, stats):
        with pytest.raises(TopicNotFound, match="did you mean 'Orders'"):
            job("order", tmp_path / "out", path=data)
    with pytest.raises(TopicNotFound, match="did you mean 'Orders'"):
        replay("order", "other", path=data, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(InvalidPipeline, match="did you mean 'Orders'"):
        sql(declare(COPY.replace('"sensors"', '"order"')), path=data)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_spark")
def test_a_report_about_nothing_is_made(data: Path, tmp_path: Path) -> None:
    assert dispatch("orders", path=data).waiting == {}
    done = stats("orders", tmp_path / "stats", path=data, start=100, chart=False)
    assert done.rows == 0
    assert DeltaTable(str(tmp_path / "stats" / "minutes")).to_pyarrow_table().num_rows == 0


@pytest.mark.usefixtures("no_spark")
def test_lost_records_are_named_and_may_be_skipped(data: Path, tmp_path: Path) -> None:
    archive("other", tmp_path / "table", path=data)
    with Broker(data) as broker:
        broker.delete_topic("other")
        broker.create_topic("other")
        broker.publish_many([b"new"] * 7, "other")
    with pytest.raises(Gap, match="deleted and created again"):
        archive("other", tmp_path / "table", path=data)
    archive("other", tmp_path / "table", path=data, fail_on_data_loss=False)
    rows = rows_of(tmp_path / "table")
    lives = sorted((row["topic_id"], row["offset"], row["payload"]) for row in rows)
    first, second = lives[0][0], lives[-1][0]
    assert first < second
    assert lives == [
        *((first, number, b"x") for number in range(5)),
        *((second, number, b"new") for number in range(7)),
    ]


@pytest.mark.usefixtures("no_spark")
def test_the_history_of_a_topic_is_not_cleaned(tmp_path: Path) -> None:
    fill(tmp_path / "data", "t", 100)
    tier(tmp_path / "data", 50)
    (log,) = (tmp_path / "history").rglob("_delta_log")
    with pytest.raises(RefusedError, match="is the history of topic 't', which only its broker"):
        clean(log.parent, latest=True)
