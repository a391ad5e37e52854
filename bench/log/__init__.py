"""The log as programs use it: against bare writes, against Parquet, and as it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.log.opening import opening_rows
from bench.log.publishing import concurrency_row, loose_row, publishing_rows, spreading_rows
from bench.log.reading import reading_rows
from bench.measure import Row
from bench.run import Bench

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "publish": publishing_rows,
    "concurrent": concurrency_row,
    "loose": loose_row,
    "arrow": reading_rows,
    "open": opening_rows,
    "topics": spreading_rows,
}


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """All rows, or those of the part called `only`."""
    for name, part in PARTS.items():
        if only in name:
            yield from part(bench)
