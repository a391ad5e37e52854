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
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.model.errors import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FILE: Final = "__file"  # a column that says of which file of the table a row is
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


def read_delta(spark: SparkSession, path: Path) -> DataFrame:
    """The table as it is now."""
    return rows_of(spark, open_table(path), path).drop(FILE)


def rows_of(
    spark: SparkSession, table: DeltaTable, root: Path, files: Collection[str] | None = None
) -> DataFrame:
    """The rows of the version that was opened in `root`, with FILE; of `files` only, if given.

    Files are named by their path in the table.
    """
    from pyspark.sql import functions as sf

    schema = _spark_schema(table)
    partitions = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    of_file = {unquote(one["path"]): one for one in actions}
    wanted = [name for name in of_file if files is None or name in files]
    if not wanted:
        return spark.createDataFrame([], schema.add(FILE, "string"))
    stored = type(schema)([field for field in schema if field.name not in partitions])
    folder = os.path.abspath(root)  # without "..", as Spark names files
    rows = spark.read.schema(stored).parquet(*[os.path.join(folder, name) for name in wanted])
    # A plus in a path is one; url_decode would make it a blank.
    plus = sf.replace(sf.col("_metadata.file_path"), sf.lit("+"), sf.lit("%2B"))
    path = sf.regexp_replace(sf.url_decode(plus), "^file:/+", "/")
    rows = rows.withColumn(FILE, sf.substr(path, sf.lit(len(folder) + 2)))
    if not partitions:
        return rows
    known = type(schema)().add(FILE, "string")
    for key in partitions:
        known.add(schema[key])
    values = [(name, *(of_file[name][f"partition.{key}"] for key in partitions)) for name in wanted]
    joined = rows.join(sf.broadcast(spark.createDataFrame(values, known)), FILE)
    return joined.select(*schema.names, FILE)


def _spark_schema(table: DeltaTable) -> StructType:
    """Delta writes its types as Spark does."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))
