"""Does Spark read from and write to a running broker, knowing only its address?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock import connect
from penstock.model.record import Record
from tests.doors.hosted import Hosted
from tests.pipeline.source.reading import address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    with Hosted(tmp_path / "data") as broker:
        with connect(address(broker)) as client:
            client.create_topic("in")
            client.create_topic("Out")
            client.publish_many([{"n": number} for number in range(20)], "in")
        yield broker


def table(spark: SparkSession, hosted: Hosted, **options: Any) -> DataFrame:
    return spark.read.format("penstock").options(url=address(hosted), **options).load()


def stored(hosted: Hosted, topic: str = "out") -> list[Record]:
    with connect(address(hosted)) as client:
        return client.read(topic)


def test_a_topic_is_a_table_wherever_the_broker_is(spark: SparkSession, hosted: Hosted) -> None:
    df = table(spark, hosted, topic="in", minPartitions=3)
    assert df.rdd.getNumPartitions() == 3
    assert [row.offset for row in df.orderBy("offset").collect()] == list(range(20))
    some = table(spark, hosted, topic="in", where="payload.n >= 15")
    assert some.selectExpr("string(payload) AS p").orderBy("p").first().p == '{"n":15}'
    slim = spark.read.format("penstock").schema("offset long")
    assert slim.load(url=address(hosted), topic="in").columns == ["offset"]


def test_a_table_used_again_never_counts_wrongly(spark: SparkSession, hosted: Hosted) -> None:
    df = table(spark, hosted, topic="in")
    assert df.count() == 20
    assert df.where("offset < 5").count() == 5
    assert df.where("offset >= 5").count() == 15
    with connect(address(hosted)) as client:
        client.publish_many(["x"] * 5, "in")
    assert (df.count(), df.where("offset < 5").count()) == (20, 5)
    assert table(spark, hosted, topic="in").count() == 25


def test_what_is_wrong_is_told_before_any_work(spark: SparkSession, hosted: Hosted) -> None:
    with pytest.raises(PySparkException, match="did you mean 'in'"):
        table(spark, hosted, topic="inn").count()
    with pytest.raises(PySparkException, match=r"no answer from the broker at 127\.0\.0\.1:1"):
        spark.read.format("penstock").load(url="http://127.0.0.1:1", topic="in").count()
    with pytest.raises(PySparkException, match="is not declared"):
        numbers = spark.range(3).selectExpr("string(id) AS payload")
        numbers.write.format("penstock").mode("append").save(url=address(hosted), topic="outt")


def test_rows_are_written_in_the_order_of_partitions_and_a_key_counts_once(
    spark: SparkSession, hosted: Hosted
) -> None:
    numbers = spark.range(0, 30_000, 1, 3).selectExpr("string(id) AS payload")
    for _ in range(2):
        numbers.write.format("penstock").mode("append").save(
            url=address(hosted), topic="out", idempotencyKey="load-1"
        )
    assert [record.value for record in stored(hosted)] == [str(n) for n in range(30_000)]


def stream(spark: SparkSession, hosted: Hosted, checkpoint: Path) -> None:
    """Copy what is new in `in` to `out`, a few records at a time, then end."""
    url = address(hosted)
    query = (
        spark.readStream.format("penstock")
        .load(url=url, topic="in", startingOffsets="earliest", maxOffsetsPerTrigger=7)
        .selectExpr("payload", "concat('copy/', offset) AS name")
        .writeStream.format("penstock")
        .options(url=url, topic="out", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240), "the query did not end"


def test_a_stream_writes_every_record_once_also_when_spark_forgets_its_last_commits(
    spark: SparkSession, hosted: Hosted, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    stream(spark, hosted, checkpoint)
    assert [record.name for record in stored(hosted)] == [f"copy/{n}" for n in range(20)]
    for forgotten in ("commits/2", "commits/.2.crc"):  # the broker's commit came, Spark's did not
        (checkpoint / forgotten).unlink(missing_ok=True)
    with connect(address(hosted)) as client:
        client.publish_many([{"n": number} for number in range(20, 25)], "in")
    stream(spark, hosted, checkpoint)
    found = stored(hosted)
    assert [record.name for record in found] == [f"copy/{n}" for n in range(25)]
    assert [record.payload for record in found] == [b'{"n":%d}' % n for n in range(25)]
