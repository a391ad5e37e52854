"""What do the commands for nodes say of a broker that is none?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main
from tests.doors.hosted import Hosted


def test_a_broker_alone_has_no_nodes_to_list_or_drain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Hosted(tmp_path / "data"):
        at = ["--at", str(tmp_path / "data")]
        assert main(["node", "list", *at]) == 0
        assert "shares its catalog with no others" in capsys.readouterr().out
        assert main(["node", "drain", "a", *at]) == 1
        assert "penstock:" in capsys.readouterr().err
