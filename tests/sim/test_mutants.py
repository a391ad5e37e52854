"""Does the simulation notice when one sync, one truncation or one order of things is taken out?

See tests/sim/mutants.py, which runs interpreted, in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.mutants import BROKEN, NEEDED
from tools.engine import ROOT
from tools.interpreted import interpreted_sources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    with interpreted_sources() as copy:
        yield copy


def check_mutant_is_noticed(sources: Path, kind: str, name: str) -> None:
    command = [sys.executable, "-m", "tests.sim.mutants", kind, name]
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(sources), inherited])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("site", NEEDED)
def test_what_is_left_out_is_noticed(sources: Path, site: str) -> None:
    check_mutant_is_noticed(sources, "site", site)


def test_the_tables_name_every_sync_and_every_truncation(sources: Path) -> None:
    check_mutant_is_noticed(sources, "sites", "150")


@pytest.mark.parametrize("rule", [one.__name__ for one in BROKEN])
def test_a_broken_rule_is_noticed(sources: Path, rule: str) -> None:
    check_mutant_is_noticed(sources, "rule", rule)
