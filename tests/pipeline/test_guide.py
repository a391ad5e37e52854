"""Does what the guide to pipelines shows really work?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.test_readme import blocks, checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_snippets_of_the_guide_run_in_order(spark: SparkSession, tmp_path: Path) -> None:
    checks = 0

    def expect(found: Any, wanted: Any, line: str) -> None:
        nonlocal checks
        checks += 1
        assert found == wanted, line

    names: dict[str, Any] = {"expect": expect, "__name__": "guide"}
    try:
        for snippet in blocks("docs/PIPELINES.md", "python"):
            placed = snippet.replace("./penstock_data", str(tmp_path / "data"))
            for folder in ("archive", "stats", "replay"):
                placed = placed.replace(f"./{folder}", str(tmp_path / folder))
            exec(compile(checked(placed), "docs/PIPELINES.md", "exec"), names)
    finally:
        names["broker"].close()
    assert names["spark"] is spark
    assert checks >= 4
