"""Very many small batches as one Arrow batch, without making an object of each.

A log that is published to in small commits has thousands of batches in a megabyte. Their headers
and columns are gathered with a few array operations over the bytes as they were read; only
checksums are looked at batch by batch. What this cannot do (compressed blobs, record headers) or
does not like (anything that is not exactly right) it leaves to `decode_batches`, which says why.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.log.arrow.columns import KINDS, Ints, header_pairs, stretches
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.checksum import crc32c
from penstock.model.record import KIND_MASK, KIND_SHIFT, QOS_MASK, RETAIN

_CHECKED: Final = struct.Struct("<44x4I32xI")  # lengths and checksums of columns and blob; own one
_HEADER: Final = np.dtype(
    {
        "names": [
            "version", "compression", "flags", "base_offset", "base_timestamp", "count",
            "columns", "blob", "string_count", "strings", "headers", "marks", "publisher",
            "record_flags",
        ],
        "formats": [
            "u1", "u1", "<u2", "<i8", "<i8", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4",
            "<u4", "u1",
        ],
        "offsets": [4, 5, 6, 16, 24, 40, 44, 52, 64, 68, 72, 76, 80, 84],
        "itemsize": fmt.HEADER_BYTES,
    }
)  # fmt: skip
_REFUSED: Final = fmt.HEADERS | ~fmt.KNOWN_FLAGS & 0xFFFF


def gather(
    data: bytes | bytearray, topic: str, schema: pa.Schema, start: int, end: int
) -> pa.RecordBatch | None:
    """The records of [start, end) in these batches; None: take them apart one by one instead."""
    positions = _intact(data)
    if positions is None:
        return None
    batches = _Batches(data, positions)
    if not batches.is_plain:
        return None
    return batches.rows(topic, schema, start, end)


def _intact(data: bytes | bytearray) -> Ints | None:
    """Where each batch begins; None unless all of them match their checksums."""
    found = []
    at = 0
    view = memoryview(data)
    size = len(data)
    while at < size:
        if at + fmt.HEADER_BYTES > size:
            return None
        columns, columns_crc, blob, blob_crc, own_crc = _CHECKED.unpack_from(data, at)
        columns_at = at + fmt.HEADER_BYTES
        blob_at = columns_at + columns
        if (
            crc32c(view[at : columns_at - 4]) != own_crc
            or crc32c(view[columns_at:blob_at]) != columns_crc
            or crc32c(view[blob_at : blob_at + blob]) != blob_crc
        ):
            return None
        found.append(at)
        at = blob_at + ((blob + 7) & ~7)
    return np.array(found, np.int64) if at == size else None


class _Batches:
    """Batches as columns of their own: one entry for each, addresses counted from `data`."""

    def __init__(self, data: bytes | bytearray, positions: Ints) -> None:
        self._buffer = pa.py_buffer(data)
        self._u8 = bytes_ = np.frombuffer(data, np.uint8)
        self._u32 = np.frombuffer(data, np.uint32, len(data) // 4)
        self._u64 = np.frombuffer(data, np.int64, len(data) // 8)
        heads = bytes_[positions[:, None] + np.arange(fmt.HEADER_BYTES)]
        self._head = head = heads.reshape(-1).view(_HEADER)
        self._counts = head["count"].astype(np.int64)
        self._string_counts = head["string_count"].astype(np.int64)
        self._blobs = positions + fmt.HEADER_BYTES + head["columns"]
        self._lay_out(positions + fmt.HEADER_BYTES)
        self.is_plain = (
            bytes(heads[:, :4].tobytes()) == fmt.MAGIC * len(positions)
            and bool(np.all(head["version"] == fmt.VERSION))
            and bool(np.all(head["compression"] == fmt.COMPRESSION_NONE))
            and not np.any(head["flags"] & _REFUSED)
            and self._fits(positions + fmt.HEADER_BYTES)
            and not np.any(_padding(bytes_, self._blobs + head["blob"]))
        )

    def _has(self, flag: int) -> Any:
        return self._head["flags"] & flag != 0

    def _lay_out(self, at: Ints) -> None:
        """Where the columns begin, in the order of `fmt.ColumnPlan`."""
        counts = self._counts
        self._expiries = at
        at = at + 8 * counts * self._has(fmt.EXPIRES)
        self._wide_times = at
        at = at + 8 * counts * self._has(fmt.WIDE_TIMES)
        self._starts = at
        contiguous = self._has(fmt.CONTIGUOUS)
        # With contiguous payloads the next entry is the end; else lengths follow all starts.
        self._seconds = at + 4 * np.where(contiguous, 1, counts)
        at = at + 4 * np.where(contiguous, counts + 1, 2 * counts)
        self._times = at
        at = at + 4 * counts * self._has(fmt.TIMES)
        self._names = at
        at = at + 4 * counts * self._has(fmt.NAMES)
        self._publishers = at
        at = at + 4 * counts * self._has(fmt.PUBLISHERS)
        self._string_starts = at
        at = at + 4 * (self._string_counts + 1)
        self._flags = at
        self._strings = at + counts * self._has(fmt.FLAGS)

    def _fits(self, columns: Ints) -> bool:
        """Whether the parts add up to the lengths in the headers, and offsets are dense."""
        head = self._head
        sizes = [head[name].astype(np.int64) for name in ("strings", "headers", "marks")]
        used = self._strings - columns + sum(sizes)
        ends = head["base_offset"] + self._counts
        return bool(
            np.all((used + 7) & ~7 == head["columns"])
            and np.all(head["base_offset"][1:] == ends[:-1])
        )

    def rows(self, topic: str, schema: pa.Schema, start: int, end: int) -> pa.RecordBatch | None:
        """The records of [start, end); None when something points where it should not."""
        total = int(self._counts.sum())
        base = int(self._head["base_offset"][0])
        first, last = max(start - base, 0), min(end - base, total)
        if total == 0 or first >= last:
            return _nothing(schema)
        columns = []
        for field in schema:
            column = self._column(field.name, topic, base, total)
            if column is None:
                return None
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=schema).slice(first, last - first)

    def _column(self, name: str, topic: str, base: int, total: int) -> pa.Array | None:
        match name:
            case "topic":
                return pa.repeat(pa.scalar(topic, pa.string()), total)
            case "partition":
                return pa.repeat(pa.scalar(0, pa.int32()), total)
            case "offset":
                return pa.array(np.arange(base, base + total, dtype=np.int64))
            case "timestamp":
                return pa.array(self._stamps()).view(pa.timestamp("us", tz="UTC"))
            case "payload":
                return self._payloads()
            case "name":
                return self._texts(self._ids(fmt.NAMES, self._names, 0))
            case "publisher":
                ids = self._ids(fmt.PUBLISHERS, self._publishers, self._head["publisher"])
                return self._texts(ids)
            case "headers":
                nothing = pa.array([], pa.string())
                return pa.MapArray.from_arrays(
                    pa.array(np.zeros(total + 1, np.int32)), nothing, nothing
                )
            case "qos":
                return pa.array((self._record_flags() & QOS_MASK).astype(np.int32))
            case "retain":
                return pa.array(self._record_flags() & RETAIN != 0)
            case "expires_at":
                stamps = self._chosen(fmt.EXPIRES, self._u64, 8, self._expiries, 0)
                return pa.array(stamps, mask=stamps == 0).view(pa.timestamp("us", tz="UTC"))
            case "kind":
                codes = self._record_flags() >> KIND_SHIFT & KIND_MASK
                return KINDS.take(pa.array(codes))
            case "header_pairs":
                return header_pairs([()] * total)
            case _:
                return None

    def _spread(self, values: Any) -> Any:
        """One entry of each batch for each of its records."""
        return np.repeat(values, self._counts)

    def _stamps(self) -> Ints:
        stamps: Ints = self._spread(self._head["base_timestamp"])
        for flag, view, width, at in (
            (fmt.TIMES, self._u32, 4, self._times),
            (fmt.WIDE_TIMES, self._u64, 8, self._wide_times),
        ):
            has = self._has(flag)
            if has.any():
                stamps[self._spread(has)] += _ragged(view, at[has], self._counts[has], width)
        return stamps

    def _payloads(self) -> pa.Array | None:
        starts = _ragged(self._u32, self._starts, self._counts, 4).astype(np.int64)
        seconds = _ragged(self._u32, self._seconds, self._counts, 4)
        ends = np.where(self._spread(self._has(fmt.CONTIGUOUS)), seconds, starts + seconds)
        if np.any(ends > self._spread(self._head["blob"])):
            return None
        blobs = self._spread(self._blobs)
        return stretches(pa.binary(), self._buffer, starts + blobs, ends + blobs)

    def _ids(self, flag: int, at: Ints, constant: Any) -> Any:
        """The number of a string in its batch's dictionary, for each record."""
        return self._chosen(flag, self._u32, 4, at, constant)

    def _record_flags(self) -> Any:
        return self._chosen(fmt.FLAGS, self._u8, 1, self._flags, self._head["record_flags"])

    def _chosen(self, flag: int, view: Any, width: int, at: Ints, constant: Any) -> Any:
        """A column for each record, from the batches that store it; the others have a constant."""
        has = self._has(flag)
        values = self._spread(np.broadcast_to(constant, has.shape).astype(view.dtype))
        if has.any():
            values[self._spread(has)] = _ragged(view, at[has], self._counts[has], width)
        return values

    def _texts(self, ids: Any) -> pa.Array | None:
        """The strings of these numbers; nobody's is the empty text."""
        nobody = ids == fmt.NO_STRING
        if np.any(~nobody & (ids >= self._spread(self._string_counts))):
            return None
        starts = _ragged(self._u32, self._string_starts, self._string_counts, 4).astype(np.int64)
        ends = _ragged(self._u32, self._string_starts + 4, self._string_counts, 4)
        texts = np.repeat(self._strings, self._string_counts)
        known = stretches(pa.string(), self._buffer, starts + texts, ends + texts)
        if known is None:
            return None
        before = np.cumsum(self._string_counts) - self._string_counts
        numbers = self._spread(before) + ids
        if not nobody.any():
            return known.take(pa.array(numbers))
        return known.take(pa.array(numbers, mask=nobody)).fill_null("")


def _ragged(view: Any, addresses: Ints, counts: Ints, width: int) -> Any:
    """The numbers at each address, as many as are counted there, one after the other."""
    before = np.cumsum(counts) - counts
    return view[np.arange(int(counts.sum())) + np.repeat(addresses // width - before, counts)]


def _padding(data: Any, ends: Ints) -> Any:
    """The bytes after each blob, up to a multiple of eight; others are shown as zero."""
    places = ends[:, None] + np.arange(7)
    is_padding = places < ((ends + 7) & ~7)[:, None]
    return np.where(is_padding, data[np.minimum(places, len(data) - 1)], 0)


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
