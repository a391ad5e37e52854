"""What the catalog asks of a SQL database: a few verbs, on one thread.

SQL is written once for every backend, in the subset that SQLite and PostgreSQL read alike:
parameters are `$1`, `$2`, …; `cast($1 as …)` where the type cannot be inferred; no LIKE, no JSON
operators, no `= any`.

Invariant: what a `transaction()` changed is durable when its outermost block was left without an
error, and no part of it exists otherwise. One exception is stated by `UnavailableError` itself:
after a failed sync only opening again tells whether the last transaction was stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.model.errors import UnavailableError

Value = str | int | bytes | None
Row = tuple[Any, ...]  # the caller names the columns, so it knows their types


class Contended(UnavailableError):
    """Another node was in the way of this transaction: nothing was changed, repeat it."""


class Database(Protocol):
    """A connection, used from the thread that opened it, only inside `transaction()`.

    Raises DiskFull (nothing changed, goes on when space returns), UnavailableError (fenced,
    locked, unreachable) or CorruptError. A broken constraint or a wrong statement is our own
    mistake and surfaces as the driver's error.
    """

    def execute(self, sql: str, *args: Value) -> int:
        """Run one statement; the number of rows it changed."""
        ...

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> int:
        """Run one statement for each row of arguments; the number of rows changed by all."""
        ...

    def fetch(self, sql: str, *args: Value) -> list[Row]:
        """All rows of a query."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing. Nested, it is a savepoint: undoing it leaves what came before."""
        ...

    def scrub(self) -> None:
        """Leave nothing in our own files of what was deleted, when this transaction ends."""
        ...

    def check_scrubbed(self) -> None:
        """UnavailableError if the last `scrub` left something: it says why. Then scrub again."""
        ...

    def close(self) -> None: ...
