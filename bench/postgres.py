"""What do topics as tables cost, next to a bare INSERT of the same payloads?

The bare loop inserts rows of a number and a payload with one multi-row statement and does nothing
else: no name, no stamp, no end that moves, no notification, no thread. Both commit to one real
PostgreSQL, which is started for the occasion, with its defaults.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Final

import psycopg

from bench.engines import workers
from bench.http.peers import postgres
from bench.log.turns import MESSAGE_BYTES
from bench.measure import Bar, Figure, Row, alternate
from bench.run import Bench

BATCHES: Final = {1: None, 100: Bar(0.5, is_required=False), 1_000: None}  # messages: the bar
TURNS: Final = "bench.log.turns"


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """Batches of one publisher that waits for each."""
    with postgres() as url, bench.scratch() as directory, workers(bench.engines) as engines:
        for name, worker in engines.items():
            settings = {
                "catalog_url": url,
                "catalog_schema": name,
                "log_backend": "postgres",
            }
            path = str(directory / name)
            worker.call(f"{TURNS}:open_broker", "AsyncBroker", path, 1, "fsync", settings)
        for batch, bar in BATCHES.items():
            scenario = f"PostgreSQL log, batches of {batch:,}"
            if only not in scenario:
                continue
            turns: dict[str, Callable[[], float]] = {
                name: partial(worker.call, f"{TURNS}:publish", batch, bench.turn_s)
                for name, worker in engines.items()
            }
            taken = alternate(
                {"bare": partial(bare_loop, url, batch, bench.turn_s), **turns}, bench.rounds
            )
            yield Row(
                scenario,
                "/s",
                {name: Figure.of(taken[name], taken["bare"]) for name in engines},
                ("multi-row INSERT", median(taken["bare"])),
                bar,
            )
        for worker in engines.values():
            worker.call(f"{TURNS}:close_broker")


def bare_loop(url: str, batch: int, turn_s: float) -> float:
    """Messages per second of a loop that only inserts."""
    payloads = [os.urandom(MESSAGE_BYTES) for _ in range(batch)]
    values = ", ".join(f"(${2 * i + 1}, ${2 * i + 2})" for i in range(batch))
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        connection.execute("drop table if exists bare")
        connection.execute("create table bare (messageid bigint primary key, message bytea)")
        text = f"insert into bare (messageid, message) values {values}"
        count = 0
        begin = time.perf_counter()
        while (taken_s := time.perf_counter() - begin) < turn_s:
            arguments = [
                value for i, payload in enumerate(payloads, count) for value in (i, payload)
            ]
            connection.execute(text, arguments)
            count += batch
    return count / taken_s
