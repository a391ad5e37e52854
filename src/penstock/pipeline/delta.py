"""A Delta table that archives topics: Parquet files by Spark, and how far they go, in one commit.

How far each topic is archived lies in the table itself, as transactions of the same commit that
adds its records. So the table is its own checkpoint: whatever happens to the job, what the table
says it holds it holds exactly once.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from penstock.core.names import quoted
from penstock.model.errors import RefusedError, UnavailableError
from penstock.model.limits import MIB
from penstock.pipeline.offsets import Place, Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITION: Final = "date"
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
        pa.field(PARTITION, pa.date32()),
    ]
)


class ArchiveTable:
    """The table in a directory of this machine, made if it is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._table = self._open()

    def _open(self) -> DeltaTable:
        try:
            table = DeltaTable(str(self.path))
        except TableNotFoundError:
            if self.path.exists() and any(self.path.iterdir()):
                raise RefusedError(
                    f"{quoted(str(self.path))} holds files and is no Delta table: "
                    "name another directory"
                ) from None
            return DeltaTable.create(str(self.path), SCHEMA, "ignore", [PARTITION])
        columns = [field.name for field in table.schema().fields]
        if columns != SCHEMA.names:
            raise RefusedError(
                f"table {quoted(str(self.path))} has the columns {', '.join(columns)} and an "
                f"archive {', '.join(SCHEMA.names)}: name another table"
            )
        return table

    def place(self, topic: str) -> Place | None:
        """How far a topic is archived; None: nothing of it is."""
        offset, topic_id, epoch = map(self._table.transaction_version, _transactions(topic))
        return None if offset is None else Place(offset, topic_id or 0, epoch or 0)

    def append(self, rows: DataFrame, places: Places) -> int:
        """Add rows, after which the topics are archived up to `places`; how many there were.

        UnavailableError when somebody else changed these places meanwhile: nothing was added.
        """
        directory = self.path / f"rows-{uuid.uuid4().hex}"
        (
            rows.write.partitionBy(PARTITION)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(str(directory))
        )
        added = [self._added(path) for path in _written(directory)]
        marks = [
            Transaction(name, version)
            for topic, place in places.items()
            for name, version in zip(
                _transactions(topic), (place.offset, place.topic_id, place.epoch), strict=True
            )
        ]
        try:
            self._table.create_write_transaction(
                [*added], "append", SCHEMA, [PARTITION],
                commit_properties=CommitProperties(app_transactions=marks),
            )  # fmt: skip
        except CommitFailedError as failed:
            shutil.rmtree(directory)
            self._table.update_incremental()
            raise UnavailableError(f"another job writes this table: {failed}") from failed
        return sum(json.loads(action.stats)["numRecords"] for action in added)

    def merge_small_files(self) -> int:
        """Merge the files of dates that have many small ones; how many files went."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        small: Counter[str] = Counter()
        for date, size in zip(
            actions.column(f"partition.{PARTITION}").to_pylist(),
            actions.column("size_bytes").to_pylist(),
            strict=True,
        ):
            small[str(date)] += size < SMALL_BYTES
        merged = 0
        for date, count in small.items():
            if count > SMALL_FILES_MAX:
                done = self._table.optimize.compact([(PARTITION, "=", date)], MERGED_BYTES)
                merged += int(done["numFilesRemoved"])
        return merged

    def _added(self, path: Path) -> AddAction:
        """A file as the table's log names it."""
        facts = pq.read_metadata(path)
        column = SCHEMA.get_field_index("offset")
        groups = [facts.row_group(n).column(column).statistics for n in range(facts.num_row_groups)]
        stats = {
            "numRecords": facts.num_rows,
            "minValues": {"offset": min(group.min for group in groups)},
            "maxValues": {"offset": max(group.max for group in groups)},
            "nullCount": {"offset": 0},
        }
        _, _, date = path.parent.name.partition("=")
        found = path.stat()
        return AddAction(
            str(path.relative_to(self.path)),
            found.st_size,
            {PARTITION: unquote(date)},
            int(found.st_mtime * 1000),
            True,
            json.dumps(stats),
        )


def _transactions(topic: str) -> tuple[str, str, str]:
    """Under which names the table keeps a topic's offset, id and epoch."""
    return f"penstock offset {topic}", f"penstock id {topic}", f"penstock epoch {topic}"


def _written(directory: Path) -> Iterator[Path]:
    """The data files that Spark wrote, made durable; checksum files beside them are removed."""
    for extra in directory.rglob(".*.crc"):
        extra.unlink()
    for path in sorted(directory.rglob("*.parquet")):
        _sync(path)
        yield path
    for folder in [*directory.glob("*/"), directory, directory.parent]:
        _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
