"""Does Spark read a topic in Kafka through the broker, gaps in the offsets included?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock
from penstock.mqtt.kinds import MQTT_5
from penstock.pipeline import session
from tests.cluster.test_kafka_broker import KafkaBrokerWorld
from tests.doors.wire import Wire, kept
from tests.kafka_server import KafkaServer
from tests.pipeline.conftest import small_spark


def test_spark_reads_and_writes_through_the_broker(kafka: KafkaServer, tmp_path: Path) -> None:
    world = KafkaBrokerWorld(kafka, tmp_path / "data")
    spark = session("kafka", master="local[2]", conf=small_spark(tmp_path))
    try:
        with world.served:
            with Wire(world.served.port, "w", MQTT_5) as writer:
                writer.connect(clean=False, properties=kept())
                for number in range(20):
                    writer.publish("n/1", b"%d" % number, 1 + number % 2)
            with penstock.connect(world.url) as client:
                topic = client.topics()[0].topic
                client.create_topic("copied")
            read = spark.read.format("penstock").option("url", world.url).option("topic", topic)
            rows = read.load().select("partition", "offset", "name", "payload").collect()
            assert sorted(int(bytes(row.payload)) for row in rows) == list(range(20))
            assert {(row.partition, row.name) for row in rows} == {(0, "n/1")}
            offsets = sorted(row.offset for row in rows)
            assert offsets[-1] > 19  # the releases of QoS 2 have offsets, too
            filtered = read.option("where", "payload = '7'").load()
            assert filtered.count() == 1
            sink = filtered.select("payload", "name").write.format("penstock").mode("append")
            sink.option("url", world.url).option("topic", "copied").save()
            with penstock.connect(world.url) as client:
                assert [one.payload for one in client.read("copied")] == [b"7"]
    finally:
        spark.stop()


def test_spark_reads_partitions_side_by_side_and_goes_on_in_each(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    world = KafkaBrokerWorld(kafka, tmp_path / "data", partitions=4)
    spark = session("partitions", master="local[2]", conf=small_spark(tmp_path))
    names = [f"n/{number}" for number in range(12)]
    try:
        with world.served, penstock.connect(world.url) as client:
            client.create_topic("orders")
            for number in range(3):
                for name in names:
                    client.publish(f"{number}", "orders", name=name)
            read = spark.read.format("penstock").option("url", world.url).option("topic", "orders")
            found = read.load().select("partition", "offset", "name").collect()
            assert {(row.partition, row.offset) for row in found} == {
                (one.partition, one.offset) for one in client.read("orders")
            }
            assert {row.partition for row in found} == {0, 1, 2, 3}
            assert read.option("where", "payload = '1'").load().count() == len(names)
            (info,) = client.topics()
            ends = {str(one.partition): one.end_offset for one in info.partitions}
            last = read.option("startingOffsets", json.dumps({"orders": ends | {"2": 0}})).load()
            assert {row.partition for row in last.collect()} == {2}
            with pytest.raises(Exception, match="has no offset for partition 1 of topic"):
                read.option("startingOffsets", '{"orders":{"0":0}}').load().collect()

            def follow() -> int:
                stream = spark.readStream.format("penstock").option("url", world.url)
                rows = stream.option("topic", "orders").option("startingOffsets", "earliest").load()
                place = str(tmp_path / "table")
                writing = rows.select("partition", "offset").writeStream.format("parquet")
                query = (
                    writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
                    .option("path", place)
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()
                table = spark.read.parquet(place)
                assert table.distinct().count() == table.count()
                return int(table.count())

            assert follow() == 36
            client.publish("more", "orders", name="n/3")
            assert follow() == 37
            again = spark.read.format("penstock").option("url", world.url).option("topic", "orders")
            sink = again.load().select("payload", "name").write.format("penstock").mode("append")
            with pytest.raises(Exception, match="staged files are stored in topics with one"):
                sink.option("url", world.url).option("topic", "orders").save()
    finally:
        spark.stop()
