"""Cleaning a Delta table: rows that are over go, small files are merged, old files are removed.

Only files that hold something to drop are written anew, and each commit replaces some files by
others in one step: readers see the table before or after, and a job that was killed leaves
files that nobody names and the next one removes. Others may add to the table meanwhile: what is
younger than the age of a vacuum is theirs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction

from penstock.core.naming.names import quoted
from penstock.log.history.orders import TableFacts
from penstock.model.clock import SystemClock
from penstock.model.errors import InvalidSetting, RefusedError, UnavailableError
from penstock.model.limits import MIB
from penstock.pipeline.delta.committing import all_named, commit, durable
from penstock.pipeline.delta.files import PARTITION, write_files
from penstock.pipeline.delta.rows import FILE, open_table, path_of, rows_of, rows_with_file
from penstock.pipeline.delta.table import MERGED_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.jobs import LateSession

T = TypeVar("T")

REWRITE_BYTES_MAX: Final = 2_048 * MIB  # of files replaced in one commit
RACES_MAX: Final = 5  # commits in a row that another job overtook
VACUUM_S_MIN: Final = 3_600.0  # a job may be writing files that no commit names yet


@dataclass(frozen=True, slots=True)
class Keep:
    """Which rows stay. Times are µs since 1970, UTC."""

    since_us: int | None = None  # those stamped at or after it
    unexpired_at_us: int | None = None  # those that expire after it, or never
    is_latest: bool = False  # of each name in its topic, only the newest

    def columns(self) -> list[str]:
        """What a table must have for it."""
        found = ["timestamp"] if self.since_us is not None else []
        found += ["expires_at"] if self.unexpired_at_us is not None else []
        return found + (["topic", "name", "offset"] if self.is_latest else [])

    def condition(self) -> str:
        """In SQL; rows whose time is not known stay."""
        parts = ["TRUE"]
        if self.since_us is not None:
            parts.append(f"coalesce(timestamp >= timestamp_micros({self.since_us}), TRUE)")
        if self.unexpired_at_us is not None:
            now = f"timestamp_micros({self.unexpired_at_us})"
            parts.append(f"coalesce(expires_at > {now}, TRUE)")
        return " AND ".join(parts)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that the table names."""

    path: str  # in the table
    size: int
    partition: dict[str, str | None]


class CleanTable:
    """A Delta table in a directory of this machine."""

    def __init__(self, session: LateSession, path: Path) -> None:
        self.path = path.absolute()
        self.commits = 0
        self._session = session
        self._table = open_table(path)
        self._check_no_history()
        self._names = [field.name for field in self._table.schema().fields]
        self._partitions = self._table.metadata().partition_columns

    def _check_no_history(self) -> None:
        """Files of a history go on without a hole, and only the broker may change them."""
        try:
            facts = msgspec.json.decode(self._table.metadata().description or "", type=TableFacts)
        except msgspec.DecodeError:
            return
        raise RefusedError(
            f"table {quoted(str(self.path))} is the history of topic {quoted(facts.topic)}, which "
            "only its broker changes: set history_age of the topic to remove old records"
        )

    def has(self, column: str) -> bool:
        return column in self._names

    def drop(self, keep: Keep) -> tuple[int, int]:
        """Drop all other rows; how many went, and how many are left."""
        missing = [name for name in keep.columns() if name not in self._names]
        if missing:
            raise RefusedError(
                f"table {quoted(str(self.path))} has no column {missing[0]!r}: it has "
                f"{', '.join(self._names)}"
            )
        if self._partitions not in ([], [PARTITION]):
            raise RefusedError(
                f"table {quoted(str(self.path))} is partitioned by {', '.join(self._partitions)}: "
                f"rows can be removed only from tables that are partitioned by {PARTITION} or not "
                "partitioned"
            )
        return self._again_if_overtaken(partial(self._drop, keep))

    def merge(self) -> int:
        """Merge small files; how many went."""
        return self._again_if_overtaken(self._merge)

    def _merge(self) -> int:
        with durable(self._table, self.path):
            done = self._table.optimize.compact(target_size=MERGED_BYTES)
        removed = int(done["numFilesRemoved"])
        self.commits += removed > 0
        return removed

    def _again_if_overtaken(self, work: Callable[[], T]) -> T:
        """Do work on the newest version; anew when somebody else changed the same files."""
        for _ in range(RACES_MAX):
            self._table.update_incremental()
            with suppress(CommitFailedError):
                return work()
        raise UnavailableError(
            f"another job keeps changing table {quoted(str(self.path))}: run one job at a time"
        )

    def vacuum(self, older_s: float) -> int:
        """Remove files that no commit of this age or younger names; how many."""
        if older_s < VACUUM_S_MIN:
            raise InvalidSetting(
                f"vacuum of {older_s:g} s: files younger than {VACUUM_S_MIN:g} s may belong to a "
                "job that is writing them; keep them for at least 1h"
            )
        self._table.update_incremental()
        folders = self._folders(older_s)  # before files go, which changes their directories
        gone = self._table.vacuum(
            int(older_s / 3_600), dry_run=False, enforce_retention_duration=False, full=True
        )
        orphans = self._remove_orphans()
        for folder in folders:
            with suppress(OSError):  # it is not empty, or gone already
                folder.rmdir()
        return len(gone) + orphans

    def _remove_orphans(self) -> int:
        """Remove what killed jobs wrote and no commit ever named; how many files.

        Nobody reads them, at any version of the table, so they need not wait for a vacuum; only as
        long as their job may still be at work.
        """
        until_s = SystemClock().now_us() / 1e6 - VACUUM_S_MIN
        written = {folder: _all_below(folder) for folder in self.path.glob("rows-*")}
        # After the look at the files: a job may commit meanwhile.
        named = {self.path / name for name in all_named(self._table, self.path)}
        removed = 0
        for folder, below in written.items():
            if named.intersection(below):
                continue
            with suppress(FileNotFoundError):  # its job gave it up
                newest_s = max(path.stat().st_mtime for path in (folder, *below))
                if newest_s < until_s:
                    removed += sum(path.is_file() for path in below)
                    shutil.rmtree(folder)
        return removed

    def _folders(self, older_s: float) -> list[Path]:
        """Directories of data files that nobody has changed for so long, the deepest first."""
        until_s = SystemClock().now_us() / 1e6 - older_s
        found = []
        for name, below, _ in os.walk(self.path):  # passes over what vanishes meanwhile
            below[:] = [one for one in below if one.startswith(("rows-", f"{PARTITION}="))]
            for folder in (Path(name, one) for one in below):
                with suppress(FileNotFoundError):
                    if folder.stat().st_mtime < until_s:
                        found.append(folder)
        return found[::-1]

    # Dropping

    def _drop(self, keep: Keep) -> tuple[int, int]:
        files = {one.path: one for one in self._files()}
        if not files:
            return 0, 0
        dropped = left = 0
        changed: list[DataFile] = []
        for path, total, kept in self._counts(list(files), keep):
            dropped += total - kept
            left += kept
            if kept < total:
                changed.append(files[path])
        for group in _groups(changed):
            self._replace(group, keep)
        return dropped, left

    def _files(self) -> list[DataFile]:
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [
            DataFile(
                unquote(one["path"]),
                one["size_bytes"],
                {name: _text(one.get(f"partition.{name}")) for name in self._partitions},
            )
            for one in actions
        ]

    def _kept(self, files: list[str], keep: Keep) -> DataFrame:
        """The rows of these files, with a column that says whether each stays."""
        from pyspark.sql.functions import col, expr, struct
        from pyspark.sql.functions import max as newest

        rows = rows_with_file(self._session.get(), self._table, self.path, files)
        stays = expr(keep.condition())
        if keep.is_latest:
            # Offsets of a topic that was deleted and created anew begin at 0 once more.
            age = struct(*[name for name in ("timestamp", "offset") if self.has(name)])
            every = rows_of(self._session.get(), self._table, self.path)
            latest = every.groupBy("topic", "name").agg(newest(age).alias("__latest"))
            rows = rows.join(latest, ["topic", "name"], "left")
            stays = stays & age.eqNullSafe(col("__latest"))
        return rows.withColumn("__stays", stays)

    def _counts(self, files: list[str], keep: Keep) -> list[tuple[str, int, int]]:
        """Of each file: its rows, and how many of them stay."""
        from pyspark.sql.functions import count, count_if

        rows = self._kept(files, keep).groupBy(FILE).agg(count("*"), count_if("__stays"))
        return [(path_of(self.path, file), total, kept) for file, total, kept in rows.collect()]

    def _replace(self, group: list[DataFile], keep: Keep) -> None:
        rows = self._kept([one.path for one in group], keep).where("__stays")
        new = write_files(rows.select(*self._names), self.path, self._partitions)
        now_ms = SystemClock().now_us() // 1_000
        removed = [RemoveAction(one.path, True, now_ms, one.size, one.partition) for one in group]
        try:
            commit(
                self._table, self.path, [*new.actions, *removed], "append", self._table.schema(),
                partitions=self._partitions,
            )  # fmt: skip
        except CommitFailedError:
            new.discard()
            raise
        self.commits += 1


def _all_below(folder: Path) -> list[Path]:
    """Files and directories; what vanishes meanwhile is passed over."""
    return [Path(at, name) for at, below, files in os.walk(folder) for name in (*below, *files)]


def _groups(files: list[DataFile]) -> Iterator[list[DataFile]]:
    """The files in portions for one commit each; at least one file each."""
    group: list[DataFile] = []
    size = 0
    for one in files:
        if group and size + one.size > REWRITE_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(one)
        size += one.size
    if group:
        yield group


def _text(value: object) -> str | None:
    return None if value is None else str(value)
