"""A catalog database in one SQLite file, with stated behaviour for every way a disk can fail.

Invariant: a transaction is durable when `transaction()` ends without an error (WAL,
synchronous=FULL). A full disk refuses and changes nothing. A failed sync, or any other failed
read or write, *fences* the database: nothing is written through this object any more, reads go
on, and opening the file again is the way out. SQLite's own automatic checkpoint swallows a failed
sync, so it is off and `_checkpoint` does its work where the error is seen.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.catalog.database.interface import Row, Value
from penstock.model.errors import CorruptError, DiskFull, PenstockError, UnavailableError
from penstock.model.limits import FILE_MODE, KIB, MIB

MEMORY: Final = ":memory:"
BUSY_MS_MAX: Final = 5_000  # only a program that is not the broker can hold the file
WAL_BYTES_MAX: Final = 4 * MIB  # SQLite's own default; given back after a larger transaction
# Once the WAL has its size it is overwritten in place and tells nothing by growing. A small
# commit writes two to four pages of 4 KiB, so this many fill about WAL_BYTES_MAX.
CHECKPOINT_COMMITS: Final = 256
# On a full disk the WAL can be overwritten only once it is in the database: that must not need more
# than a reserve has. Saved positions need no new pages, so this costs them nothing.
GROWTH_BYTES_MAX: Final = 64 * KIB

_ARGUMENT_NAMES: Final = tuple(str(number) for number in range(1, 100))

_SETTINGS: Final = (
    "pragma synchronous = full",
    "pragma fullfsync = on",  # macOS: a plain fsync leaves the drive's cache; elsewhere no effect
    "pragma foreign_keys = on",
    "pragma secure_delete = on",  # what was erased is overwritten, not only unlinked
    "pragma temp_store = memory",  # savepoints must not need temporary files on a full disk
    "pragma wal_autocheckpoint = 0",
    f"pragma journal_size_limit = {WAL_BYTES_MAX}",
)


class SqliteDatabase:
    """A `Database` in a file, or in memory with the path `:memory:`."""

    def __init__(self, path: Path | str, *, busy_ms_max: int = BUSY_MS_MAX) -> None:
        self._file = None if str(path) == MEMORY else Path(path).absolute()
        self._busy_ms_max = busy_ms_max
        self._depth = 0  # of nested transactions
        self._wrote = False  # in the current transaction
        self._wants_scrub = False  # this transaction deletes something for good
        self._kept: PenstockError | None = None  # why the WAL still holds what was to be gone
        self._commits = 0  # since the last checkpoint
        self._is_cramped = False  # the last transaction found no space
        self._fence: PenstockError | None = None
        self._loss: PenstockError | None = None  # why SQLite gave up the current transaction
        if self._file is not None:
            with suppress(OSError):  # SQLite says what is wrong; its other files get the same mode
                self._file.touch(FILE_MODE)
        with self._judged():  # connecting opens the file and reads nothing: it cannot fence
            self._connection = sqlite3.connect(self._file or MEMORY, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def execute(self, sql: str, *args: Value) -> int:
        self._check_writable()
        with self._judged():
            return max(0, self._connection.execute(sql, _bound(args)).rowcount)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> int:
        self._check_writable()
        with self._judged():
            return max(0, self._connection.executemany(sql, map(_bound, rows)).rowcount)

    def fetch(self, sql: str, *args: Value) -> list[Row]:
        self._check_transaction()
        with self._judged():
            return self._connection.execute(sql, _bound(args)).fetchall()

    def transaction(self) -> AbstractContextManager[None]:
        return self._savepoint() if self._depth else self._outermost()

    def scrub(self) -> None:
        self._check_writable()
        self._wants_scrub = True

    def check_scrubbed(self) -> None:
        self._check_transaction()
        if self._kept is not None:
            raise _afresh(self._kept)

    def close(self) -> None:
        """Close the file. SQLite folds the WAL, as far as it was synced, into the database."""
        assert self._depth == 0, "closed inside a transaction"
        with self._judged():
            self._connection.close()

    @contextmanager
    def _outermost(self) -> Iterator[None]:
        self._loss = None
        self._wrote = self._wants_scrub = False
        if self._is_cramped:
            # With the WAL in the database, this transaction overwrites it instead of growing it.
            # Now and not when the disk was full: the caller may have freed some space.
            self._is_cramped = False
            self._checkpoint()
        # Deferred, so that a group of reads takes no write lock and costs no sync.
        self._command("begin")
        self._depth = 1
        try:
            yield
            self._check_transaction()
            self._command("commit")
        except BaseException as error:
            self._roll_back()
            self._is_cramped = isinstance(error, DiskFull)
            raise
        finally:
            self._depth = 0
        if self._wrote:
            self._commits += 1
            if self._wants_scrub:
                self._empty_wal()
            self._checkpoint_if_due()

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._check_transaction()  # outside a transaction SQLite would begin one here
        name = f"level_{self._depth}"
        self._command(f"savepoint {name}")
        self._depth += 1
        try:
            yield
            self._check_transaction()
        except BaseException:
            if self._connection.in_transaction:
                self._command(f"rollback to {name}")
                self._command(f"release {name}")
            raise
        else:
            self._command(f"release {name}")
        finally:
            self._depth -= 1

    def _prepare(self) -> None:
        self._command(f"pragma busy_timeout = {self._busy_ms_max}")
        for setting in _SETTINGS:
            self._command(setting)
        if self._file is None:
            return
        with self._judged():
            mode = self._connection.execute("pragma journal_mode = wal").fetchone()[0]
        if mode != "wal":
            raise UnavailableError(
                f"catalog {self._file}: SQLite cannot use a write-ahead log here (mode {mode!r}):"
                " put the data directory on a local file system"
            )
        self._renew()
        # The entries of the database and of its WAL, and the removal of the rollback journal
        # that creating them needed: it would come back hot and undo everything.
        _sync(self._file.parent)

    def _renew(self) -> None:
        """Write what an earlier life left in the WAL into the database, sync it, empty the WAL.

        After a failed sync the page cache may show frames that the disk never got; later commits
        chained to them would be lost with them. What was written again and synced is there.
        """
        with self._judged():
            busy = self._connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]
        if busy:
            raise UnavailableError(
                f"catalog {self._file} is open in another program: end that program, then open "
                "the broker again"
            )

    def _checkpoint_if_due(self) -> None:
        if self._file is None:
            return
        if (
            self._commits >= CHECKPOINT_COMMITS
            or self._wal_bytes() > WAL_BYTES_MAX
            or self._growth_bytes() > GROWTH_BYTES_MAX
        ):
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Move the WAL into the database, so that it starts again at its front.

        What was committed is durable before and after. A full disk or a reader postpones it; a
        failed write or sync fences, and the next write raises it.
        """
        if self._fence is not None or self._file is None:
            return
        self._commits = 0
        with suppress(PenstockError), self._judged():
            self._connection.execute("pragma wal_checkpoint(passive)").fetchall()

    def _empty_wal(self) -> None:
        """As `_checkpoint`, and nothing stays in the WAL; else `check_scrubbed` says why."""
        if self._file is None:
            return
        self._kept = self._fence
        if self._fence is not None:
            return
        try:
            is_emptied = self._truncate_wal()
        except PenstockError as trouble:
            self._kept = trouble
            return
        if is_emptied:
            self._sync_emptied_wal()
            self._kept = self._fence
        else:
            self._kept = UnavailableError(
                f"another program reads the catalog {self._file}, and so {self._file}-wal cannot "
                "be emptied: end that program (`fuser` shows it)"
            )

    def _truncate_wal(self) -> bool:
        """False if a reader holds it up."""
        with self._judged():
            # Other work is queued on this thread: whoever wants to wait for a reader asks again.
            self._connection.execute("pragma busy_timeout = 0")
            try:
                row = self._connection.execute("pragma wal_checkpoint(truncate)").fetchone()
            finally:
                self._connection.execute(f"pragma busy_timeout = {self._busy_ms_max}")
        return not row[0]

    def _sync_emptied_wal(self) -> None:
        """SQLite does not: power loss would bring back what the WAL held."""
        # Closing a file drops our locks on it; SQLite locks the database and its -shm, not the WAL.
        try:
            _sync(Path(f"{self._file}-wal"))
        except UnavailableError as failed:
            self._fence = failed

    def _wal_bytes(self) -> int:
        with suppress(FileNotFoundError):
            return os.stat(f"{self._file}-wal").st_size
        return 0

    def _growth_bytes(self) -> int:
        """What the database file will grow by when the WAL is moved into it."""
        assert self._file is not None
        with self._judged():
            ((pages, page_bytes),) = self._connection.execute(
                "select page_count, page_size from pragma_page_count(), pragma_page_size()"
            )
        return int(pages * page_bytes) - os.stat(self._file).st_size

    def _check_transaction(self) -> None:
        assert self._depth > 0, "catalog SQL runs inside transaction()"
        if not self._connection.in_transaction:
            # The next statement would commit by itself, alone.
            assert self._loss is not None, "the transaction was ended by hand"
            raise _afresh(self._loss)

    def _check_writable(self) -> None:
        self._check_transaction()
        if self._fence is not None:
            raise _afresh(self._fence)
        self._wrote = True

    def _command(self, sql: str) -> None:
        with self._judged():
            self._connection.execute(sql)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            # Touches memory only: an uncommitted transaction is not in the WAL's index.
            with suppress(sqlite3.Error):
                self._connection.execute("rollback")

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, and fence if the disk cannot be trusted."""
        try:
            yield
        except sqlite3.Error as error:
            verdict = _verdict(error, self._file)
            if verdict is None:
                raise
            if _fences(error) and self._fence is None:
                self._fence = verdict
                self._roll_back()  # not every SQLite does it by itself after damage
                with suppress(sqlite3.Error):
                    self._connection.execute("pragma query_only = on")
            if self._depth and not self._connection.in_transaction:
                self._loss = verdict
            raise verdict from error


def _afresh(error: PenstockError) -> PenstockError:
    # Raising one object again and again would lengthen its traceback without bound.
    return type(error)(*error.args)


def _bound(args: Sequence[Value]) -> dict[str, Value]:
    # By name: given a tuple, SQLite numbers `$n` by first appearance, not by n.
    return dict(zip(_ARGUMENT_NAMES, args, strict=False))


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0)  # absent on errors of the Python module itself


def _is_full(code: int) -> bool:
    # The WAL's index is a file too; SQLite reports no space for *it* as an input/output error.
    return code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE


def _fences(error: sqlite3.Error) -> bool:
    code = _code(error)
    untrusted = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return code & 0xFF in untrusted and not _is_full(code)


def _verdict(error: sqlite3.Error, file: Path | None) -> PenstockError | None:
    """Our error for SQLite's; None when the mistake is ours."""
    code = _code(error)
    where = f"catalog {file or 'in memory'}"
    if _is_full(code):
        return DiskFull(f"{where}: no space left ({error}): nothing was changed; free some space")
    match code & 0xFF:
        case sqlite3.SQLITE_IOERR:
            return UnavailableError(
                f"{where}: the disk failed ({error}, {error.sqlite_errorname}): reads still work, "
                "but nothing is written until the broker is restarted; the restart also shows "
                "whether the last change was stored"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return CorruptError(
                f"{where} is damaged ({error}): stop the broker, keep a copy of the file with its"
                " -wal, then restore a backup or rebuild it with the sqlite3 program's .recover"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return UnavailableError(
                f"{where} is locked by another program ({error}): end that program"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_READONLY:
            return UnavailableError(
                f"{where} cannot be opened for writing ({error}): check that the directory exists "
                "and that this user may write to it"
            )
    return None


def _sync(path: Path) -> None:
    """A file or a directory."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise UnavailableError(
            f"catalog: syncing {path} failed ({error}): nothing more is written until the broker "
            "is restarted"
        ) from error
