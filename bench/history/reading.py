"""Records that only the history has, over HTTP, against the same in sealed segments of the log."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final

from bench.engines import Engine, run_once
from bench.history.brokers import COLD, NEVER_S, SEALED
from bench.http.peers import start_penstock
from bench.http.talks import http_request, http_talk
from bench.measure import Bar, Row, alternate, engine_figures
from bench.mqtt.servers import HOST, Server
from bench.run import Bench

BUILD: Final = "bench.history.brokers:build"
FULL_RECORDS: Final = 5_000_000
QUICK_RECORDS: Final = 600_000  # more than the broker's cache holds
PAGE: Final = 100
ARROW: Final = "application/vnd.apache.arrow.stream"
ARROW_PAGE: Final = 50_000  # the largest

Turn = Callable[[str], float]  # of a topic


def reading_rows(bench: Bench) -> Iterator[Row]:
    """A page at a random offset, and all records from the first on."""
    count = QUICK_RECORDS if bench.is_quick else FULL_RECORDS
    with bench.scratch() as directory, ExitStack() as stack:
        servers = {}
        for engine in bench.fastest:
            servers[engine.name] = server = _serve(engine, directory / engine.name, count)
            stack.callback(server.stop)
            server.wait_ready()
        chance = random.Random(1)
        yield _row(
            bench,
            f"{PAGE} of {count / 1e6:g} M cold records, random offset, HTTP, against sealed",
            "ms",
            {
                name: partial(_page_ms, one, count, chance, bench.turn_s)
                for name, one in servers.items()
            },
            Bar(3.0, at_most=True, goal=1.5),
        )
        yield _row(
            bench,
            f"replay of {count / 1e6:g} M cold records, HTTP Arrow, against sealed",
            "/s",
            {name: partial(_replayed, one, count) for name, one in servers.items()},
            Bar(0.5, is_required=False, goal=1.0),
        )


def _serve(engine: Engine, directory: Path, count: int) -> Server:
    """A broker with both topics, which leaves them as they are."""
    data, url = directory / "data", directory / "history"
    run_once(engine, BUILD, str(data), str(url), count, [SEALED, COLD])
    environment = engine.environment | {
        "PENSTOCK_HISTORY__URL": str(url),
        "PENSTOCK_LOG__UPKEEP_EVERY": f"{NEVER_S:g}s",
    }
    server, _ = start_penstock(replace(engine, environment=environment), data)
    return server


def _row(bench: Bench, scenario: str, unit: str, turns: dict[str, Turn], bar: Bar) -> Row:
    contenders = {
        f"{name} {topic}": partial(turn, topic)
        for name, turn in turns.items()
        for topic in (SEALED, COLD)
    }
    for turn in contenders.values():
        turn()  # starts the reader of histories, and files are in memory
    taken = alternate(contenders, bench.rounds)
    cold, sealed = ({name: taken[f"{name} {topic}"] for name in turns} for topic in (COLD, SEALED))
    reference = (SEALED, median(next(reversed(sealed.values()))))
    return Row(scenario, unit, engine_figures(turns, cold, sealed), reference, bar)


def _page_ms(server: Server, count: int, chance: random.Random, turn_s: float, topic: str) -> float:
    """The mean time of an answer, for some come from the cache; offsets are new each turn."""
    offsets = [chance.randrange(count - PAGE) for _ in range(10_000)]
    requests = [
        http_request("GET", f"/v1/topics/{topic}/records?from={offset}&limit={PAGE}")
        for offset in offsets
    ]
    talk = http_talk(server.port, requests)
    answers = 0
    begin_s = time.perf_counter()
    while (taken_s := time.perf_counter() - begin_s) < turn_s:
        talk.call()
        answers += 1
    talk.sock.close()
    return taken_s / answers * 1_000


def _replayed(server: Server, count: int, topic: str) -> float:
    """Records per second of one reader that asks for page after page."""
    connection = HTTPConnection(HOST, server.port)
    offset = 0
    begin_s = time.perf_counter()
    while offset < count:
        path = f"/v1/topics/{topic}/records?from={offset}&limit={ARROW_PAGE}"
        connection.request("GET", path, headers={"Accept": ARROW})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        offset = int(answer.headers["Penstock-Next-Offset"])
    taken_s = time.perf_counter() - begin_s
    connection.close()
    return count / taken_s
