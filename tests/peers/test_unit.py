"""Does systemd understand every line of the unit?"""

from __future__ import annotations

import subprocess
from pathlib import Path

UNIT = Path(__file__).parents[2] / "ops" / "penstock.service"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", "/bin/true"))
    ended = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
