"""Every backend of the catalog joins here: with its way to open, all suites run on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog.database import Database
from penstock.catalog.sqlite import MEMORY, SqliteDatabase
from tests.catalog.faults import OpenDatabase


@pytest.fixture(params=["sqlite"])
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> OpenDatabase:
    """Opens the same durable database each time it is called."""
    backends = {"sqlite": lambda: SqliteDatabase(tmp_path / "catalog.db")}
    return backends[request.param]


@pytest.fixture(params=["sqlite", "sqlite-memory"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database, open on the test's own thread."""
    paths: dict[str, Path | str] = {"sqlite": tmp_path / "catalog.db", "sqlite-memory": MEMORY}
    database = SqliteDatabase(paths[request.param])
    yield database
    database.close()
