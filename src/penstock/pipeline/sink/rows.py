"""Rows of a DataFrame as batches of a log: columns are taken over whole, never row by row.

Headers, and payloads that are structs, have no form that fits and are encoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.naming.names import check_name
from penstock.log.arrow.columns import KINDS
from penstock.log.files.commit import COMPRESS_BYTES_MIN
from penstock.log.format.batch import Batch
from penstock.log.format.builder import Columns, assemble
from penstock.log.format.marks import MARK_SPARK_BATCH, Mark, encode_headers
from penstock.log.staging.area import STAGED_BLOB_BYTES, STAGED_RECORDS
from penstock.model.errors import RefusedError
from penstock.model.limits import PAYLOAD_BYTES_MAX
from penstock.model.messages import check_headers, check_numbers, check_payload_size
from penstock.model.record import KIND_BYTES, KIND_JSON, KIND_SHIFT, KIND_TEXT

QOS: Final = 1  # as what a program publishes
NAMES_KNOWN_MAX: Final = 65_536  # names that are not checked again

_JSON: Final = msgspec.json.Encoder(decimal_format="number")
_check_name = lru_cache(maxsize=NAMES_KNOWN_MAX)(check_name)


class TopicRows:
    """Rows for one topic, until there are enough of them for a batch."""

    def __init__(self, topic: str, kind: int) -> None:
        self._topic = topic
        self._kind = kind
        self._held: list[pa.RecordBatch] = []
        self._records = 0
        self._bytes = 0

    def add(
        self, payload: pa.Array, names: pa.Array, headers: pa.Array, kinds: pa.Array
    ) -> Iterator[pa.RecordBatch]:
        """Take rows; those that make full batches. Refuses what no log can hold.

        `kinds` says of each row what it gives back as `value`; without, the type of `payload` does.
        """
        rows = pa.record_batch(
            [self._payloads(payload), self._names(names), headers, kinds],
            names=["payload", "name", "headers", "kind"],
        )
        for part in _parts(rows):
            self._held.append(part)
            self._records += part.num_rows
            self._bytes += _ends(part)[-1] - _ends(part)[0]
            if self._records >= STAGED_RECORDS or self._bytes >= STAGED_BLOB_BYTES:
                yield self.take()

    def take(self) -> pa.RecordBatch:
        """All rows that are held."""
        held, self._held = self._held, []
        self._records = self._bytes = 0
        return held[0] if len(held) == 1 else pa.concat_batches(held)

    @property
    def is_empty(self) -> bool:
        return not self._held

    def encode(self, rows: pa.RecordBatch, key: bytes) -> Batch:
        """The batch as it is staged, with the mark that makes it count once."""
        payload, names, headers, kinds = rows.columns
        columns = Columns()
        columns.count = rows.num_rows
        columns.record_flags = _flags(self._kind)
        if kinds.null_count < rows.num_rows:
            codes = np.asarray(pc.index_in(kinds, KINDS))
            columns.flags = (QOS | codes << KIND_SHIFT).astype(np.uint8).tobytes()
        elif self._kind == KIND_TEXT and not _is_text(payload):
            columns.flags = bytes(map(_text_flags, payload.to_pylist()))
        ends = _ends(rows)
        columns.starts = (ends - ends[0]).astype(np.uint32).tobytes()
        encoded = names.dictionary_encode()
        columns.strings = encoded.dictionary.to_pylist()
        if len(columns.strings) > 1:
            columns.names = np.asarray(encoded.indices).astype(np.uint32).tobytes()
        if headers.null_count < rows.num_rows:
            _add_headers(columns, headers)
        columns.marks = [Mark(MARK_SPARK_BATCH, key, 0)]
        blob = payload.buffers()[2]
        data = (
            b"" if blob is None else blob.slice(int(ends[0]), int(ends[-1] - ends[0])).to_pybytes()
        )
        batch = assemble(columns, data, 0, 0, 0)
        if len(data) >= COMPRESS_BYTES_MIN:
            batch.compress()
        return batch

    def _payloads(self, payload: pa.Array) -> pa.Array:
        if payload.null_count:
            raise RefusedError(
                f"topic {self._topic!r}: a row has no payload (NULL): filter such rows out, "
                "or set a value with coalesce"
            )
        if self._kind == KIND_JSON:
            shape = _shape(payload.type)
            values = payload.to_pylist(maps_as_pydicts="strict")
            payload = pa.array([_json(shape(value)) for value in values], pa.binary())
        payload = payload.cast(pa.binary())
        check_payload_size(pc.max(pc.binary_length(payload)).as_py() or 0, PAYLOAD_BYTES_MAX)
        return payload

    def _names(self, names: pa.Array) -> pa.Array:
        filled = pc.fill_null(names.cast(pa.string()), self._topic)
        if not _is_text(filled):
            raise RefusedError(f"topic {self._topic!r}: a name is not UTF-8: cast it in the query")
        for name in pc.unique(filled).to_pylist():
            _check_name(name)
        return filled


def kind_of(payload: pa.DataType) -> int:
    """What records of this type of payload give back as `value`."""
    if pa.types.is_struct(payload):
        return KIND_JSON
    is_text = pa.types.is_string(payload) or pa.types.is_large_string(payload)
    return KIND_TEXT if is_text else KIND_BYTES


def _flags(kind: int) -> int:
    return QOS | kind << KIND_SHIFT


def _is_text(payload: pa.Array) -> bool:
    """Whether all of it is UTF-8: Spark makes strings of any bytes without a look at them."""
    try:
        payload.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _text_flags(payload: bytes) -> int:
    """What is no text comes back as the bytes it is."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return _flags(KIND_BYTES)
    return _flags(KIND_TEXT)


def _ends(rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Where each payload begins in the column's buffer, and where the last one ends."""
    payload = rows.column(0)
    starts = np.frombuffer(payload.buffers()[1], np.int32)
    return starts[payload.offset : payload.offset + len(payload) + 1]


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in order, in pieces of few enough payload bytes; at least one row each."""
    ends = _ends(rows)
    first = 0
    while first < rows.num_rows:
        last = int(np.searchsorted(ends, ends[first] + STAGED_BLOB_BYTES, "right")) - 1
        last = min(max(last, first + 1), first + STAGED_RECORDS)
        yield rows.slice(first, last - first)
        first = last


def _add_headers(columns: Columns, headers: pa.Array) -> None:
    encoded = [encode_headers(check_headers(pairs)) for pairs in headers.to_pylist()]
    if any(encoded):
        columns.headers = b"".join(encoded)
        starts = np.zeros(len(encoded) + 1, np.uint32)
        np.cumsum([len(one) for one in encoded], out=starts[1:])
        columns.header_starts = starts.tobytes()


def _json(plain: Any) -> bytes:
    try:
        encoded = _JSON.encode(plain)
        if b"null" in encoded:
            check_numbers(plain)
    except (TypeError, ValueError, OverflowError) as broken:
        raise RefusedError(
            f"a payload cannot be converted to JSON: {broken}; cast it in the query"
        ) from None
    return encoded


def _shape(kind: pa.DataType) -> Callable[[Any], Any]:
    """What Spark's to_json makes of values of a type: only fields that are NULL are left out."""
    if pa.types.is_struct(kind):
        return partial(_fields, [(field.name, _shape(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return partial(_entries, _shape(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return partial(_items, _shape(kind.value_type))
    return _itself


def _fields(shapes: list[tuple[str, Callable[[Any], Any]]], value: Any) -> Any:
    if value is None:
        return None
    return {name: shape(value[name]) for name, shape in shapes if value[name] is not None}


def _entries(shape: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else {key: shape(one) for key, one in value.items()}


def _items(shape: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else [shape(one) for one in value]


def _itself(value: Any) -> Any:
    return value
