"""Does a table lose what is over, and nothing else, whoever adds to it meanwhile?"""

from __future__ import annotations

import os
import shutil
import threading
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock import Broker, InvalidSetting, RefusedError
from penstock.cli.main import main
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Publish
from penstock.mqtt.properties import Properties
from penstock.pipeline import archive, clean
from penstock.pipeline.jobs import LateSession, Progress
from penstock.pipeline.jobs.clean.cleaning import CleanTable, Keep
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = timedelta(days=1)


def rows_of(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (str(row.get("topic")), row.get("offset", 0)))


def offsets_of(table: Path) -> list[int]:
    return [row["offset"] for row in rows_of(table)]


def files_of(table: Path) -> set[Path]:
    return {path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}


def age(table: Path, days: float) -> None:
    """Let the rows of even offsets have come that long ago."""
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    for row in rows:
        if row["offset"] % 2 == 0:
            row["timestamp"] -= timedelta(days=days)
            row["date"] = row["timestamp"].date()
    schema = pa.schema(DeltaTable(str(table)).schema().to_arrow())
    write_deltalake(
        str(table), pa.Table.from_pylist(rows, schema=schema), mode="overwrite",
        partition_by=["date"],
    )  # fmt: skip


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Path:
    """An archive of ten records under three names."""
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("t")
        for number in range(10):
            broker.publish(str(number), "t", name=f"t/{number % 3}")
    archive("t", tmp_path / "table", path=tmp_path / "data", spark=spark)
    return tmp_path / "table"


def test_rows_older_than_an_age_go_and_the_others_stay_as_they_were(
    spark: SparkSession, table: Path
) -> None:
    age(table, 40)
    before = {row["offset"]: row for row in rows_of(table)}
    told: list[Progress] = []
    done = clean(table, older_than="30d", spark=spark, report=told.append)
    assert (done.rows, told[-1]) == (5, done)
    assert "looking at" in told[0].says
    assert "5 rows stay" in done.says
    assert rows_of(table) == [before[number] for number in range(1, 10, 2)]
    assert clean(table, older_than=30 * DAY, spark=spark).rows == 0


def test_the_newest_record_of_each_name_stays(spark: SparkSession, table: Path) -> None:
    assert clean(table, latest=True, spark=spark).rows == 7
    assert [(row["name"], row["payload"]) for row in rows_of(table)] == [
        ("t/1", b"7"),
        ("t/2", b"8"),
        ("t/0", b"9"),
    ]


def test_a_table_that_was_cleaned_goes_on_where_it_ended(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    clean(table, latest=True, spark=spark)
    with Broker(tmp_path / "data") as broker:
        broker.publish("10", "t", name="t/1")
    assert archive("t", table, path=tmp_path / "data", spark=spark).rows == 1
    assert offsets_of(table) == [7, 8, 9, 10]
    clean(table, latest=True, spark=spark)
    assert offsets_of(table) == [8, 9, 10]


def test_the_newest_record_stays_when_its_topic_was_deleted_and_created_anew(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    with Broker(tmp_path / "data") as broker:
        broker.delete_topic("t")
        broker.create_topic("t")
        broker.publish("of the second life", "t", name="t/1")
    archive("t", table, path=tmp_path / "data", fail_on_data_loss=False, spark=spark)
    clean(table, latest=True, spark=spark)
    assert [(row["name"], row["payload"]) for row in rows_of(table)] == [
        ("t/1", b"of the second life"),
        ("t/2", b"8"),
        ("t/0", b"9"),
    ]


def test_expired_records_go_by_themselves(spark: SparkSession, tmp_path: Path) -> None:
    data, table = tmp_path / "data", tmp_path / "table"
    with Hosted(data) as broker, Wire(broker.port, "p", MQTT_5) as wire:
        wire.connect()
        for expiry_s in (1, 3_600, None):
            asked = Properties(message_expiry_interval=expiry_s)
            wire.send(Publish("n", b"x", 1, packet_id=wire.take_id(), properties=asked))
            wire.pick(Puback)
        broker.wait_past_us(1_100_000)
    archive("default", table, path=data, spark=spark)
    assert clean(table, spark=spark).rows == 1
    assert offsets_of(table) == [1, 2]


def test_only_files_with_something_to_drop_are_written_anew(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    (first,) = files_of(table)
    with Broker(tmp_path / "data") as broker:
        broker.publish_many(["x"] * 3, "t", name="t/only")
    archive("t", table, path=tmp_path / "data", spark=spark)
    (second,) = files_of(table) - {first}
    cleaning = CleanTable(LateSession(spark), table)
    newest = rows_of(table)[-3]["timestamp"]
    since_us = int(newest.timestamp() * 1e6)
    assert cleaning.drop(Keep(since_us=since_us)) == (10, 3)
    named = {
        table / path
        for path in DeltaTable(str(table)).get_add_actions(flatten=True)["path"].to_pylist()
    }
    assert named == {second}


def test_what_is_added_while_a_table_is_cleaned_stays(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    cleaning = CleanTable(LateSession(spark), table)
    with Broker(tmp_path / "data") as broker:
        broker.publish("later", "t", name="t/0")
    archive("t", table, path=tmp_path / "data", spark=spark)
    assert cleaning._drop(Keep(is_latest=True))[0] == 7  # as of when it was opened
    assert offsets_of(table) == [7, 8, 9, 10]


def test_two_that_clean_the_same_files_drop_each_row_once(spark: SparkSession, table: Path) -> None:
    late = CleanTable(LateSession(spark), table)
    assert CleanTable(LateSession(spark), table).drop(Keep(is_latest=True))[0] == 7
    assert late.drop(Keep(is_latest=True)) == (0, 3)
    assert offsets_of(table) == [7, 8, 9]


def test_a_job_that_died_before_its_commit_has_changed_nothing_and_is_done_again(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeltaTable.create_write_transaction

    def dies_before(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    def dies_after(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        raise KeyboardInterrupt

    for dying, left in ((dies_before, 10), (dies_after, 3)):
        monkeypatch.setattr(DeltaTable, "create_write_transaction", dying)
        with pytest.raises(KeyboardInterrupt):
            clean(table, latest=True, spark=spark)
        assert len(rows_of(table)) == left
    monkeypatch.setattr(DeltaTable, "create_write_transaction", real)
    assert clean(table, latest=True, spark=spark).rows == 0
    assert offsets_of(table) == [7, 8, 9]


def test_small_files_are_merged_and_files_that_no_version_needs_are_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("t")
        for _ in range(4):
            broker.publish("x", "t")
            archive("t", table, path=tmp_path / "data", spark=spark)
    orphans = table / "rows-of-a-job-that-was-killed"
    orphans.mkdir()
    (orphans / "part-0.parquet").write_bytes(b"never named")
    done = clean(table, spark=spark)
    assert "4 files merged · 0 files removed" in done.says
    for path in [*files_of(table), orphans]:
        os.utime(path, (time.time() - 9 * 86_400,) * 2)
    tombstones = DeltaTable(str(table))
    assert offsets_of(table) == [0, 1, 2, 3]
    assert tombstones.version() > 0
    clean(table, spark=spark)
    assert not orphans.exists()
    assert offsets_of(table) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "dates",
    [
        [date(2020, 1, 1), date(2020, 1, 2), None],
        ["1 + 1 = 2", "50%: a/b", None],
        [1, 2, None],
    ],
)
def test_dates_stay_what_they_are_also_when_they_are_not_the_day_of_the_timestamp(
    spark: SparkSession, tmp_path: Path, dates: list[Any]
) -> None:
    now = datetime.now(UTC)
    rows = [
        {"n": n, "timestamp": now - n % 2 * 40 * DAY, "date": one}
        for n, one in enumerate(dates * 2)
    ]
    table = tmp_path / "a table"
    write_deltalake(str(table), pa.Table.from_pylist(rows), partition_by=["date"])
    assert clean(table / ".." / table.name, older_than="30d", spark=spark).rows == 3
    left = sorted(rows_of(table), key=lambda row: row["n"])
    assert [(row["n"], row["date"]) for row in left] == [
        (row["n"], row["date"]) for row in rows if row["n"] % 2 == 0
    ]


def test_a_table_by_date_needs_no_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    gone = datetime.now(UTC) - DAY
    rows = pa.table({"date": ["a", "b"], "expires_at": pa.array([gone, None])})
    write_deltalake(str(tmp_path / "x"), rows, partition_by=["date"])
    assert clean(tmp_path / "x", spark=spark).rows == 1
    assert [row["date"] for row in rows_of(tmp_path / "x")] == ["b"]


def test_directories_that_a_job_is_writing_into_stay(spark: SparkSession, table: Path) -> None:
    made, writing, old = (table / f"rows-{name}" for name in ("made", "writing", "old"))
    made.mkdir()
    (writing / "_temporary" / "0").mkdir(parents=True)
    (old / "date=2020-01-01").mkdir(parents=True)
    for folder in (writing, old / "date=2020-01-01", old):
        os.utime(folder, (time.time() - 9 * 86_400,) * 2)
    clean(table, spark=spark)
    assert made.exists()
    assert (writing / "_temporary" / "0").exists()
    assert not old.exists()


def test_files_that_killed_jobs_left_are_removed_though_the_vacuum_is_far_away(
    spark: SparkSession, table: Path
) -> None:
    for folder in ("rows-0", "rows-1", "rows-2"):
        (table / folder / "date=2026-01-01").mkdir(parents=True)
        (table / folder / "date=2026-01-01" / "part.parquet").touch()
    old_s = time.time() - 3_601
    for path in [*table.rglob("*")]:
        if "_delta_log" not in path.parts and "rows-2" not in path.parts:
            os.utime(path, (old_s, old_s))
    live = files_of(table) - set(table.glob("rows-[012]/**/*.parquet"))
    clean(table, latest=True, spark=spark)  # files that it replaces stay for the vacuum
    assert live <= files_of(table)
    assert [path.name for path in sorted(table.glob("rows-[012]"))] == ["rows-2"]


def test_files_are_removed_while_a_job_makes_directories_and_removes_its_own(
    spark: SparkSession, table: Path
) -> None:
    done, wrong = threading.Event(), []

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            folder = table / f"rows-{number}"
            try:
                folder.mkdir()
                (folder / "_temporary" / "0").mkdir(parents=True)
                shutil.rmtree(folder / "_temporary")
                (folder / "date=2026-01-01").mkdir()
                (folder / "date=2026-01-01" / "part.parquet").touch()
                shutil.rmtree(folder)
            except OSError as failed:
                wrong.append(failed)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            CleanTable(LateSession(spark), table).vacuum(3_600.0)
    finally:
        done.set()
        writer.join()
    assert wrong == []


def test_a_table_without_partitions_or_topics_is_merged_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(3):
        write_deltalake(str(tmp_path / "x"), pa.table({"n": [number]}), mode="append")
    assert "3 rows stay · 3 files merged" in clean(tmp_path / "x", spark=spark).says


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"older_than": "soon"}, "older_than 'soon' is not a duration above 0"),
        ({"vacuum": "10m"}, "keep them for at least 1h"),
    ],
)
def test_an_age_that_makes_no_sense_is_refused(
    spark: SparkSession, table: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        clean(table, spark=spark, **options)
    assert len(rows_of(table)) == 10


def test_a_table_that_lacks_a_column_says_which(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "x"), pa.table({"n": [1]}))
    with pytest.raises(RefusedError, match="has no column 'timestamp': it has n"):
        clean(tmp_path / "x", older_than="1d", spark=spark)
    write_deltalake(
        str(tmp_path / "y"),
        pa.table({"k": ["a"], "timestamp": [datetime.now(UTC)]}),
        partition_by=["k"],
    )
    with pytest.raises(RefusedError, match="is partitioned by k"):
        clean(tmp_path / "y", older_than="1d", spark=spark)
    with pytest.raises(RefusedError, match="is not a Delta table"):
        clean(tmp_path / "z", spark=spark)


def test_the_command_cleans_several_tables(
    spark: SparkSession, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    main(["pipeline", "run", "clean", str(table), str(table), "--latest", "--at", str(data)])
    assert "clean: 7 rows" in capsys.readouterr().out
