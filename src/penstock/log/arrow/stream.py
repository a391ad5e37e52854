"""Records as the bytes of an Arrow IPC stream. Needs pyarrow, as `arrow` does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.log.arrow.columns import KINDS, SCHEMA, in_partition, schema_of, to_arrow
from penstock.log.format.batch import Batch
from penstock.model.record import Record


def stream_of_batches(
    batches: Iterable[Batch],
    topic: str,
    start: int,
    end: int,
    columns: Sequence[str] = (),
    partition: int = 0,
) -> memoryview:
    """The records of [start, end), one Arrow batch for each stored one; all columns, or some."""
    schema = schema_of(columns or SCHEMA.names)
    made = to_arrow(batches, topic, schema, start, end)
    return _stream((in_partition(one, partition) for one in made), schema)


def stream_of_records(records: Sequence[Record], columns: Sequence[str] = ()) -> memoryview:
    """The records as one Arrow batch."""
    schema = schema_of(columns or SCHEMA.names)
    if not records:
        return _stream([], schema)
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
            "qos": one.qos,
            "retain": one.retain,
            "expires_at": one.expires_at,
            "kind": KINDS[one.kind].as_py(),
            "header_pairs": [{"key": key, "value": value} for key, value in one.headers],
        }
        for one in records
    ]
    return _stream([pa.RecordBatch.from_pylist(rows, schema=schema)], schema)


def _stream(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> memoryview:
    """The bytes where Arrow wrote them: in new memory, a copy costs more than all the rest."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(sink.getvalue())
