"""Does the log keep its promises through crashes, power losses, failed syncs and full disks?

Each test is a range of seeds, so that several processes share the work. PENSTOCK_SIM_SEEDS sets
how many (a nightly run takes 20,000), PENSTOCK_SIM_FIRST where they begin.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.world import SimulatedMachine

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "300"))
FIRST = int(os.environ.get("PENSTOCK_SIM_FIRST", "0"))
SHARE = max(20, SEEDS // 100)


@pytest.mark.slow
@pytest.mark.timeout(max(300, SHARE * 10))
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, SHARE))
def test_every_promise_is_kept_through_every_fault(first: int) -> None:
    for seed in range(first, min(first + SHARE, FIRST + SEEDS)):
        try:
            SimulatedMachine(seed).run_and_check()
        except Exception as broken:
            replay = f"replay it with: .venv/bin/python -m tests.sim {seed}"
            raise AssertionError(f"seed {seed}: {broken}; {replay}") from broken


def test_a_few_seeds_keep_every_promise() -> None:
    for seed in range(900_000, 900_010):
        SimulatedMachine(seed).run_and_check()


def test_the_same_seed_makes_the_same_history() -> None:
    histories: list[list[str]] = []
    for _ in range(2):
        lines: list[str] = []
        for seed in (7, 8, 9):
            SimulatedMachine(seed, lines.append).run_and_check()
        histories.append(lines)
    assert histories[0] == histories[1]
    assert len(histories[0]) > 50


def test_another_seed_makes_another_history() -> None:
    histories: list[list[str]] = []
    for seed in (7, 8):
        lines: list[str] = []
        SimulatedMachine(seed, lines.append).run_and_check()
        histories.append(lines)
    assert histories[0] != histories[1]


@pytest.mark.slow
def test_histories_meet_every_kind_of_fault() -> None:
    """A simulation that meets no fault proves nothing: these seeds meet all of them."""
    lines: list[str] = []
    for seed in range(40):
        SimulatedMachine(seed, lines.append).run_and_check()
    seen = "\n".join(lines)
    for fault in (
        "crash",
        "and so does the power",
        "disk is full but for",
        "no space:",
        "sync of end fails",
        "read of ",
        "closed in order",
        "is now at level os",
        "is now at level fsync",
        ".log.sealing to ",
        "a sync had failed: continuing",
        "epoch 2 begins",
        "remove 00000",
    ):
        assert fault in seen, f"no history met {fault!r}"
