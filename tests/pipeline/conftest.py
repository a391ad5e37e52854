"""One Spark for all tests of a run: small, local, without its web pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline import session
from tests.pipeline.declared.declaring import Declare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use a broker or a Java are slow. There are three Javas at a time, each on one
    worker: one that tests share, one of those that are killed, and one of the other tests'."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "hosted" in fixtures:
            item.add_marker(pytest.mark.slow)
        shares = "spark" in fixtures
        if shares or "java" in item.keywords:
            item.add_marker(pytest.mark.slow)
            own = "killed" if item.path.stem.endswith("_kill") else "java"
            item.add_marker(pytest.mark.xdist_group("spark" if shares else own))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    opened = session("tests", master="local[2]", conf=small_spark(scratch))
    yield opened
    opened.stop()


def small_spark(scratch: Path) -> dict[str, str]:
    """Settings of a Spark that shares its machine with others."""
    return {
        "spark.driver.memory": "768m",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }


@pytest.fixture
def declare(tmp_path: Path) -> Declare:
    """Writes the file of a declared pipeline."""

    def write(text: str) -> Path:
        file = tmp_path / "flow.toml"
        file.write_text(text)
        return file

    return write
