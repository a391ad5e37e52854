"""Batches for readers elsewhere: the records as they are stored, without what the broker notes
beside them. Nothing is decompressed, and nothing is decoded record by record.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.checksum import crc32c


def bare_bytes(batches: Iterable[Batch]) -> bytes:
    """All batches with records, one after the other, each as in a file but without marks."""
    parts: list[fmt.Buffer] = []
    for batch in batches:
        if batch.header.count:
            parts += _without_marks(batch).to_bytes()
    return b"".join(parts)


def _without_marks(batch: Batch) -> Batch:
    if not batch.header.marks_length:
        return batch
    header = fmt.unpack_header(fmt.pack_header(batch.header), 0)
    assert header is not None, "a header that was just packed"
    used = batch.plan.strings + header.strings_length + header.headers_length
    columns = bytes(batch.columns[:used]) + bytes(fmt.padded(used) - used)
    header.marks_length = 0
    header.columns_length = len(columns)
    header.columns_checksum = crc32c(columns)
    return Batch(header, columns, batch.stored_blob)
