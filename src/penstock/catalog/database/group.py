"""Units of work that share a transaction, and so one sync.

Invariant: every unit gets its own outcome, and a unit whose outcome is a value is durable. A unit
that raises undoes itself and not its neighbours. Units may run more than once (after a rollback,
when the disk was full), so they do nothing but ask the database and return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.catalog.database.interface import Contended, Database
from penstock.model.errors import DiskFull

ATTEMPTS_MAX: Final = 10  # of a unit that other nodes are in the way of
Work = Callable[[Database], object]
OnFull = Callable[[], bool]  # frees what it can on a full disk; True when it freed something


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a unit returned, or what it raised."""

    value: object = None
    error: BaseException | None = None

    def unwrap(self) -> object:
        if self.error is not None:
            raise self.error
        return self.value


def run_group(
    database: Database, works: Sequence[Work], on_full: OnFull | None = None
) -> list[Outcome]:
    """Run all in one transaction; on a full disk one by one, so that what still fits is done."""
    try:
        return _run_together(database, works)
    except (DiskFull, Contended):
        return [_run_alone(database, work, on_full) for work in works]
    except Exception as error:
        return [Outcome(error=error)] * len(works)


def _run_alone(database: Database, work: Work, on_full: OnFull | None) -> Outcome:
    try:
        return _run_repeatedly(database, work)
    except DiskFull as full:
        if on_full is None or not on_full():
            return Outcome(error=full)
    except Exception as error:
        return Outcome(error=error)
    return _run_after_freeing(database, work)


def _run_after_freeing(database: Database, work: Work) -> Outcome:
    try:
        return _run_together(database, [work])[0]
    except Exception as error:
        return Outcome(error=error)


def _run_repeatedly(database: Database, work: Work) -> Outcome:
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return _run_together(database, [work])[0]
        except Contended:
            continue
    return _run_together(database, [work])[0]


def _run_together(database: Database, works: Sequence[Work]) -> list[Outcome]:
    with database.transaction():
        return [_run_unit(database, work) for work in works]


def _run_unit(database: Database, work: Work) -> Outcome:
    try:
        with database.transaction():
            return Outcome(value=work(database))
    except (DiskFull, Contended):
        raise  # decided for the whole group
    except BaseException as error:  # SystemExit too belongs to who asked, not to the thread
        return Outcome(error=error)
