"""Do nodes keep their promises while they are killed, frozen and cut off from their servers?

PENSTOCK_SIM_SEEDS sets how many histories (a nightly run takes more), PENSTOCK_SIM_FIRST where they
begin. See tests/sim/nodes/mutants.py for the rules that are broken on purpose.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.nodes.mutants import BROKEN
from tests.sim.nodes.world import SimulatedCluster
from tests.sim.outcomes import mutant_outcomes

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "80"))
FIRST = int(os.environ.get("PENSTOCK_SIM_FIRST", "0"))
SHARE = max(20, SEEDS // 50)


@pytest.mark.slow
@pytest.mark.timeout(max(300, SHARE * 10))
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, SHARE))
def test_what_nodes_acknowledged_is_there_and_qos_2_once_through_every_fault(first: int) -> None:
    for seed in range(first, min(first + SHARE, FIRST + SEEDS)):
        try:
            SimulatedCluster(seed).run_and_check()
        except Exception as broken:
            replay = f"replay it with: .venv/bin/python -m tests.sim.nodes {seed}"
            raise AssertionError(f"seed {seed}: {broken}; {replay}") from broken


def test_the_same_seed_makes_the_same_history_of_nodes_and_meets_faults() -> None:
    histories: list[list[str]] = []
    for _ in range(2):
        lines: list[str] = []
        for seed in (8, 9, 10):
            SimulatedCluster(seed, lines.append).run_and_check()
        histories.append(lines)
    assert histories[0] == histories[1]
    seen = "\n".join(histories[0])
    for fault in (
        "is killed",
        "is frozen for 9 s",
        "and Kafka: cut",
        "and SQL: cut",
        "loses its lock",
        "the process stood still",
        "does not answer",
    ):
        assert fault in seen, f"no history met {fault!r}"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return mutant_outcomes("tests.sim.nodes.mutants")


@pytest.mark.slow
@pytest.mark.xdist_group("node mutants")
@pytest.mark.parametrize("rule", [one.__name__ for one in BROKEN])
def test_a_broken_rule_of_nodes_is_noticed(outcomes: dict[str, str], rule: str) -> None:
    assert outcomes[rule] == ""
