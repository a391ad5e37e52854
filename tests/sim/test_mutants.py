"""Does the simulation notice when one sync, one truncation or one order of things is taken out?

See tests/sim/mutants.py, which runs interpreted, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.sim.mutants import BROKEN, NEEDED, SITES
from tools.engine import ROOT
from tools.interpreted import interpreted_sources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("mutants")]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """What is wrong with each of them, or "": one process tries them all."""
    with interpreted_sources() as sources:
        inherited = os.environ.get("PYTHONPATH", "")
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim.mutants"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(sources), inherited])},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    return found


@pytest.mark.parametrize("site", NEEDED)
def test_what_is_left_out_is_noticed(outcomes: dict[str, str], site: str) -> None:
    assert outcomes[site] == ""


def test_the_tables_name_every_sync_and_every_truncation(outcomes: dict[str, str]) -> None:
    assert outcomes[SITES] == ""


@pytest.mark.parametrize("rule", [one.__name__ for one in BROKEN])
def test_a_broken_rule_is_noticed(outcomes: dict[str, str], rule: str) -> None:
    assert outcomes[rule] == ""
