"""Does one message take as short a path through the broker as the architecture promises?"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tools.engine import ROOT

CALLS_MAX, FILES_MAX, CROSSINGS_MAX = 110, 28, 16
ROW = re.compile(r"^\| One QoS 1 message:.* \| (\d+) \| \d+ \| (\d+) \| (\d+) \|$", re.MULTILINE)


def is_short(text: str) -> bool:
    (row,) = ROW.findall(text)
    calls, files, crossings = map(int, row)
    return calls <= CALLS_MAX and files <= FILES_MAX and crossings <= CROSSINGS_MAX


@pytest.mark.slow
def test_a_qos_1_message_takes_a_short_path() -> None:
    command = [sys.executable, "-m", "tools.walk", "qos1"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert is_short(printed), printed


def test_the_architecture_shows_a_short_path() -> None:
    assert is_short((ROOT / "docs" / "ARCHITECTURE.md").read_text())
