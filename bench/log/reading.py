"""A million records as Arrow batches: from sealed segments, and from Parquet.

Every checksum of the log is verified. Both sides read the same rows on one thread from the page
cache. The Parquet file is what pyarrow writes with snappy and its defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Final

from bench.engines import workers
from bench.measure import Bar, Figure, Row, alternate
from bench.run import Bench

SCANS: Final = "bench.log.scans"
RECORDS: Final = 1_000_000
COLUMNS: Final = {
    "all columns": [],
    "offset, timestamp, name, payload": ["offset", "timestamp", "name", "payload"],
}


def reading_rows(bench: Bench) -> Iterator[Row]:
    """Payloads that cannot be compressed, and payloads that can."""
    records = RECORDS // 10 if bench.is_quick else RECORDS
    for payloads in ("random", "json"):
        with bench.scratch() as directory, workers(bench.engines) as engines:
            first = next(iter(engines.values()))
            first.call(f"{SCANS}:build", str(directory), payloads, records)
            for worker in engines.values():
                worker.call(f"{SCANS}:open_log", str(directory))
            for what, columns in COLUMNS.items():
                turns = {
                    name: partial(worker.call, f"{SCANS}:read_log", columns)
                    for name, worker in engines.items()
                }
                parquet = partial(first.call, f"{SCANS}:read_parquet", columns)
                taken = alternate({"parquet": parquet, **turns}, bench.rounds)
                yield Row(
                    f"{records:,} {payloads} records to Arrow, {what}",
                    "/s",
                    {name: Figure.of(taken[name], taken["parquet"]) for name in engines},
                    ("Parquet", median(taken["parquet"])),
                    Bar(1.0),
                )
