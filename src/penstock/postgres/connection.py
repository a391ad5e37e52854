"""Opening a connection to PostgreSQL, and what its errors mean for us.

A connection belongs to one thread. Statements carry `$1`, `$2`, … as they stand in the text;
whole numbers are always 64 bits wide. A peer that vanished is noticed within VANISHED_S_MAX.
"""

from __future__ import annotations

import logging
import select
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8Dumper

from penstock.model.clock import Clock
from penstock.model.errors import CorruptError, DiskFull, PenstockError, UnavailableError

Connection = psycopg.Connection[tuple[Any, ...]]

# Its warnings about lost connections are for programs that log: we raise errors instead.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

CONNECT_S_MAX: Final = 5
VANISHED_S_MAX: Final = 15  # a cut network says nothing: keepalives and unanswered bytes do
RETRY_S_MIN: Final = 0.1  # between attempts to reach a server that is gone; doubles
RETRY_S_MAX: Final = 5.0
VERSION_MIN: Final = 130_000  # the oldest that its makers still looked after when this was written

OPTIONS: Final[dict[str, Any]] = {  # of every connection
    "application_name": "penstock",
    "client_encoding": "UTF8",
    "connect_timeout": CONNECT_S_MAX,
    "keepalives_idle": VANISHED_S_MAX // 3,
    "keepalives_interval": VANISHED_S_MAX // 3,
    "keepalives_count": 2,
    "tcp_user_timeout": VANISHED_S_MAX * 1_000,
}

# States that are the server's trouble or its rules, not a mistake in our statement: resources,
# locks, cancelled, disk, conflicts, read-only, login, privileges.
_NOT_OURS: Final = ("53", "55", "57", "58", "40", "25006", "28", "42501")


def connect(url: str, schema: str) -> Connection:
    """A connection that finds unqualified names in `schema`; UnavailableError says why not."""
    try:
        connection = psycopg.connect(
            url, autocommit=True, cursor_factory=psycopg.RawCursor, **OPTIONS
        )
    except psycopg.Error as failed:
        raise UnavailableError(
            f"PostgreSQL at {shown_url(url)} cannot be reached ({one_line(failed)}):"
            " check that it is running, that the address is right and that this user may log in"
        ) from failed
    try:
        _prepare(connection, url, schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: Connection, url: str, schema: str) -> None:
    connection.adapters.register_dumper(int, Int8Dumper)  # one width: prepared once
    try:
        if connection.info.server_version < VERSION_MIN:
            raise UnavailableError(
                f"PostgreSQL at {shown_url(url)} is too old: Penstock needs version"
                f" {VERSION_MIN // 10_000} or newer"
            )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise UnavailableError(
                f"the database at {shown_url(url)} has encoding {encoding}, which cannot store "
                "all characters: create a database with encoding UTF8"
            )
        connection.execute("set synchronous_commit to on")
        path = sql.SQL("set search_path to {}").format(sql.Identifier(schema))
        connection.execute(path.as_bytes(connection))
    except psycopg.Error as failed:
        raise lost(url, failed) from failed


def is_lost(connection: Connection) -> bool:
    """Whether the connection is lost; known only after it was tried."""
    return connection.closed


def has_ended(connection: Connection) -> bool:
    """Whether an idle connection has ended meanwhile; then nothing that follows is in doubt."""
    if connection.closed:
        return True
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    try:
        while waiting.poll(0):  # a server that ends a session says why, then closes it
            connection.pgconn.consume_input()
    except psycopg.Error:
        connection.close()
    return connection.closed


def lost(url: str, error: Exception) -> UnavailableError:
    """The connection ended under our hands."""
    return UnavailableError(
        f"the connection to PostgreSQL at {shown_url(url)} was lost ({one_line(error)}):"
        " nothing was changed; try again to reconnect"
    )


def verdict(url: str, error: psycopg.Error) -> PenstockError | None:
    """Our error for what a statement met on a living connection; None when the mistake is ours."""
    where = f"PostgreSQL at {shown_url(url)}"
    match error:
        case errors.DiskFull():
            return DiskFull(f"{where}: no space left ({one_line(error)}): nothing was changed")
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return CorruptError(
                f"{where} reports damaged data ({one_line(error)}): stop the broker and restore a "
                "backup"
            )
    if error.sqlstate is not None and error.sqlstate.startswith(_NOT_OURS):
        return UnavailableError(
            f"{where} rejected the change ({one_line(error)}): nothing was changed"
        )
    return None


class Backoff:
    """When to try a lost server again; until then every call is rejected at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wait_s = RETRY_S_MIN
        self._until_s = 0.0
        self._trouble = ""

    def check(self) -> None:
        """UnavailableError, with what went wrong last, while it is too early."""
        left_s = self._until_s - self._clock.monotonic_s()
        if left_s > 0:
            raise UnavailableError(self._trouble, left_s)

    def failed(self, error: UnavailableError) -> UnavailableError:
        """An attempt failed; the error to raise says when the next one is due."""
        wait_s = self._wait_s
        self._until_s = self._clock.monotonic_s() + wait_s
        self._trouble = str(error)
        self._wait_s = min(2 * wait_s, RETRY_S_MAX)
        return UnavailableError(self._trouble, wait_s)

    def worked(self) -> None:
        self._wait_s = RETRY_S_MIN
        self._until_s = 0.0


def shown_url(url: str) -> str:
    """Where a database is, without who and with which password."""
    parts = urlsplit(url)
    try:
        found = conninfo_to_dict(url)
    except psycopg.Error:
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    host = str(found.get("host") or found.get("hostaddr") or "localhost")
    port = f":{found['port']}" if found.get("port") else ""
    return f"{host}{port}/{found.get('dbname', '')}"


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
