"""Records copied into files of an archive without Spark: for a few of them Java is not worth it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.log.arrow.columns import schema_of
from penstock.pipeline.delta.files import PARTITION, NewFiles, add_action, new_directory, written
from penstock.pipeline.delta.following import DAY_US
from penstock.pipeline.source.origin import Wanted

if TYPE_CHECKING:
    from penstock.pipeline.source.origin import Origin, Range

_LIFE: Final = ("topic_id", "epoch")  # columns of an archive that say of which life a record is


def copy_records(
    origin: Origin,
    ranges: Sequence[Range],
    root: Path,
    schema: pa.Schema,
    *,
    fails_on_loss: bool,
) -> NewFiles:
    """Write the records of the ranges into files of the archive in `root`: one for each day."""
    directory = new_directory(root)
    stored = pa.schema([field for field in schema if field.name != PARTITION])
    wanted = schema_of(field.name for field in stored if field.name not in _LIFE)
    directory.mkdir()
    with ExitStack() as opened:
        files: dict[int, pq.ParquetWriter] = {}
        for one in ranges:
            for batch in origin.scan(one, Wanted(wanted, fails_on_loss=fails_on_loss)):
                for day, rows in _by_day(_rows(batch, one, stored)):
                    if day not in files:
                        path = _file(directory, day)
                        files[day] = opened.enter_context(
                            pq.ParquetWriter(path, stored, compression="snappy")
                        )
                    files[day].write_batch(rows)
    return NewFiles(directory, [add_action(root, path) for path in written(directory)])


def _rows(records: pa.RecordBatch, one: Range, stored: pa.Schema) -> pa.RecordBatch:
    life = [pa.repeat(pa.scalar(getattr(one, name), pa.int64()), len(records)) for name in _LIFE]
    return pa.RecordBatch.from_arrays([*records.columns, *life], schema=stored)


def _by_day(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    days = rows.column("timestamp").view(pa.int64()).to_numpy() // DAY_US
    found = np.unique(days).tolist()
    for day in found:
        yield day, rows if len(found) == 1 else rows.filter(pa.array(days == day))


def _file(directory: Path, day: int) -> Path:
    named = date(1970, 1, 1) + timedelta(days=day)
    folder = directory / f"{PARTITION}={named.isoformat()}"
    folder.mkdir()
    return folder / "records.parquet"
