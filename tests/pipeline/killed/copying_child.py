"""A driver that copies topic `in` to topic `out`, a few records at a time, until all are there.

Arguments: a data directory or an address, the checkpoint, a scratch directory, and where to die, if
anywhere: `before` or `after` the hand-over of a micro-batch, and its number. Says `started` once
the query runs, and `done` when it has ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from penstock.pipeline import session
from penstock.pipeline.sink.sink import StreamWriter
from penstock.pipeline.source.source import PenstockSource
from tests.pipeline.conftest import small_spark


class DyingSource(PenstockSource):
    """Writes as Penstock does, until the driver is to die."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        self._when = given.pop("when")
        self._number = int(given.pop("number"))
        self._driver = int(given.pop("driver"))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, StreamWriter)
        when, number, driver = self._when, self._number, self._driver
        commit = writer.commit

        def dying(messages: list[Any], batchId: int) -> None:
            if when == "after":
                commit(messages, batchId)
            if batchId == number:
                os.killpg(driver, signal.SIGKILL)
                os._exit(9)
            if when == "before":
                commit(messages, batchId)

        writer.commit = dying  # type: ignore[method-assign]
        return writer


def main() -> None:
    where, checkpoint, scratch, *death = sys.argv[1:]
    spark = session(
        "copying",
        master="local[1]",
        conf=small_spark(Path(scratch)) | {"spark.speculation": "false"},
    )
    connection = {"url" if "://" in where else "path": where}
    sink, extra = "penstock", {}
    if death:
        spark.dataSource.register(DyingSource)
        sink, extra = "dying", {"when": death[0], "number": death[1], "driver": str(os.getpid())}
    query = (
        spark.readStream.format("penstock")
        .options(**connection, topic="in", startingOffsets="earliest", maxOffsetsPerTrigger=100)
        .load()
        .repartition(2)
        .selectExpr("payload", "concat('copy/', offset) AS name")
        .writeStream.format(sink)
        .options(**connection, **extra, topic="out", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    print("started", flush=True)
    query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main()
