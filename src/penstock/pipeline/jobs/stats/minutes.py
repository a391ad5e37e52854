"""Records counted by topic, name and minute, and what a picture needs of that. On Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.pipeline.delta.table import replace_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOP_NAMES: Final = 10
PERCENTILES: Final = (0.5, 0.95, 0.99)
_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("name", pa.string()),
        pa.field("minute", pa.timestamp("us", tz="UTC")),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("pause_ms_p50", pa.float64()),
        pa.field("pause_ms_p95", pa.float64()),
        pa.field("pause_ms_p99", pa.float64()),
        pa.field("pause_ms_max", pa.float64()),
    ]
)


@dataclass(slots=True)
class Picture:
    """What there is to draw."""

    traffic: list[tuple[str, datetime, int, int]] = field(default_factory=list)  # topic, minute, …
    pauses: list[tuple[datetime, float, float, float]] = field(default_factory=list)  # minute, ms
    names: list[tuple[str, int]] = field(default_factory=list)  # those with most messages


class Minutes:
    """The records of a range; None if it is empty."""

    def __init__(self, records: DataFrame | None) -> None:
        self._rows = None if records is None else _with_pauses(records)

    def save(self, path: Path) -> None:
        """Let the table hold one row for each topic, name and minute."""
        rows = None if self._rows is None else _counted(self._rows, "topic", "name", "minute")
        replace_rows(path, rows, _SCHEMA)

    def picture(self) -> Picture:
        if self._rows is None:
            return Picture()
        from pyspark.sql.functions import count, unix_seconds

        seconds = unix_seconds("minute").alias("at")  # a time as Python gets it has no zone
        traffic = _counted(self._rows, "topic", "minute").select(seconds, "*").orderBy("at")
        pauses = _counted(self._rows, "minute").select(seconds, "*").orderBy("at")
        names = self._rows.groupBy("name").agg(count("*").alias("messages"))
        top = names.orderBy("messages", "name", ascending=[False, True]).limit(TOP_NAMES)
        return Picture(
            [(row.topic, _time(row.at), row.messages, row.bytes) for row in traffic.collect()],
            [
                (_time(row.at), row.pause_ms_p50, row.pause_ms_p95, row.pause_ms_p99)
                for row in pauses.collect()
                if row.pause_ms_p50 is not None
            ],
            [(row.name, row.messages) for row in top.collect()],
        )


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _with_pauses(records: DataFrame) -> DataFrame:
    """A record with the time since the previous one of the same name."""
    from pyspark.sql import Window
    from pyspark.sql.functions import col, date_trunc, lag, octet_length, unix_micros

    by_name = Window.partitionBy("topic", "name").orderBy("timestamp", "offset")
    stamp = unix_micros(col("timestamp"))
    return records.select(
        "topic",
        "name",
        date_trunc("MINUTE", "timestamp").alias("minute"),
        octet_length("payload").cast("long").alias("bytes"),
        (stamp - lag(stamp).over(by_name)).alias("pause_us"),
    )


def _counted(rows: DataFrame, *keys: str) -> DataFrame:
    from pyspark.sql.functions import col, count, percentile_approx
    from pyspark.sql.functions import max as highest
    from pyspark.sql.functions import sum as total

    found = rows.groupBy(*keys).agg(
        count("*").alias("messages"),
        total("bytes").alias("bytes"),
        percentile_approx("pause_us", list(PERCENTILES)).alias("pauses"),
        highest("pause_us").alias("longest"),
    )
    pauses: list[Any] = [
        (col("pauses")[at] / 1_000.0).alias(f"pause_ms_p{percent * 100:.0f}")
        for at, percent in enumerate(PERCENTILES)
    ]
    return found.select(
        *keys, "messages", "bytes", *pauses, (col("longest") / 1_000.0).alias("pause_ms_max")
    )
