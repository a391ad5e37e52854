"""A driver on a cluster: reads a topic, writes one, copies as a stream, archives, and runs a
declared pipeline; all by address.

Arguments: where Spark is, the broker's address, a scratch directory. Says what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock import RefusedError
from penstock.pipeline import archive, session, sql
from tools.spark_classes import java_options

FLOW = """
[sources.numbers]
topic = "in"
payload = "text"

[steps.halves]
sql = "SELECT offset % 2 AS half, sum(int(payload)) AS total FROM numbers GROUP BY offset % 2"

[sinks.topic]
step = "halves"
topic = "totals"
mode = "update"

[sinks.table]
step = "halves"
table = "./totals"
mode = "complete"
"""


def main() -> None:
    master, url, scratch = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    conf = {"spark.sql.shuffle.partitions": "2"}
    if master.startswith("spark://"):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "768m",
            "spark.executor.memory": "512m",
            "spark.executor.defaultJavaOptions": java_options(),
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        }
    spark = session("cluster", master=master, conf=conf)
    rows = spark.read.format("penstock").options(url=url, topic="in", minPartitions=2).load()
    found = sorted(row.offset for row in rows.select("offset").collect())
    rows.selectExpr("payload", "name").write.format("penstock").mode("append").options(
        url=url, topic="out", idempotencyKey="once"
    ).save()
    query = (
        spark.readStream.format("penstock")
        .options(url=url, topic="in", startingOffsets="earliest", maxOffsetsPerTrigger=60)
        .load()
        .selectExpr("payload", "concat('copy/', offset) AS name")
        .writeStream.format("penstock")
        .options(url=url, topic="copy", checkpointLocation=str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = archive("in", scratch / "table", url=url, spark=spark)
    (scratch / "flow.toml").write_text(FLOW)
    try:
        declared = sql(scratch / "flow.toml", url=url, spark=spark).rows
    except RefusedError as refused:
        declared = str(refused)
    print(json.dumps({"offsets": found, "archived": done.rows, "sql": declared}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
