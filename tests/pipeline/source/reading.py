"""The source as Spark uses it, without Spark: planned, pickled, and read piece by piece."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.pipeline.source.source import SCHEMA, PenstockSource
from penstock.pipeline.source.stream import Piece
from tests.doors.hosted import Hosted

_PICKLE = CloudPickleSerializer()

NOISE = random.Random(7)

At = Path | str  # a data directory, or a broker's address


def address(hosted: Hosted) -> str:
    return f"http://127.0.0.1:{hosted.ports['http']}"


def travelled(thing: Any) -> Any:
    """As it arrives on a task."""
    return _PICKLE.loads(_PICKLE.dumps(thing))


def only(*columns: str) -> StructType:
    return StructType([SCHEMA[name] for name in columns])


def connection(at: At) -> dict[str, str]:
    """The option that leads there."""
    return {"url": at} if isinstance(at, str) else {"path": str(at)}


def reader_of(at: At, schema: StructType = SCHEMA, **options: str) -> DataSourceReader:
    source = travelled(PenstockSource({**connection(at), **options}))
    found: DataSourceReader = source.reader(schema)
    return found


def read_batches(reader: Any, pieces: Any, schema: StructType = SCHEMA) -> Iterator[pa.RecordBatch]:
    on_task = travelled(reader)
    for piece in pieces:
        for batch in on_task.read(travelled(piece)):
            batch.validate(full=True)
            assert batch.schema == to_arrow_schema(schema, timezone="UTC")
            yield batch


def rows(at: At, schema: StructType = SCHEMA, **options: str) -> list[dict[str, Any]]:
    """Everything a batch query gives."""
    reader = reader_of(at, schema, **options)
    pieces = reader.partitions()
    found: list[dict[str, Any]] = []
    for batch in read_batches(reader, pieces, schema):
        found += batch.to_pylist(maps_as_pydicts="strict")
    return found


def payloads(at: At, **options: str) -> list[bytes]:
    return [row["payload"] for row in rows(at, only("payload"), **options)]


def offsets(at: At, **options: str) -> list[int]:
    return [row["offset"] for row in rows(at, only("offset"), **options)]


def ranges(pieces: Any) -> list[tuple[str, int, int]]:
    """What was planned."""
    found = []
    for piece in pieces:
        assert isinstance(piece, InputPartition)
        assert isinstance(piece, Piece)
        if piece.range is not None:
            found.append((piece.range.topic, piece.range.start, piece.range.end))
    return found
