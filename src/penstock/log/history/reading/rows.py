"""Rows of history become batches again, as the log had them: same offsets, times and bytes.

Columns are computed whole; only headers are encoded record by record. Marks are not in history:
they guard against what is sent twice, and nobody looks for them so far back.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.log.arrow.columns import KINDS
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.builder import Columns, assemble
from penstock.log.format.marks import encode_headers
from penstock.model.errors import CorruptError
from penstock.model.limits import MIB
from penstock.model.record import KIND_SHIFT, RETAIN

BLOB_BYTES: Final = 4 * MIB  # of one batch, as in a sealed segment; one record may have more
Numbers = np.ndarray[Any, np.dtype[Any]]


def to_batches(rows: pa.Table, epoch: int) -> list[Batch]:
    """The rows, which are in the order of their offsets without a hole, as batches."""
    rows = rows.combine_chunks()
    offsets = _numbers(rows, "offset")
    if len(offsets) == 0:
        return []
    if int(offsets[-1]) - int(offsets[0]) != len(offsets) - 1 or (np.diff(offsets) != 1).any():
        raise CorruptError(f"the rows from offset {offsets[0]} on are not one after the other")
    sizes = np.cumsum(pc.binary_length(rows["payload"]).to_numpy())
    found = []
    first = 0
    while first < len(offsets):
        before = int(sizes[first - 1]) if first else 0
        last = max(int(np.searchsorted(sizes, before + BLOB_BYTES, "right")), first + 1)
        found.append(_to_batch(rows.slice(first, last - first), epoch, int(offsets[first])))
        first = last
    return found


def _to_batch(rows: pa.Table, epoch: int, base_offset: int) -> Batch:
    columns = Columns()
    columns.count = len(rows)
    _fill_times(columns, _numbers(rows, "timestamp"))
    _fill_strings(columns, rows)
    _fill_flags(columns, rows)
    _fill_headers(columns, rows)
    if rows["expires_at"].null_count < len(rows):
        expires = pc.fill_null(rows["expires_at"].cast(pa.int64()), 0).to_numpy()
        columns.expires = expires.tobytes()
    payload = rows["payload"].combine_chunks()
    starts = np.frombuffer(payload.buffers()[1], np.int32, len(rows) + 1, 4 * payload.offset)
    columns.starts = (starts - starts[0]).astype(np.uint32).tobytes()
    data = payload.buffers()[2]
    blob = data.slice(int(starts[0]), int(starts[-1] - starts[0])).to_pybytes() if data else b""
    return assemble(columns, blob, epoch, base_offset, 0)


def _numbers(rows: pa.Table, name: str) -> Numbers:
    found: Numbers = rows[name].cast(pa.int64()).to_numpy()
    return found


def _fill_times(columns: Columns, times: Numbers) -> None:
    columns.base_timestamp, columns.last_timestamp = int(times[0]), int(times[-1])
    deltas = times - times[0]
    if (np.diff(times) < 0).any():
        raise CorruptError(f"times before {columns.last_timestamp} µs do not rise with offsets")
    if deltas[-1] > 0xFFFF_FFFF:
        columns.wide_times = deltas.astype(np.uint64).tobytes()
    elif deltas[-1]:
        columns.times = deltas.astype(np.uint32).tobytes()


def _fill_strings(columns: Columns, rows: pa.Table) -> None:
    """Names come first: the one string of a batch with one name is its number 0."""
    names, name_ids = _used(rows["name"])
    publishers, ids = _used(rows["publisher"])
    strings = {name: number for number, name in enumerate(names)}
    numbers = [
        strings.setdefault(publisher, len(strings)) if publisher else fmt.NO_STRING
        for publisher in publishers
    ]
    columns.strings = list(strings)
    if len(names) > 1:
        columns.names = name_ids.tobytes()
    if len(publishers) > 1:
        columns.publishers = np.array(numbers, np.uint32)[ids].tobytes()
    else:
        columns.publisher_id = numbers[0]


def _used(column: pa.ChunkedArray) -> tuple[list[str], Numbers]:
    """The texts of a column, each once, and the number of each row's text."""
    texts, numbers = _coded(column)
    is_used = np.zeros(len(texts), bool)
    is_used[numbers] = True
    if is_used.all():
        return texts.to_pylist(), numbers.astype(np.uint32)
    used = np.flatnonzero(is_used)
    following = np.cumsum(is_used) - 1
    return texts.take(pa.array(used)).to_pylist(), following[numbers].astype(np.uint32)


def _coded(column: pa.ChunkedArray) -> tuple[pa.Array, Numbers]:
    """Texts, and the number of each row's text among them."""
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy()


def _fill_flags(columns: Columns, rows: pa.Table) -> None:
    names, numbers = _coded(rows["kind"])
    kinds = pc.index_in(names, value_set=KINDS).to_numpy(zero_copy_only=False)
    flags = _numbers(rows, "qos") | kinds.astype(np.int64)[numbers] << KIND_SHIFT
    flags |= rows["retain"].cast(pa.int64()).to_numpy() * RETAIN
    columns.record_flags = int(flags[0])
    if (flags != flags[0]).any():
        columns.flags = flags.astype(np.uint8).tobytes()


def _fill_headers(columns: Columns, rows: pa.Table) -> None:
    """`header_pairs` says everything where it is not NULL; else `headers` does."""
    held = rows["headers"].combine_chunks()
    whole = rows["header_pairs"].combine_chunks()
    starts = held.offsets.to_numpy()
    if whole.null_count == len(whole) and starts[0] == starts[-1]:
        return
    encoded = _encoded(held.keys, held.items, starts)
    if whole.null_count < len(whole):
        pairs = whole.values
        said = _encoded(pairs.field("key"), pairs.field("value"), whole.offsets.to_numpy())
        is_said = whole.is_valid().to_pylist()
        encoded = [b if is_b else a for a, b, is_b in zip(encoded, said, is_said, strict=True)]
    if any(encoded):
        columns.headers = b"".join(encoded)
        sizes = np.zeros(len(encoded) + 1, np.uint32)
        np.cumsum([len(one) for one in encoded], out=sizes[1:])
        columns.header_starts = sizes.tobytes()


def _encoded(keys: pa.Array, values: pa.Array, starts: Numbers) -> list[bytes]:
    """The headers of each row as they are in a batch; equal ones are encoded once."""
    begin, end = int(starts[0]), int(starts[-1])
    known: dict[tuple[str, str], bytes] = {}
    parts = []
    pairs = zip(keys[begin:end].to_pylist(), values[begin:end].to_pylist(), strict=True)
    for pair in pairs:
        part = known.get(pair)
        if part is None:
            part = known[pair] = encode_headers((pair,))
        parts.append(part)
    return [b"".join(parts[a:b]) for a, b in pairwise((starts - begin).tolist())]
