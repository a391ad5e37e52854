"""Does a test that fails only beside others pass the run, named, and every other failure fail it?

Each test runs the real runner on a small project whose tests look at what runs beside them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.engine import ROOT

pytestmark = pytest.mark.over_a_second

WORKERS = ("-p", "xdist", "-n", "2")
# In this project a test is alone if its process runs no other.
ALONE = """
import pytest

@pytest.fixture
def is_alone(request):
    return len(request.session.items) == 1
"""
GOOD = "def test_good():\n    pass\n"
BESIDE = """
def test_beside(is_alone):
    assert is_alone, "somebody is here"
"""
GROUPED = """
import pytest

@pytest.mark.parametrize("at", ["a@b", "x::y"])
@pytest.mark.xdist_group("tests/shared")
def test_grouped(is_alone, at):
    assert is_alone, at
"""
# Fails alone, but not the first time; `seen` lies beside the tests.
SELDOM = """
from pathlib import Path

def test_seldom(is_alone):
    seen = Path(__file__).with_name("seen")
    times = len(seen.read_text()) if seen.exists() else 0
    seen.write_text("x" * (times + 1))
    assert is_alone and times != 2
"""


def run_suite(project: Path, *arguments: str, **files: str) -> tuple[int, str]:
    (project / "conftest.py").write_text(ALONE)
    for name, text in files.items():
        (project / f"{name}.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "tools.suite", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env={**kept, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def test_a_suite_without_failures_passes_and_says_nothing_more(tmp_path: Path) -> None:
    code, said = run_suite(tmp_path, test_a=GOOD)
    assert code == 0
    assert "alone" not in said and "1 passed" in said.splitlines()[-1]


def test_a_broker_that_a_test_starts_knows_every_variable_of_the_runner(tmp_path: Path) -> None:
    command = "from penstock.config import load\n\ndef test_settings():\n    load(None)\n"
    code, said = run_suite(tmp_path, test_a=command)
    assert code == 0, said


def test_a_failure_beside_others_is_named_at_the_end_and_its_output_stays(tmp_path: Path) -> None:
    code, said = run_suite(tmp_path, test_a=GOOD, test_b=BESIDE)
    assert code == 0
    ending = "failed beside other tests, passed 3 of 3 alone: test_b.py::test_beside"
    assert said.splitlines()[-1] == ending
    assert "somebody is here" in said
    assert "1 failed, 1 passed" in said
    assert said.count("== alone") == 3


def test_tests_of_a_group_are_found_again_whatever_their_names(tmp_path: Path) -> None:
    code, said = run_suite(tmp_path, *WORKERS, "--dist", "loadgroup", test_a=GOOD, test_b=GROUPED)
    assert code == 0, said
    named = {line.partition("alone: ")[2] for line in said.splitlines() if "3 of 3 alone" in line}
    assert named == {"test_b.py::test_grouped[a@b]", "test_b.py::test_grouped[x::y]"}


def test_a_test_that_always_fails_fails_the_run(tmp_path: Path) -> None:
    code, said = run_suite(tmp_path, test_a=GOOD, test_b="def test_bad():\n    assert False\n")
    assert code == 1
    assert said.splitlines()[-1].endswith("failed alone (run 1): test_b.py::test_bad")


def test_one_failure_of_three_alone_fails_the_run(tmp_path: Path) -> None:
    code, said = run_suite(tmp_path, test_a=GOOD, test_b=SELDOM)
    assert code == 1
    assert said.splitlines()[-1].endswith("failed alone (run 2): test_b.py::test_seldom")


@pytest.mark.parametrize(("count", "expected"), [(5, 0), (6, 1)])
def test_at_most_five_tests_are_run_again(tmp_path: Path, count: int, expected: int) -> None:
    texts = {f"test_{number}": BESIDE for number in range(count)}
    code, said = run_suite(tmp_path, **texts)
    assert code == expected
    assert said.count("== alone") == (15 if expected == 0 else 0)


def test_a_fixture_that_fails_counts_as_the_failure_of_its_test(tmp_path: Path) -> None:
    text = BESIDE.replace("test_beside", "test_late").replace(
        "(is_alone):", "(is_alone, late):"
    ) + ("\nimport pytest\n\n@pytest.fixture\ndef late():\n    yield\n    assert False\n")
    code, said = run_suite(tmp_path, test_a=GOOD, test_b=text)
    assert code == 1
    assert said.splitlines()[-1].endswith("failed alone (run 1): test_b.py::test_late")


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("import no_such_module\n", id="a file that cannot be imported"),
        pytest.param("import os\n\ndef test_b():\n    os._exit(0)\n", id="a process that ends"),
    ],
)
def test_what_was_not_run_fails_the_run(tmp_path: Path, broken: str) -> None:
    workers = WORKERS if "_exit" in broken else ()
    code, _ = run_suite(tmp_path, *workers, test_a=GOOD, test_b=broken, test_c=BESIDE)
    assert code != 0


def test_a_skipped_test_is_not_forgotten_beside_one_that_failed(tmp_path: Path) -> None:
    option = "\ndef pytest_addoption(parser):\n    parser.addoption('--no-skips')\n"
    skipped = "import pytest\n\n@pytest.mark.skip\ndef test_left_out():\n    pass\n"
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p own\n")
    texts = {"own": option.replace("'--no-skips'", "'--no-skips', action='store_true'")}
    code, said = run_suite(tmp_path, "--no-skips", test_a=skipped, test_b=BESIDE, **texts)
    assert code == 1
    assert "== alone" not in said
