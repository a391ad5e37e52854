"""What a simulation says to rules that are broken on purpose; they run interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tools.engine import ROOT
from tools.interpreted import interpreted_sources


def mutant_outcomes(module: str) -> dict[str, str]:
    """What is wrong with each mutant, or "": one process tries them all."""
    with interpreted_sources() as sources:
        inherited = os.environ.get("PYTHONPATH", "")
        done = subprocess.run(
            [sys.executable, "-m", module],
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
