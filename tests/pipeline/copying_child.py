"""A driver that copies topic `in` to topic `out`, a few records at a time, until all are there.

Says `started` once the query runs, and `done` when it has ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.pipeline import session
from tests.pipeline.conftest import small_spark


def main() -> None:
    data, checkpoint, scratch = sys.argv[1:]
    spark = session(
        "copying",
        master="local[2]",
        conf=small_spark(Path(scratch)) | {"spark.speculation": "false"},
    )
    query = (
        spark.readStream.format("penstock")
        .load(data, topic="in", startingOffsets="earliest", maxOffsetsPerTrigger=100)
        .repartition(2)
        .selectExpr("payload", "concat('copy/', offset) AS name")
        .writeStream.format("penstock")
        .option("path", data)
        .option("topic", "out")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    print("started", flush=True)
    query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main()
