"""Does the simulation notice when one sync, one truncation or one order of things is taken out?

See tests/sim/mutants.py, which runs interpreted, in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants import BROKEN, NEEDED, SITES
from tests.sim.outcomes import mutant_outcomes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("mutants")]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return mutant_outcomes("tests.sim.mutants")


@pytest.mark.parametrize("site", NEEDED)
def test_what_is_left_out_is_noticed(outcomes: dict[str, str], site: str) -> None:
    assert outcomes[site] == ""


def test_the_tables_name_every_sync_and_every_truncation(outcomes: dict[str, str]) -> None:
    assert outcomes[SITES] == ""


@pytest.mark.parametrize("rule", [one.__name__ for one in BROKEN])
def test_a_broken_rule_is_noticed(outcomes: dict[str, str], rule: str) -> None:
    assert outcomes[rule] == ""
