"""Power loss at any moment while one table or a catalog erases: is what is gone for good gone?"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.log.history.manifest import Manifest, open_manifest
from penstock.log.history.storage import DirectoryStorage
from penstock.log.history.work import Tables
from penstock.model.errors import PenstockError
from tests.history.test_erasing import files_with
from tests.peers.powerloss import erasing_child
from tests.peers.powerloss.erasing_child import RECORDS, SECRET, NoLock, is_alice, order, payload
from tests.powerloss import DROP_ALL, Crash, Trace, all_policies, crashes, ignoring, run_traced

EVERY_DISK = all_policies(range(3))


@pytest.fixture
def workdir() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def record(program: str, root: Path) -> Trace:
    return run_traced([sys.executable, str(erasing_child.__file__), program, str(root)], root)


class Told:
    """What the acknowledgements up to a crash promise."""

    def __init__(self, crash: Crash) -> None:
        lines = [json.loads(line) for line in crash.acked_lines()]
        self.end = max([rest[0] for what, *rest in lines if what == "stored"], default=0)
        self.is_erased = ["erased"] in lines


def table_problem(crash: Crash) -> str:
    """What is wrong with the table as it is found, and after the order is given again."""
    told, root = Told(crash), crash.directory
    if told.is_erased and (left := files_with(root, SECRET)):
        return f"{crash}: said to be erased, and still in {left}"
    storage = DirectoryStorage(root / "table")
    storage.repair_log()
    try:
        manifest = open_manifest(storage)
        if manifest is None:
            return f"{crash}: the table is gone" if told.end else ""
        if problem := rows_problem(manifest, told):
            return f"{crash}: {problem}"
        Tables(NoLock()).perform(order(root))
    except PenstockError as error:
        return f"{crash}: {error}"
    left = files_with(root, SECRET)
    return f"{crash}: erased once more, and still in {left}" if left else ""


def rows_problem(manifest: Manifest, told: Told) -> str:
    """Each record once, in order; those of Alice as stored, or erased."""
    columns = ["offset", "kind", "payload"]
    files = [manifest.open_file(listed) for listed in manifest.files]
    found = [row for file in files for row in file.parquet.read(columns).to_pylist()]
    if [row["offset"] for row in found] != list(range(len(found))) or len(found) < told.end:
        return f"{len(found)} rows, told {told.end}"
    for row in found:
        number = row["offset"]
        possible = [] if told.is_erased and is_alice(number) else [("bytes", payload(number))]
        possible += [("erased", b"")] if is_alice(number) else []
        if (row["kind"], row["payload"]) not in possible:
            return f"offset {number} is {row['kind']!r} and holds {row['payload'][:20]!r}"
    return ""


def catalog_problem(crash: Crash) -> str:
    """What is wrong with the catalog as it is found, and after it is opened."""
    told, root = Told(crash), crash.directory
    if told.is_erased and (left := files_with(root, SECRET)):
        return f"{crash}: said to be erased, and still in {left}"
    try:
        database = SqliteDatabase(root / "catalog.db")
        with database.transaction():
            has_table = database.fetch("select 1 from sqlite_schema where name = 'kept'")
            rows = database.fetch("select number, payload from kept") if has_table else []
        database.close()
    except PenstockError as error:
        return f"{crash}: {error}"
    if any(found != payload(number) for number, found in rows):
        return f"{crash}: {rows}"
    numbers = {number for number, _ in rows}
    may_be_erased = {number for number in range(RECORDS) if is_alice(number)}
    stored = {number for number in range(told.end) if number < RECORDS or not is_alice(number)}
    if not stored - may_be_erased <= numbers or (told.is_erased and numbers & may_be_erased):
        return f"{crash}: found {sorted(numbers)}, told {told.end}"
    left = files_with(root, SECRET)
    return f"{crash}: opened, and still in {left}" if left and not numbers & may_be_erased else ""


Problem = Callable[[Crash], str]
PROGRAMS: list[tuple[str, Problem]] = [("table", table_problem), ("catalog", catalog_problem)]


@pytest.mark.parametrize(("program", "problem"), PROGRAMS)
def test_what_was_said_to_be_erased_is_gone_wherever_the_power_fails(
    program: str, problem: Problem, tmp_path: Path, workdir: Path
) -> None:
    trace = record(program, tmp_path / "root")
    checked = 0
    for crash in crashes(trace, range(len(trace) + 1), EVERY_DISK, workdir):
        assert problem(crash) == ""
        checked += 1
    assert checked > len(trace) // 2


def test_erasing_from_a_table_needs_each_of_its_syncs(tmp_path: Path, workdir: Path) -> None:
    trace = record("table", tmp_path / "root")
    points = trace.worst_points()
    needless = [
        site
        for site in trace.sync_sites()
        if not any(map(table_problem, crashes(trace, points, [DROP_ALL], workdir, ignoring(site))))
    ]
    assert needless == []
