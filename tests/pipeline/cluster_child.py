"""A driver on a cluster: reads a topic, writes one, copies as a stream, archives; all by address.

Arguments: where Spark is, the broker's address, a scratch directory. Says what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.pipeline import archive, session


def main() -> None:
    master, url, scratch = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    conf = {"spark.sql.shuffle.partitions": "2"}
    if master.startswith("spark://"):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "768m",
            "spark.executor.memory": "512m",
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
    print(json.dumps({"offsets": found, "archived": done.rows}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
