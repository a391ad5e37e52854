"""Are the programs that the other tests here talk to really installed and able to start?"""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tools.peers import PROGRAMS, SEARCH


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_program_starts_and_says_what_it_is(program: str) -> None:
    path = shutil.which(program, path=SEARCH)
    assert path is not None, f"{program} is missing: Debian package {PROGRAMS[program]}"
    option = "-h" if program == "mosquitto" else "--help"
    answer = subprocess.run([path, option], capture_output=True, text=True, check=False)
    assert program in answer.stdout + answer.stderr
