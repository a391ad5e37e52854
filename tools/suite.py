"""Runs pytest, and runs tests that failed beside other tests again alone.

    .venv/bin/python -m tools.suite -n 5 --dist loadgroup tests

The arguments are those of pytest. A test that failed is run again in a process of its own with no
other test, three times, one after the other. The run passes if at most five tests needed that and
each passed all three times; their names are the last lines of the output, below the failures of
the first run. Everything else fails the run: one failure alone, a sixth test, a test or folder
that cannot be imported, and with --no-skips a test that was skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pytest

ALONE_MAX: Final = 5  # tests; more of them have one cause, which is not the company they were in
TIMES: Final = 3
REPORT: Final = "SUITE_REPORT_FILE"  # where the plugin, which is this module, writes
GROUP: Final = re.compile(r"@[^@\[\]]+$")  # what pytest-xdist appends to the id of a grouped test


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of pytest ended."""

    code: int
    failed: list[str]  # ids of tests, each once
    passed: int
    skipped: int
    not_collected: int


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down what the runner has to know. The workers of pytest-xdist know too little."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if REPORT not in os.environ or reporter is None or hasattr(session.config, "workerinput"):
        return
    stats = reporter.stats
    broken = [*stats.get("failed", ()), *stats.get("error", ())]
    tests = [one for one in broken if not isinstance(one, pytest.CollectReport)]
    found = Outcome(
        code=int(session.exitstatus),
        failed=list(dict.fromkeys(GROUP.sub("", one.nodeid) for one in tests)),
        passed=len(stats.get("passed", ())),
        skipped=len(stats.get("skipped", ())),
        not_collected=len(broken) - len(tests),
    )
    Path(os.environ[REPORT]).write_text(json.dumps(asdict(found)))


def run(arguments: Sequence[str]) -> Outcome:
    """Run pytest once; its output is ours."""
    with tempfile.TemporaryDirectory(prefix="penstock-suite-") as directory:
        report = Path(directory) / "report.json"
        command = [sys.executable, "-m", "pytest", "-p", "tools.suite", *arguments]
        code = subprocess.run(command, env={**os.environ, REPORT: str(report)}).returncode
        found = json.loads(report.read_text()) if report.exists() else {}
    return Outcome(**{**asdict(Outcome(code, [], 0, 0, 0)), **found, "code": code})


def passes_alone(test: str) -> bool:
    """Whether it passes each time that it is run by itself."""
    for time in range(1, TIMES + 1):
        print(f"\n== alone, {time} of {TIMES}: {test}", flush=True)
        found = run([test])
        if found.code != 0 or not found.passed or found.skipped:
            print(f"\nfailed beside other tests, failed alone (run {time}): {test}", flush=True)
            return False
    return True


def main(arguments: Sequence[str]) -> int:
    first = run(arguments)
    if first.code != pytest.ExitCode.TESTS_FAILED or not first.failed or first.not_collected:
        return first.code
    if first.skipped and "--no-skips" in arguments:
        return first.code
    if len(first.failed) > ALONE_MAX:
        print(f"\n{len(first.failed)} tests failed, at most {ALONE_MAX} may be run again alone")
        return first.code
    if not all(map(passes_alone, first.failed)):
        return first.code
    print("\n== the run passed, but these tests depend on what runs beside them: mend them")
    for test in first.failed:
        print(f"failed beside other tests, passed {TIMES} of {TIMES} alone: {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
