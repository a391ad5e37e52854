"""What does the SQLite database do when its disk is full, fails, or holds garbage?"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.catalog.database.sqlite import (
    BUSY_MS_MAX,
    CHECKPOINT_COMMITS,
    WAL_BYTES_MAX,
    SqliteDatabase,
)
from penstock.model.errors import CorruptError, DiskFull, UnavailableError
from tests.catalog.faults import fail_syncs_of_this_thread


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.db"


def create(database: SqliteDatabase) -> None:
    with database.transaction():
        database.execute("create table t (a bigint primary key, b text)")


def insert(database: SqliteDatabase, a: int, length: int = 1) -> None:
    with database.transaction():
        database.execute("insert into t (a, b) values ($1, $2)", a, "x" * length)


def delete_for_good(database: SqliteDatabase) -> None:
    with database.transaction():
        database.execute("delete from t")
        database.scrub()


def count(database: SqliteDatabase) -> int:
    with database.transaction():
        return int(database.fetch("select count(*) from t")[0][0])


def limit_pages(database: SqliteDatabase, pages: int) -> None:
    with database.transaction():
        database.fetch(f"pragma max_page_count = {pages}")


def wal_bytes(path: Path) -> int:
    return os.stat(f"{path}-wal").st_size


def on_a_thread_of_its_own(work: Callable[[], None]) -> None:
    """Syncs that fail do so for a whole thread, for good."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_commits_are_synced_and_the_journal_is_a_wal(path: Path) -> None:
    database = SqliteDatabase(path)
    with database.transaction():
        assert database.fetch("pragma journal_mode") == [("wal",)]
        assert database.fetch("pragma synchronous") == [(2,)]
        assert database.fetch("pragma wal_autocheckpoint") == [(0,)]
    database.close()


def test_a_full_disk_refuses_and_goes_on_when_space_returns(path: Path) -> None:
    database = SqliteDatabase(path)
    create(database)
    limit_pages(database, 12)
    stored = 0
    with pytest.raises(DiskFull, match="no space left"):
        for stored in range(1_000):
            insert(database, stored, 2_000)
    assert count(database) == stored
    with database.transaction():  # what needs no room works all the while
        assert database.execute("update t set b = $1", "y" * 2_000) == stored
    limit_pages(database, 1_000)
    insert(database, stored, 2_000)
    database.close()
    database = SqliteDatabase(path)
    assert count(database) == stored + 1
    database.close()


def test_nothing_commits_by_itself_after_sqlite_gave_up_a_transaction(path: Path) -> None:
    """A full disk ends the whole transaction, also inside a savepoint."""
    database = SqliteDatabase(path)
    create(database)
    limit_pages(database, 12)
    with pytest.raises(DiskFull), database.transaction():
        database.execute("insert into t (a, b) values (1, 'x')")
        with pytest.raises(DiskFull), database.transaction():
            database.execute("insert into t (a, b) values (2, $1)", "x" * 100_000)
        with pytest.raises(DiskFull), database.transaction():
            database.execute("insert into t (a, b) values (3, 'x')")
        with pytest.raises(DiskFull):
            database.execute("insert into t (a, b) values (4, 'x')")
    assert count(database) == 0
    insert(database, 5)
    assert count(database) == 1
    database.close()


def test_a_failed_sync_fences_writes_while_reads_go_on(path: Path) -> None:
    def scenario() -> None:
        database = SqliteDatabase(path)
        create(database)
        insert(database, 1)
        fail_syncs_of_this_thread()
        with pytest.raises(UnavailableError, match=r"disk failed.*reads still work"):
            insert(database, 2)
        assert count(database) == 1
        wal = Path(f"{path}-wal").read_bytes()
        for _ in range(3):
            with pytest.raises(UnavailableError, match="disk failed"):
                insert(database, 3)
        with pytest.raises(UnavailableError), database.transaction():
            database.fetch("insert into t (a, b) values (4, 'x') returning a")
        assert count(database) == 1
        assert Path(f"{path}-wal").read_bytes() == wal
        database.close()

    on_a_thread_of_its_own(scenario)
    database = SqliteDatabase(path)
    assert count(database) >= 1  # the change under way may be there, the acknowledged one must be
    insert(database, 5)
    database.close()


def test_a_fence_in_the_middle_of_a_transaction_takes_all_of_it_back(path: Path) -> None:
    """Does a group commit nothing when one of its units met damage?"""
    database = SqliteDatabase(path)
    create(database)
    with database.transaction():
        database.execute("create table damaged (a bigint)")
        ((page,),) = database.fetch("select rootpage from sqlite_master where name = 'damaged'")
    database.close()
    with open(path, "r+b") as file:
        file.seek((page - 1) * 4_096)
        file.write(b"\xff" * 4_096)
    database = SqliteDatabase(path)
    with pytest.raises(CorruptError), database.transaction():
        with database.transaction():
            database.execute("insert into t (a, b) values (1, 'x')")
        with pytest.raises(CorruptError), database.transaction():
            database.fetch("select a from damaged")
        with pytest.raises(CorruptError), database.transaction():
            database.execute("insert into t (a, b) values (2, 'x')")
    with pytest.raises(CorruptError):
        insert(database, 3)
    assert count(database) == 0
    assert wal_bytes(path) == 0
    database.close()


def test_a_failed_sync_of_a_checkpoint_fences_but_the_commit_before_it_counts(path: Path) -> None:
    """SQLite's automatic checkpoint would not tell."""

    def scenario() -> None:
        database = SqliteDatabase(path)
        create(database)
        fail_syncs_of_this_thread(path)  # commits sync the WAL, checkpoints the database
        with pytest.raises(UnavailableError, match="disk failed"):
            for _ in range(CHECKPOINT_COMMITS + 1):
                insert(database, len(acknowledged))
                acknowledged.append(True)
        assert len(acknowledged) == CHECKPOINT_COMMITS - 1  # creating the table was one
        database.close()

    acknowledged: list[bool] = []
    on_a_thread_of_its_own(scenario)
    database = SqliteDatabase(path)
    assert count(database) == len(acknowledged)
    database.close()


def test_a_failed_sync_of_the_emptied_wal_fences(path: Path) -> None:
    """Power loss could bring back what was deleted for good."""

    def scenario() -> None:
        database = SqliteDatabase(path)
        create(database)
        insert(database, 1)
        other = os.open(path.with_name("other"), os.O_RDWR | os.O_CREAT)
        fail_syncs_of_this_thread(path.with_name("other"))
        os.close(other)  # the next file that is opened gets its number
        delete_for_good(database)
        with (
            database.transaction(),
            pytest.raises(UnavailableError, match=r"syncing .*-wal failed"),
        ):
            database.check_scrubbed()
        with pytest.raises(UnavailableError, match=r"syncing .*-wal failed"):
            insert(database, 2)
        assert count(database) == 0
        database.close()

    on_a_thread_of_its_own(scenario)


def test_what_a_reader_keeps_in_the_wal_is_told_and_gone_when_it_ends(path: Path) -> None:
    """A reader also must not make every later transaction wait."""
    database = SqliteDatabase(path)
    create(database)
    insert(database, 1, 5_000)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("begin")
    assert len(reader.execute("select * from t").fetchall()) == 1
    delete_for_good(database)
    began = time.monotonic()
    for a in range(2, 12):
        insert(database, a)
    assert time.monotonic() - began < BUSY_MS_MAX / 1e3, "no transaction waits for the reader"
    with (
        database.transaction(),
        pytest.raises(UnavailableError, match=r"catalog\.db-wal.*end that"),
    ):
        database.check_scrubbed()
    assert b"x" * 1_000 in Path(f"{path}-wal").read_bytes()
    reader.close()
    with database.transaction():
        database.scrub()
    with database.transaction():
        database.check_scrubbed()
    assert wal_bytes(path) == 0 and b"x" * 1_000 not in path.read_bytes()
    database.close()


def test_a_wal_that_a_full_disk_keeps_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = SqliteDatabase(path)
    create(database)

    def refuse() -> bool:
        raise DiskFull("no space left")

    monkeypatch.setattr(database, "_truncate_wal", refuse)
    delete_for_good(database)
    with database.transaction(), pytest.raises(DiskFull):
        database.check_scrubbed()
    monkeypatch.undo()
    delete_for_good(database)
    with database.transaction():
        database.check_scrubbed()
    database.close()


@pytest.mark.parametrize("is_new", [True, False])
def test_opening_on_a_disk_that_cannot_sync_is_refused(path: Path, is_new: bool) -> None:
    def scenario() -> None:
        if not is_new:
            SqliteDatabase(path).close()
        fail_syncs_of_this_thread()
        with pytest.raises(UnavailableError):
            SqliteDatabase(path)

    on_a_thread_of_its_own(scenario)


def test_opening_empties_the_wal_that_a_killed_process_left(path: Path) -> None:
    """Nothing new may be chained to frames that an earlier life possibly failed to sync."""
    program = (
        "import os, sys; from penstock.catalog.database.sqlite import SqliteDatabase\n"
        "database = SqliteDatabase(sys.argv[1])\n"
        "with database.transaction():\n"
        "    database.execute('create table t (a bigint primary key, b text)')\n"
        "    database.execute('insert into t (a, b) values (1, $1)', 'x')\n"
        "os._exit(0)"  # without closing
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert wal_bytes(path) > 0
    database = SqliteDatabase(path)
    assert wal_bytes(path) == 0
    assert count(database) == 1
    database.close()


def test_a_reader_stops_no_write_but_the_opening_of_an_unfinished_wal(path: Path) -> None:
    database = SqliteDatabase(path)
    create(database)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("begin")
    assert reader.execute("select * from t").fetchall() == []
    insert(database, 1)
    assert count(database) == 1
    database.close()
    with pytest.raises(UnavailableError, match="another program"):
        SqliteDatabase(path, busy_ms_max=0)
    reader.close()
    database = SqliteDatabase(path)
    assert count(database) == 1
    database.close()


@pytest.mark.over_a_second
def test_the_wal_stays_within_its_bound(path: Path) -> None:
    database = SqliteDatabase(path)
    create(database)
    largest = 0
    for a in range(4 * CHECKPOINT_COMMITS):
        insert(database, a)
        largest = max(largest, wal_bytes(path))
    assert largest <= WAL_BYTES_MAX
    with database.transaction():
        rows = [(a, "x" * 1_000) for a in range(10_000, 18_000)]
        database.execute_many("insert into t (a, b) values ($1, $2)", rows)
    assert wal_bytes(path) > WAL_BYTES_MAX  # a larger transaction needs more
    for a in range(20_000, 20_003):
        insert(database, a)
    assert wal_bytes(path) <= WAL_BYTES_MAX  # and gives it back
    database.close()


def test_a_file_that_is_no_database_is_corrupt_and_named(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database" * 100)
    with pytest.raises(CorruptError, match=r"catalog\.db is damaged.*backup"):
        SqliteDatabase(path)


def test_a_damaged_page_is_corrupt_and_stops_writes(path: Path) -> None:
    database = SqliteDatabase(path)
    create(database)
    for a in range(50):
        insert(database, a, 1_000)
    database.close()
    with open(path, "r+b") as file:
        file.seek(4_096)
        file.write(b"\xff" * (path.stat().st_size - 4_096))
    database = SqliteDatabase(path)
    with pytest.raises(CorruptError, match="damaged"):
        count(database)
    with pytest.raises(CorruptError, match="damaged"):
        insert(database, 1_000)
    database.close()


def test_a_missing_directory_is_unavailable_and_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"missing/catalog\.db"):
        SqliteDatabase(tmp_path / "missing" / "catalog.db")


def test_another_writer_makes_it_unavailable_not_broken(path: Path) -> None:
    database = SqliteDatabase(path, busy_ms_max=0)
    create(database)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(UnavailableError, match="locked by another program"):
        insert(database, 1)
    other.execute("rollback")
    other.close()
    insert(database, 1)
    assert count(database) == 1
    database.close()


def test_refusing_for_ever_does_not_lengthen_the_error(path: Path) -> None:
    def scenario() -> None:
        database = SqliteDatabase(path)
        create(database)
        fail_syncs_of_this_thread()
        lengths = []
        for _ in range(20):
            with pytest.raises(UnavailableError) as caught:
                insert(database, 1)
            lengths.append(len(caught.traceback))
        assert lengths[1] == lengths[-1]
        database.close()

    on_a_thread_of_its_own(scenario)
