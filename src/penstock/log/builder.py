"""A pending batch: what publishers of one log have handed over since the last commit.

Records arrive in runs that share a name, publisher, stamp and flags; a column is only written out
when its runs differ. Payload bytes are joined once, when the batch is encoded.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final

from crc32c import crc32c

from penstock.log import format as fmt
from penstock.log.batch import Batch
from penstock.log.marks import Mark, encode_marks

RECORD_BYTES: Final = 32  # a record's share of all columns: an empty payload is not free


class Columns:
    """The columns of a batch as bytes; an empty optional column is constant or absent."""

    def __init__(self) -> None:
        self.count = 0
        self.base_timestamp = 0
        self.last_timestamp = 0
        self.record_flags = 0
        self.publisher_id: int = fmt.NO_STRING
        self.expires = b""
        self.wide_times = b""
        self.starts = b""
        self.lengths = b""  # empty: payloads are contiguous
        self.times = b""
        self.names = b""
        self.publishers = b""
        self.header_starts = b""
        self.flags = b""
        self.headers = b""
        self.strings: list[str] = []
        self.marks: list[Mark] = []


def assemble(
    columns: Columns,
    blob: bytes,
    epoch: int,
    base_offset: int,
    prev_checksum: int,
    compression: int = fmt.COMPRESSION_NONE,
    raw_length: int = -1,
) -> Batch:
    """Lay the columns out in their fixed order and give them a header."""
    c = columns
    flags = 0 if c.lengths else fmt.CONTIGUOUS
    flags |= fmt.EXPIRES if c.expires else 0
    flags |= fmt.WIDE_TIMES if c.wide_times else 0
    flags |= fmt.TIMES if c.times else 0
    flags |= fmt.NAMES if c.names else 0
    flags |= fmt.PUBLISHERS if c.publishers else 0
    flags |= fmt.HEADERS if c.header_starts else 0
    flags |= fmt.FLAGS if c.flags else 0
    encoded = [string.encode() for string in c.strings]
    string_starts = array("I", accumulate(map(len, encoded), initial=0)).tobytes()
    text = b"".join(encoded)
    marks = encode_marks(c.marks) if c.marks else b""
    section = b"".join(
        [
            c.expires,
            c.wide_times,
            c.starts,
            c.lengths,
            c.times,
            c.names,
            c.publishers,
            c.header_starts,
            string_starts,
            c.flags,
            text,
            c.headers,
            marks,
        ]
    )
    section += bytes(fmt.padded(len(section)) - len(section))
    header = fmt.BatchHeader(
        compression,
        flags,
        prev_checksum,
        epoch,
        base_offset,
        c.base_timestamp,
        c.last_timestamp,
        c.count,
        len(section),
        crc32c(section),
        len(blob),
        crc32c(blob),
        len(blob) if raw_length < 0 else raw_length,
        len(encoded),
        len(text),
        len(c.headers),
        len(marks),
        c.publisher_id,
        c.record_flags,
    )
    return Batch(header, section, blob)


class Run:
    """Consecutive records that differ in nothing but their payload."""

    def __init__(
        self,
        count: int,
        timestamp: int,
        name_id: int,
        publisher_id: int,
        flags: int,
        expires_at: int,
        headers: bytes,
    ) -> None:
        self.count = count
        self.timestamp = timestamp
        self.name_id = name_id
        self.publisher_id = publisher_id
        self.flags = flags
        self.expires_at = expires_at  # 0: never
        self.headers = headers  # encoded, the same for each record of the run


class BatchBuilder:
    """Collects runs and marks; `encode` turns them into one batch. Timestamps never fall."""

    def __init__(self, last_timestamp: int) -> None:
        self.count = 0
        self.bytes = 0  # payloads, headers, columns, marks; what push-back is measured in
        self.last_timestamp = last_timestamp
        self._runs: list[Run] = []
        self._chunks: list[bytes] = []
        self._lengths: list[int] = []
        self._starts: list[int] = []  # only kept once a run has gaps between its payloads
        self._blob_length = 0
        self._has_gaps = False
        self._strings: dict[str, int] = {}
        self._marks: list[Mark] = []

    @property
    def is_empty(self) -> bool:
        return self.count == 0 and not self._marks

    def add(
        self,
        name: str,
        payloads: list[bytes],
        timestamp: int,
        flags: int,
        publisher: str = "",
        expires_at: int = 0,
        headers: bytes = b"",
    ) -> int:
        """Add payloads published together; the index of the first in this batch."""
        chunk = payloads[0] if len(payloads) == 1 else b"".join(payloads)
        lengths = list(map(len, payloads))
        if self._has_gaps:
            self._starts.extend(accumulate(lengths[:-1], initial=self._blob_length))
        return self._add_run(name, chunk, lengths, timestamp, flags, publisher, expires_at, headers)

    def add_gapped(
        self,
        name: str,
        chunk: bytes,
        starts: list[int],
        lengths: list[int],
        timestamp: int,
        flags: int,
        publisher: str = "",
        expires_at: int = 0,
        headers: bytes = b"",
    ) -> int:
        """Add payloads that lie inside `chunk` with other bytes between them, without copying."""
        if not self._has_gaps:
            self._has_gaps = True
            self._starts = list(accumulate(self._lengths, initial=0))[: self.count]
        base = self._blob_length
        self._starts.extend([base + start for start in starts])
        return self._add_run(name, chunk, lengths, timestamp, flags, publisher, expires_at, headers)

    def _add_run(
        self,
        name: str,
        chunk: bytes,
        lengths: list[int],
        timestamp: int,
        flags: int,
        publisher: str,
        expires_at: int,
        headers: bytes,
    ) -> int:
        first = self.count
        if timestamp < self.last_timestamp:
            timestamp = self.last_timestamp
        self.last_timestamp = timestamp
        strings = self._strings
        name_id = strings.setdefault(name, len(strings))
        publisher_id = fmt.NO_STRING
        if publisher:
            publisher_id = strings.setdefault(publisher, len(strings))
        count = len(lengths)
        self._chunks.append(chunk)
        self._lengths += lengths
        self._blob_length += len(chunk)
        self._runs.append(Run(count, timestamp, name_id, publisher_id, flags, expires_at, headers))
        self.count += count
        self.bytes += len(chunk) + (len(headers) + RECORD_BYTES) * count
        return first

    def add_mark(self, kind: int, key: bytes, index: int) -> None:
        """Store a fact beside record `index` of this batch (or NO_RECORD)."""
        self._marks.append(Mark(kind, key, index))
        self.bytes += len(key)

    def encode(self, epoch: int, base_offset: int, prev_checksum: int) -> Batch:
        """The batch as it will be stored, chained to the one before it."""
        runs = self._runs
        columns = Columns()
        columns.count = self.count
        columns.strings = list(self._strings)
        columns.marks = self._marks
        columns.last_timestamp = columns.base_timestamp = self.last_timestamp
        if runs:
            self._fill(columns, runs)
        if self._has_gaps:
            columns.starts = array("I", self._starts).tobytes()
            columns.lengths = array("I", self._lengths).tobytes()
        else:
            columns.starts = array("I", accumulate(self._lengths, initial=0)).tobytes()
        blob = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        return assemble(columns, blob, epoch, base_offset, prev_checksum)

    def _fill(self, columns: Columns, runs: list[Run]) -> None:
        """Write out the columns in which the runs differ."""
        first = runs[0]
        columns.base_timestamp = first.timestamp
        columns.record_flags = first.flags
        columns.publisher_id = first.publisher_id
        if len(runs) > 1:
            spread = runs[-1].timestamp - first.timestamp
            if spread:
                deltas = [run.timestamp - first.timestamp for run in runs]
                if spread > 0xFFFF_FFFF:
                    columns.wide_times = _spread(array("Q"), runs, deltas)
                else:
                    columns.times = _spread(array("I"), runs, deltas)
            if any(run.name_id for run in runs):
                columns.names = _spread(array("I"), runs, [run.name_id for run in runs])
            if any(run.publisher_id != first.publisher_id for run in runs):
                columns.publishers = _spread(array("I"), runs, [run.publisher_id for run in runs])
            if any(run.flags != first.flags for run in runs):
                columns.flags = _spread(array("B"), runs, [run.flags for run in runs])
        if any(run.expires_at for run in runs):
            columns.expires = _spread(array("q"), runs, [run.expires_at for run in runs])
        if any(run.headers for run in runs):
            columns.headers = b"".join([run.headers * run.count for run in runs])
            sizes = [len(run.headers) for run in runs for _ in range(run.count)]
            columns.header_starts = array("I", accumulate(sizes, initial=0)).tobytes()


def _spread(column: array[int], runs: list[Run], values: list[int]) -> bytes:
    """Write each run's value once per record of the run."""
    for run, value in zip(runs, values, strict=True):
        if run.count == 1:
            column.append(value)
        else:
            column.extend(array(column.typecode, [value]) * run.count)
    return column.tobytes()
