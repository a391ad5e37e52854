"""What does a durable publish cost, next to a bare write and fdatasync of the same bytes?

The bare loop appends to a file without preallocation and does nothing else: no batch, no
checksum, no offset, no thread. The broker runs with its defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.engines import Worker, workers
from bench.log.turns import MESSAGE_BYTES
from bench.measure import Bar, Figure, Row, alternate
from bench.run import Bench

BATCHES: Final = {1: 0.4, 100: 0.5, 1_000: 0.5}  # messages of a batch: the bar
PUBLISHERS: Final = 64
TOPICS: Final = (1, 10, 50)
WINDOW: Final = 100  # messages in flight where that is more than one
TURNS: Final = "bench.log.turns"


def bare_loop(path: Path, bytes_per_write: int, turn_s: float, *, sync: bool) -> float:
    """Messages per second of a loop that only writes, and syncs if asked to."""
    import time

    data = os.urandom(bytes_per_write)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        count = 0
        begin = time.perf_counter()
        while (taken_s := time.perf_counter() - begin) < turn_s:
            os.write(fd, data)
            if sync:
                os.fdatasync(fd)
            count += 1
    finally:
        os.close(fd)
        path.unlink()
    return count * bytes_per_write / MESSAGE_BYTES / taken_s


def publishing_rows(bench: Bench) -> Iterator[Row]:
    """Batches at level fsync through both brokers."""
    for kind in ("AsyncBroker", "Broker"):
        with bench.scratch() as directory, workers(bench.engines) as engines:
            for name, worker in engines.items():
                worker.call(f"{TURNS}:open_broker", kind, str(directory / name))
            for batch, limit in BATCHES.items():
                yield _against_bare(
                    bench,
                    f"{kind}, batches of {batch:,}, fsync",
                    directory,
                    engines,
                    batch,
                    Bar(limit),
                    sync=True,
                )
            for worker in engines.values():
                worker.call(f"{TURNS}:close_broker")


def loose_row(bench: Bench) -> Iterator[Row]:
    """Level os, where nothing waits for the disk."""
    for kind in ("AsyncBroker", "Broker"):
        with bench.scratch() as directory, workers(bench.engines) as engines:
            for name, worker in engines.items():
                worker.call(f"{TURNS}:open_broker", kind, str(directory / name), 1, "os")
            yield _against_bare(
                bench,
                f"{kind}, batches of 1,000, level os",
                directory,
                engines,
                1_000,
                Bar(0.3, is_required=False),
                sync=False,
            )
            for worker in engines.values():
                worker.call(f"{TURNS}:close_broker")


def _against_bare(
    bench: Bench,
    scenario: str,
    directory: Path,
    engines: dict[str, Worker],
    batch: int,
    bar: Bar,
    *,
    sync: bool,
) -> Row:
    turns: dict[str, Callable[[], float]] = {
        name: partial(worker.call, f"{TURNS}:publish", batch, bench.turn_s)
        for name, worker in engines.items()
    }
    bare = partial(bare_loop, directory / "bare", batch * MESSAGE_BYTES, bench.turn_s, sync=sync)
    taken = alternate({"bare": bare, **turns}, bench.rounds)
    return Row(
        scenario,
        "/s",
        {name: Figure.of(taken[name], taken["bare"]) for name in engines},
        ("bare loop", median(taken["bare"])),
        bar,
    )


def concurrency_row(bench: Bench) -> Iterator[Row]:
    """Tasks that each wait for their own message share syncs."""
    with bench.scratch() as directory, workers(bench.engines) as engines:
        figures = {}
        for name, worker in engines.items():
            worker.call(f"{TURNS}:open_broker", "AsyncBroker", str(directory / name))
            turns = {
                count: partial(worker.call, f"{TURNS}:publish_together", count, bench.turn_s)
                for count in (1, PUBLISHERS)
            }
            taken = alternate({str(count): turn for count, turn in turns.items()}, bench.rounds)
            figures[name] = Figure.of(taken[str(PUBLISHERS)], taken["1"])
            one = median(taken["1"])
            worker.call(f"{TURNS}:close_broker")
        yield Row(
            f"{PUBLISHERS} publishers of single messages against one, fsync",
            "/s",
            figures,
            ("one publisher", one),
            Bar(10),
        )


def spreading_rows(bench: Bench) -> Iterator[Row]:
    """Round robin over several topics: every dirty log wants a sync of its own."""
    for window in (1, WINDOW):
        with bench.scratch() as directory, workers(bench.engines) as engines:
            taken = {}
            for name, worker in engines.items():
                topics = TOPICS[-1]
                worker.call(f"{TURNS}:open_broker", "AsyncBroker", str(directory / name), topics)
                turns = {
                    str(count): partial(
                        worker.call, f"{TURNS}:publish_around", count, window, bench.turn_s
                    )
                    for count in TOPICS
                }
                taken[name] = alternate(turns, bench.rounds)
                worker.call(f"{TURNS}:close_broker")
        for count in TOPICS:
            figures = {
                name: Figure.of(rates[str(count)], rates[str(TOPICS[0])])
                for name, rates in taken.items()
            }
            yield Row(
                f"round robin over {count} topics, {window} in flight, fsync",
                "/s",
                figures,
                ("one topic", median(next(iter(taken.values()))[str(TOPICS[0])])),
            )
