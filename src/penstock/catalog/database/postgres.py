"""A catalog database in a schema of PostgreSQL, held by one process at a time, or by live nodes.

Invariant: a transaction is durable when `transaction()` ends without an error
(synchronous_commit on), and no part of it exists otherwise. A lost connection refuses what was
under way and is made anew by the next transaction. One that is lost during a commit is another
matter: the commit's outcome is looked up before anybody is told (`postgres.hold`).

The database of a node (`inc`) may be open on other nodes as well. Each of its transactions locks
the node's own row in state `live`: once another node has declared it dead, it changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from penstock.catalog.database.interface import Contended, Row, Value
from penstock.model.errors import PenstockError, UnavailableError
from penstock.postgres.connection import (
    Connection,
    is_lost,
    lost,
    one_line,
    shown_url,
    verdict,
)
from penstock.postgres.hold import LOCK_S_MAX, Hold

PART: Final = "catalog"
# A deadlock, a lost race for a row, and a row that another node inserted first.
_CONTENDED: Final = ("40001", "40P01", "23505")
_STILL_LIVE: Final = "select 1 from nodes where inc = $1 and state = 'live' for share"


class PostgresDatabase:
    """A `Database` in the schema `schema` of the database at `url`."""

    def __init__(
        self,
        url: str,
        schema: str,
        *,
        giving_up: threading.Event | None = None,
        lock_s_max: float = LOCK_S_MAX,
        part: str = PART,
        inc: int = 0,
    ) -> None:
        """`part` other than that of the catalog: together with others who do the same."""
        shared = "" if part == PART else PART
        self._hold = Hold(
            url, schema, part, giving_up=giving_up, lock_s_max=lock_s_max, shared_part=shared
        )
        self._inc = inc
        self._ended = ""  # why this node may no longer change anything
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

    def check_scrubbed(self) -> None:
        """There is nothing that we could find out."""

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
        if self._ended:
            raise UnavailableError(self._ended)
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
        if self._inc:
            self._check_live(connection)
        return connection

    def _check_live(self, connection: Connection) -> None:
        try:
            is_live = bool(connection.execute(_STILL_LIVE, (self._inc,)).fetchall())
        except psycopg.Error as failed:
            if is_lost(connection):
                raise lost(self._hold.url, failed) from failed
            connection.execute("rollback")
            raise verdict(self._hold.url, failed) or failed from failed
        if not is_live:
            connection.execute("rollback")
            self._ended = (
                f"this node (incarnation {self._inc}) was declared dead by another node because "
                "it did not renew its lease in time: nothing is written until it is restarted"
            )
            raise UnavailableError(self._ended)

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
            if self._inc and error.sqlstate in _CONTENDED:
                raise Contended(
                    f"another node changed the catalog at {shown_url(self._hold.url)} at the same "
                    f"time ({one_line(error)}): nothing was changed; try again"
                ) from error
            ours = verdict(self._hold.url, error)
            if ours is None:
                raise
            raise ours from error
