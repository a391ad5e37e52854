"""Records meet the filters of sessions, whole columns at a time, on a Spark task.

A name is matched once, against a trie of all filters; what came of it is then laid beside every
record of that name with a few array operations. So the cost follows the distinct names and what
is delivered, never records times filters. Loads nothing of the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.core.delivery.rule import OWN, Want, kept_from_qos, stretches
from penstock.core.naming.trie import FilterTrie
from penstock.core.position import OFFSET_END
from penstock.core.where import Where, compile_where
from penstock.model.record import Record
from penstock.pipeline.jobs.dispatch.readers import Readers

NAMES_MAX: Final = 100_000  # names whose matches a task remembers; names are unbounded
PAIRS_MAX: Final = 1_000_000  # deliveries worked out at once: some 50 MB

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which record goes to which reader: rows of a batch beside readers and QoS."""

    rows: Ints
    readers: Ints
    qos: Ints  # the lower of the filter's and the record's
    is_kept: Bools  # does it come from the log, if the reader was away

    def kept(self, keep: Any) -> Pairs:
        return Pairs(self.rows[keep], self.readers[keep], self.qos[keep], self.is_kept[keep])


class _Found(NamedTuple):
    """What one name comes to in one topic: a column each of readers and their stretches."""

    readers: Ints
    starts: Ints
    ends: Ints
    qos: Ints
    publishers: Ints
    kept_from_qos: Ints


class Matcher:
    """The filters in a trie, and the names met so far."""

    def __init__(self, readers: Readers) -> None:
        self.readers = readers
        self._trie: FilterTrie[int] = FilterTrie()
        for number, one in enumerate(readers.filters):
            self._trie.add(one.filter, number)
        self._known: dict[tuple[int, str], _Found] = {}
        self._clients = np.array([one.client_id for one in readers.readers], object)
        self._wheres: dict[int, Where] = {
            number: compile_where(one.where)
            for number, one in enumerate(readers.readers)
            if one.where
        }
        self._outs = {number: one.out for number, one in enumerate(readers.readers) if one.out}

    def pairs(self, batch: pa.RecordBatch) -> Iterator[Pairs]:
        """What of the batch goes where, some at a time, in the order of its records.

        Columns: topic, partition, offset, name, qos, publisher; and all others if an expression
        is asked.
        """
        if batch.num_rows == 0:
            return
        codes, founds = self._names(batch)
        sizes = np.array([len(found.readers) for found in founds], np.int64)
        begins = np.cumsum(sizes) - sizes
        joined = _Found(*(np.concatenate(column) for column in zip(*founds, strict=True)))
        counts = sizes[codes]
        offsets = batch.column("offset").to_numpy()
        qos = batch.column("qos").to_numpy().astype(np.int64)
        for first, last in _slices(counts):
            rows = np.repeat(np.arange(first, last), counts[first:last])
            inner = np.arange(len(rows)) - np.repeat(
                np.cumsum(counts[first:last]) - counts[first:last], counts[first:last]
            )
            at = begins[codes[rows]] + inner
            keep = (offsets[rows] >= joined.starts[at]) & (offsets[rows] < joined.ends[at])
            keep &= self._fits_publisher(batch, rows, joined.readers[at], joined.publishers[at])
            granted = np.minimum(qos[rows], joined.qos[at])
            is_kept = qos[rows] >= joined.kept_from_qos[at]
            found = Pairs(rows, joined.readers[at], granted, is_kept)
            yield self._without_out(batch, self._passing(batch, found.kept(keep)))

    def _names(self, batch: pa.RecordBatch) -> tuple[Ints, list[_Found]]:
        """For each row a number, and what the name and topic of that number come to."""
        topics = batch.column("topic").dictionary_encode()
        names = batch.column("name").dictionary_encode()
        width = len(names.dictionary)
        numbers = batch.column("partition").to_numpy().astype(np.int64)
        depth = int(numbers.max()) + 1
        place = topics.indices.to_numpy().astype(np.int64) * depth + numbers
        pair = place * width + names.indices.to_numpy()
        distinct, codes = np.unique(pair, return_inverse=True)
        ids = [self.readers.topics[topic] for topic in topics.dictionary.to_pylist()]
        name_of = names.dictionary.to_pylist()
        founds = [
            self._find(ids[one // width // depth] + one // width % depth, name_of[one % width])
            for one in distinct.tolist()
        ]
        return codes, founds

    def _find(self, topic_id: int, name: str) -> _Found:
        found = self._known.get((topic_id, name))
        if found is None:
            if len(self._known) >= NAMES_MAX:
                self._known.clear()
            found = self._known[topic_id, name] = self._match(topic_id, name)
        return found

    def _match(self, topic_id: int, name: str) -> _Found:
        wants: dict[int, list[Want]] = {}
        for number in self._trie.match(name):
            one = self.readers.filters[number]
            want = Want(one.qos, one.since.get(topic_id, 0), one.no_local)
            wants.setdefault(one.reader, []).append(want)
        rows = []
        for number, mine in wants.items():
            reader = self.readers.readers[number]
            positions = reader.positions
            begin = 0 if positions is None else positions.get(topic_id, OFFSET_END - 1)
            for stretch in stretches(mine):
                start, end = max(stretch.start, begin), min(stretch.end, OFFSET_END - 1)
                how = stretch.reading
                lowest = kept_from_qos(how, keeps_qos0=reader.keeps_qos0)
                rows.append((number, start, end, how.qos, stretch.publishers, lowest))
        table = np.array(rows, np.int64).reshape(-1, len(_Found._fields))
        return _Found(*(np.ascontiguousarray(column) for column in table.T))

    def _fits_publisher(
        self, batch: pa.RecordBatch, rows: Ints, readers: Ints, publishers: Ints
    ) -> Any:
        """No-local: what its own client published does not count for some filters."""
        asked = np.flatnonzero(publishers)
        fits = np.ones(len(rows), np.bool_)
        if len(asked):
            names = batch.column("publisher").to_numpy(zero_copy_only=False)
            is_own = names[rows[asked]] == self._clients[readers[asked]]
            fits[asked] = is_own == (publishers[asked] == OWN)
        return fits

    def _without_out(self, batch: pa.RecordBatch, found: Pairs) -> Pairs:
        """Without what a reader was sent before a crash moved its position back."""
        if not self._outs:
            return found
        keep = np.ones(len(found.rows), np.bool_)
        for at in np.flatnonzero(np.isin(found.readers, list(self._outs))).tolist():
            row = int(found.rows[at])
            topic_id = self.readers.topics[batch.column("topic")[row].as_py()]
            topic_id += batch.column("partition")[row].as_py()
            place = (topic_id, batch.column("offset")[row].as_py())
            keep[at] = place not in self._outs[int(found.readers[at])]
        return found.kept(keep)

    def _passing(self, batch: pa.RecordBatch, found: Pairs) -> Pairs:
        """Without the records that a feed's expression does not let pass."""
        if not self._wheres:
            return found
        asked = np.flatnonzero(np.isin(found.readers, list(self._wheres)))
        if not len(asked):
            return found
        keep = np.ones(len(found.rows), np.bool_)
        records: dict[int, Record] = {}
        for at in asked.tolist():
            row = int(found.rows[at])
            if row not in records:
                records[row] = record_of(batch, row)
            keep[at] = self._wheres[int(found.readers[at])].passes(records[row])
        return found.kept(keep)


def record_of(batch: pa.RecordBatch, row: int) -> Record:
    """A row as a record, with what expressions can use."""
    one = batch.slice(row, 1).to_pylist()[0]
    return Record(
        topic=one["topic"],
        partition=one["partition"],
        offset=one["offset"],
        timestamp=batch.column("timestamp")[row].value,
        name=one["name"],
        payload=one["payload"],
        headers=tuple(one["headers"]),
        publisher=one["publisher"],
    )


_newest: list[Matcher] = []  # of this process: Spark uses one for many tasks


def matcher_of(readers: Readers) -> Matcher:
    """The matcher for these readers, built once a process."""
    if not _newest or _newest[0].readers.key != readers.key:
        _newest[:] = [Matcher(readers)]
    return _newest[0]


def _slices(counts: Ints) -> Iterator[tuple[int, int]]:
    """Rows [first, last) that come to few enough pairs together; at least one row each."""
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        done = ends[first - 1] if first else 0
        last = int(np.searchsorted(ends, done + PAIRS_MAX, "right"))
        last = min(max(last, first + 1), len(counts))
        yield first, last
        first = last
