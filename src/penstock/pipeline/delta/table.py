"""A Delta table that follows topics: Parquet files, and how far they go, in one commit.

How far it has followed each topic lies in the table itself, as transactions of the same commit that
adds its rows. So the table is its own checkpoint: whatever happens to the job, what the table
says it holds it holds exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Field, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import PrimitiveType

from penstock.core.naming.names import quoted
from penstock.model.errors import RefusedError, UnavailableError
from penstock.model.limits import MIB
from penstock.pipeline.delta.committing import commit, durable, sync_commits
from penstock.pipeline.delta.copying import copy_records
from penstock.pipeline.delta.files import PARTITION, NewFiles, write_day, write_files
from penstock.pipeline.delta.looking import transactions
from penstock.pipeline.source.offsets import Place, Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.source.origin import Origin, Range

SMALL_BYTES: Final = 16 * MIB  # a file below this is worth merging
SMALL_FILES_MAX: Final = 24  # of one date, before they are merged
MERGED_BYTES: Final = 128 * MIB

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
        pa.field("topic_id", pa.int64()),  # of which life of its topic a record is
        pa.field("epoch", pa.int64()),
    ]
)


_ADDED: Final = ("topic_id", "epoch")  # columns that older archives do not have


class ArchiveTable:
    """The table in a directory of this machine, made if it is missing."""

    def __init__(self, path: Path, schema: pa.Schema = SCHEMA, what: str = "an archive") -> None:
        self.path = path.absolute()
        self._schema = schema
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
            return create_table(self.path, self._schema, [PARTITION])
        columns = [field.name for field in table.schema().fields]
        added = _ADDED[: len(self._schema) - len(columns)] if self._schema is SCHEMA else ()
        if added and [*columns, *added] == self._schema.names:
            with durable(table, self.path):
                table.alter.add_columns([Field(name, PrimitiveType("long")) for name in added])
            return table
        if columns != self._schema.names:
            raise RefusedError(
                f"table {quoted(str(self.path))} has the columns {', '.join(columns)} and "
                f"{self._what} {', '.join(self._schema.names)}: use another table"
            )
        return table

    def place(self, topic: str) -> Place | None:
        """How far a topic was followed; None: nothing of it was."""
        offset, topic_id, epoch = map(self._table.transaction_version, transactions(topic))
        return None if offset is None else Place(offset, topic_id or 0, epoch or 0)

    def append(self, rows: DataFrame, places: Places, day: date | None = None) -> int:
        """Add rows, after which the topics are followed up to `places`; how many there were.

        With `day`, what all of them are believed to be of: they are written as they come, without
        a look at the day of each. UnavailableError when somebody else changed these places
        meanwhile: nothing was added.
        """
        new = None if day is None else write_day(rows, self.path, day)
        return self._add(new or write_files(rows, self.path, [PARTITION]), places)

    def copy(
        self, origin: Origin, ranges: Sequence[Range], places: Places, *, fails_on_loss: bool
    ) -> int:
        """Add the records of these ranges as they are, without Spark; else as `append`."""
        new = copy_records(origin, ranges, self.path, self._schema, fails_on_loss=fails_on_loss)
        return self._add(new, places)

    def _add(self, new: NewFiles, places: Places) -> int:
        marks = [
            Transaction(name, version)
            for topic, place in places.items()
            for name, version in zip(
                transactions(topic), (place.offset, place.topic_id, place.epoch), strict=True
            )
        ]
        try:
            commit(
                self._table, self.path, new.actions, "append", self._schema,
                partitions=[PARTITION], marks=marks,
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
                    with durable(self._table, self.path):
                        done = self._table.optimize.compact(
                            [(PARTITION, "=", of_date)], MERGED_BYTES
                        )
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
    with durable(create_table(path, table.schema), path):
        write_deltalake(str(path), table, mode="overwrite", schema_mode="overwrite")


def replace_rows(path: Path, rows: DataFrame | None, schema: pa.Schema) -> int:
    """Let a table hold what Spark computes and nothing else, in one commit; how many rows."""
    _check_table(path)
    table = create_table(path, schema)
    new = None if rows is None else write_files(rows, path.absolute())
    commit(table, path, () if new is None else new.actions, "overwrite", schema)
    return 0 if new is None else new.rows


def create_table(path: Path, schema: pa.Schema, partitions: Sequence[str] = ()) -> DeltaTable:
    """The table in a directory, made if it is missing."""
    table = DeltaTable.create(str(path), schema, "ignore", [*partitions])
    sync_commits(path, 0, 0)
    return table


def _check_table(path: Path) -> None:
    if path.exists() and not (path / "_delta_log").is_dir():
        raise RefusedError(f"{quoted(str(path))} is not a Delta table: give another directory")
