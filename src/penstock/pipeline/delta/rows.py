"""The rows of a Delta table as Spark reads them: as its log has them, not as its files look.

Values of partition columns are not in the files. The log knows them for each file, and they are
taken from there, never from a file's path or from other columns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.model.errors import RefusedError
from penstock.pipeline.delta.parquet import File, read_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FILE: Final = "__file"  # a column that says of which file a row is
# What Spark's reader of Parquet files would get wrong.
_UNREADABLE: Final = ("deletionVectors", "columnMapping")
_COLUMN_MAPPING: Final = 2  # the version of readers that brought it


def open_table(path: Path) -> DeltaTable:
    """The table in a directory; RefusedError unless there is one whose files can be read."""
    try:
        table = DeltaTable(str(path))
    except TableNotFoundError:
        raise RefusedError(
            f"{str(path)!r} is not a Delta table: give the directory of one"
        ) from None
    protocol = table.protocol()
    features = set(protocol.reader_features or ()) & set(_UNREADABLE)
    if protocol.min_reader_version == _COLUMN_MAPPING or features:
        needed = ", ".join(sorted(features)) or "columnMapping"
        raise RefusedError(
            f"table {str(path)!r} needs a reader that supports {needed}: rewrite the table "
            "without these features"
        )
    return table


def read_delta(spark: SparkSession, path: str | Path) -> DataFrame:
    """The rows of the Delta table in a directory, as it is now; Spark reads its files itself."""
    return rows_of(spark, open_table(Path(path)), Path(path))


def rows_of(
    spark: SparkSession, table: DeltaTable, root: Path, files: Collection[str] | None = None
) -> DataFrame:
    """The rows of the version that was opened in `root`; of `files` only, if given.

    Files are named by their path in the table.
    """
    return _rows(spark, table, root, files, has_file=False)


def rows_with_file(
    spark: SparkSession, table: DeltaTable, root: Path, files: Collection[str] | None = None
) -> DataFrame:
    """As `rows_of`, with the column FILE, which `path_of` understands."""
    return _rows(spark, table, root, files, has_file=True)


def path_of(root: Path, file: str) -> str:
    """The path in the table in `root` of a file that Spark names."""
    return os.path.relpath(unquote(urlsplit(file).path), os.path.abspath(root))


def _rows(
    spark: SparkSession,
    table: DeltaTable,
    root: Path,
    files: Collection[str] | None,
    *,
    has_file: bool,
) -> DataFrame:
    schema = _spark_schema(table)
    partitions = table.metadata().partition_columns
    constants = type(schema)([schema[key] for key in partitions])
    stored = type(schema)([field for field in schema if field.name not in partitions])
    folder = os.path.abspath(root)  # without "..", as Spark names files
    found: list[File] = []
    for one in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        name = unquote(one["path"])
        if files is None or name in files:
            values = tuple(one[f"partition.{key}"] for key in partitions)
            found.append(File(os.path.join(folder, name), values))
    if not found:
        return spark.createDataFrame([], schema.add(FILE, "string") if has_file else schema)
    rows = read_parquet(spark, found, stored, constants, FILE if has_file else None)
    return rows.select(*schema.names, *([FILE] if has_file else []))


def _spark_schema(table: DeltaTable) -> StructType:
    """Delta writes its types as Spark does."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))
