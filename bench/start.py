"""How long does a command take to start, against a Python that does nothing?

Run `python -m bench start`. Every process loads bytecode that is there already, from a place of
this run: whether the files of the project have any does not matter. `serve` counts from its start
on an empty directory until it says that it is ready.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from bench.engines import Engine
from bench.measure import Bar, Row, alternate, engine_figures
from bench.run import Bench
from bench.serving import Serving

NOTHING: Final = "python -c pass"
PENSTOCK: Final = "from penstock.cli.main import main; raise SystemExit(main())"
SERVE: Final = "penstock serve, until it is ready on an empty directory"
AT_BROKER: Final = "penstock topic list --at URL of a running broker"
TOPICS: Final = 3
ROUNDS: Final = 15  # a turn takes a fraction of a second
BARS: Final = {
    "penstock --version": 4,
    "penstock --help": 4,
    f"penstock topic list, {TOPICS} topics in a directory that nobody has open": 12,
    AT_BROKER: 12,
    SERVE: 30,
}

_BYTECODE: Final = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")

Turn = Callable[[], float]


def environment(engine: Engine, scratch: Path) -> dict[str, str]:
    """The engine's, with bytecode that is kept for the next process."""
    kept = {key: value for key, value in engine.environment.items() if key not in _BYTECODE}
    return kept | {"PYTHONPYCACHEPREFIX": str(scratch / "bytecode" / engine.name)}


def run_ms(arguments: list[str], env: dict[str, str]) -> float:
    began_s = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=env, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began_s) * 1e3


def penstock(env: dict[str, str], *arguments: str) -> Turn:
    return lambda: run_ms(["-c", PENSTOCK, *arguments], env)


def ready_ms(scratch: Path, env: dict[str, str]) -> float:
    data = scratch / f"new-{time.monotonic_ns()}"
    data.mkdir()
    began_s = time.perf_counter()
    serving = Serving(data, mqtt="127.0.0.1:0", environment=env)
    took_ms = (time.perf_counter() - began_s) * 1e3
    serving.stop()
    return took_ms


def turns_of(env: dict[str, str], scratch: Path, data: Path, url: str) -> dict[str, Turn]:
    """The rows of one engine, in the order of the bars."""
    turns = [
        penstock(env, "--version"),
        penstock(env, "--help"),
        penstock(env, "topic", "list", "--at", str(data)),
        penstock(env, "topic", "list", "--at", url),
        lambda: ready_ms(scratch, env),
    ]
    return dict(zip(BARS, turns, strict=True))


def measure(bench: Bench, only: str = "") -> Iterator[Row]:
    chosen = [scenario for scenario in BARS if only in scenario]
    if not chosen:
        return
    with bench.scratch() as scratch, ExitStack() as brokers:
        contenders: dict[str, Turn] = {}
        for engine in bench.engines:
            env = environment(engine, scratch)
            data = scratch / engine.name
            for number in range(TOPICS):
                penstock(env, "topic", "create", f"topic{number}", "--at", str(data))()
            serving = Serving(scratch / f"{engine.name}-served", environment=env)
            brokers.callback(serving.stop)
            for number in range(TOPICS):
                penstock(env, "topic", "create", f"topic{number}", "--at", serving.url)()
            turns = turns_of(env, scratch, data, serving.url)
            contenders |= {f"{engine.name} {one}": turns[one] for one in chosen}
        plain = environment(bench.engines[0], scratch)
        contenders[NOTHING] = lambda: run_ms(["-c", "pass"], plain)
        alternate(contenders, 1)  # fills the caches
        taken = alternate(contenders, 5 if bench.is_quick else ROUNDS)
    nothing = taken[NOTHING]
    for scenario in chosen:
        times = {engine.name: taken[f"{engine.name} {scenario}"] for engine in bench.engines}
        figures = engine_figures(times, times, nothing)
        bar = Bar(BARS[scenario], at_most=True)
        yield Row(scenario, "ms", figures, (NOTHING, median(nothing)), bar)
