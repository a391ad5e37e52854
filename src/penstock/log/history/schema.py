"""The columns of a history file, and the batches of a log as such columns.

Everything a record holds is kept: `headers` alone where no key repeats, else also `header_pairs`,
which is NULL in all other rows. Topic and partition are the same for the whole table, so no file
stores them. Marks stay in the log: they guard what is being published now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.log.arrow.columns import EXTRA, KINDS, header_pairs, schema_of, to_arrow
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.model.record import KIND_MASK, KIND_SHIFT, Headers

# What the columns of the log's own Arrow form give; `header_pairs` follows its own rule.
_SAME: Final = (
    "offset",
    "timestamp",
    "name",
    "publisher",
    "payload",
    "headers",
    "kind",
    "qos",
    "retain",
    "expires_at",
)
_PAIRS: Final = EXTRA.field("header_pairs").with_nullable(True)
_PAIRS_AT: Final = _SAME.index("headers") + 1
SCHEMA: Final = schema_of(_SAME).insert(_PAIRS_AT, _PAIRS)
CODED: Final = ["name", "publisher", "kind"]  # few texts that repeat: a number for each row
_CODES: Final = pa.dictionary(pa.int32(), pa.string())
CODED_SCHEMA: Final = pa.schema(
    [one.with_type(_CODES) if one.name in CODED else one for one in SCHEMA]
)
_PLAIN: Final = schema_of([name for name in _SAME if name not in CODED])
Ids = np.ndarray[Any, np.dtype[np.uint32]]


def to_rows(batches: Iterable[Batch], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The records of [start, end) in CODED_SCHEMA, one Arrow batch for each batch.

    Texts stay numbers, as a batch has them and as Parquet stores them.
    """
    for batch in batches:
        for rows in to_arrow([batch], "", _PLAIN, start, end):
            first = max(start - batch.base_offset, 0)
            last = first + rows.num_rows
            found = dict(zip(_PLAIN.names, rows.columns, strict=True)) | {
                "name": _names(batch, first, last),
                "publisher": _publishers(batch, first, last),
                "kind": _kinds(batch, first, last),
                "header_pairs": _repeating_pairs(batch, first, last),
            }
            arrays = [found[name] for name in CODED_SCHEMA.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=CODED_SCHEMA)


def _names(batch: Batch, first: int, last: int) -> pa.DictionaryArray:
    if batch.plan.names < 0:
        return _all_the_same(batch.strings[0], last - first)
    at = batch.plan.names + 4 * first
    return _coded(batch.strings, np.frombuffer(batch.columns, np.uint32, last - first, at))


def _publishers(batch: Batch, first: int, last: int) -> pa.DictionaryArray:
    strings = batch.strings
    if batch.plan.publishers < 0:
        only = batch.header.publisher_id
        return _all_the_same("" if only == fmt.NO_STRING else strings[only], last - first)
    at = batch.plan.publishers + 4 * first
    ids = np.frombuffer(batch.columns, np.uint32, last - first, at)
    return _coded([*strings, ""], np.minimum(ids, len(strings)))  # NO_STRING is the largest


def _kinds(batch: Batch, first: int, last: int) -> pa.DictionaryArray:
    codes = np.frombuffer(batch.flags(first, last), np.uint8) >> KIND_SHIFT & KIND_MASK
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), KINDS)


def _all_the_same(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def _coded(texts: list[str], ids: Ids) -> pa.DictionaryArray:
    """Rows by the number of their text, without texts that no row has; each text once."""
    is_used = np.zeros(len(texts), bool)
    is_used[ids] = True
    following: dict[str, int] = {}
    numbers = np.zeros(len(texts), np.int32)
    for at in np.flatnonzero(is_used).tolist():
        numbers[at] = following.setdefault(texts[at], len(following))
    return pa.DictionaryArray.from_arrays(pa.array(numbers[ids]), pa.array(list(following)))


def _repeating_pairs(batch: Batch, first: int, last: int) -> pa.Array:
    """All headers of the records in which a key repeats; NULL for the others."""
    if batch.plan.header_starts < 0:
        return pa.nulls(last - first, _PAIRS.type)
    all_headers = batch.record_headers(first, last)
    kept = [has_repeated_key(headers) for headers in all_headers]
    if not any(kept):
        return pa.nulls(last - first, _PAIRS.type)
    pairs = header_pairs([one if keep else () for one, keep in zip(all_headers, kept, strict=True)])
    nulls = pa.array([not keep for keep in kept])
    return pa.ListArray.from_arrays(pairs.offsets, pairs.values, _PAIRS.type, mask=nulls)


def has_repeated_key(headers: Headers) -> bool:
    return len({key for key, _ in headers}) < len(headers)
