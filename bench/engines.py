"""Penstock interpreted and compiled, as it was before and now, or without and with rules.

Each engine is a worker process that loads this checkout one way or the other and runs functions of
the benchmarks when it is told to, so that the parent can let them take turns.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.measure import BEFORE, PLAIN
from tools import engine
from tools.interpreted import interpreted_sources

QUIET: Final = ("--log-level", "warning")  # lines about clients are none of a broker's work here
INTERPRETED: Final = "interpreted"
COMPILED: Final = "compiled"
RULES: Final = "rules"


class NotCompiled(Exception):
    """A checkout that must be compiled to be compared, and is not."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to load Penstock, and the environment of processes that do."""

    name: str
    environment: dict[str, str]
    quiet: tuple[str, ...] = QUIET  # options of `penstock serve`; older checkouts have none
    has_rules: bool = False  # its brokers have users, roles, rules and quotas


@contextmanager
def engines(beside: Path | None = None, *, has_rules: bool = False) -> Iterator[list[Engine]]:
    """Interpreted always, compiled where every module of the list is; the fastest comes last.

    With `beside`, the root of another checkout: that one and this one, both compiled. With
    `has_rules`, this checkout twice, compiled: brokers without rules, and brokers with them.
    """
    states = {engine.state(module, [str(engine.SOURCE)]) for module in engine.listed()}
    compiled = Engine(COMPILED, _environment(engine.SOURCE))
    if beside is not None:
        before = _before(_environment(beside.resolve() / "src"))
        _check_compiled(beside, _is_compiled(beside, before))
        _check_compiled(engine.ROOT, states == {"compiled"})
        yield [before, compiled]
        return
    if has_rules:
        _check_compiled(engine.ROOT, states == {"compiled"})
        environment = compiled.environment
        yield [Engine(PLAIN, environment), Engine(RULES, environment, has_rules=True)]
        return
    with interpreted_sources() as copy:
        found = [Engine(INTERPRETED, _environment(copy))]
        if states == {"compiled"}:
            found.append(compiled)
        yield found


def _check_compiled(root: Path, is_compiled: bool) -> None:
    if not is_compiled:
        raise NotCompiled(f"{root} is not compiled: run `make setup` there")


def _before(environment: dict[str, str]) -> Engine:
    command = [sys.executable, "-m", "penstock", "serve", "--help"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Engine(BEFORE, environment, QUIET if QUIET[0] in answer.stdout else ())


def _is_compiled(root: Path, one: Engine) -> bool:
    """What the other checkout says of itself."""
    command = [sys.executable, str(root / "tools" / "engine.py"), "--word"]
    answer = subprocess.run(command, env=one.environment, capture_output=True, text=True)
    return answer.stdout.strip() == "compiled"


def _environment(sources: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(sources), str(engine.ROOT)])}


class Worker:
    """A process of one engine. What a function returns must be plain JSON."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._child = subprocess.Popen(
            [sys.executable, "-m", "bench.engines"],
            env=engine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, function: str, *arguments: Any) -> Any:
        """Run `module:function` there and wait for its answer."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps([function, arguments]) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.engine.name} worker ended in {function}: see above")
        return json.loads(line)

    def close(self) -> None:
        """Let it end by itself."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(60)


def run_once(engine: Engine, function: str, *arguments: Any) -> Any:
    """Run `module:function` with this engine: only it knows the formats of its own data."""
    worker = Worker(engine)
    try:
        return worker.call(function, *arguments)
    finally:
        worker.close()


@contextmanager
def workers(found: list[Engine]) -> Iterator[dict[str, Worker]]:
    """A fresh worker of each engine."""
    with ExitStack() as stack:
        started = {}
        for one in found:
            started[one.name] = worker = Worker(one)
            stack.callback(worker.close)
        yield started


def main() -> None:
    """The worker's side: calls come in as lines and answers go out as lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a benchmark prints must not look like an answer
    for line in sys.stdin:
        function, arguments = json.loads(line)
        module, _, name = function.partition(":")
        answer = getattr(importlib.import_module(module), name)(*arguments)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
