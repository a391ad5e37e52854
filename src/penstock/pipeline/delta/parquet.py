"""Parquet files with columns that are the same for all rows of a file, in one scan of Spark.

Spark itself takes such values only from the names of directories. Its index of files can be told,
and then they cost nothing per row, and a filter over them passes over whole files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class File:
    """A file, and the values of the columns that it does not store."""

    path: str
    values: tuple[Any, ...] = ()


def read_parquet(
    spark: SparkSession,
    files: Sequence[File],
    stored: StructType,
    constants: StructType,
    file_column: str | None = None,
) -> DataFrame:
    """The rows of the files: the columns that they store, then those of their values.

    With `file_column`, a column of this name has the URI of each row's file.
    """
    folders: dict[str, set[tuple[Any, ...]]] = {}
    for file in files:
        folders.setdefault(str(Path(file.path).parent), set()).add(file.values)
    is_by_folder = len(constants) > 0 and all(len(values) == 1 for values in folders.values())
    if is_by_folder and not is_connect(spark):
        values = {folder: next(iter(found)) for folder, found in folders.items()}
        rows = _one_scan(spark, [file.path for file in files], stored, constants, values)
        return _with_file(rows, file_column)
    groups: dict[tuple[Any, ...], list[str]] = {}
    for file in files:
        groups.setdefault(file.values, []).append(file.path)
    scans = [
        _with_values(
            _with_file(spark.read.schema(stored).parquet(*paths), file_column), constants, values
        )
        for values, paths in groups.items()
    ]
    return reduce(type(scans[0]).unionByName, scans)


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is at a Spark Connect server: what is here is not there."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _with_file(rows: DataFrame, column: str | None) -> DataFrame:
    from pyspark.sql.functions import col

    return rows if column is None else rows.withColumn(column, col("_metadata.file_path"))


def _with_values(rows: DataFrame, constants: StructType, values: tuple[Any, ...]) -> DataFrame:
    from pyspark.sql.functions import lit

    columns = {
        field.name: lit(value).cast(field.dataType)
        for field, value in zip(constants, values, strict=True)
    }
    return rows.withColumns(columns) if columns else rows


def _one_scan(
    spark: SparkSession,
    paths: Sequence[str],
    stored: StructType,
    constants: StructType,
    folders: dict[str, tuple[Any, ...]],
) -> DataFrame:
    """One relation over files whose directories have values, as if their names said so."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.types import to_arrow_schema

    session: Any = spark
    jvm, java = session._jvm, session._jsparkSession
    sources = jvm.org.apache.spark.sql.execution.datasources
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    path_of = jvm.org.apache.hadoop.fs.Path
    some, nothing = jvm.scala.Some, jvm.scala.Option.empty()
    options = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
    stored_types, constant_types = (
        jvm.org.apache.spark.sql.types.DataType.fromJson(types.json())
        for types in (stored, constants)
    )
    # As rows in Spark's own form, whatever the types are; from Arrow, because that needs no job.
    arrow = to_arrow_schema(constants, timezone="UTC")
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*folders.values(), strict=True), arrow, strict=True)
    ]
    values: Any = spark.createDataFrame(pa.Table.from_arrays(columns, schema=arrow), constants)
    rows = values._jdf.queryExecution().executedPlan().executeCollect()
    known = [
        sources.PartitionPath(row, path_of("file", None, folder))
        for row, folder in zip(rows, folders, strict=True)
    ]
    spec = sources.PartitionSpec(constant_types, to_seq(known))
    cache = getattr(getattr(sources, "NoopCache$"), "MODULE$")
    roots = to_seq([path_of("file", None, path) for path in paths])
    index = sources.InMemoryFileIndex(
        java, roots, options, some(stored_types), cache, some(spec), nothing
    )
    form = sources.parquet.ParquetFileFormat()
    relation = sources.HadoopFsRelation(
        index, constant_types, stored_types, nothing, form, options, java
    )
    return DataFrame(java.baseRelationToDataFrame(relation), spark)
