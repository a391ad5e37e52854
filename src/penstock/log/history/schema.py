"""The columns of a history file, and the batches of a log as such columns.

Everything a record holds is kept: `headers` alone where no key repeats, else also `header_pairs`,
which is NULL in all other rows. Topic and partition are the same for the whole table, so no file
stores them. Marks stay in the log: they guard what is being published now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from penstock.log.arrow.columns import EXTRA, header_pairs, schema_of, to_arrow
from penstock.log.format.batch import Batch
from penstock.model.record import Headers

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


def to_rows(batches: Iterable[Batch], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The records of [start, end) as rows of a history file, one Arrow batch for each batch."""
    same = schema_of(_SAME)
    for batch in batches:
        for rows in to_arrow([batch], "", same, start, end):
            first = max(start - batch.base_offset, 0)
            arrays = rows.columns
            arrays.insert(_PAIRS_AT, _repeating_pairs(batch, first, first + rows.num_rows))
            yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


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
