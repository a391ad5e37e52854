"""One history file: Parquet with the records [base, end) of a topic, sorted by offset.

The name says what the file holds and has the checksum of its footer, which Parquet lacks: data
pages have their own. So a file that is damaged anywhere is noticed when it is read.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.log.format.batch import Batch
from penstock.log.format.checksum import crc32c
from penstock.log.history.reading.constants import TOLD
from penstock.log.history.reading.pages import UnknownPagesError, has_plain_pages, pick
from penstock.log.history.schema import CODED, CODED_SCHEMA, SCHEMA, to_rows
from penstock.model.errors import CorruptError
from penstock.model.limits import KIB, MIB

GROUP_ROWS: Final = 16_384  # of one row group, which a reader that goes on decodes at once
GROUP_PAYLOAD_BYTES: Final = 2 * MIB  # or this much payload, whichever comes first
NAMES_BYTES_MAX: Final = MIB  # of the postings; every reader of the file loads them
_SUFFIX: Final = ".parquet"
_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{8})\.parquet\Z")
_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 8  # length of the footer, magic
_FACTS_KEY: Final = b"penstock"
_NAMES_KEY: Final = b"penstock.names"
_COMPARED_BYTES: Final = MIB  # at once
_VERIFIED_GROUPS: Final = 64  # of which some columns are verified at once
PAGE_ROWS: Final = 512  # at least, of a page; a reader of few rows decompresses a page for each
_PAGE_BYTES: Final = 48 * KIB  # a page has more rows until it takes so much
_WRITING: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["name", "publisher", "kind", "qos", "headers.key_value.key"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "write_statistics": ["offset", "timestamp", *TOLD],
    "write_page_checksum": True,
    "write_batch_size": PAGE_ROWS,  # after so many rows the writer looks whether a page is full
    "data_page_size": _PAGE_BYTES,
    "store_schema": False,  # else readers would get Arrow dictionaries in place of texts
}


class FileFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of which topic the records are; JSON in the file's metadata."""

    topic: str
    topic_id: int
    epoch: int  # of the newest record
    edition: int = 0  # how often records of it were erased


@dataclass(frozen=True, slots=True)
class FileName:
    """The records [base, end) and the CRC-32C of the footer."""

    base: int
    end: int  # one past the last record
    checksum: int

    def __str__(self) -> str:
        return f"{self.base:020}-{self.end:020}-{self.checksum:08x}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A whole history file in memory."""

    name: FileName
    data: pa.Buffer
    first_timestamp: int  # µs; lowest and highest
    last_timestamp: int


def parse_name(text: str) -> FileName | None:
    """What the name of a history file says; None for any other name."""
    match = _NAME.match(text)
    return match and FileName(int(match[1]), int(match[2]), int(match[3], 16))


def encode_file(batches: Iterable[Batch], base: int, end: int, facts: FileFacts) -> EncodedFile:
    """The records [base, end) of these batches; CorruptError if one is missing."""
    sink = pa.BufferOutputStream()
    names: list[pa.Array] = []  # of each group, each once
    following = base
    stamps: list[int] = []
    with pq.ParquetWriter(sink, CODED_SCHEMA, **_WRITING) as writer:
        for rows in _groups(to_rows(batches, base, end)):
            following = _continued(rows.column("offset"), following)
            names.append(_texts_in(rows.column("name")))
            bounds = pc.min_max(rows.column("timestamp").cast(pa.int64())).as_py()
            stamps += [bounds["min"], bounds["max"]]
            writer.write_table(rows, row_group_size=rows.num_rows)
        if following != end:
            raise CorruptError(f"the records from offset {following} to {end} are missing")
        metadata = {_FACTS_KEY: msgspec.json.encode(facts)}
        postings = _encode_names(names)
        if len(postings) <= NAMES_BYTES_MAX:
            metadata[_NAMES_KEY] = postings
        writer.add_key_value_metadata(metadata)
    data = sink.getvalue()
    name = FileName(base, end, crc32c(_footer(data)))
    return EncodedFile(name, data, min(stamps), max(stamps))


def _texts_in(column: pa.ChunkedArray) -> pa.Array:
    """The texts of a coded column, each once."""
    coded = column.combine_chunks()
    is_used = np.zeros(len(coded.dictionary), bool)
    is_used[coded.indices.to_numpy()] = True
    return coded.dictionary.filter(pa.array(is_used))


def _groups(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in groups of at most GROUP_ROWS and about GROUP_PAYLOAD_BYTES."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in rows:
        while batch.num_rows:
            part = batch.slice(0, GROUP_ROWS - count)
            batch = batch.slice(part.num_rows)
            waiting.append(part)
            count += part.num_rows
            size += pc.sum(pc.binary_length(part.column("payload"))).as_py()
            if count == GROUP_ROWS or size >= GROUP_PAYLOAD_BYTES:
                yield pa.Table.from_batches(waiting).combine_chunks()
                waiting, count, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def _continued(offsets: pa.ChunkedArray, following: int) -> int:
    """The offset after these; CorruptError unless they go on at `following` one by one."""
    wanted = pa.array(np.arange(following, following + len(offsets), dtype=np.int64))
    if not offsets.combine_chunks().equals(wanted):
        raise CorruptError(f"the offsets from {following} on are not consecutive")
    return following + len(offsets)


def _encode_names(names: Sequence[pa.Array]) -> bytes:
    """The row groups of each name as compressed JSON; null: the name is in all of them."""
    coded = pa.chunked_array([*names], pa.string()).combine_chunks().dictionary_encode()
    numbers = coded.indices.to_numpy()
    group_of = np.repeat(np.arange(len(names)), [len(one) for one in names])
    by_name = group_of[np.argsort(numbers, kind="stable")]
    counts = np.bincount(numbers)
    groups = [found.tolist() for found in np.split(by_name, np.cumsum(counts)[:-1])]
    listed = {
        name: found if len(found) < len(names) else None
        for name, found in sorted(zip(coded.dictionary.to_pylist(), groups, strict=True))
    }
    return base64.b64encode(zlib.compress(msgspec.json.encode(listed), 1))


def _footer(data: pa.Buffer) -> memoryview:
    """The metadata, its length and the magic; CorruptError if the file has no such end."""
    view = memoryview(data)
    if len(view) < _TAIL_BYTES or bytes(view[-4:]) != _MAGIC:
        raise CorruptError("the file does not end like a Parquet file")
    length = int.from_bytes(view[-8:-4], "little") + _TAIL_BYTES
    if length > len(view):
        raise CorruptError("the footer is longer than the file")
    return view[-length:]


class HistoryFile:
    """A history file that is open for reading; its footer is verified, and so is every page."""

    def __init__(self, name: FileName, source: pa.NativeFile, *, is_coded: bool = False) -> None:
        """CorruptError if the footer is damaged. `is_coded`: texts come as Arrow dictionaries."""
        self.name = name
        self._source = source
        if crc32c(_read_footer(source)) != name.checksum:
            raise CorruptError(f"{name}: the footer does not match the checksum in the name")
        self.parquet = pq.ParquetFile(
            source,
            page_checksum_verification=True,
            read_dictionary=CODED if is_coded else None,
        )
        facts = self.parquet.metadata
        if facts.num_rows != name.end - name.base:
            raise CorruptError(f"{name} has {facts.num_rows} rows")
        found = facts.metadata or {}
        self.facts = msgspec.json.decode(found[_FACTS_KEY], type=FileFacts)
        self._names = found.get(_NAMES_KEY)

    @property
    def group_rows(self) -> list[int]:
        """How many rows each row group has."""
        facts = self.parquet.metadata
        return [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]

    def read(self, group: int, columns: list[str] | None = None) -> pa.Table:
        """A row group, or these columns of it; by this thread alone."""
        return self.parquet.read_row_group(group, columns, use_threads=False)

    def payloads(self, group: int, rows: Sequence[int]) -> pa.Array:
        """The payloads of some rows of a group, which rise; by this thread alone.

        Only pages with such a row are decompressed, so for few rows this is faster than `read`.
        """
        facts = self.parquet.metadata.row_group(group)
        column = facts.column(SCHEMA.get_field_index("payload"))
        if has_plain_pages(column):
            chunk = self._source.read_at(column.total_compressed_size, column.data_page_offset)
            size_max = column.total_uncompressed_size
            try:
                return pa.array(pick(chunk, facts.num_rows, size_max, rows), pa.binary())
            except UnknownPagesError:
                pass
        stored = self.read(group, ["payload"]).column("payload").combine_chunks()
        return stored.take(pa.array(rows, pa.int64()))

    def names(self) -> dict[str, list[int] | None] | None:
        """Which row groups hold which name: None as a value stands for all; None if not kept."""
        if self._names is None:
            return None
        text = zlib.decompress(base64.b64decode(self._names))
        return msgspec.json.decode(text, type=dict[str, list[int] | None])

    def verify(self, columns: list[str] | None = None) -> None:
        """Read everything, or these columns; CorruptError names what is wrong."""
        following = self.name.base
        groups = range(self.parquet.metadata.num_row_groups)
        count = 1 if columns is None else _VERIFIED_GROUPS
        try:
            for at in range(0, len(groups), count):
                some = list(groups[at : at + count])
                rows = self.parquet.read_row_groups(some, columns, use_threads=False)
                following = _continued(rows.column("offset"), following)
        except (CorruptError, OSError, pa.ArrowException) as broken:
            raise CorruptError(f"{self.name}: {broken}") from broken


def check_stored(file: EncodedFile, source: pa.NativeFile) -> None:
    """CorruptError unless the store gives back what was encoded, byte by byte.

    That says more than page checksums and costs a tenth; that offsets can be decoded is asked too.
    """
    size = file.data.size
    at = 0 if source.size() == size else size + 1
    while at < size:
        piece = source.read_buffer(_COMPARED_BYTES)
        if not piece.size or not piece.equals(file.data.slice(at, piece.size)):
            break
        at += piece.size
    if at != size:
        raise CorruptError(f"{file.name}: the store gives back other bytes than it was given")
    HistoryFile(file.name, pa.BufferReader(file.data)).verify(["offset"])


def _read_footer(source: pa.NativeFile) -> memoryview:
    size = source.size()
    source.seek(max(size - _TAIL_BYTES, 0))
    tail = source.read(_TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
    source.seek(max(size - length, 0))
    return _footer(pa.py_buffer(source.read(length)))
