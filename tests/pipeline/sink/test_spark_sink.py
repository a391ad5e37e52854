"""Does Spark write rows into topics, a stream's rows exactly once?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock import Broker
from penstock.log.staging.area import AREA
from penstock.model.record import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("in")
        broker.create_topic("Out")
        broker.create_topic("other")
        broker.publish_many([{"n": number} for number in range(20)], "in")
    return tmp_path / "data"


def stored(data: Path, topic: str = "out") -> list[Record]:
    with Broker(data) as broker:
        return broker.read(topic)


def save(df: DataFrame, data: Path, **options: Any) -> None:
    df.write.format("penstock").mode("append").options(**options).save(str(data))


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 3).selectExpr("string(id) AS payload")


def test_rows_of_several_tasks_become_records_in_the_order_of_partitions(
    spark: SparkSession, data: Path
) -> None:
    save(numbers(spark, 30_000), data, topic="out")
    found = stored(data)
    assert [record.value for record in found] == [str(number) for number in range(30_000)]
    assert {record.name for record in found} == {"Out"}
    assert list((data / AREA).iterdir()) == []


def test_names_headers_topics_and_structs_are_taken_from_columns(
    spark: SparkSession, data: Path
) -> None:
    df = spark.range(4).selectExpr(
        "struct(id, string(id) AS text, CAST(NULL AS string) AS nothing) AS payload",
        "concat('n/', id) AS name",
        "IF(id % 2 = 0, 'out', 'other') AS topic",
        "map('k', string(id)) AS headers",
    )
    save(df, data)
    for topic, chosen in (("out", (0, 2)), ("other", (1, 3))):
        assert [(r.name, r.headers, r.value) for r in stored(data, topic)] == [
            (f"n/{n}", (("k", str(n)),), {"id": n, "text": str(n)}) for n in chosen
        ]


def test_structs_become_the_json_that_spark_makes_of_them(spark: SparkSession, data: Path) -> None:
    df = spark.sql(
        "SELECT struct(1 AS a, 'x' AS b, CAST(NULL AS int) AS c, array(1, 2) AS d,"
        " map('k', 1.5D) AS e, struct(true AS f) AS g, DATE'2026-01-02' AS h, 1.20BD AS i,"
        " map('k', NULL, 'l', 1) AS j, map('k', struct(1 AS a, CAST(NULL AS int) AS b)) AS k,"
        " array(NULL, struct(map(2, CAST(NULL AS int)) AS m, CAST(NULL AS int) AS n)) AS l) AS s"
    )
    save(df.selectExpr("s AS payload"), data, topic="out")
    (ours,) = stored(data)
    (theirs,) = df.selectExpr("to_json(s) AS j").collect()
    assert ours.payload.decode() == theirs.j


def test_a_write_with_a_key_counts_once_and_one_without_each_time(
    spark: SparkSession, data: Path
) -> None:
    for _ in range(2):
        save(numbers(spark, 5), data, topic="out", idempotencyKey="load-1")
        save(numbers(spark, 3), data, topic="other")
    save(numbers(spark, 5), data, topic="out", idempotencyKey="load-2")
    assert len(stored(data)) == 10
    assert len(stored(data, "other")) == 6


def test_numbers_of_a_key_count_upward_each_once(spark: SparkSession, data: Path) -> None:
    for number in (0, 0, 1, 1, 0, 7):
        options = {"idempotencyKey": "load", "idempotencyNumber": str(number)}
        save(numbers(spark, number + 1), data, topic="out", **options)
    assert len(stored(data)) == 1 + 2 + 8
    with pytest.raises(PySparkException, match="'idempotencyNumber' needs the option 'idem"):
        save(numbers(spark, 1), data, topic="out", idempotencyNumber="1")
    with pytest.raises(PySparkException, match="'-1' is not a whole number of 0 or more"):
        save(numbers(spark, 1), data, topic="out", idempotencyKey="k", idempotencyNumber="-1")


def test_no_rows_are_no_records(spark: SparkSession, data: Path) -> None:
    save(numbers(spark, 0), data, topic="out")
    assert stored(data) == []


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_task_that_fails_leaves_the_topic_as_it_was(
    spark: SparkSession, data: Path, tasks: int
) -> None:
    df = spark.range(0, 100, 1, tasks).selectExpr(
        "IF(id = 99, raise_error('no more'), string(id)) AS payload"
    )
    with pytest.raises(PySparkException, match="no more"):
        save(df, data, topic="out")
    assert stored(data) == []
    if tasks == 1:  # of several, one may be killed while it writes; its file is removed later
        assert not any(path.is_file() for path in (data / AREA).rglob("*"))


def test_a_topic_is_not_overwritten(spark: SparkSession, data: Path) -> None:
    with pytest.raises(PySparkException, match="a topic only grows"):
        numbers(spark, 3).write.format("penstock").mode("overwrite").save(str(data), topic="out")


def stream(spark: SparkSession, data: Path, checkpoint: Path) -> None:
    """Copy what is new in `in` to `out`, a few records at a time, then end."""
    query = (
        spark.readStream.format("penstock")
        .load(str(data), topic="in", startingOffsets="earliest", maxOffsetsPerTrigger=7)
        .selectExpr("payload", "concat('copy/', offset) AS name")
        .writeStream.format("penstock")
        .option("path", str(data))
        .option("topic", "out")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240), "the query did not end"


def test_a_stream_writes_every_record_once_also_when_spark_forgets_its_last_commits(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    stream(spark, data, checkpoint)
    assert [record.name for record in stored(data)] == [f"copy/{n}" for n in range(20)]
    for forgotten in ("commits/2", "commits/.2.crc"):  # the broker's commit came, Spark's did not
        (checkpoint / forgotten).unlink(missing_ok=True)
    with Broker(data) as broker:
        broker.publish_many([{"n": number} for number in range(20, 25)], "in")
    stream(spark, data, checkpoint)
    found = stored(data)
    assert [record.name for record in found] == [f"copy/{n}" for n in range(25)]
    assert [record.payload for record in found] == [b'{"n":%d}' % n for n in range(25)]


def test_a_query_with_a_new_checkpoint_is_another_query(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    stream(spark, data, tmp_path / "one")
    shutil.rmtree(tmp_path / "one")
    stream(spark, data, tmp_path / "one")
    assert len(stored(data)) == 40


def test_a_directory_that_a_broker_holds_is_refused_by_name(
    spark: SparkSession, data: Path
) -> None:
    with Broker(data), pytest.raises(PySparkException, match="is open in process"):
        save(numbers(spark, 3), data, topic="out")
