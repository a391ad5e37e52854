"""Does every test run once and every group on one worker, also when a worker ends on its way?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.engine import ROOT

pytestmark = pytest.mark.over_a_second

SINGLE = """
import os, pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(40))
def test_single(number):
    with Path(__file__).with_name("ran").open("a") as ran:
        ran.write(f"single-{number} {os.getpid()}\\n")

@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("group", [pytest.param(g, marks=pytest.mark.xdist_group(g)) for g in "ab"])
def test_grouped(group, number):
    with Path(__file__).with_name("ran").open("a") as ran:
        ran.write(f"{group}-{number} {os.getpid()}\\n")
"""
# As tests/conftest.py has it: pytest-xdist reads the group at the end of the id.
CONFTEST = """
from tests.conftest import pytest_collection_finish
from tests.scheduling import GroupScheduling, pytest_xdist_make_scheduler

def pytest_sessionfinish(session):
    dsession = session.config.pluginmanager.get_plugin("dsession")
    if dsession is not None:
        assert isinstance(dsession.sched, GroupScheduling)
        print("left:", sum(map(len, dsession.sched.assigned_work.values())))
"""
ENDS = """
import os, time, pytest
from pathlib import Path

@pytest.mark.xdist_group("ends")
def test_ends():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        os._exit(3)
"""


def run_project(project: Path, **files: str) -> tuple[str, dict[str, set[str]]]:
    """What pytest said, and which processes ran each test."""
    for name, text in {"conftest": CONFTEST, **files}.items():
        (project / f"{name}.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    arguments = ("-p", "xdist", "-n", "3", "--dist", "loadgroup", "-p", "no:cacheprovider", "-s")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=project,
        env={**kept, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ran: dict[str, set[str]] = {}
    lines = (project / "ran").read_text().splitlines()
    for line in lines:
        test, process = line.split()
        ran.setdefault(test, set()).add(process)
    assert len(lines) == len(ran) == 60, done.stdout
    return done.stdout, ran


def processes(ran: dict[str, set[str]], group: str) -> set[str]:
    return set().union(*(found for test, found in ran.items() if test.startswith(f"{group}-")))


def test_every_test_runs_once_and_a_group_has_one_worker(tmp_path: Path) -> None:
    said, ran = run_project(tmp_path, test_a=SINGLE)
    assert "60 passed" in said and re.search(r"left: 0\b", said), said
    assert len(processes(ran, "single")) > 1
    assert len(processes(ran, "a")) == len(processes(ran, "b")) == 1


def test_others_run_what_a_worker_that_ended_has_left(tmp_path: Path) -> None:
    said, _ = run_project(tmp_path, test_a=SINGLE, test_b=ENDS)
    assert re.search(r"worker 'gw\d' crashed while running 'test_b.py::test_ends", said), said
