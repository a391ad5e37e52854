"""How soon a stream sees what was published, beside a source that only counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Final

from bench.measure import Figure, Row
from bench.run import Bench
from bench.spark.tables import TOPIC, Tables
from penstock import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVERY_S: Final = 0.02  # between messages
WARM: Final = 5  # micro-batches that are not counted


def latency_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    """From a record's timestamp to the moment its micro-batch is handed over, smallest trigger."""
    stream = tables.spark.readStream
    batches = 20 if bench.is_quick else 60
    path = tables.empty_topic()
    done = threading.Event()
    with Broker(path, durability="os") as broker:

        def publish() -> None:
            while not done.wait(EVERY_S):
                broker.publish(b"now", TOPIC)

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            ours = _delays(tables, stream.format("penstock").load(str(path), topic=TOPIC), batches)
        finally:
            done.set()
            publisher.join()
    rate = _delays(tables, stream.format("rate").load(rowsPerSecond=int(1 / EVERY_S)), batches)
    yield Row(
        "latency of a stream, smallest trigger, p50, beside a rate source",
        "ms",
        {"value": Figure(median(ours), median(ours) / median(rate))},
        ("rate", median(rate)),
        notes=(f"p99 {_p99(ours):.0f} ms, of the rate source {_p99(rate):.0f} ms",),
    )


def _delays(tables: Tables, rows: DataFrame, batches: int) -> list[float]:
    """Milliseconds from the newest record of each micro-batch to now."""
    from pyspark.sql.functions import max as newest

    found: list[float] = []

    def take(df: DataFrame, batch: int) -> None:
        stamp = df.agg(newest("timestamp")).collect()[0][0]
        if stamp is not None:
            found.append((time.time() - stamp.timestamp()) * 1_000)

    query = (
        rows.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tables.fresh("checkpoint")))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        while len(found) < WARM + batches:
            if query.awaitTermination(0.2):
                raise RuntimeError("the query ended by itself")
    finally:
        query.stop()
    return found[WARM:]


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) * 99 // 100, len(values) - 1)]
