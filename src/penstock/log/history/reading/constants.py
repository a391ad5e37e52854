"""Columns of a row group that need no reading: its statistics say what every row holds.

Most topics have no headers, no expiry, one kind and one QoS. A reader of a few records pays for
each column that it reads, so it reads only those in which rows differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.log.history.schema import CODED, CODED_SCHEMA, SCHEMA

# The leaf of a column whose statistics tell; all NULL: no row has anything in it.
_LEAVES: Final = {
    "name": "name",
    "publisher": "publisher",
    "kind": "kind",
    "qos": "qos",
    "retain": "retain",
    "expires_at": "expires_at",
    "headers": "headers.key_value.key",
    "header_pairs": "header_pairs.list.element.key",
}
_FLAT: Final = ("name", "publisher", "kind", "qos", "retain")  # a value in every row
TOLD: Final = sorted(_LEAVES.values())  # of which a writer keeps statistics
_KEPT: Final = 64  # arrays, which most groups of a topic share


class GroupReader:
    """Row groups of one open file, whole or some columns."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self._file = file
        schema = file.metadata.schema
        paths = {schema.column(at).path: at for at in range(len(schema))}
        self._leaves = {name: paths[leaf] for name, leaf in _LEAVES.items() if leaf in paths}

    def read(self, groups: Sequence[int], columns: Sequence[str] = SCHEMA.names) -> pa.Table:
        """These columns, group after group; names, publishers and kinds as Arrow dictionaries."""
        known = self._constants(groups, columns)
        wanted = [name for name in columns if name not in known]
        rows = self._file.read_row_groups(groups, wanted, use_threads=False)
        arrays = [known[name] if name in known else rows.column(name) for name in columns]
        return pa.Table.from_arrays(arrays, list(columns))

    def _constants(self, groups: Sequence[int], columns: Sequence[str]) -> dict[str, pa.Array]:
        """The columns that hold the same in all rows."""
        facts = [self._file.metadata.row_group(group) for group in groups]
        count = sum(one.num_rows for one in facts)
        found: dict[str, pa.Array] = {}
        for name in columns:
            at = self._leaves.get(name)
            if at is None:
                continue
            values = {_told(name, one.column(at).statistics, one.num_rows) for one in facts}
            (value,) = values if len(values) == 1 else (_Told.DIFFERS,)
            if value is _Told.NOTHING:
                found[name] = _nothing(name, count)
            elif value is not _Told.DIFFERS:
                found[name] = _repeated(name, value, count)
        return found


class _Told(Enum):
    """What statistics say, where they do not tell a value."""

    NOTHING = "no row has anything"
    DIFFERS = "rows may differ"


def _told(name: str, told: pq.Statistics | None, rows: int) -> str | int | bool | _Told:
    """What every row of a group holds."""
    if told is None or not told.has_null_count:
        return _Told.DIFFERS
    if told.null_count == rows:
        return _Told.NOTHING
    if told.null_count == 0 and name in _FLAT and told.has_min_max and told.min == told.max:
        value: str | int | bool = told.min
        return value
    return _Told.DIFFERS


@lru_cache(_KEPT)
def _nothing(name: str, count: int) -> pa.Array:
    """No headers, or NULL, for so many rows."""
    if name != "headers":
        return pa.nulls(count, SCHEMA.field(name).type)
    texts = pa.array([], pa.string())
    starts = pa.array(np.zeros(count + 1, np.int32))
    return pa.MapArray.from_arrays(starts, texts, texts)


@lru_cache(_KEPT)
def _repeated(name: str, value: str | int | bool, count: int) -> pa.Array:
    if name in CODED:
        numbers = pa.array(np.zeros(count, np.int32))
        return pa.DictionaryArray.from_arrays(numbers, pa.array([value], pa.string()))
    return pa.repeat(pa.scalar(value, CODED_SCHEMA.field(name).type), count)
