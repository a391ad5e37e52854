"""The history of a topic as Spark tasks read it: Arrow batches of its files, below the log.

`names` and `where` keep the very records that they keep in the log: names are compared by the same
rule, and `where` is asked about the same batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.naming.names import matches
from penstock.core.where import compile_where
from penstock.log.arrow.columns import to_arrow
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import log_directory
from penstock.log.history.files import HistoryFile
from penstock.log.history.manifest import Manifest, check_life, open_manifest
from penstock.log.history.place import TablePlace, read_root
from penstock.log.history.reading.constants import GroupReader
from penstock.log.history.reading.rows import to_batches
from penstock.log.history.schema import SCHEMA
from penstock.log.history.storage import storage_of
from penstock.log.history.tier import read_known
from penstock.model.errors import RefusedError
from penstock.pipeline.source.scan import Mask, kept_records, kept_rows, wanted_names

if TYPE_CHECKING:
    from penstock.log.history.manifest import ListedFile
    from penstock.log.interface import LogIdentity
    from penstock.pipeline.source.origin import Wanted

_KNOWN: Final = ("topic", "partition", "offset")  # columns that need no reading
ROWS: Final = 32_768  # that are decoded at once, about 8 MiB; more if a group has more
NAMED_ROWS: Final = 131_072  # of which the names are decoded at once
FEW: Final = 256  # if at most one record of so many is wanted, it alone is decoded
Offsets = np.ndarray[Any, np.dtype[np.int64]]


class Histories:
    """The histories of a data directory. Tables stay open: a stream looks at them every time."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._open: dict[str, Manifest] = {}  # by the table's address

    def find(self, identity: LogIdentity) -> History | None:
        """What is stored of a topic outside its log, as it is now; None if nothing is.

        RefusedError if the table that its log has written is missing, or another is in its place.
        """
        root = read_root(self._data)
        known = read_known(RealDisk(), log_directory(self._data, identity))
        if root is None or known is None or known.import_end:
            return None
        place = root.place(identity)
        manifest = self._open.get(place.uri)
        if manifest is None:
            manifest = open_manifest(storage_of(place))
            if manifest is None and known.end:
                raise RefusedError(
                    f"the history {place.uri!r} is missing; it held the records up to offset "
                    f"{known.end}: make it reachable again, or forget it with `penstock history "
                    "drop`"
                )
            if manifest is None:
                return None
            self._open[place.uri] = manifest
        else:
            manifest.refresh()
        check_life(manifest, known.life)
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
        """The wanted records of [start, end), in batches of some groups of rows."""
        is_whole = wanted.where is not None or "header_pairs" in wanted.schema.names
        read, rows = (_records, 1) if is_whole else (_columns, ROWS)
        if wanted.names is not None and not is_whole:
            read, rows = _named, NAMED_ROWS
        for listed in self._files_between(start, end):
            file = self._manifest.open_file(listed, is_coded=True)
            named = None if wanted.names is None else _Named(file, wanted.names)
            bases = _bases(file)
            numbers = range(len(bases) - 1) if named is None else named.groups
            found = [one for one in numbers if bases[one] < end and start < bases[one + 1]]
            reader = GroupReader(file.parquet)
            for some in _cut(found, file, rows):
                offsets = np.concatenate([np.arange(bases[one], bases[one + 1]) for one in some])
                groups = _Groups(file, reader, some, offsets, topic)
                yield from read(groups, start, end, wanted, named)

    def _files_between(self, start: int, end: int) -> Sequence[ListedFile]:
        return [one for one in self.files if one.name.base < end and start < one.name.end]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of rows in a file, which are decoded together."""

    file: HistoryFile
    reader: GroupReader
    numbers: Sequence[int]
    offsets: Offsets  # of all their rows
    topic: str

    def read(self, columns: Sequence[str] = SCHEMA.names) -> pa.Table:
        return self.reader.read(self.numbers, columns)

    def some(self, numbers: Sequence[int]) -> _Groups:
        """These of them, which rise."""
        bases = _bases(self.file)
        offsets = np.concatenate([np.arange(bases[one], bases[one + 1]) for one in numbers])
        return replace(self, numbers=numbers, offsets=offsets)


def _bases(file: HistoryFile) -> list[int]:
    """Where each group of rows begins; one more for the end of the file."""
    return list(accumulate(file.group_rows, initial=file.name.base))


def _cut(groups: Sequence[int], file: HistoryFile, rows: int) -> Iterator[Sequence[int]]:
    """So many groups at a time that they have about so many rows; one at least."""
    count = max(rows // max(file.group_rows, default=1), 1)
    for at in range(0, len(groups), count):
        yield groups[at : at + count]


def _numbers(file: HistoryFile, group: int, column: str) -> pa.ChunkedArray:
    return file.read(group, [column]).column(column).cast(pa.int64())


class _Named:
    """What a filter over names chooses in a file. Each name is compared once for the whole file."""

    def __init__(self, file: HistoryFile, names: str) -> None:
        self._filter = names
        self._texts: pa.Array | None = None  # the wanted names; None: the file does not list them
        self.groups: Sequence[int] = range(len(file.group_rows))  # with a wanted name
        postings = file.names()
        if postings is None:
            return
        texts = [name for name in postings if matches(names, name)]
        lists = [postings[name] for name in texts]
        self._texts = pa.array(texts, pa.string())
        if None not in lists:  # None: the name is in all of them
            self.groups = sorted({group for groups in lists for group in groups or ()})

    def wants(self, names: pa.ChunkedArray) -> Mask:
        """Which rows of a column of names are wanted."""
        return np.concatenate([self._wants(coded) for coded in names.chunks])

    def _wants(self, coded: pa.DictionaryArray) -> Mask:
        texts = coded.dictionary
        if self._texts is None:
            is_wanted = np.array([matches(self._filter, name) for name in texts.to_pylist()], bool)
        else:
            is_wanted = pc.is_in(texts, value_set=self._texts).to_numpy(zero_copy_only=False)
        found: Mask = is_wanted[coded.indices.to_numpy()]
        return found


def _named(
    groups: _Groups, start: int, end: int, wanted: Wanted, named: _Named | None
) -> Iterator[pa.RecordBatch]:
    """The wanted records of [start, end) in some groups, by a look at the names first."""
    assert named is not None, "there is a filter over names"
    names = groups.read(["name"]).column("name")
    keep: Mask = (start <= groups.offsets) & (groups.offsets < end) & named.wants(names)
    chosen = groups.offsets[keep]
    if len(chosen) * FEW <= len(keep):
        if len(chosen):
            yield _picked(groups, chosen, names.filter(pa.array(keep)), wanted)
        return
    bases = _bases(groups.file)
    hit = np.unique(np.searchsorted(bases, chosen, "right") - 1).tolist()
    for some in _cut(hit, groups.file, ROWS):
        yield from _columns(groups.some(some), start, end, wanted, named)


def _picked(
    groups: _Groups, chosen: Offsets, names: pa.ChunkedArray, wanted: Wanted
) -> pa.RecordBatch:
    """The records at these few offsets, which have these names."""
    found = {"name": names}
    bases = _bases(groups.file)
    at = np.searchsorted(chosen, bases)  # where the records of each group begin
    hit = [one for one in groups.numbers if at[one] < at[one + 1]]
    if "payload" in wanted.schema.names:
        parts = [
            groups.file.payloads(one, (chosen[at[one] : at[one + 1]] - bases[one]).tolist())
            for one in hit
        ]
        found["payload"] = pa.concat_arrays(parts)
    others = [name for name in wanted.schema.names if name not in (*_KNOWN, *found)]
    if others:
        part = groups.some(hit)
        stored = part.read(others)
        rows = pa.array(np.searchsorted(part.offsets, chosen))
        found |= {name: stored.column(name).take(rows) for name in others}
    return _batch(groups.topic, chosen, found, wanted)


def _columns(
    groups: _Groups, start: int, end: int, wanted: Wanted, named: _Named | None
) -> Iterator[pa.RecordBatch]:
    """The wanted records of [start, end) in some groups, as their columns are stored."""
    needed = [field.name for field in wanted.schema if field.name not in _KNOWN]
    if named is not None and "name" not in needed:
        needed.append("name")
    stored = groups.read(needed)
    keep: Mask = (start <= groups.offsets) & (groups.offsets < end)
    if named is not None:
        keep &= named.wants(stored.column("name"))
    count = int(np.count_nonzero(keep))
    if not count:
        return
    if count == len(keep):
        found = {name: stored.column(name) for name in needed}
    else:
        chosen = pa.array(keep)
        found = {name: stored.column(name).filter(chosen) for name in needed}
    yield _batch(groups.topic, groups.offsets[keep], found, wanted)


def _batch(
    topic: str, offsets: Offsets, found: Mapping[str, pa.Array | pa.ChunkedArray], wanted: Wanted
) -> pa.RecordBatch:
    """The records at these offsets, whose other columns are `found`."""
    arrays = []
    for field in wanted.schema:
        if field.name == "offset":
            arrays.append(pa.array(offsets))
        elif field.name in _KNOWN:
            value = topic if field.name == "topic" else 0
            arrays.append(pa.repeat(pa.scalar(value, field.type), len(offsets)))
        else:
            column = found[field.name]
            column = column if column.type == field.type else column.cast(field.type)
            is_chunked = isinstance(column, pa.ChunkedArray)
            arrays.append(column.combine_chunks() if is_chunked else column)
    return pa.RecordBatch.from_arrays(arrays, schema=wanted.schema)


def _records(
    groups: _Groups, start: int, end: int, wanted: Wanted, named: _Named | None
) -> Iterator[pa.RecordBatch]:
    """As `_columns`, by a look at each record."""
    wants = wanted_names(wanted)
    where = None if wanted.where is None else compile_where(wanted.where)
    for batch in to_batches(groups.read(), groups.file.facts.epoch):
        keep = kept_records(batch, groups.topic, wants, where)
        for arrow in to_arrow([batch], groups.topic, wanted.schema, start, end):
            yield arrow if keep is None else kept_rows(arrow, keep, batch, start)
