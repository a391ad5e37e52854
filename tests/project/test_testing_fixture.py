"""Does a project that installs Penstock get the fixture `broker`, fresh for every test?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each starts a pytest

TESTS = """
def test_publish(broker):
    broker.create_topic("orders")
    assert broker.publish("hello", "orders") == 0
    assert [r.value for r in broker.read("orders")] == ["hello"]

def test_nothing_is_left_of_it(broker):
    assert broker.topics() == []

kept = []

def test_keep(broker):
    kept.append(broker)

def test_it_is_closed_after_the_test():
    import penstock, pytest
    with pytest.raises(penstock.UnavailableError):
        kept[0].topics()
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_fixture_works_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(TESTS)
    ended = run_pytest(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == [
        "test_theirs.py"
    ]


def test_the_fixture_is_listed_with_what_it_is(tmp_path: Path) -> None:
    ended = run_pytest(tmp_path, "--fixtures")
    assert "A broker in memory, closed after the test." in ended.stdout
