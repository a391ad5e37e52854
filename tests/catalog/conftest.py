"""Every backend of the catalog joins here: with its way to open, all suites run on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog.database.interface import Database
from penstock.catalog.database.postgres import PostgresDatabase
from penstock.catalog.database.sqlite import MEMORY, SqliteDatabase
from tests.catalog.faults import OpenDatabase
from tests.postgres_server import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> OpenDatabase:
    """Opens the same durable database each time it is called."""
    if request.param == "sqlite":
        return lambda: SqliteDatabase(tmp_path / "catalog.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    schema = server.new_schema()
    return lambda: PostgresDatabase(server.url, schema)


@pytest.fixture(params=["sqlite", "sqlite-memory", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database, open on the test's own thread."""
    database: Database
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        database = PostgresDatabase(server.url, server.new_schema())
    else:
        database = SqliteDatabase(tmp_path / "catalog.db" if request.param == "sqlite" else MEMORY)
    yield database
    database.close()
