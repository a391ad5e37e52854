"""What does it cost to put sealed records into a history, and who notices it?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Final

from bench.engines import Worker, workers
from bench.history.brokers import PUBLISHERS, SEALED
from bench.measure import Bar, Figure, Row, alternate, engine_figures
from bench.run import Bench

BROKERS: Final = "bench.history.brokers"
FULL_RECORDS: Final = 2_000_000
QUICK_RECORDS: Final = 300_000

Published = tuple[float, float]  # messages per second; the 99th percentile in milliseconds


def tiering_rows(bench: Bench) -> Iterator[Row]:
    """CPU of one file, and publishing while one is written."""
    count = QUICK_RECORDS if bench.is_quick else FULL_RECORDS
    with bench.scratch() as directory, workers(bench.fastest) as engines:
        written = {}
        for name, worker in engines.items():
            data, url = str(directory / name / "data"), str(directory / name / "history")
            worker.call(f"{BROKERS}:build", data, url, count, [SEALED])
            written[name] = worker.call(f"{BROKERS}:open_tiering", data, url)
            worker.call(f"{BROKERS}:tier_alone")  # starts the writer
        yield from _rows(bench, engines, written)
        for worker in engines.values():
            worker.call(f"{BROKERS}:close_tiering")


def _rows(bench: Bench, engines: dict[str, Worker], written: dict[str, int]) -> Iterator[Row]:
    spent: dict[str, Callable[[], float]] = {
        name: partial(_cpu_s, worker, written[name]) for name, worker in engines.items()
    }
    cpu = alternate(spent, bench.rounds)
    per_file = max(written.values())
    yield Row(
        f"tiering, CPU of a million records, {per_file:,} in a file",
        "s",
        {name: Figure(median(cpu[name]), median(cpu[name])) for name in engines},
        ("one second", 1.0),
        Bar(1.0, at_most=True, goal=0.5),
    )
    idle, busy = _published(bench, engines)
    scenario = f"{PUBLISHERS} publishers, while tiering, against idle"
    rates = [_part(one, 0) for one in (busy, idle)]
    yield Row(
        f"publish, {scenario}",
        "/s",
        engine_figures(engines, *rates),
        ("idle", median(next(reversed(rates[1].values())))),
        Bar(0.95),
    )
    delays = [_part(one, 1) for one in (busy, idle)]
    yield Row(
        f"publish p99, {scenario}",
        "ms",
        engine_figures(engines, *delays),
        ("idle", median(next(reversed(delays[1].values())))),
        Bar(1.05, at_most=True),
    )


def _cpu_s(worker: Worker, records: int) -> float:
    """Of a million records."""
    spent_s: float = worker.call(f"{BROKERS}:tier_alone")
    return spent_s * 1e6 / records


def _published(
    bench: Bench, engines: dict[str, Worker]
) -> tuple[dict[str, list[Published]], dict[str, list[Published]]]:
    """Turns of publishing: idle, and beside the writer."""
    idle: dict[str, list[Published]] = {name: [] for name in engines}
    busy: dict[str, list[Published]] = {name: [] for name in engines}

    def turn(name: str, *, is_idle: bool) -> float:
        if is_idle:
            found = engines[name].call(f"{BROKERS}:publish_idle", bench.turn_s)
        else:
            found = engines[name].call(f"{BROKERS}:publish_beside")
        (idle if is_idle else busy)[name].append((found[0], found[1]))
        return float(found[0])

    turns = {
        f"{name} {is_idle}": partial(turn, name, is_idle=is_idle)
        for name in engines
        for is_idle in (True, False)
    }
    alternate(turns, bench.rounds)
    return idle, busy


def _part(taken: dict[str, list[Published]], at: int) -> dict[str, list[float]]:
    return {name: [one[at] for one in values] for name, values in taken.items()}
