"""Topics in Spark against the same rows in Parquet, in one session, taking turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Row
from bench.run import Bench
from bench.spark.rows import PARTS
from bench.spark.tables import Tables

FULL_RECORDS = 5_000_000
QUICK_RECORDS = 300_000


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """All rows, or those of the parts whose name contains `only`."""
    chosen = [part for name, part in PARTS.items() if only in name]
    if not chosen:
        return
    with bench.scratch() as scratch, _tables(bench, scratch) as tables:
        for part in chosen:
            yield from part(tables, bench)


@contextmanager
def _tables(bench: Bench, scratch: Path) -> Iterator[Tables]:
    from penstock.pipeline import session

    memory = {"spark.driver.memory": "2g", "spark.local.dir": str(scratch / "local")}
    spark = session("bench", conf=memory | {"spark.sql.shuffle.partitions": "4"})
    tables = Tables(spark, scratch, QUICK_RECORDS if bench.is_quick else FULL_RECORDS)
    try:
        yield tables
    finally:
        tables.close()
        spark.stop()
