"""Is what `pip install penstock` brings small, and is it tried on the Python that runs here?"""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

from tools.engine import ROOT
from tools.hashes import CORE, HASHES, read_parts
from tools.wheels import BYTES_MAX, VERSIONS, find_pythons


def installed_bytes(package: str) -> int:
    files = distribution(package).files or []
    found = (Path(str(one.locate())) for one in files if one.suffix != ".pyc")
    return sum(one.stat().st_size for one in found if one.is_file())


def test_the_core_and_all_it_needs_are_below_fifty_megabytes() -> None:
    packages = read_parts(HASHES.read_text())[CORE].keys() - {"setuptools"}
    assert len(packages) >= 7
    own = sum(one.stat().st_size for one in (ROOT / "src").rglob("*") if one.suffix != ".pyc")
    assert sum(map(installed_bytes, packages)) + own < BYTES_MAX


def test_wheels_are_tried_on_the_python_that_runs_here() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert version not in VERSIONS or version in dict(find_pythons())
