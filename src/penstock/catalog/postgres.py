"""A catalog database in a schema of PostgreSQL, held by one process at a time.

Invariant: a transaction is durable when `transaction()` ends without an error
(synchronous_commit on), and no part of it exists otherwise. A lost connection refuses what was
under way and is made anew by the next transaction. One that is lost during a commit is another
matter: the commit's outcome is looked up before anybody is told (`postgres.hold`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from penstock.catalog.database import Row, Value
from penstock.model.errors import PenstockError, UnavailableError
from penstock.postgres.connection import Connection, is_lost, lost, shown_url, verdict
from penstock.postgres.hold import LOCK_S_MAX, Hold

PART: Final = "catalog"


class PostgresDatabase:
    """A `Database` in the schema `schema` of the database at `url`."""

    def __init__(
        self,
        url: str,
        schema: str,
        *,
        giving_up: threading.Event | None = None,
        lock_s_max: float = LOCK_S_MAX,
    ) -> None:
        self._hold = Hold(url, schema, PART, giving_up, lock_s_max=lock_s_max)
        self._connection = self._hold.connection()
        self._depth = 0  # of nested transactions
        self._wrote = False  # in the current transaction
        self._loss: PenstockError | None = None  # why the current transaction failed

    def execute(self, sql: str, *args: Value) -> int:
        self._check_transaction()
        self._wrote = True
        with self._judged():
            return max(0, self._connection.execute(sql, args).rowcount)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> int:
        self._check_transaction()
        self._wrote = True
        every = list(rows)
        if not every:
            return 0
        with self._judged():
            cursor = self._connection.cursor()
            cursor.executemany(sql, every)
            return max(0, cursor.rowcount)

    def fetch(self, sql: str, *args: Value) -> list[Row]:
        self._check_transaction()
        with self._judged():
            return self._connection.execute(sql, args).fetchall()

    def transaction(self) -> AbstractContextManager[None]:
        return self._savepoint() if self._depth else self._outermost()

    def scrub(self) -> None:
        """Its files are the database's own to look after (`vacuum`)."""

    def close(self) -> None:
        assert self._depth == 0, "closed inside a transaction"
        self._hold.close()

    @contextmanager
    def _outermost(self) -> Iterator[None]:
        self._loss = None
        self._wrote = False
        self._connection = self._begin()
        self._depth = 1
        try:
            yield
            self._check_transaction()
            self._commit()
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._depth = 0

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._check_transaction()
        name = f"level_{self._depth}"
        self._command(f"savepoint {name}")
        self._depth += 1
        try:
            yield
            self._check_transaction()
        except BaseException:
            if self._loss is None:
                self._command(f"rollback to {name}")
                self._command(f"release {name}")
            raise
        else:
            self._command(f"release {name}")
        finally:
            self._depth -= 1

    def _begin(self) -> Connection:
        connection = self._hold.connection()
        try:
            connection.execute("begin", prepare=False)
        except psycopg.Error as failed:
            raise lost(self._hold.url, failed) from failed
        if self._hold.has_gone_back:
            connection.execute("rollback")
            raise UnavailableError(
                f"the catalog at {shown_url(self._hold.url)} is in an earlier state than before, "
                "for example because a standby that lagged behind took over: restart the broker "
                "to continue from that state"
            )
        return connection

    def _commit(self) -> None:
        if not self._wrote:
            self._command("commit")
            return
        with self._judged():
            self._hold.count(self._connection)
        try:
            self._command("commit")
        except UnavailableError:
            if self._loss is None or not self._hold.was_stored():
                raise
        else:
            self._hold.counted()

    def _check_transaction(self) -> None:
        assert self._depth > 0, "catalog SQL runs inside transaction()"
        if self._loss is not None:
            raise type(self._loss)(*self._loss.args)
        status = self._connection.info.transaction_status
        assert status != TransactionStatus.INERROR, "a statement failed outside a nested one"

    def _command(self, sql: str) -> None:
        with self._judged():
            self._connection.execute(sql, prepare=False)

    def _roll_back(self) -> None:
        if self._loss is None:
            with suppress(psycopg.Error):
                self._connection.execute("rollback")

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Turn the driver's errors into ours, and remember that the transaction is lost."""
        try:
            yield
        except psycopg.Error as error:
            if is_lost(self._connection):
                self._loss = lost(self._hold.url, error)
                raise self._loss from error
            ours = verdict(self._hold.url, error)
            if ours is None:
                raise
            raise ours from error
