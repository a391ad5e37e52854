"""Does what the guide to pipelines shows really work?"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.main import main
from tests.docs.test_readme import ROOT, checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK = re.compile(r"^```(python|toml|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_snippets_of_the_guide_run_in_order(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_AT", raising=False)
    checks = 0

    def expect(found: Any, wanted: Any, line: str) -> None:
        nonlocal checks
        checks += 1
        assert found == wanted, line

    names: dict[str, Any] = {"expect": expect, "__name__": "guide"}
    try:
        for language, block in BLOCK.findall((ROOT / "docs" / "PIPELINES.md").read_text()):
            if language == "toml":
                name = re.match(r"# (\w+\.toml)$", block, re.MULTILINE)
                if name is not None:  # else it is shown only
                    (tmp_path / name[1]).write_text(block)
            elif language == "console":
                for part in re.split(r"^\$ penstock ", block, flags=re.MULTILINE)[1:]:
                    command, _, expected = part.partition("\n")
                    assert main(shlex.split(command)) == 0, command
                    pattern = ".+".join(re.escape(piece) for piece in expected.split("…"))
                    shown = capsys.readouterr().out
                    assert re.fullmatch(pattern, shown), f"{command}: {shown}"
                    checks += 1
            else:
                # Spark's own processes have another directory.
                placed = re.sub(r'"\./([\w/]+)"', lambda at: f'"{tmp_path / at[1]}"', block)
                exec(compile(checked(placed), "docs/PIPELINES.md", "exec"), names)
    finally:
        names["broker"].close()
    assert names["spark"] is spark
    assert checks >= 10
