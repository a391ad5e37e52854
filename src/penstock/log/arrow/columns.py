"""Batches as Arrow: columns are mapped or computed whole, never record by record.

Needs pyarrow and numpy (`pip install penstock[arrow]`). Payload bytes are not copied when the
batch stores them next to each other, which every sealed batch does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.model.limits import MIB
from penstock.model.record import KIND_MASK, KIND_NAMES, KIND_SHIFT, QOS_MASK, RETAIN, Headers

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
    ]
)
# What a reader gets only when it asks for it by name.
EXTRA: Final = pa.schema(
    [
        pa.field("qos", pa.int32(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("expires_at", pa.timestamp("us", tz="UTC")),
        pa.field("kind", pa.string(), nullable=False),
        pa.field(
            "header_pairs",
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
            nullable=False,
        ),
    ]
)
KINDS: Final = pa.array(KIND_NAMES)
KEPT_COLUMNS: Final = 8  # of each kind
KEPT_BYTES_MAX: Final = MIB  # about, of one
_LZ4: Final = pa.Codec("lz4_raw") if pa.Codec.is_available("lz4_raw") else None
Ints = np.ndarray[Any, np.dtype[np.int64]]
_FIELDS: Final = {field.name: field for field in [*SCHEMA, *EXTRA]}


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """The part of the schema a reader asked for, in its order."""
    return pa.schema([_FIELDS[name] for name in columns])


def to_arrow(
    batches: Iterable[Batch], topic: str, schema: pa.Schema, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """One Arrow batch for each batch with records in [start, end), pruned to `schema`."""
    for batch in batches:
        first = max(start - batch.base_offset, 0)
        last = min(end - batch.base_offset, batch.header.count)
        if first < last:
            arrays = [_COLUMNS[field.name](batch, topic, first, last) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


# Most batches of a log have as many records, so columns that say the same of all of them are kept.


def _same(text: str, count: int) -> pa.Array:
    is_small = len(text) * count <= KEPT_BYTES_MAX
    return _kept(text, count) if is_small else pa.repeat(pa.scalar(text, pa.string()), count)


@lru_cache(KEPT_COLUMNS)
def _kept(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


@lru_cache(KEPT_COLUMNS)
def _zeros(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int32()), count)


@lru_cache(KEPT_COLUMNS)
def _no_headers(count: int) -> pa.Array:
    nothing = pa.array([], pa.string())
    return pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), nothing, nothing)


def _u32(batch: Batch, start: int, count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(batch.columns, np.uint32, count, start)


def in_partition(records: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """The same records as those of another partition than 0."""
    at = records.schema.get_field_index("partition")
    if not partition or at < 0:
        return records
    numbers = pa.repeat(pa.scalar(partition, pa.int32()), records.num_rows)
    return records.set_column(at, records.schema.field(at), numbers)


def _topic(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    return _same(topic, last - first)


def _partition(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    return _zeros(last - first)


def _offset(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    base = batch.base_offset
    return pa.array(np.arange(base + first, base + last, dtype=np.int64))


def _timestamp(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    count = last - first
    plan = batch.plan
    stamps = np.full(count, batch.header.base_timestamp, dtype=np.int64)
    if plan.times >= 0:
        stamps += _u32(batch, plan.times + 4 * first, count)
    elif plan.wide_times >= 0:
        stamps += np.frombuffer(batch.columns, np.int64, count, plan.wide_times + 8 * first)
    return pa.array(stamps).view(pa.timestamp("us", tz="UTC"))


def _dictionary(batch: Batch) -> pa.Array:
    plan = batch.plan
    count = batch.header.string_count
    starts = pa.py_buffer(batch.columns[plan.string_starts : plan.string_starts + 4 * (count + 1)])
    text = pa.py_buffer(batch.columns[plan.strings : plan.strings + batch.header.strings_length])
    return pa.StringArray.from_buffers(count, starts, text)


def _name(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    plan = batch.plan
    if plan.names < 0:
        return _same(batch.strings[0], last - first)
    ids = _u32(batch, plan.names + 4 * first, last - first)
    return _dictionary(batch).take(pa.array(ids))


def _publisher(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    plan = batch.plan
    if plan.publishers < 0:
        only = batch.header.publisher_id
        text = "" if only == fmt.NO_STRING else batch.strings[only]
        return _same(text, last - first)
    ids = _u32(batch, plan.publishers + 4 * first, last - first)
    known = pa.array(ids, mask=ids == fmt.NO_STRING)
    return _dictionary(batch).take(known).fill_null("")


def _blob(batch: Batch) -> pa.Buffer:
    """The payload bytes. Arrow decompresses into memory that it uses again, which saves a third."""
    header = batch.header
    if header.compression == fmt.COMPRESSION_LZ4 and _LZ4 is not None and not batch.is_unpacked:
        return _LZ4.decompress(batch.stored_blob, header.blob_raw_length)
    return pa.py_buffer(batch.blob)


def _payload(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    plan = batch.plan
    count = last - first
    if plan.lengths < 0:
        begin = plan.starts + 4 * first
        starts = pa.py_buffer(batch.columns[begin : begin + 4 * (count + 1)])
        return pa.Array.from_buffers(pa.binary(), count, [None, starts, _blob(batch)], null_count=0)
    starts = _u32(batch, plan.starts + 4 * first, count).astype(np.int64)
    ends = starts + _u32(batch, plan.lengths + 4 * first, count)
    found = stretches(pa.binary(), _blob(batch), starts, ends)
    return pa.array(batch.payloads(first, last), pa.binary()) if found is None else found


def stretches(kind: pa.DataType, data: pa.Buffer, starts: Ints, ends: Ints) -> pa.Array | None:
    """The bytes between each start and end; None unless they follow each other in the data.

    Stretches and the gaps between them are all of an Arrow array; every other one is taken.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], kind)
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    if bounds[0] < 0 or bounds[-1] > data.size or np.any(bounds[1:] < bounds[:-1]):
        return None
    both = pa.Array.from_buffers(
        kind, 2 * count - 1, [None, pa.py_buffer(bounds), data], null_count=0
    )
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


def _headers(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    if batch.plan.header_starts < 0:
        return _no_headers(last - first)
    rows = [list(_first_values(pairs).items()) for pairs in batch.record_headers(first, last)]
    return pa.array(rows, SCHEMA.field("headers").type)


def _first_values(pairs: Headers) -> dict[str, str]:
    """The first value of each key, in the order of the headers."""
    values = dict(pairs)
    if len(values) < len(pairs):  # dict() keeps the last of equal keys
        for key, value in reversed(pairs):
            values[key] = value
    return values


def header_pairs(headers: Sequence[Headers]) -> pa.Array:
    """All headers of each record, in order."""
    starts = np.zeros(len(headers) + 1, np.int32)
    np.cumsum([len(pairs) for pairs in headers], out=starts[1:])
    keys = pa.array([key for pairs in headers for key, _ in pairs], pa.string())
    values = pa.array([value for pairs in headers for _, value in pairs], pa.string())
    both = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    return pa.ListArray.from_arrays(pa.array(starts), both)


def _header_pairs(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    if batch.plan.header_starts < 0:
        return header_pairs([()] * (last - first))
    return header_pairs(batch.record_headers(first, last))


def _flags(batch: Batch, first: int, last: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(batch.flags(first, last), np.uint8)


def _qos(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    return pa.array((_flags(batch, first, last) & QOS_MASK).astype(np.int32))


def _retain(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    return pa.array(_flags(batch, first, last) & RETAIN != 0)


def _kind(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    codes = _flags(batch, first, last) >> KIND_SHIFT & KIND_MASK
    return KINDS.take(pa.array(codes))


def _expires_at(batch: Batch, topic: str, first: int, last: int) -> pa.Array:
    count = last - first
    kind = pa.timestamp("us", tz="UTC")
    if batch.plan.expires < 0:
        return pa.nulls(count, kind)
    stamps = np.frombuffer(batch.columns, np.int64, count, batch.plan.expires + 8 * first)
    return pa.array(stamps, mask=stamps == 0).view(kind)


_COLUMNS: Final = {
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "name": _name,
    "headers": _headers,
    "payload": _payload,
    "publisher": _publisher,
    "qos": _qos,
    "retain": _retain,
    "expires_at": _expires_at,
    "kind": _kind,
    "header_pairs": _header_pairs,
}
