"""Does Spark's own Kafka source read what Penstock stores, and do our readers get what it writes?

The connector for the version of Spark that is used here is not published yet: the one before it
works with it, with the parts that it needs. `format("penstock")` needs no jar.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import penstock
from tests.cluster.test_kafka_broker import KafkaBrokerWorld, kafka_names
from tests.doors.wire import Wire
from tests.kafka_server import BRIEF_JAVA, KafkaServer, resolve

CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.0",
)
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

bootstrap, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()


def kafka(reader):
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    return reader.format("kafka").options(**options, startingOffsets="earliest").load()


columns = ("cast(key as string) k", "cast(value as string) v", "offset")
rows = [tuple(row) for row in kafka(spark.read).selectExpr(*columns).collect()]
words = spark.createDataFrame([("n/spark", "written by Spark")], "key string, value string")
sink = words.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
sink.option("topic", topic).save()
query = kafka(spark.readStream).selectExpr(*columns).writeStream.format("memory").queryName("seen")
query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
streamed = [tuple(row) for row in spark.sql("select * from seen").collect()]
print(json.dumps({"read": rows, "streamed": streamed}))
spark.stop()
"""


def test_sparks_own_source_and_sink_share_a_topic_with_mqtt(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    folder = resolve("spark-kafka-4.2.0", CONNECTOR, is_alone=True)
    files = ",".join(str(one) for one in sorted(folder.glob("*.jar")))
    world = KafkaBrokerWorld(kafka, tmp_path / "data")
    with world.served, Wire(world.served.port, "w") as wire:
        wire.connect()
        wire.subscribe("n/#", qos=1)
        for number in range(10):
            wire.publish(f"n/{number % 3}", b"%d" % number, 1)
        for _ in range(10):
            wire.acknowledge(wire.receive())
        with penstock.connect(world.url) as client:
            topic = client.topics()[0].topic
        stored = kafka_names(world)[topic]
        arguments = [kafka.bootstrap, stored, str(tmp_path / "checkpoint")]
        submit = f"--jars {files} --driver-java-options '{' '.join(BRIEF_JAVA[1:])}' pyspark-shell"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": submit},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        expected = [[f"n/{number % 3}", str(number)] for number in range(10)]
        assert [row[:2] for row in sorted(found["read"], key=lambda row: row[2])] == expected
        streamed = [row[:2] for row in sorted(found["streamed"], key=lambda row: row[2])]
        assert streamed == [*expected, ["n/spark", "written by Spark"]]
        message = wire.receive()
        assert (message.name, message.payload) == ("n/spark", b"written by Spark")
