"""Where tests keep their files: on the disk, or in memory with `--in-memory`.

A program that a test kills loses nothing that it wrote, on a disk or in memory, and what a disk
loses is simulated (`tests/sim`, `tests/powerloss`). In memory only the waiting for a sync is
missing. Kill tests choose a moment, and a sync that takes long is a good one: they stay on the
disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 4 << 30  # a whole run needs about a quarter of that
PYTEST_ROOT = "PYTEST_DEBUG_TEMPROOT"  # pytest makes the directories of its fixtures below it


def use_memory() -> None:
    """If there is enough; otherwise tests stay on the disk, as in a small container."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return
    space = os.statvfs(MEMORY)
    if space.f_bavail * space.f_frsize >= FREE_BYTES_MIN:
        os.environ.setdefault(PYTEST_ROOT, str(MEMORY))


def is_in_memory() -> bool:
    return os.environ.get(PYTEST_ROOT) == str(MEMORY)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The one of pytest, or for a kill test an empty directory on the disk."""
    if not (is_in_memory() and request.path.name.endswith("_kill.py")):
        yield tmp_path
        return
    # Like the directories of pytest: what a program that was killed left may still be at work.
    with tempfile.TemporaryDirectory(
        prefix="penstock-kill-", ignore_cleanup_errors=True
    ) as directory:
        yield Path(directory)
