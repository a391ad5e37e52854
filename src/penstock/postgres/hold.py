"""A schema held by one process: who else comes is refused, and every commit is accounted for.

The hold is a session's advisory lock, and a row that says whose it is and counts commits. A
change counts itself in its own transaction, `where token = … and commits = …`. So a process whose
hold was taken over can change nothing; and when a connection ends during a commit, looking at the
counter tells whether that commit happened. It is only looked at under the lock, which the
server gives after the session that held it before has ended: none of its statements is still
running.

Invariant: `commits` is the counter in the database, unless the last commit is in doubt.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import psycopg
from psycopg import sql

from penstock.model.clock import SystemClock
from penstock.model.errors import UnavailableError
from penstock.postgres.connection import (
    Backoff,
    Connection,
    connect,
    has_ended,
    lost,
    one_line,
    shown_url,
)
from penstock.postgres.locks import lock_key

LOCK_S_MAX: Final = 5.0  # the session of a process that was killed ends with its statement
LOCK_TRY_S: Final = 0.05

_CREATE: Final = """
    create table if not exists holders (
        part text not null primary key,
        token text not null,
        holder text not null,
        commits bigint not null,
        since bigint not null
    )
"""
COUNT: Final = "update holders set commits = $1 where part = $2 and token = $3 and commits = $4"


class Hold:
    """One part (`catalog` or `log`) of a schema, on one connection; used by one thread.

    `giving_up` ends the wait for a server that is gone while a commit is in doubt. Holders of
    different parts that give the same `shared_part` exclude who holds that part, and nobody else.
    """

    def __init__(
        self,
        url: str,
        schema: str,
        part: str,
        giving_up: threading.Event | None = None,
        lock_s_max: float = LOCK_S_MAX,
        shared_part: str = "",
    ) -> None:
        self.url = url
        self.schema = schema
        self.part = part
        self._shared_part = shared_part
        self.token = secrets.token_hex(16)
        self.commits = 0
        self.has_gone_back = False  # the server knows fewer commits than it had confirmed
        self._giving_up = giving_up or threading.Event()
        self._clock = SystemClock()
        self._lock_s_max = lock_s_max
        self._fence = ""
        self._backoff = Backoff(self._clock)
        self._connection = connect(url, schema)
        self._backend = self._connection.info.backend_pid
        try:
            self._begin()
        except psycopg.Error as failed:
            self._connection.close()
            raise UnavailableError(
                f"schema {schema!r} of {shown_url(url)} cannot be used ({one_line(failed)}):"
                " the user must be allowed to create it, or to create tables in it"
            ) from failed
        except BaseException:
            self._connection.close()
            raise

    def _begin(self) -> None:
        """Lock before looking: the second process finds everything created."""
        self._lock()
        connection = self._connection
        name = sql.Identifier(self.schema)
        if not connection.execute(
            "select 1 from pg_namespace where nspname = $1", (self.schema,)
        ).fetchall():  # a user who may not create schemas may use one that is there
            connection.execute(sql.SQL("create schema {}").format(name).as_bytes(connection))
        connection.execute(_CREATE)
        connection.execute(
            "insert into holders (part, token, holder, commits, since) values ($1, $2, $3, 0, $4)"
            " on conflict (part) do update set token = excluded.token, holder = excluded.holder,"
            " commits = 0, since = excluded.since",
            (self.part, self.token, _myself(), self._clock.now_us()),
        )

    def connection(self) -> Connection:
        """The connection, made anew if it was lost and known to be so."""
        if self._fence:
            raise UnavailableError(self._fence)
        if has_ended(self._connection):
            self._regain()
        return self._connection

    def count(self, connection: Connection) -> None:
        """Inside a transaction, as its last statement: this commit is the next one."""
        arguments = (self.commits + 1, self.part, self.token, self.commits)
        if connection.execute(COUNT, arguments).rowcount != 1:
            self._fence_off("another process uses it now")
            raise UnavailableError(self._fence)

    def counted(self) -> None:
        """The commit that counted itself is confirmed."""
        self.commits += 1

    def was_stored(self, on_gone: Callable[[UnavailableError], None] | None = None) -> bool:
        """Whether the commit that was under way when the connection ended happened.

        Waits for the server as long as it takes: the caller of the commit must not get
        another answer meanwhile. `on_gone` hears of every attempt to reach it that failed.
        """
        expected = self.commits + 1
        while True:
            try:
                self._regain(is_pressing=True)
            except UnavailableError as still:
                if self._fence:
                    raise
                if on_gone is not None:
                    on_gone(still)
                if self._giving_up.wait(still.retry_after_s):
                    raise UnavailableError(
                        f"{still}; it is unknown whether the last change was stored; opening the "
                        "broker again shows it"
                    ) from still
            else:
                return self.commits == expected

    def close(self) -> None:
        """Let go; the lock ends with the connection."""
        self._connection.close()

    def _regain(self, *, is_pressing: bool = False) -> None:
        """Connect, lock, and see that nobody was here meanwhile."""
        if not is_pressing:
            self._backoff.check()
        try:
            self._connection = connect(self.url, self.schema)
            self._look()  # also before waiting for a lock that somebody else has by now
            self._lock()
            commits = self._look()
        except psycopg.Error as failed:
            self._connection.close()
            raise self._backoff.failed(lost(self.url, failed)) from failed
        except UnavailableError as failed:
            self._connection.close()
            raise self._backoff.failed(failed) from failed
        self._backend = self._connection.info.backend_pid
        self._backoff.worked()
        self.has_gone_back = self.has_gone_back or commits < self.commits
        self.commits = commits

    def _look(self) -> int:
        """The counter, if the row is still ours."""
        rows = self._connection.execute(
            "select token, holder, commits from holders where part = $1", (self.part,)
        ).fetchall()
        if not rows or rows[0][0] != self.token:
            self._fence_off(f"{rows[0][1]} used it meanwhile" if rows else "its tables are missing")
            raise UnavailableError(self._fence)
        return int(rows[0][2])

    def _lock(self) -> None:
        """Take the lock; end our own session of before, should the server still have it."""
        if self._shared_part:
            self._wait_lock(self._shared_part, "select pg_try_advisory_lock_shared($1)")
        self._wait_lock(self.part, "select pg_try_advisory_lock($1)")

    def _wait_lock(self, part: str, statement: str) -> None:
        key = lock_key(self.schema, part)
        until_s = self._clock.monotonic_s() + self._lock_s_max
        while True:
            ((is_ours,),) = self._connection.execute(statement, (key,))
            if is_ours:
                return
            if self._clock.monotonic_s() >= until_s:
                raise UnavailableError(self._taken_text(part))
            self._end_former_session(key)
            time.sleep(LOCK_TRY_S)

    def _end_former_session(self, key: int) -> None:
        if self._backend != self._connection.info.backend_pid:
            self._connection.execute(
                "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'"
                " and granted and pid = $1 and objsubid = 1"
                " and (classid::bigint << 32) | objid::bigint = $2",
                (self._backend, key),
            )

    def _taken_text(self, part: str) -> str:
        """The error text, with the holder of the part if it is known."""
        holder = "another session"
        try:
            rows = self._connection.execute(
                "select holder, since from holders where part = $1", (part,)
            ).fetchall()
        except psycopg.Error:  # it has not come so far
            rows = []
        for name, since_us in rows:
            since = datetime.fromtimestamp(since_us // 1_000_000, UTC)
            holder = f"{name} since {since.isoformat().replace('+00:00', 'Z')}"
        return (
            f"the {part} in schema {self.schema!r} of {shown_url(self.url)} is in use by"
            f" {holder}: only one broker at a time may use it; stop that broker, or choose "
            "another schema"
        )

    def _fence_off(self, reason: str) -> None:
        self._fence = (
            f"the {self.part} in schema {self.schema!r} of {shown_url(self.url)} no longer "
            f"belongs to this broker ({reason}): nothing is written until the broker is restarted"
        )


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
