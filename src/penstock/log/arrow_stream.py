"""Records as the bytes of an Arrow IPC stream. Needs pyarrow, as `arrow` does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.log.arrow import SCHEMA, to_arrow
from penstock.log.batch import Batch
from penstock.model.record import Record


def stream_of_batches(batches: Iterable[Batch], topic: str, start: int, end: int) -> bytes:
    """The records of [start, end), one Arrow batch for each stored one."""
    return _stream(to_arrow(batches, topic, SCHEMA, start, end))


def stream_of_records(records: Sequence[Record]) -> bytes:
    """The records as one Arrow batch."""
    if not records:
        return _stream([])
    rows = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": one.offset,
            "timestamp": one.timestamp,
            "name": one.name,
            "headers": list(dict(reversed(one.headers)).items()),  # the first value counts
            "payload": one.payload,
            "publisher": one.publisher,
        }
        for one in records
    ]
    return _stream([pa.RecordBatch.from_pylist(rows, schema=SCHEMA)])


def _stream(batches: Iterable[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
