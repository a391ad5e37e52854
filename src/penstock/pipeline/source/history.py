"""The history of a topic as Spark tasks read it: Arrow batches of its files, below the log.

`names` and `where` keep the very records that they keep in the log: names are compared by the same
rule, and `where` is asked about the same batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.names import matches
from penstock.core.where import compile_where
from penstock.log.arrow.columns import to_arrow
from penstock.log.history.files import HistoryFile
from penstock.log.history.manifest import Manifest, open_manifest
from penstock.log.history.place import TablePlace, read_root
from penstock.log.history.reading import to_batches
from penstock.log.history.storage import storage_of
from penstock.pipeline.source.scan import kept_records, kept_rows

if TYPE_CHECKING:
    from penstock.log.history.manifest import ListedFile
    from penstock.log.interface import LogIdentity
    from penstock.pipeline.source.origin import Wanted

CONSTANT: Final = ("topic", "partition")  # columns that no file stores


class Histories:
    """The histories of a data directory. Tables stay open: a stream looks at them every time."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._open: dict[str, Manifest] = {}  # by the table's address

    def find(self, identity: LogIdentity) -> History | None:
        """What is stored of a topic outside its log, as it is now; None if nothing is."""
        root = read_root(self._data)
        if root is None:
            return None
        place = root.place(identity)
        manifest = self._open.get(place.uri)
        if manifest is None:
            manifest = open_manifest(storage_of(place))
            if manifest is None:
                return None
            self._open[place.uri] = manifest
        else:
            manifest.refresh()
        return History(manifest, place) if manifest.files else None


class History:
    """One snapshot: the records [first, end) in files."""

    def __init__(self, manifest: Manifest, place: TablePlace) -> None:
        self.place = place
        self.first = manifest.first
        self.end = manifest.end
        self.files = manifest.files
        self._manifest = manifest

    def paths_between(self, start: int, end: int) -> list[str]:
        """The files with records of [start, end)."""
        return [f"{self.place.uri}/{one.name}" for one in self._files_between(start, end)]

    def bytes_between(self, start: int, end: int) -> int:
        """About how much of the files the records [start, end) take."""
        total = 0
        for one in self.files:
            shared = min(one.name.end, end) - max(one.name.base, start)
            if shared > 0:
                total += one.bytes * shared // (one.name.end - one.name.base)
        return total

    def offset_at(self, timestamp_us: int) -> int:
        """The first offset stamped at or after the time; the end if all are older."""
        for listed in self.files:
            # The table's log may know times to the millisecond only, cut off.
            if listed.last_timestamp + 1_000 <= timestamp_us:
                continue
            file = self._manifest.open_file(listed)
            for number, base in enumerate(_bases(file)[:-1]):
                stamps = _numbers(file, number, "timestamp")
                if stamps[-1].as_py() >= timestamp_us:
                    late = pc.less(stamps, pa.scalar(timestamp_us, pa.int64()))
                    return base + int(pc.sum(late).as_py() or 0)
        return self.end

    def stamp_at(self, offset: int) -> int | None:
        """When a record was received (µs since 1970, UTC); None if it is not here."""
        for listed in self._files_between(offset, offset + 1):
            file = self._manifest.open_file(listed)
            bases = _bases(file)
            group = bisect_right(bases, offset) - 1
            stamp: int = _numbers(file, group, "timestamp")[offset - bases[group]].as_py()
            return stamp
        return None

    def rows(self, topic: str, start: int, end: int, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The wanted records of [start, end), one batch for each group of rows that has some."""
        is_whole = wanted.where is not None or "header_pairs" in wanted.schema.names
        read = _records if is_whole else _columns
        for listed in self._files_between(start, end):
            file = self._manifest.open_file(listed)
            bases = _bases(file)
            named = _groups_with(file, wanted.names)
            for group, base in enumerate(bases[:-1]):
                first, last = max(start, base), min(end, bases[group + 1])
                if first < last and (named is None or group in named):
                    of = _Group(file, group, topic, base)
                    yield from read(of, first, last, wanted)

    def _files_between(self, start: int, end: int) -> Sequence[ListedFile]:
        return [one for one in self.files if one.name.base < end and start < one.name.end]


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of rows in a file: what a reader decodes at once."""

    file: HistoryFile
    number: int
    topic: str
    base: int  # the offset of its first row

    def read(self, columns: list[str] | None = None) -> pa.Table:
        return self.file.parquet.read_row_group(self.number, columns, use_threads=False)


def _bases(file: HistoryFile) -> list[int]:
    """Where each group of rows begins; one more for the end of the file."""
    return list(accumulate(file.group_rows, initial=file.name.base))


def _numbers(file: HistoryFile, group: int, column: str) -> pa.ChunkedArray:
    rows = file.parquet.read_row_group(group, [column], use_threads=False)
    return rows.column(column).cast(pa.int64())


def _groups_with(file: HistoryFile, names: str | None) -> set[int] | None:
    """The groups of rows with a wanted name; None: look into all of them."""
    postings = None if names is None else file.names()
    if names is None or postings is None:
        return None
    found: set[int] = set()
    for name, groups in postings.items():
        if matches(names, name):
            found.update(range(len(file.group_rows)) if groups is None else groups)
    return found


def _columns(group: _Group, start: int, end: int, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The wanted records of [start, end) in a group, as its columns are stored."""
    first, count = start - group.base, end - start
    keep: pa.Array | None = None
    if wanted.names is not None:
        names = group.read(["name"]).column("name").slice(first, count).combine_chunks()
        coded = names.dictionary_encode()
        good = [matches(wanted.names, name) for name in coded.dictionary.to_pylist()]
        keep = pa.array(good, pa.bool_()).take(coded.indices)
    if keep is not None and not keep.true_count:
        return
    stored = [field.name for field in wanted.schema if field.name not in CONSTANT]
    # Without a column a table would not know how many rows it has.
    rows = group.read(stored or ["offset"]).slice(first, count)
    rows = rows if keep is None else rows.filter(keep)
    constants = {"topic": group.topic, "partition": 0}
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), rows.num_rows)
        if field.name in constants
        else rows.column(field.name).combine_chunks().cast(field.type)
        for field in wanted.schema
    ]
    yield pa.RecordBatch.from_arrays(arrays, schema=wanted.schema)


def _records(group: _Group, start: int, end: int, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """As `_columns`, by a look at each record."""
    filter_text = wanted.names
    wants = None if filter_text is None else lambda name: matches(filter_text, name)
    where = None if wanted.where is None else compile_where(wanted.where)
    for batch in to_batches(group.read(), group.file.facts.epoch):
        keep = kept_records(batch, group.topic, wants, where)
        for arrow in to_arrow([batch], group.topic, wanted.schema, start, end):
            yield arrow if keep is None else kept_rows(arrow, keep, batch, start)
