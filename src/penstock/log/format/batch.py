"""A stored batch in memory: columns over the very bytes of the file, records made on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from itertools import pairwise, repeat
from typing import Final

import lz4.block

from penstock.log.format import batch_bytes as fmt
from penstock.log.format.checksum import crc32c
from penstock.log.format.marks import Mark, decode_headers, decode_marks
from penstock.model.errors import CorruptError
from penstock.model.record import KIND_MASK, KIND_SHIFT, QOS_MASK, RETAIN, Headers, Record

COMPRESSION_GAIN: Final = 0.9  # keep a blob as it is unless it shrinks below this share
# What a batch takes beyond its bytes once somebody has read it; measured, compiled and not.
BATCH_BYTES: Final = 1_000  # the objects: many batches hold a single small record
STRING_BYTES: Final = 64  # each text of the dictionary, its characters aside


class Undecoded(ABC):
    """Records in another format, which become the columns of a batch when somebody reads them."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of the records, without decoding them."""

    @abstractmethod
    def decode(self) -> Batch:
        """The same records as a batch."""


class Batch:
    """Header, column section and stored blob. Decoding is lazy and done at most once.

    A batch with `undecoded` has no columns yet: its header has a true epoch, base offset and count,
    and says truly that it has no marks and retains nothing. `plan` brings the rest.
    """

    def __init__(self, header: fmt.BatchHeader, columns: fmt.Buffer, blob: fmt.Buffer) -> None:
        self.header = header
        self.base_offset = header.base_offset
        self.end_offset = header.base_offset + header.count  # one past the last record
        self.incarnation = 0  # of the node that wrote it, where several may
        self.columns = columns
        self.stored_blob = blob
        self._plan: fmt.ColumnPlan | None = None
        self._view: memoryview | None = None
        self._blob: fmt.Buffer | None = None
        self._strings: list[str] | None = None
        self.undecoded: Undecoded | None = None

    def move_to(self, base_offset: int) -> None:
        """Give the batch its place in a log."""
        self.header.base_offset = self.base_offset = base_offset
        self.end_offset = base_offset + self.header.count

    def to_bytes(self) -> list[bytes | memoryview]:
        """What is written to the file, in order."""
        if self.undecoded is not None:
            self._decode()
        tail = bytes(-len(self.stored_blob) & 7)  # what follows stays aligned
        return [fmt.pack_header(self.header), self.columns, self.stored_blob, tail]

    @property
    def memory_bytes(self) -> int:
        """What it may come to hold: once read, a compressed blob is there in both forms."""
        h = self.header
        unpacked = 0 if h.compression == fmt.COMPRESSION_NONE else h.blob_raw_length
        texts = h.strings_length + STRING_BYTES * h.string_count
        stored = fmt.HEADER_BYTES + h.columns_length + h.blob_length
        return BATCH_BYTES + stored + unpacked + texts

    def compress(self) -> None:
        """Store the blob compressed if that gains enough; before anybody wrote or read the batch.

        lz4 is faster than a disk, and sees at the speed of memory what does not shrink.
        """
        if self.header.compression != fmt.COMPRESSION_NONE:
            return
        raw = self.stored_blob
        packed = lz4.block.compress(raw, store_size=False)
        if len(packed) >= len(raw) * COMPRESSION_GAIN:
            return
        self._blob = raw
        self.stored_blob = packed
        h = self.header
        h.compression = fmt.COMPRESSION_LZ4
        h.blob_length = len(packed)
        h.blob_checksum = crc32c(packed)

    @property
    def plan(self) -> fmt.ColumnPlan:
        if self._plan is None:
            if self.undecoded is not None:
                self._decode()
            h = self.header
            self._plan = fmt.ColumnPlan(h.flags, h.count, h.string_count)
            self._view = memoryview(self.columns)
        return self._plan

    def _decode(self) -> None:
        """Take over what the records became; who holds the header sees it, too."""
        undecoded = self.undecoded
        if undecoded is None:  # another thread was faster
            return
        decoded = undecoded.decode()
        self.columns, self.stored_blob = decoded.columns, decoded.stored_blob
        self.header.take_contents(decoded.header)
        self.undecoded = None

    def u32(self, start: int, count: int) -> memoryview:
        """`count` 32-bit numbers of the column section."""
        view = self._view
        assert view is not None, "plan is asked for first"
        return view[start : start + 4 * count].cast("I")

    def u64(self, start: int, count: int) -> memoryview:
        """`count` 64-bit numbers of the column section (never negative)."""
        view = self._view
        assert view is not None, "plan is asked for first"
        return view[start : start + 8 * count].cast("Q")

    @property
    def blob(self) -> fmt.Buffer:
        """The payload bytes, decompressed once."""
        if self._blob is None:
            if self.undecoded is not None:
                self._decode()
            if self.header.compression == fmt.COMPRESSION_LZ4:
                raw_length = self.header.blob_raw_length
                self._blob = lz4.block.decompress(self.stored_blob, uncompressed_size=raw_length)
            else:
                self._blob = self.stored_blob
        return self._blob

    @property
    def is_unpacked(self) -> bool:
        """Whether `blob` is at hand: it was decompressed before."""
        return self._blob is not None

    @property
    def strings(self) -> list[str]:
        """The dictionary of names and publishers."""
        if self._strings is None:
            plan = self.plan
            count = self.header.string_count
            starts = self.u32(plan.string_starts, count + 1)
            text = bytes(self.columns[plan.strings : plan.strings + self.header.strings_length])
            self._strings = [text[starts[i] : starts[i + 1]].decode() for i in range(count)]
        return self._strings

    def glimpse_names(self) -> list[str]:
        """The names of the records, maybe with their publishers; decodes nothing."""
        undecoded = self.undecoded
        return self.strings if undecoded is None else undecoded.names()

    def name_ids(self) -> memoryview | None:
        """Index into `strings` for each record; None when all have string 0."""
        plan = self.plan
        return None if plan.names < 0 else self.u32(plan.names, self.header.count)

    def timestamp(self, index: int) -> int:
        """µs since 1970, UTC, of record `index`."""
        plan = self.plan
        count = self.header.count
        if plan.times >= 0:
            return self.header.base_timestamp + int(self.u32(plan.times, count)[index])
        if plan.wide_times >= 0:
            return self.header.base_timestamp + int(self.u64(plan.wide_times, count)[index])
        return self.header.base_timestamp

    def index_at(self, timestamp: int) -> int:
        """The first record stamped at or after `timestamp` (µs); `count` if all are older."""
        plan = self.plan
        delta = timestamp - self.header.base_timestamp
        if plan.times >= 0:
            return bisect_left(self.u32(plan.times, self.header.count), delta)
        if plan.wide_times >= 0:
            return bisect_left(self.u64(plan.wide_times, self.header.count), delta)
        return 0 if delta <= 0 else self.header.count

    def marks(self) -> list[Mark]:
        """The marks stored with the records."""
        h = self.header
        start = self.plan.strings + h.strings_length + h.headers_length
        return decode_marks(bytes(self.columns[start : start + h.marks_length]))

    def records(
        self, topic: str, start_offset: int, end_offset: int, partition: int = 0
    ) -> list[Record]:
        """The records in [start_offset, end_offset) that this batch holds, in order."""
        base = self.header.base_offset
        first = max(start_offset - base, 0)
        last = min(end_offset - base, self.header.count)
        if first >= last:
            return []
        flags = self.flags(first, last)
        return list(
            map(
                Record,
                repeat(topic),
                repeat(partition),
                range(base + first, base + last),
                self.timestamps(first, last),
                self.names(first, last),
                self.payloads(first, last),
                self.record_headers(first, last),
                self.publishers(first, last),
                [flag & QOS_MASK for flag in flags],
                [flag & RETAIN != 0 for flag in flags],
                self.expiries(first, last),
                [(flag >> KIND_SHIFT) & KIND_MASK for flag in flags],
            )
        )

    # Columns of the records with index in [first, last).

    def timestamps(self, first: int, last: int) -> list[int]:
        plan = self.plan
        base = self.header.base_timestamp
        if plan.times >= 0:
            return [base + delta for delta in self.u32(plan.times + 4 * first, last - first)]
        if plan.wide_times >= 0:
            return [base + delta for delta in self.u64(plan.wide_times + 8 * first, last - first)]
        return [base] * (last - first)

    def names(self, first: int, last: int) -> list[str]:
        plan = self.plan
        strings = self.strings
        if plan.names < 0:
            return strings[:1] * (last - first)  # a batch of marks has no string
        return [strings[i] for i in self.u32(plan.names + 4 * first, last - first)]

    def payloads(self, first: int, last: int) -> list[bytes]:
        plan = self.plan
        blob = self.blob
        if plan.lengths < 0:
            bounds = self.u32(plan.starts + 4 * first, last - first + 1).tolist()
            if isinstance(blob, bytes):  # a slice is bytes: half the time of copying each
                return [blob[a:b] for a, b in pairwise(bounds)]
            return [bytes(blob[a:b]) for a, b in pairwise(bounds)]
        starts = self.u32(plan.starts + 4 * first, last - first)
        lengths = self.u32(plan.lengths + 4 * first, last - first)
        return [bytes(blob[a : a + n]) for a, n in zip(starts, lengths, strict=True)]

    def record_headers(self, first: int, last: int) -> list[Headers]:
        plan = self.plan
        if plan.header_starts < 0:
            return [()] * (last - first)
        at = plan.strings + self.header.strings_length
        bounds = self.u32(plan.header_starts + 4 * first, last - first + 1).tolist()
        columns = self.columns
        return [
            decode_headers(bytes(columns[at + a : at + b])) if b > a else ()
            for a, b in pairwise(bounds)
        ]

    def publishers(self, first: int, last: int) -> list[str]:
        plan = self.plan
        strings = self.strings
        if plan.publishers < 0:
            only = self.header.publisher_id
            return ["" if only == fmt.NO_STRING else strings[only]] * (last - first)
        ids = self.u32(plan.publishers + 4 * first, last - first)
        return ["" if i == fmt.NO_STRING else strings[i] for i in ids]

    def flags(self, first: int, last: int) -> bytes:
        plan = self.plan
        if plan.flags < 0:
            return bytes([self.header.record_flags]) * (last - first)
        return bytes(self.columns[plan.flags + first : plan.flags + last])

    def expiries(self, first: int, last: int) -> list[int | None]:
        plan = self.plan
        if plan.expires < 0:
            return [None] * (last - first)
        return [at or None for at in self.u64(plan.expires + 8 * first, last - first)]


def up_to(batches: list[Batch], bytes_max: int) -> list[Batch]:
    """The first of them, until together they may take `bytes_max` of memory; at least one."""
    size = 0
    for count, batch in enumerate(batches, 1):
        size += batch.memory_bytes
        if size >= bytes_max:
            return batches[:count]
    return batches


def decode_batch(data: fmt.Buffer, position: int) -> Batch:
    """The batch at `position`, every checksum verified. CorruptError says what is wrong."""
    header = fmt.unpack_header(data, position)
    if header is None:
        raise CorruptError("no intact batch header")
    end = position + header.stored_length
    if end > len(data):
        raise CorruptError(f"batch of {header.stored_length} bytes is cut short")
    problem = fmt.check_geometry(
        header, fmt.ColumnPlan(header.flags, header.count, header.string_count)
    )
    if problem:
        raise CorruptError(problem)
    blob_at = position + fmt.HEADER_BYTES + header.columns_length
    columns = data[position + fmt.HEADER_BYTES : blob_at]
    blob = data[blob_at : blob_at + header.blob_length]
    if crc32c(columns) != header.columns_checksum:
        raise CorruptError("columns do not match their checksum")
    if crc32c(blob) != header.blob_checksum:
        raise CorruptError("payloads do not match their checksum")
    if any(data[blob_at + header.blob_length : end]):
        raise CorruptError("the padding of the batch is not zero")
    return Batch(header, columns, blob)
