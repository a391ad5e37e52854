"""Small programs for trying the laboratory itself."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from .disk import Disk
from .loss import DROP_ALL
from .run import run_traced
from .trace import Trace

PRELUDE = """
import os, sys
os.chdir(sys.argv[1])

def sync(path="."):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

def put(path, data, at=0):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.pwrite(fd, data, at)
    os.close(fd)
"""

Record = Callable[..., Trace]  # run_toy with the root filled in


def run_toy(root: Path, code: str, *, exit_codes: Sequence[int] = (0,)) -> Trace:
    """Trace Python code that runs inside the root and may use `sync` and `put`."""
    argv = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(root)]
    return run_traced(argv, root, exit_codes=exit_codes)


def left(trace: Trace, at: int | None = None) -> dict[str, bytes]:
    """The files a power loss leaves if nothing unsynced survives; at the end unless told."""
    remains = Disk(trace).remains(len(trace) if at is None else at, DROP_ALL)
    return {path: remains.read(path) for path in remains.files}
