"""Can positions still be saved when the disk is really full, and is nothing acknowledged lost?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).parent / "full_disk_child.py"
NOT_MOUNTED = 77
SCRIPT = f'mount -t tmpfs -o size=1m none "$1" || exit {NOT_MOUNTED}; exec "$2" "$3" "$1"'


def test_positions_are_saved_on_a_full_disk_and_all_goes_on_when_space_returns(
    tmp_path: Path,
) -> None:
    """On a tmpfs of 1 MiB that only the child sees, in a mount namespace of its own."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", "--mount", *as_root, "sh", "-c", SCRIPT, "sh"]
    child = subprocess.run(
        [*command, str(tmp_path), sys.executable, str(CHILD)], capture_output=True, text=True
    )
    if child.returncode == NOT_MOUNTED or child.stderr.startswith("unshare:"):
        pytest.skip(f"no file system may be mounted here: {child.stderr}")
    assert child.returncode == 0, child.stderr
    seen = json.loads(child.stdout)
    assert seen == {"refused": True, "lost": [], "positions": [300]}
