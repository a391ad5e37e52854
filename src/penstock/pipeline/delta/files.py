"""Parquet files of a Delta table that no commit names yet: written by Spark, and made durable."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from penstock.pipeline.delta.committing import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

PARTITION: Final = "date"
_WRITING: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what Delta tables hold
    # So many days at once are written as they come; else Spark sorts all rows by day first.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
}
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"  # what Spark calls the directory of NULL


@dataclass(frozen=True, slots=True)
class NewFiles:
    """Files in a directory of the table that nothing names yet."""

    directory: Path
    actions: list[AddAction]

    @property
    def rows(self) -> int:
        return sum(json.loads(action.stats)["numRecords"] for action in self.actions)

    def discard(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def new_directory(root: Path) -> Path:
    """A name that no other job uses: whoever is killed leaves files that nothing names."""
    return root / f"rows-{uuid.uuid4().hex}"


def write_files(rows: DataFrame, root: Path, partitions: Sequence[str] = ()) -> NewFiles:
    """Let Spark write rows into files of the table in `root`, and make them durable."""
    directory = new_directory(root)
    with _settings_of_writing(rows.sparkSession):
        writer = rows.write.partitionBy(*partitions) if partitions else rows.write
        _write_parquet(writer, directory)
    return NewFiles(directory, [add_action(root, path) for path in written(directory)])


def write_day(rows: DataFrame, root: Path, day: date) -> NewFiles | None:
    """As `write_files`, all rows as those of one day; None, and no files, when one is not."""
    directory = new_directory(root)
    with _settings_of_writing(rows.sparkSession):
        _write_parquet(rows.drop(PARTITION).write, directory / f"{PARTITION}={day.isoformat()}")
    facts = {path: pq.read_metadata(path) for path in written(directory)}
    if not all(_is_of(day, found) for found in facts.values()):
        shutil.rmtree(directory)
        return None
    for path, found in facts.items():
        if not found.num_rows:  # a task without rows writes a file, too
            path.unlink()
    kept = [path for path, found in facts.items() if found.num_rows]
    return NewFiles(directory, [add_action(root, path) for path in kept])


def _is_of(day: date, facts: pq.FileMetaData) -> bool:
    """Whether all rows of a file were received on that day, as its statistics prove."""
    column = facts.schema.names.index("timestamp")
    groups = [facts.row_group(n).column(column).statistics for n in range(facts.num_row_groups)]
    return all(
        group is not None
        and group.has_min_max
        and group.min.astimezone(UTC).date() == day == group.max.astimezone(UTC).date()
        for group in groups
    )


def _write_parquet(writer: DataFrameWriter, directory: Path) -> None:
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(
        str(directory)
    )


def add_action(root: Path, path: Path) -> AddAction:
    """A file of the table in `root`, as the table's log names it."""
    facts = pq.read_metadata(path)
    stats: dict[str, Any] = {"numRecords": facts.num_rows} | _offsets(facts)
    parts = [part.partition("=") for part in path.relative_to(root).parts[1:-1]]
    found = path.stat()
    return AddAction(
        path=str(path.relative_to(root)),
        size=found.st_size,
        partition_values={unquote(key): _partition_value(value) for key, _, value in parts},
        modification_time=int(found.st_mtime * 1000),
        data_change=True,
        stats=json.dumps(stats),
    )


def _offsets(facts: pq.FileMetaData) -> dict[str, Any]:
    """Between which offsets the rows of a file are, where a column says that of every row."""
    if "offset" not in facts.schema.names:
        return {}
    column = facts.schema.names.index("offset")
    groups = [facts.row_group(n).column(column).statistics for n in range(facts.num_row_groups)]
    if not groups or not all(
        group and group.has_min_max and group.null_count == 0 and isinstance(group.min, int)
        for group in groups
    ):
        return {}
    return {
        "minValues": {"offset": min(group.min for group in groups)},
        "maxValues": {"offset": max(group.max for group in groups)},
        "nullCount": {"offset": 0},
    }


def _partition_value(text: str) -> str | None:
    return None if text == _NULL_PARTITION else unquote(text)


def written(directory: Path) -> Iterator[Path]:
    """The data files in a new directory, made durable; Spark's checksum files are removed."""
    for extra in directory.rglob(".*.crc"):
        extra.unlink()
    for path in sorted(directory.rglob("*.parquet")):
        sync(path)
        yield path
    for folder in [*directory.glob("**/"), directory.parent]:
        sync(folder)


@contextmanager
def _settings_of_writing(spark: SparkSession) -> Iterator[None]:
    """Settings under which tables are written; those of the session come back."""
    before = {key: spark.conf.get(key) for key in _WRITING}
    for key, value in _WRITING.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is not None:
                spark.conf.set(key, old)
