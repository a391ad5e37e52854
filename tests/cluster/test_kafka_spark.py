"""Does Spark read a topic in Kafka through the broker, gaps in the offsets included?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.catalog.reports import read_reports
from penstock.client.sync import Client
from penstock.log.kafka.partitioner import partition_of
from penstock.model.errors import InvalidPosition
from penstock.model.runs import DONE, RUNNING
from penstock.mqtt.kinds import MQTT_5
from penstock.pipeline import archive, dispatch, replay, session, sql, stats
from penstock.pipeline.delta.rows import read_delta
from penstock.pipeline.source.offsets import place_key
from tests.cluster.test_kafka_broker import KafkaBrokerWorld
from tests.doors.wire import Wire, kept
from tests.kafka_server import KafkaServer
from tests.pipeline.conftest import small_spark
from tests.waiting import wait_until

COPIED = """
[pipeline]
checkpoint = "{checkpoint}"

[sources.orders]
topic = "orders"
payload = "text"

[steps.copied]
sql = "SELECT payload, name FROM orders"

[sinks.topic]
step = "copied"
topic = "copied"
"""


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
            assert read.load().rdd.getNumPartitions() >= 4, "a task for each partition of the topic"
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
            client.create_topic("copied", partitions=3)
            for _ in range(2):  # the key lets it come once
                asked = {"url": world.url, "topic": "copied", "idempotencyKey": "once"}
                sink.options(**asked).save()
            copied = client.read("copied")
            assert sorted((one.name, one.payload) for one in copied) == sorted(
                (one.name, one.payload) for one in client.read("orders")
            )
            assert all(one.partition == partition_of(one.name.encode(), 3) for one in copied)
            jobs_read_all_partitions(world, spark, tmp_path, client)
    finally:
        spark.stop()


def jobs_read_all_partitions(
    world: KafkaBrokerWorld, spark: SparkSession, tmp_path: Path, client: Client
) -> None:
    """`orders` has 37 records in four partitions, which an archive has once."""
    place = {"url": world.url, "spark": spark}

    def archived() -> list[tuple[int, int]]:
        archive("orders", tmp_path / "archive", **place)
        rows = read_delta(spark, tmp_path / "archive").collect()
        assert {row.topic_id - row.partition for row in rows} == {client.topics()[0].id}
        return sorted((row.partition, row.offset) for row in rows)

    def stored() -> list[tuple[int, int]]:
        return sorted((one.partition, one.offset) for one in client.read("orders"))

    assert archived() == stored()
    for name in ("n/0", "n/1", "n/2", "n/3"):
        client.publish("late", "orders", name=name)
    assert archived() == stored()
    assert archived() == stored()  # nothing is new


def test_every_job_reads_and_writes_topics_of_several_partitions(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    world = KafkaBrokerWorld(kafka, tmp_path / "data", partitions=4)
    spark = session("jobs", master="local[2]", conf=small_spark(tmp_path))
    names = [f"n/{number}" for number in range(12)]
    try:
        with world.served, penstock.connect(world.url) as client:
            place = {"url": world.url, "spark": spark}
            for topic in ("orders", "again", "half", "from_archive", "copied"):
                client.create_topic(topic)
            client.bind("n/#", "orders")
            client.subscribe("billing", "orders")
            with Wire(world.served.port, "reader", MQTT_5) as reader:
                reader.connect(clean=False, properties=kept())
                reader.subscribe("n/#", qos=1)
            for number in range(3):
                for name in names:
                    client.publish(f"{number}", "orders", name=name)
            replays(client, place, tmp_path)
            counts(client, place, tmp_path, names)
            copies(client, place, tmp_path)
    finally:
        spark.stop()


def in_order(client: Client, topic: str) -> dict[str, list[bytes]]:
    """What each name has, in order."""
    found: dict[str, list[bytes]] = {}
    for one in client.read(topic):
        found.setdefault(one.name, []).append(one.payload)
    return found


def replays(client: Client, place: dict[str, Any], tmp_path: Path) -> None:
    """Every record comes once and in the order of its name, however often the job is started."""
    for _ in range(2):
        done = replay("orders", "again", checkpoint=tmp_path / "c1", speed=None, **place)
        assert done.lag == 0
    assert in_order(client, "again") == in_order(client, "orders")
    assert done.offsets == {
        place_key("orders", one.partition): one.end_offset
        for one in client.topic("orders").partitions
    }
    middle = {str(one.partition): one.end_offset // 2 for one in client.topic("orders").partitions}
    rest = {"checkpoint": tmp_path / "c2", "start": json.dumps(middle), "rate": 1e6}
    assert replay("orders", "half", **rest, **place).rows == 36 - sum(middle.values())
    archive("orders", tmp_path / "archived", **place)
    kept_there = {"checkpoint": tmp_path / "c3", "archive": tmp_path / "archived"}
    assert replay("orders", "from_archive", speed=1e6, **kept_there, **place).rows == 36
    assert in_order(client, "from_archive") == in_order(client, "orders")
    with pytest.raises(InvalidPosition, match="has 4 partitions: give an offset for each"):
        replay("orders", "half", checkpoint=tmp_path / "c4", start=3, **place)


def counts(client: Client, place: dict[str, Any], tmp_path: Path, names: list[str]) -> None:
    done = stats("orders", tmp_path / "stats", start="earliest", chart=False, **place)
    assert done.rows == 36
    minutes = read_delta(place["spark"], tmp_path / "stats" / "minutes").collect()
    assert sum(row.messages for row in minutes) == 36
    assert {row.name for row in minutes} == set(names)
    assert all(row.pause_ms_max is None or row.pause_ms_max >= 0 for row in minutes)
    lags = read_delta(place["spark"], tmp_path / "stats" / "lag").collect()
    assert [(row.consumer, row.lag) for row in lags if row.kind == "consumer"] == [("billing", 36)]
    found = dispatch("orders", tmp_path / "dispatched", **place)
    assert found.waiting == {"reader": 36}
    rows = read_delta(place["spark"], tmp_path / "dispatched" / "deliveries").collect()
    stored = sorted((one.partition, one.offset) for one in client.read("orders"))
    assert sorted((row.partition, row.offset) for row in rows) == stored


def copies(client: Client, place: dict[str, Any], tmp_path: Path) -> None:
    """A declared pipeline goes on in every partition."""
    file = tmp_path / "copy.toml"
    file.write_text(COPIED.format(checkpoint=tmp_path / "copying"))
    assert sql(file, once=True, **place).rows == 36
    client.publish("late", "orders", name="n/3")
    assert sql(file, once=True, **place).rows == 1
    assert in_order(client, "copied") == in_order(client, "orders")


def test_commands_and_scheduled_jobs_work_on_a_directory_whose_topics_are_in_kafka(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    """They ask the broker that has the directory open, over its socket, so they need no login."""
    table = tmp_path / "table"
    file = tmp_path / "penstock.toml"
    file.write_text(
        f'[spark.schedule]\nkeep = {{ every = "1d", run = "archive orders --to {table}" }}\n'
        '[[bindings]]\nfilter = "orders/#"\ntopic = "orders"\n'
    )
    data = tmp_path / "data"
    world = KafkaBrokerWorld(kafka, data, "--config", str(file), partitions=2)
    with world.served:
        with penstock.connect(world.url) as client:
            client.publish_many([b"x"] * 5, "orders", name="orders/1")
        password = tmp_path / "password"
        password.write_text("correct horse")
        command = [sys.executable, "-m", "penstock.cli.main"]
        add = ["user", "add", "ada", "--password-file", str(password), "--at", str(data)]
        subprocess.run([*command, *add], env=world.served.env, check=True)
        wait_until(lambda: [run for run in read_reports(data) if run.state != RUNNING])
        (scheduled,) = read_reports(data)
        assert (scheduled.job, scheduled.state, scheduled.error) == ("archive", DONE, "")
        run = ["pipeline", "run", "archive", "orders", "--to", str(table), "--at", str(data)]
        subprocess.run([*command, *run], env=world.served.env, check=True)
        assert sum(run.rows for run in read_reports(data)) == 5
