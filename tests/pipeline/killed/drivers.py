"""Spark drivers as processes of their own, which are killed with all that belongs to them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
# `make nightly` asks for more; each round starts a Java. Where a test lets drivers die at the two
# moments that matter, these count as the first round.
ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "1"))
# A driver gets through few batches before it is killed: there is work left in every round.
BATCHES = 4 + 3 * ROUNDS
START_S_MAX = 240.0


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Run a driver; returns once it says that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "started\n":
        kill(process)
        raise AssertionError(process.communicate()[1])
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """The driver, its Java and its workers die at once."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def has_ended_within(process: subprocess.Popen[str], seconds: float) -> bool:
    """Whether the driver came to its end by itself; it must have succeeded then."""
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    assert process.returncode == 0, errors
    return True


def run_to_its_death(module: str, *arguments: str) -> None:
    """A driver that kills itself on its way."""
    process = start(module, *arguments)
    _, errors = process.communicate(timeout=START_S_MAX)
    assert process.returncode == -signal.SIGKILL, errors


def run_to_the_end(module: str, *arguments: str) -> None:
    process = start(module, *arguments)
    assert has_ended_within(process, START_S_MAX), "the driver did not end"


def kill_again_and_again(
    chance: random.Random,
    module: str,
    *arguments: str,
    rounds: int = ROUNDS,
    longest_s: float = 4.0,
) -> int:
    """Start and kill a driver at random moments; how often it died before its end."""
    deaths = 0
    for _ in range(rounds):
        process = start(module, *arguments)
        if not has_ended_within(process, chance.uniform(0, longest_s)):
            kill(process)
            deaths += 1
    print(f"killed in {deaths} of {rounds} rounds")
    return deaths
