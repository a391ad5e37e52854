"""Does Spark read a topic in Kafka through the broker, gaps in the offsets included?"""

from __future__ import annotations

from pathlib import Path

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
