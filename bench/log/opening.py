"""Does opening a directory cost more when the log is larger?

The large and the small directory differ in the segments behind the newest one. Recovery looks at
the newest segment only, so it is shown both equally full and as different as the sizes make it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Final

from bench.engines import workers
from bench.measure import Bar, Figure, Row, alternate
from bench.run import Bench

LOGS: Final = "bench.log.logs"
MIB: Final = 1 << 20
SMALL: Final = 10 * MIB
LARGE: Final = 1024 * MIB
LARGE_QUICK: Final = 200 * MIB


def opening_rows(bench: Bench) -> Iterator[Row]:
    """Batches of 1,000 and of 10 in the newest segment."""
    large = LARGE_QUICK if bench.is_quick else LARGE
    for batch in (1_000, 10):
        with bench.scratch() as directory, workers(bench.engines) as engines:
            first = next(iter(engines.values()))
            sizes = {"small": SMALL, "large": large, "full": large}
            for name, size in sizes.items():
                newest = 50 * MIB if name == "full" else SMALL
                first.call(f"{LOGS}:build", str(directory / name), size, newest, batch)
            figures: dict[str, dict[str, Figure]] = {"large": {}, "full": {}}
            small_ms = 0.0
            for engine, worker in engines.items():
                turns = {
                    name: partial(worker.call, f"{LOGS}:open_ms", str(directory / name))
                    for name in sizes
                }
                taken = alternate(turns, bench.rounds * 3)
                small_ms = median(taken["small"])
                for name in figures:
                    figures[name][engine] = Figure.of(taken[name], taken["small"])
            for name, text in {"large": "10", "full": "50"}.items():
                yield Row(
                    f"open {large // MIB:,} MiB, newest segment {text} MiB, batches of {batch:,}",
                    "ms",
                    figures[name],
                    (f"{SMALL // MIB} MiB", small_ms),
                    Bar(2.0, at_most=True),
                )
