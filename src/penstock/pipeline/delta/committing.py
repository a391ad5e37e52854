"""Commits to Delta tables in a directory of this machine: durable when they return, and seen.

delta-rs syncs nothing, and a table object does not see its own commit: it would go on planning from
the version before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

LOG: Final = "_delta_log"
VERSION_DIGITS: Final = 20  # of a version in the names of its files


def commit(
    table: DeltaTable,
    root: Path,
    actions: Sequence[AddAction | RemoveAction],
    mode: str,
    schema: Any,
    *,
    partitions: Sequence[str] = (),
    marks: Sequence[Transaction] = (),
) -> None:
    """Change the table in `root` in one commit; CommitFailedError when somebody was faster."""
    with durable(table, root):
        table.create_write_transaction(
            [*actions], mode, schema, [*partitions],
            commit_properties=CommitProperties(app_transactions=[*marks]),
        )  # fmt: skip


@contextmanager
def durable(table: DeltaTable, root: Path) -> Iterator[None]:
    """What is committed inside is on the disk afterwards, and `table` is at the newest version."""
    before = table.version()
    yield
    table.update_incremental()
    sync_commits(root, before + 1, table.version())


def sync_commits(root: Path, first: int, last: int) -> None:
    """Sync the commits from `first` to `last` of the table in `root`, and the files they add."""
    folders = {root / LOG, root}
    for version in range(first, last + 1):
        for path in _added(root / LOG / f"{version:0{VERSION_DIGITS}}.json"):
            with suppress(FileNotFoundError):  # a later commit replaced it, and it was removed
                sync(path)
                folders.update(parent for parent in path.parents if parent.is_relative_to(root))
    for file in (root / LOG).iterdir():  # commits, and what delta-rs writes along with some
        is_new = file.name[:VERSION_DIGITS] >= f"{first:0{VERSION_DIGITS}}"
        if file.is_file() and (is_new or not file.name[0].isdigit()):
            with suppress(FileNotFoundError):
                sync(file)
    for folder in folders:
        sync(folder)


def all_named(table: DeltaTable, root: Path) -> set[str]:
    """The paths of all data files that any version of the table in `root` still names."""
    table.update_incremental()
    actions = pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()
    found = {unquote(path) for path in actions}
    for file in (root / LOG).glob("*.json"):
        with suppress(FileNotFoundError):
            for line in file.read_bytes().splitlines():
                action = json.loads(line)
                for kind in ("add", "remove"):
                    if kind in action:
                        found.add(unquote(action[kind]["path"]))
    return found


def _added(file: Path) -> Iterator[Path]:
    """The data files that a commit adds."""
    if not file.exists():  # a checkpoint replaced it long ago
        return
    for line in file.read_bytes().splitlines():
        added = json.loads(line).get("add")
        if added is not None:
            yield file.parent.parent / unquote(added["path"])


def sync(path: Path) -> None:
    """Make a file, or the entries of a directory, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
