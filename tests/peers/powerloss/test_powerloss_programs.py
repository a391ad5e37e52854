"""Do correct programs survive every power loss in the laboratory, and are broken ones caught?"""

from __future__ import annotations

import functools
import sqlite3
import sys
from pathlib import Path

import pytest

from tests.powerloss import (
    DROP_ALL,
    Crash,
    Disk,
    RandomLoss,
    all_policies,
    crashes,
    ignoring,
    run_traced,
    sampled_points,
)
from tests.powerloss.toys import PRELUDE, Record, run_toy


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return functools.partial(run_toy, tmp_path / "data")


REPLACE = """
for n in range(1, 40):
    put('new', b'%06d' % n * 1000)
    sync('new')
    os.rename('new', 'value')
    sync()
    print(n, flush=True)
"""


def replacement_problem(crash: Crash) -> str | None:
    acked = int((crash.acked_lines() or ["0"])[-1])
    path = crash.directory / "value"
    content = path.read_bytes() if path.exists() else b"000000" * 1000
    if len(content) != 6000 or content != content[:6] * 1000 or not content[:6].isdigit():
        return f"{crash}: torn value"
    if int(content[:6]) < acked:
        return f"{crash}: {acked} was acked, {int(content[:6])} is there"
    return None


def test_atomic_replacement_holds_at_every_point_and_needs_both_of_its_syncs(
    record: Record, tmp_path: Path
) -> None:
    trace = record(REPLACE)
    everywhere = crashes(trace, range(len(trace) + 1), all_policies(range(5)), tmp_path)
    found = [replacement_problem(crash) for crash in everywhere]
    assert len(found) > 200
    assert not any(found)
    assert set(trace.sync_sites()) == {"fsync new", "fsync-dir ."}
    for site in trace.sync_sites():
        broken = crashes(trace, trace.worst_points(), [DROP_ALL], tmp_path, ignoring(site))
        assert any(map(replacement_problem, broken)), f"nothing lost without {site}"


def test_each_distinct_state_is_built_once_and_removed_afterwards(
    record: Record, tmp_path: Path
) -> None:
    trace = record("put('a', b'1'); sync('a'); sync(); os.write(1, b'acked')")
    found = []
    for crash in crashes(trace, range(len(trace) + 1), [DROP_ALL, DROP_ALL], tmp_path):
        found.append((sorted(path.name for path in crash.directory.iterdir()), crash.acked))
    assert found == [([], b""), (["a"], b""), (["a"], b"acked")]
    assert not list(tmp_path.glob("crash-*"))


ROWS = """
import sqlite3
db = sqlite3.connect('rows.db', isolation_level=None)
db.execute('pragma journal_mode = {journal}')
db.execute('pragma synchronous = {synchronous}')
db.execute('pragma wal_autocheckpoint = 20')
db.execute('create table if not exists rows (n integer primary key, filler blob)')
for n in range({count}):
    db.execute('insert into rows values (?, ?)', (n, os.urandom(700)))
    print(n, flush=True)
db.close()
"""


def rows_problem(crash: Crash) -> str | None:
    """Why this is not a sound database with every acknowledged row, or None."""
    db = sqlite3.connect(crash.directory / "rows.db")
    try:
        db.execute("pragma synchronous = off")  # what this check itself writes is thrown away
        (verdict,) = db.execute("pragma integrity_check").fetchone()
        made = db.execute("select count(*) from sqlite_schema").fetchone()[0]
        rows = [n for (n,) in db.execute("select n from rows order by n")] if made else []
    except sqlite3.DatabaseError as error:
        return f"{crash}: {error}"
    finally:
        db.close()
    acked = len(crash.acked_lines())
    if verdict != "ok" or rows != list(range(len(rows))) or len(rows) < acked:
        return f"{crash}: {verdict}, {acked} rows acked, found {rows}"
    return None


@pytest.mark.parametrize("journal", ["wal", "delete", "truncate"])
def test_sqlite_with_full_sync_loses_no_acked_row_at_any_point(
    journal: str, record: Record, tmp_path: Path
) -> None:
    synchronous = "full" if journal == "wal" else "extra"  # extra also syncs the removed journal
    trace = record(ROWS.format(journal=journal, synchronous=synchronous, count=60))
    assert len(trace.acked_lines(len(trace))) == 60
    points = sampled_points(trace, 200, seed=1)
    checked = 0
    for crash in crashes(trace, points, all_policies(range(3)), tmp_path):
        assert rows_problem(crash) is None
        checked += 1
    assert checked > 200


def test_sqlite_deleting_its_journal_may_lose_the_last_commit_unless_synchronous_is_extra(
    record: Record, tmp_path: Path
) -> None:
    """SQLite's own documentation of `synchronous=EXTRA` describes this loss; do we see it?"""
    trace = record(ROWS.format(journal="delete", synchronous="full", count=10))
    found = crashes(trace, range(len(trace) + 1), [DROP_ALL], tmp_path)
    problems = [problem for problem in map(rows_problem, found) if problem]
    assert problems
    assert all(": ok," in problem for problem in problems), "lost, never corrupt"


def test_sqlite_without_sync_loses_acked_rows(record: Record, tmp_path: Path) -> None:
    trace = record(ROWS.format(journal="wal", synchronous="off", count=30))
    found = crashes(trace, trace.worst_points(), [DROP_ALL], tmp_path)
    assert any(map(rows_problem, found))


@pytest.mark.parametrize("site", ["fdatasync rows.db-wal", "fdatasync rows.db", "fdatasync-dir ."])
def test_sqlite_loses_rows_when_one_class_of_its_syncs_is_taken_out(
    site: str, record: Record, tmp_path: Path
) -> None:
    trace = record(ROWS.format(journal="wal", synchronous="full", count=60))
    assert site in trace.sync_sites()
    found = crashes(trace, trace.worst_points(), [DROP_ALL], tmp_path, ignoring(site))
    assert any(map(rows_problem, found))


def test_second_crash_during_recovery_can_be_traced(record: Record, tmp_path: Path) -> None:
    first = record(ROWS.format(journal="wal", synchronous="full", count=30))
    acked = first.acked(len(first))
    crashed = tmp_path / "crashed-once"
    Disk(first).remains(first.worst_points()[-3], RandomLoss(3)).save(crashed)
    code = PRELUDE + "import sqlite3\ndb = sqlite3.connect('rows.db')\n"
    code += "db.execute('select count(*) from rows').fetchone(); db.close()"
    second = run_traced([sys.executable, "-c", code, str(crashed)], crashed)
    for again in crashes(second, range(len(second) + 1), [DROP_ALL, RandomLoss(1)], tmp_path):
        crash = Crash(again.at, again.policy, again.directory, acked)
        assert rows_problem(crash) is None
