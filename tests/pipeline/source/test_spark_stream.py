"""Is a topic a stream of Spark's: every record once, from where it was, at the rate asked for?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Collected:
    """What a query gave, micro-batch by micro-batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}

    def take(self, df: DataFrame, batch: int) -> None:
        self.batches[batch] = sorted(row.offset for row in df.select("offset").collect())

    @property
    def offsets(self) -> list[int]:
        return [offset for batch in sorted(self.batches) for offset in self.batches[batch]]


def run(
    spark: SparkSession, path: Path, checkpoint: Path, into: Collected, **options: Any
) -> StreamingQuery:
    """Read what is there now, then end."""
    query = (
        spark.readStream.format("penstock")
        .schema("offset long")
        .load(str(path), topic="t", **options)
        .writeStream.foreachBatch(into.take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120), "the query did not end"
    return query


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with Broker(tmp_path / "data") as opened:
        opened.create_topic("t")
        opened.publish_many(["a"] * 10, "t")
        yield opened


def test_a_query_goes_on_after_what_its_checkpoint_holds(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    data, checkpoint, found = tmp_path / "data", tmp_path / "checkpoint", Collected()
    run(spark, data, checkpoint, found, startingOffsets="earliest")
    assert found.offsets == list(range(10))
    broker.publish_many(["b"] * 5, "t")
    run(spark, data, checkpoint, found, startingOffsets="earliest")
    assert found.offsets == list(range(15))


def test_max_offsets_per_trigger_bounds_each_batch_and_lag_is_reported(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    found = Collected()
    query = run(
        spark,
        tmp_path / "data",
        tmp_path / "checkpoint",
        found,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=4,
    )
    assert [len(batch) for batch in found.batches.values()] == [4, 4, 2]
    first = query.recentProgress[0]["sources"][0]
    assert json.loads(first["endOffset"])["t"]["0"] == 4
    assert json.loads(first["latestOffset"])["t"]["0"] == 10


def test_a_first_batch_that_was_not_committed_comes_again_with_the_same_records(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """As after a driver that died between planning the first batch and finishing it."""
    data, checkpoint, found = tmp_path / "data", tmp_path / "checkpoint", Collected()
    run(spark, data, checkpoint, found, startingOffsets="4")
    assert found.batches == {0: [4, 5, 6, 7, 8, 9]}
    found.batches.clear()
    broker.publish_many(["b"] * 5, "t")
    shutil.rmtree(checkpoint / "commits")
    run(spark, data, checkpoint, found, startingOffsets="latest")
    assert found.batches == {0: [4, 5, 6, 7, 8, 9], 1: [10, 11, 12, 13, 14]}


def test_a_query_that_found_nothing_yet_still_knows_where_it_began(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    data, checkpoint, found = tmp_path / "data", tmp_path / "checkpoint", Collected()
    run(spark, data, checkpoint, found, startingOffsets="latest")
    assert found.batches == {0: []}
    broker.publish_many(["b"] * 5, "t")
    run(spark, data, checkpoint, found, startingOffsets="latest")
    assert found.offsets == [10, 11, 12, 13, 14]


def test_records_of_a_batch_that_retention_took_end_the_query_and_are_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, checkpoint, found = tmp_path / "data", tmp_path / "checkpoint", Collected()
    with Broker(data, segment_bytes="64 KiB", upkeep_s=0.05) as broker:
        broker.create_topic("t")
        broker.publish("a", "t")
        run(spark, data, checkpoint, found, startingOffsets="earliest")
        broker.publish_many([bytes(60_000)] * 5, "t")
        broker.alter_topic("t", retention_bytes="64 KiB")
        while broker.topics()[0].first_offset < 2:
            broker.publish(bytes(60_000), "t")
    with Broker(data) as broker:  # closed meanwhile: nothing more is trimmed
        (topic,) = broker.topics()
    gone = topic.first_offset
    with pytest.raises(StreamingQueryException, match=f"offsets 1 to {gone - 1} are gone"):
        run(spark, data, checkpoint, found)
    run(spark, data, checkpoint, found, failOnDataLoss="false")
    assert found.offsets == [0, *range(gone, topic.end_offset)]


def test_a_stream_follows_a_topic_that_grows(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    query = (
        spark.readStream.format("penstock")
        .load(str(tmp_path / "data"), topic="t", startingOffsets="earliest")
        .selectExpr("offset", "string(payload) AS text")
        .writeStream.format("memory")
        .queryName("followed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        for round_ in range(3):
            query.processAllAvailable()
            wanted = 10 + round_
            assert spark.table("followed").count() == wanted
            broker.publish(f"round {round_}", "t")
        query.processAllAvailable()
        found = [row.text for row in spark.table("followed").orderBy("offset").collect()]
        assert found == ["a"] * 10 + ["round 0", "round 1", "round 2"]
    finally:
        query.stop()
