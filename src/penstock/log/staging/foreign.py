"""Batches that came over the network: checked so that no reader can ever trip over them.

Only what Spark's tasks make is taken (`pipeline/sink/rows.py`): payloads side by side, names,
kinds, headers, one mark, and constants for all the rest. Whole columns are looked at, not records.
"""

from __future__ import annotations

from operator import sub
from typing import Final

import lz4.block

from penstock.core.naming.names import check_name
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.checksum import crc32c
from penstock.log.format.marks import Mark, encode_marks
from penstock.log.staging.area import STAGED_BLOB_BYTES, STAGED_RECORDS
from penstock.model.errors import CorruptError
from penstock.model.messages import check_headers, check_payload_size
from penstock.model.record import KIND_BYTES, KIND_JSON, KIND_SHIFT, KIND_TEXT

_FLAGS: Final = fmt.CONTIGUOUS | fmt.NAMES | fmt.FLAGS | fmt.HEADERS
_RECORD_FLAGS: Final = {1 | kind << KIND_SHIFT for kind in (KIND_BYTES, KIND_TEXT, KIND_JSON)}


def check_batch(batch: Batch, payload_bytes_max: int) -> set[str]:
    """The names of its records. CorruptError when a part does not fit, RefusedErrors otherwise."""
    header = batch.header
    if header.flags & ~_FLAGS or not header.flags & fmt.CONTIGUOUS:
        raise CorruptError(f"its columns ({header.flags:#x}) are not those of a staged batch")
    if not _RECORD_FLAGS.issuperset(_record_flags(batch)) or header.publisher_id != fmt.NO_STRING:
        raise CorruptError("its records have QoS, retain, kind or publisher of their own")
    if header.count > STAGED_RECORDS:
        raise CorruptError(f"{header.count} records are too many: at most {STAGED_RECORDS}")
    if len(batch.marks()) != 1:
        raise CorruptError("it must have exactly one mark")
    _check_payloads(batch, payload_bytes_max)
    if batch.plan.header_starts >= 0:
        _check_starts(batch, batch.plan.header_starts, header.headers_length)
        for headers in batch.record_headers(0, header.count):
            check_headers(headers)
    return _names(batch)


def with_mark(batch: Batch, key: bytes) -> Batch:
    """The same records with another key in their one mark; checked batches only."""
    (mark,) = batch.marks()
    header = fmt.unpack_header(fmt.pack_header(batch.header), 0)  # a copy
    assert header is not None, "it was packed just now"
    end = batch.plan.strings + header.strings_length + header.headers_length
    marks = encode_marks([Mark(mark.kind, key, mark.index)])
    columns = bytes(batch.columns[:end]) + marks
    columns += bytes(-len(columns) & 7)  # what follows stays aligned
    header.marks_length = len(marks)
    header.columns_length = len(columns)
    header.columns_checksum = crc32c(columns)
    return Batch(header, columns, batch.stored_blob)


def _record_flags(batch: Batch) -> bytes:
    """Those that there are, at least once each."""
    flags = bytes([batch.header.record_flags])
    return flags + batch.flags(0, batch.header.count) if batch.plan.flags >= 0 else flags


def _check_payloads(batch: Batch, payload_bytes_max: int) -> None:
    header = batch.header
    # A batch ends with the record that fills it, which may be a large one.
    if header.blob_raw_length > STAGED_BLOB_BYTES + max(STAGED_BLOB_BYTES, payload_bytes_max):
        raise CorruptError(f"{header.blob_raw_length} bytes of payloads are too many")
    starts = _check_starts(batch, batch.plan.starts, header.blob_raw_length)
    check_payload_size(max(map(sub, starts[1:], starts)), payload_bytes_max)
    try:
        raw_length = len(batch.blob)
    except lz4.block.LZ4BlockError as broken:
        raise CorruptError(f"payloads cannot be decompressed: {broken}") from broken
    if raw_length != header.blob_raw_length:
        raise CorruptError(f"{raw_length} bytes of payloads, not {header.blob_raw_length}")


def _check_starts(batch: Batch, at: int, end: int) -> list[int]:
    """The numbers of a column of starts: they rise from 0 to `end`."""
    starts = batch.u32(at, batch.header.count + 1).tolist()
    if starts[0] != 0 or starts[-1] != end or sorted(starts) != starts:
        raise CorruptError("the starts are not in ascending order")
    return starts


def _names(batch: Batch) -> set[str]:
    header, plan = batch.header, batch.plan
    if not header.string_count:
        raise CorruptError("it has no name")
    bounds = batch.u32(plan.string_starts, header.string_count + 1).tolist()
    if bounds[0] != 0 or bounds[-1] != header.strings_length or sorted(bounds) != bounds:
        raise CorruptError("the starts are not in ascending order")
    ids = batch.name_ids()
    if ids is not None and max(ids) >= header.string_count:
        raise CorruptError("a record refers to a name that does not exist")
    try:
        names = set(batch.strings)
    except UnicodeDecodeError as broken:
        raise CorruptError(f"a name is not UTF-8: {broken}") from broken
    for name in names:
        check_name(name)
    return names
