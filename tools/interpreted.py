"""Runs a command with every module of Penstock interpreted, also in a compiled checkout.

Python prefers a compiled file to the source next to it, so the sources are copied without
compiled files into a temporary directory that comes first on the path, for the command and for
every program it starts:

    .venv/bin/python -m tools.interpreted .venv/bin/python -m pytest tests/core
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import engine


@contextmanager
def interpreted_sources() -> Iterator[Path]:
    """A copy of the sources without compiled files, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="penstock-interpreted-") as directory:
        copy = Path(directory) / "src"
        ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "*.egg-info")
        shutil.copytree(engine.SOURCE, copy, ignore=ignored)
        yield copy


def main() -> int:
    command = sys.argv[1:]
    if not command:
        print("usage: python -m tools.interpreted COMMAND [ARGUMENT ...]", file=sys.stderr)
        return 2
    with interpreted_sources() as copy:
        inherited = os.environ.get("PYTHONPATH")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(copy), *([inherited] if inherited else [])]),
            "PENSTOCK_EXPECT_ENGINE": "interpreted",
        }
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
