"""A Delta table that follows topics: Parquet files by Spark, and how far they go, in one commit.

How far it has followed each topic lies in the table itself, as transactions of the same commit that
adds its rows. So the table is its own checkpoint: whatever happens to the job, what the table
says it holds it holds exactly once.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from penstock.core.names import quoted
from penstock.model.errors import RefusedError, UnavailableError
from penstock.model.limits import MIB
from penstock.pipeline.source.offsets import Place, Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

PARTITION: Final = "date"
_WRITING: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what Delta tables hold
    # So many days at once are written as they come; else Spark sorts all rows by day first.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
}
SMALL_BYTES: Final = 16 * MIB  # a file below this is worth merging
SMALL_FILES_MAX: Final = 24  # of one date, before they are merged
MERGED_BYTES: Final = 128 * MIB
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"  # what Spark calls the directory of NULL

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("name", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("payload", pa.binary()),
        pa.field("publisher", pa.string()),
        pa.field("expires_at", pa.timestamp("us", tz="UTC")),
        pa.field(PARTITION, pa.date32()),
    ]
)


class ArchiveTable:
    """The table in a directory of this machine, made if it is missing."""

    def __init__(self, path: Path, schema: pa.Schema = SCHEMA, what: str = "an archive") -> None:
        self.path = path.absolute()
        self._schema = schema  # its last column is the date
        self._what = what
        self._table = self._open()

    def _open(self) -> DeltaTable:
        try:
            table = DeltaTable(str(self.path))
        except TableNotFoundError:
            if self.path.exists() and any(self.path.iterdir()):
                raise RefusedError(
                    f"{quoted(str(self.path))} contains files but is not a Delta table: give "
                    "another directory"
                ) from None
            return DeltaTable.create(str(self.path), self._schema, "ignore", [PARTITION])
        columns = [field.name for field in table.schema().fields]
        if columns != self._schema.names:
            raise RefusedError(
                f"table {quoted(str(self.path))} has the columns {', '.join(columns)} and "
                f"{self._what} {', '.join(self._schema.names)}: use another table"
            )
        return table

    def place(self, topic: str) -> Place | None:
        """How far a topic was followed; None: nothing of it was."""
        offset, topic_id, epoch = map(self._table.transaction_version, _transactions(topic))
        return None if offset is None else Place(offset, topic_id or 0, epoch or 0)

    def append(self, rows: DataFrame, places: Places, day: date | None = None) -> int:
        """Add rows, after which the topics are followed up to `places`; how many there were.

        With `day`, what all of them are believed to be of: they are written as they come, without
        a look at the day of each. UnavailableError when somebody else changed these places
        meanwhile: nothing was added.
        """
        new = None if day is None else write_day(rows, self.path, day)
        if new is None:
            new = write_files(rows, self.path, [PARTITION])
        marks = [
            Transaction(name, version)
            for topic, place in places.items()
            for name, version in zip(
                _transactions(topic), (place.offset, place.topic_id, place.epoch), strict=True
            )
        ]
        try:
            self._table.create_write_transaction(
                [*new.actions], "append", self._schema, [PARTITION],
                commit_properties=CommitProperties(app_transactions=marks),
            )  # fmt: skip
        except CommitFailedError as failed:
            new.discard()
            self._table.update_incremental()
            raise UnavailableError(f"another job writes this table: {failed}") from failed
        return new.rows

    def merge_small_files(self) -> int:
        """Merge the files of dates that have many small ones; how many files went."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        small: Counter[str] = Counter()
        for of_date, size in zip(
            actions.column(f"partition.{PARTITION}").to_pylist(),
            actions.column("size_bytes").to_pylist(),
            strict=True,
        ):
            small[str(of_date)] += size < SMALL_BYTES
        merged = 0
        for of_date, count in small.items():
            if count > SMALL_FILES_MAX:
                try:
                    done = self._table.optimize.compact([(PARTITION, "=", of_date)], MERGED_BYTES)
                except CommitFailedError:  # somebody cleans the table: another time
                    self._table.update_incremental()
                    break
                merged += int(done["numFilesRemoved"])
        return merged


def replace_table(path: Path, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Let a small table hold these rows and no others, in one commit."""
    _check_table(path)
    kinds = [pa.type_for_alias(kind) for kind in columns.values()]
    arrays = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    table = pa.table(arrays, list(columns))
    write_deltalake(str(path), table, mode="overwrite", schema_mode="overwrite")


def replace_rows(path: Path, rows: DataFrame | None, schema: pa.Schema) -> int:
    """Let a table hold what Spark computes and nothing else, in one commit; how many rows."""
    _check_table(path)
    table = DeltaTable.create(str(path), schema, "ignore")
    if rows is None:
        table.create_write_transaction([], "overwrite", schema)
        return 0
    new = write_files(rows, path.absolute())
    table.create_write_transaction([*new.actions], "overwrite", schema)
    return new.rows


def _check_table(path: Path) -> None:
    if path.exists() and not (path / "_delta_log").is_dir():
        raise RefusedError(f"{quoted(str(path))} is not a Delta table: give another directory")


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


def write_files(rows: DataFrame, root: Path, partitions: Sequence[str] = ()) -> NewFiles:
    """Let Spark write rows into files of the table in `root`, and make them durable."""
    directory = root / f"rows-{uuid.uuid4().hex}"
    with _settings_of_writing(rows.sparkSession):
        writer = rows.write.partitionBy(*partitions) if partitions else rows.write
        _write_parquet(writer, directory)
    return NewFiles(directory, [_add_action(root, path) for path in _written(directory)])


def write_day(rows: DataFrame, root: Path, day: date) -> NewFiles | None:
    """As `write_files`, all rows as those of one day; None, and no files, when one is not."""
    directory = root / f"rows-{uuid.uuid4().hex}"
    with _settings_of_writing(rows.sparkSession):
        _write_parquet(rows.drop(PARTITION).write, directory / f"{PARTITION}={day.isoformat()}")
    facts = {path: pq.read_metadata(path) for path in _written(directory)}
    if not all(_is_of(day, found) for found in facts.values()):
        shutil.rmtree(directory)
        return None
    for path, found in facts.items():
        if not found.num_rows:  # a task without rows writes a file, too
            path.unlink()
    kept = [path for path, found in facts.items() if found.num_rows]
    return NewFiles(directory, [_add_action(root, path) for path in kept])


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


def _add_action(root: Path, path: Path) -> AddAction:
    """A file of the table in `root`, as the table's log names it."""
    facts = pq.read_metadata(path)
    stats: dict[str, Any] = {"numRecords": facts.num_rows} | _offsets(facts)
    parts = [part.partition("=") for part in path.relative_to(root).parts[1:-1]]
    found = path.stat()
    return AddAction(
        str(path.relative_to(root)),
        found.st_size,
        {unquote(key): _partition_value(value) for key, _, value in parts},
        int(found.st_mtime * 1000),
        True,
        json.dumps(stats),
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


def _transactions(topic: str) -> tuple[str, str, str]:
    """Under which names the table keeps a topic's offset, id and epoch."""
    return f"penstock offset {topic}", f"penstock id {topic}", f"penstock epoch {topic}"


def _written(directory: Path) -> Iterator[Path]:
    """The data files that Spark wrote, made durable; their checksum files are removed."""
    for extra in directory.rglob(".*.crc"):
        extra.unlink()
    for path in sorted(directory.rglob("*.parquet")):
        _sync(path)
        yield path
    for folder in [*directory.glob("**/"), directory.parent]:
        _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
