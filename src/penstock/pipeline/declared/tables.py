"""Delta tables that a pipeline writes: each micro-batch exactly once.

Spark writes Parquet files; one commit adds them together with the number of the micro-batch, so a
micro-batch that is tried again after a crash changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError

from penstock.model.errors import RefusedError, UnavailableError
from penstock.pipeline.delta.committing import commit, durable
from penstock.pipeline.delta.files import write_files
from penstock.pipeline.delta.table import (
    MERGED_BYTES,
    SMALL_BYTES,
    SMALL_FILES_MAX,
    create_table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MERGE_EVERY: Final = 20  # commits


class PipelineTable:
    """The table of one sink, made if it is missing. Columns are those of the rows."""

    def __init__(
        self, path: Path, schema: StructType, partition_by: tuple[str, ...], *, replaces: bool
    ) -> None:
        self.path = path.absolute()
        self._partition_by = list(partition_by)
        self._replaces = replaces
        self._arrow = _arrow_schema(schema)
        self._commits = 0
        check_table(self.path, schema, partition_by)
        self._table = create_table(self.path, self._arrow, self._partition_by)

    def add(self, rows: DataFrame, query: str, number: int) -> int:
        """Add a micro-batch of a query, or replace what is there; how many rows were added.

        A number that was added before changes nothing.
        """
        self._table.update_incremental()
        done = self._table.transaction_version(query)
        if done is not None and done >= number:
            return 0
        new = write_files(rows, self.path, self._partition_by)
        if not new.rows and not self._replaces:
            new.discard()
            return 0
        try:
            commit(
                self._table, self.path, new.actions,
                "overwrite" if self._replaces else "append", self._arrow,
                partitions=self._partition_by, marks=[Transaction(query, number)],
            )  # fmt: skip
        except CommitFailedError as failed:
            new.discard()
            raise UnavailableError(
                f"another job writes to table {self.path} at the same time: {failed}"
            ) from failed
        self._commits += 1
        if self._commits % MERGE_EVERY == 0:
            self._merge_small_files()
        return new.rows

    def _merge_small_files(self) -> None:
        self._table.update_incremental()
        actions = pa.table(self._table.get_add_actions(flatten=True))
        small = [size for size in actions.column("size_bytes").to_pylist() if size < SMALL_BYTES]
        if len(small) > SMALL_FILES_MAX:
            with durable(self._table, self.path):
                self._table.optimize.compact(target_size=MERGED_BYTES)


def check_partitions(schema: StructType, partition_by: tuple[str, ...]) -> None:
    for key in partition_by:
        if key not in schema.names:
            columns = ", ".join(schema.names)
            raise RefusedError(
                f"partition_by: there is no column {key!r}; the columns are {columns}"
            )


def check_table(path: Path, schema: StructType, partition_by: tuple[str, ...]) -> None:
    """Reject rows that no table, or not this table, can store."""
    wanted = _fields(_delta_schema(schema))
    if not _is_table(path):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RefusedError(
                f"{str(path)!r} contains files but is not a Delta table: give another directory"
            )
        return
    table = DeltaTable(str(path))
    there = _fields(table.schema())
    if there != wanted:
        raise RefusedError(
            f"table {str(path)!r} has the columns {_listed(there)}, but the step returns "
            f"{_listed(wanted)}: change the step, or use another table"
        )
    if table.metadata().partition_columns != list(partition_by):
        parts = ", ".join(table.metadata().partition_columns) or "nothing"
        raise RefusedError(
            f"table {str(path)!r} is partitioned by {parts}: use the same partition_by"
        )


def _is_table(path: Path) -> bool:
    return DeltaTable.is_deltatable(str(path))


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except PySparkException as wrong:
        raise RefusedError(
            f"a table cannot store this type: {wrong}; cast the column in the step"
        ) from None
    # Whether a column may be NULL changes with the query: a table takes both.
    return pa.schema([pa.field(field.name, field.type) for field in found])


def _delta_schema(schema: StructType) -> Schema:
    for field in schema:
        if field.dataType.typeName() in ("variant", "void"):
            raise RefusedError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which a table cannot "
                "store: cast it in the step"
            )
    return Schema.from_arrow(_arrow_schema(schema))


def _fields(schema: Schema) -> list[tuple[str, str]]:
    """Names and types, whether or not they may be NULL."""
    fields = json.loads(schema.to_json())["fields"]
    return [(one["name"], json.dumps(_without_nullable(one["type"]))) for one in fields]


def _without_nullable(kind: Any) -> Any:
    if isinstance(kind, dict):
        plain = {key: _without_nullable(value) for key, value in kind.items()}
        for key in ("nullable", "containsNull", "valueContainsNull", "metadata"):
            plain.pop(key, None)
        return plain
    return [_without_nullable(one) for one in kind] if isinstance(kind, list) else kind


def _listed(fields: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind.strip(chr(34))}" for name, kind in fields)
