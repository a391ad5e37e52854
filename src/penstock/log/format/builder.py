"""A pending batch: what publishers of one log have handed over since the last commit.

Records arrive in runs that share a name, publisher, stamp and flags; a column is only written out
when its runs differ. Payload bytes are joined once, when the batch is encoded.
"""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from typing import Final

from penstock.core.delivery.run import MixedRun, Run
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.checksum import crc32c
from penstock.log.format.marks import Mark, encode_headers, encode_marks

RECORD_BYTES: Final = 32  # a record's share of all columns: an empty payload is not free
# Of one plain record: where its payload begins, its length, and the starts of one or two strings.
_ONE_STRING: Final = struct.Struct("<4I")
_TWO_STRINGS: Final = struct.Struct("<5I")


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
        # All of them as they are stored, once they are laid out, and what the header says of that.
        self.section = b""
        self.stored = 0  # flags: which columns there are
        self.strings_length = 0
        self.marks_length = 0


def _lay_out(columns: Columns) -> None:
    """Put the columns into their fixed order."""
    c = columns
    flags = 0 if c.lengths else fmt.CONTIGUOUS
    flags |= fmt.EXPIRES if c.expires else 0
    flags |= fmt.WIDE_TIMES if c.wide_times else 0
    flags |= fmt.TIMES if c.times else 0
    flags |= fmt.NAMES if c.names else 0
    flags |= fmt.PUBLISHERS if c.publishers else 0
    flags |= fmt.HEADERS if c.header_starts else 0
    flags |= fmt.FLAGS if c.flags else 0
    encoded = list(map(str.encode, c.strings))
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
    c.section = section + bytes(-len(section) & 7)  # what follows stays aligned
    c.stored = flags
    c.strings_length = len(text)
    c.marks_length = len(marks)


def assemble(
    columns: Columns, blob: bytes, epoch: int, base_offset: int, prev_checksum: int
) -> Batch:
    """Lay the columns out, unless they are, and give them a header."""
    c = columns
    if not c.section:
        _lay_out(c)
    header = fmt.BatchHeader(
        fmt.COMPRESSION_NONE,
        c.stored,
        prev_checksum,
        epoch=epoch,
        base_offset=base_offset,
        base_timestamp=c.base_timestamp,
        last_timestamp=c.last_timestamp,
        count=c.count,
        columns_length=len(c.section),
        columns_checksum=crc32c(c.section),
        blob_length=len(blob),
        blob_checksum=crc32c(blob),
        blob_raw_length=len(blob),
        string_count=len(c.strings),
        strings_length=c.strings_length,
        headers_length=len(c.headers),
        marks_length=c.marks_length,
        publisher_id=c.publisher_id,
        record_flags=c.record_flags,
    )
    return Batch(header, c.section, blob)


class _Runs:
    """What the runs of a batch have in common with their neighbours, and what they have not."""

    def __init__(self) -> None:
        self.count = 0  # of records
        # Of each run; a column is written out only when its values differ.
        self._counts: list[int] = []
        self._times: list[int] = []
        self._name_ids: list[int] = []
        self._publisher_ids: list[int] = []
        self._flags: list[int] = []
        self._expiries: list[int] = []  # 0: never
        self._headers: list[bytes] = []  # encoded, the same for each record of the run
        self._chunks: list[bytes] = []
        self._lengths: list[int] = []
        self._starts: list[int] = []  # only kept once a run has gaps between its payloads
        self._blob_length = 0
        self._has_gaps = False
        self._strings: dict[str, int] = {}

    def add(self, run: Run, timestamp: int) -> int:
        """Add the messages of a run; how many bytes they count."""
        if not run.is_dense:
            if self.count == 0:  # most batches are one run
                self._has_gaps = True
                self._starts = list(run.starts)
            else:
                self._add_starts(run.starts)
        elif self._has_gaps:
            self._starts.extend(accumulate(run.lengths[:-1], initial=self._blob_length))
        strings = self._strings
        name = run.name
        publisher_id = fmt.NO_STRING
        name_id = strings.setdefault(name, len(strings))
        if run.publisher:
            publisher_id = strings.setdefault(run.publisher, len(strings))
        headers = encode_headers(run.headers) if run.headers else b""
        count = run.count
        self._chunks.append(run.data)
        if count == 1:
            self._lengths.append(run.lengths[0])
        else:
            self._lengths += run.lengths
        self._blob_length += len(run.data)
        self._counts.append(count)
        self._times.append(timestamp)
        self._name_ids.append(name_id)
        self._publisher_ids.append(publisher_id)
        self._flags.append(run.flags)
        self._expiries.append(run.expires_at)
        self._headers.append(headers)
        self.count += count
        return len(run.data) + (len(headers) + RECORD_BYTES) * count

    def _add_starts(self, starts: list[int]) -> None:
        """Where the payloads of the next chunk lie, with other bytes between them."""
        if not self._has_gaps:
            self._has_gaps = True
            self._starts = list(accumulate(self._lengths, initial=0))[: self.count]
        base = self._blob_length
        if len(starts) == 1:
            self._starts.append(base + starts[0])
        else:
            self._starts.extend([base + start for start in starts])

    def add_mixed(self, mixed: MixedRun, timestamp: int) -> int:
        """As `add`, for plain records of several names."""
        self._add_starts(mixed.starts)
        strings = self._strings
        runs = len(mixed.names)
        # Names come first: the one string of a batch with one name is its number 0.
        self._name_ids += [strings.setdefault(name, len(strings)) for name in mixed.names]
        publisher_id = fmt.NO_STRING
        if mixed.publisher:
            publisher_id = strings.setdefault(mixed.publisher, len(strings))
        self._counts += mixed.counts
        self._times += [timestamp] * runs
        self._publisher_ids += [publisher_id] * runs
        self._flags += [0] * runs
        self._expiries += [0] * runs
        self._headers += [b""] * runs
        self._chunks.append(mixed.data)
        self._lengths += mixed.lengths
        self._blob_length += len(mixed.data)
        self.count += len(mixed.lengths)
        return len(mixed.data) + RECORD_BYTES * len(mixed.lengths)

    def fill(self, columns: Columns) -> bytes:
        """Write out the columns in which the runs differ; all payloads as one."""
        columns.count = self.count
        columns.strings = list(self._strings)
        if len(self._counts) == 1 and not self._expiries[0] and not self._headers[0]:
            columns.base_timestamp = self._times[0]
            columns.record_flags = self._flags[0]
            columns.publisher_id = self._publisher_ids[0]
        elif self._counts:
            self._fill(columns)
        if self._has_gaps:
            columns.starts = array("I", self._starts).tobytes()
            columns.lengths = array("I", self._lengths).tobytes()
        else:
            columns.starts = array("I", accumulate(self._lengths, initial=0)).tobytes()
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def _fill(self, columns: Columns) -> None:
        base = self._times[0]
        columns.base_timestamp = base
        columns.record_flags = self._flags[0]
        columns.publisher_id = self._publisher_ids[0]
        if len(self._counts) > 1:
            spread = self._times[-1] - base
            if spread:
                deltas = [time - base for time in self._times]
                if spread > 0xFFFF_FFFF:
                    columns.wide_times = self._spread("Q", deltas)
                else:
                    columns.times = self._spread("I", deltas)
            if _differ(self._name_ids):
                columns.names = self._spread("I", self._name_ids)
            if _differ(self._publisher_ids):
                columns.publishers = self._spread("I", self._publisher_ids)
            if _differ(self._flags):
                columns.flags = self._spread("B", self._flags)
        if any(self._expiries):
            columns.expires = self._spread("q", self._expiries)
        if any(self._headers):
            pairs = list(zip(self._headers, self._counts, strict=True))
            columns.headers = b"".join([headers * count for headers, count in pairs])
            sizes = [len(headers) for headers, count in pairs for _ in range(count)]
            columns.header_starts = array("I", accumulate(sizes, initial=0)).tobytes()

    def _spread(self, typecode: str, values: list[int]) -> bytes:
        """A column: each run's value once per record of the run."""
        if len(values) == self.count:
            return array(typecode, values).tobytes()
        column = array(typecode)
        for value, count in zip(values, self._counts, strict=True):
            if count == 1:
                column.append(value)
            else:
                column.extend(array(typecode, [value]) * count)
        return column.tobytes()


class BatchBuilder:
    """Collects runs and marks; `encode` turns them into one batch. Timestamps never fall."""

    def __init__(self, last_timestamp: int) -> None:
        self.count = 0
        self.is_empty = True  # no record and no mark
        self.bytes = 0  # payloads, headers, columns, marks; what push-back is measured in
        self.last_timestamp = last_timestamp
        # One plain record is what a lone client sends: it waits as it is, until there are more.
        self._lone: Run | None = None
        self._runs: _Runs | None = None
        self._first_timestamp = 0  # of the first record
        self._marks: list[Mark] | None = None

    def stamp_before(self, now_us: int) -> int:
        """A stamp for records that go before these; what is added later is not stamped earlier."""
        if self.count:
            return min(now_us, self._first_timestamp)
        if now_us > self.last_timestamp:
            self.last_timestamp = now_us
        return self.last_timestamp

    def _stamp(self, timestamp: int) -> int:
        """When the next records were received, not before those that are here."""
        if timestamp < self.last_timestamp:
            timestamp = self.last_timestamp
        self.last_timestamp = timestamp
        if not self.count:
            self._first_timestamp = timestamp
        self.is_empty = False
        return timestamp

    def add(self, run: Run, timestamp: int) -> int:
        """Add the messages of a run, received now; the index of the first in this batch."""
        first = self.count
        timestamp = self._stamp(timestamp)
        if not first and run.count == 1 and not run.headers and not run.expires_at:
            self._lone = run
            self.bytes += len(run.data) + RECORD_BYTES
        else:
            self.bytes += self._gather().add(run, timestamp)
        self.count = first + run.count
        return first

    def _gather(self) -> _Runs:
        """There is more than one plain record."""
        runs = self._runs
        if runs is None:
            runs = self._runs = _Runs()
            if self._lone is not None:
                runs.add(self._lone, self._first_timestamp)
                self._lone = None
        return runs

    def add_mixed(self, mixed: MixedRun, timestamp: int) -> None:
        """As `add`, for plain records of several names."""
        self.bytes += self._gather().add_mixed(mixed, self._stamp(timestamp))
        self.count += len(mixed.lengths)

    def add_mark(self, kind: int, key: bytes, index: int) -> None:
        """Store a mark of record `index` of this batch (or NO_RECORD)."""
        if self._marks is None:
            self._marks = []
        self._marks.append(Mark(kind, key, index))
        self.is_empty = False
        self.bytes += len(key)

    def encode(self, epoch: int, base_offset: int, prev_checksum: int) -> Batch:
        """The batch as it will be stored, chained to the one before it."""
        columns = Columns()
        columns.last_timestamp = columns.base_timestamp = self.last_timestamp
        if self._lone is not None and self._marks is None:
            columns.base_timestamp = self._first_timestamp
            blob = _lay_out_one(columns, self._lone)
        else:
            if self._marks is not None:
                columns.marks = self._marks
            blob = self._gather().fill(columns)
        return assemble(columns, blob, epoch, base_offset, prev_checksum)


def _lay_out_one(columns: Columns, run: Run) -> bytes:
    """What `_lay_out` would make of one plain record; its payload."""
    start = 0 if run.is_dense else run.starts[0]
    length = run.lengths[0]
    name = run.name.encode()
    columns.count = 1
    columns.record_flags = run.flags
    columns.strings_length = len(name)
    if run.publisher and run.publisher != run.name:
        publisher = run.publisher.encode()
        columns.strings = [run.name, run.publisher]
        columns.publisher_id = 1
        columns.strings_length += len(publisher)
        head = _TWO_STRINGS.pack(start, length, 0, len(name), columns.strings_length)
        section = head + name + publisher
    else:
        columns.strings = [run.name]
        if run.publisher:
            columns.publisher_id = 0
        section = _ONE_STRING.pack(start, length, 0, len(name)) + name
    columns.section = section + bytes(-len(section) & 7)
    columns.stored = fmt.CONTIGUOUS if run.is_dense else 0
    return run.data


def _differ(values: list[int]) -> bool:
    return values.count(values[0]) < len(values)
