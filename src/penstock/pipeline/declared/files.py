"""Tables that are plain files: checked first, then read by Spark.

If a file is not Parquet, Spark only prints pages of Java's stack.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError

from penstock.model.errors import RefusedError
from penstock.pipeline.declared.declaration import PARQUET, TableSource
from penstock.pipeline.declared.explaining import plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAGIC: Final = (b"PAR1", b"PARE")  # at both ends of a file; the second where it is encrypted
_OTHERS: Final = {".csv": '"csv"', ".json": '"json"'}  # formats by the ends of names


def read_files(spark: SparkSession, source: TableSource) -> DataFrame:
    """The rows of a file, or of the files in a directory."""
    if source.format == PARQUET:
        for file in _files(source.path):
            _check_parquet(file)
    reader = spark.read.format(source.format)
    if source.format == "csv":
        reader = reader.option("header", True).option("inferSchema", True)
    try:
        return reader.load(str(source.path))
    except Py4JJavaError as wrong:
        why = wrong.java_exception
        while why.getCause() is not None:
            why = why.getCause()
        raise RefusedError(
            f"{str(source.path)!r} cannot be read as {source.format}: "
            f"{plain(str(why.getMessage()))}"
        ) from None


def _files(path: Path) -> Iterator[Path]:
    """The files that Spark reads: it skips names that begin with a dot or an underscore."""
    if not path.is_dir():
        yield path
        return
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if name[0] not in "._"]
        yield from (Path(folder, name) for name in sorted(files) if name[0] not in "._")


def _check_parquet(file: Path) -> None:
    with file.open("rb") as opened:
        head = opened.read(4)
        opened.seek(max(file.stat().st_size - 4, 0))
        if head in _MAGIC and opened.read(4) in _MAGIC:
            return
    other = _OTHERS.get(file.suffix.lower(), " or ".join(_OTHERS.values()))
    raise RefusedError(f"{str(file)!r} is not a Parquet file: set format = {other}")
