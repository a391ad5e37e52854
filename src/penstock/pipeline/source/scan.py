"""A range of a log as Arrow batches, on a Spark task. Loads nothing of the server.

Names are compared once per batch and name. `where` is evaluated by the very code the broker uses,
so it means the same here as in a live subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.naming.names import matches
from penstock.core.where import Where, compile_where
from penstock.log.arrow.columns import to_arrow
from penstock.log.arrow.gather import gather
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import decode_batches
from penstock.log.format.batch import Batch
from penstock.model.errors import Gap
from penstock.model.limits import MIB
from penstock.pipeline.source.origin import SHRUNK, TRIMMED, Range, Wanted, lost

if TYPE_CHECKING:
    from penstock.pipeline.source.history import History

ROWS: Final = 10_000  # small batches are put together until they have this many rows
ROWS_BYTES_MAX: Final = 8 * MIB  # or this much, so that a few large records do not pile up
NAMES_MAX: Final = 65_536  # whose answers are remembered

FindHistory = Callable[[], "History | None"]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def scan_files(
    reader: FileReader, piece: Range, wanted: Wanted, history: FindHistory
) -> Iterator[pa.RecordBatch]:
    """The wanted records of the piece; Gap when some of them are gone and that matters.

    What the log has no more is looked for in its history, also if it was trimmed meanwhile.
    """
    end = reader.clamp(piece.epoch, piece.end)
    if end < piece.end and wanted.fails_on_loss:
        raise lost(piece.topic, end, piece.end, SHRUNK)
    return _gathered(_rows(reader, piece, end, wanted, history))


def stored_rows(
    data: bytes | bytearray, source: str, piece: Range, wanted: Wanted, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """The records of [start, end) in batches that came from `source` as they are stored there."""
    rows = gather(data, piece.topic, wanted.schema, start, end)
    if rows is not None:
        return iter((rows,))
    batches = decode_batches(data, 0, source)
    return _gathered(to_arrow(batches, piece.topic, wanted.schema, start, end))


def _rows(
    reader: FileReader, piece: Range, end: int, wanted: Wanted, history: FindHistory
) -> Iterator[pa.RecordBatch]:
    wants = wanted_names(wanted)
    where = None if wanted.where is None else compile_where(wanted.where)
    offset = piece.start
    while offset < end:
        try:
            if wants is None and where is None:
                data, reached = reader.read_raw(offset, end)
                rows = gather(data, piece.topic, wanted.schema, offset, end) if data else None
                if rows is not None:
                    yield rows
                    offset = reached
                    continue
            batches, reached = reader.read_on(offset, end, wants)
            for batch in batches:
                keep = kept_records(batch, piece.topic, wants, where)
                for arrow in to_arrow([batch], piece.topic, wanted.schema, offset, end):
                    yield arrow if keep is None else kept_rows(arrow, keep, batch, offset)
            if reached == offset:
                return
            offset = reached
        except Gap:
            first = min(reader.bounds().first, end)
            cold = history()
            if cold is not None and cold.first <= offset < cold.end:
                reached = min(first, cold.end)
                yield from cold.rows(piece.topic, offset, reached, wanted)
                offset = reached
                continue
            if wanted.fails_on_loss:
                raise lost(piece.topic, offset, first, TRIMMED) from None
            offset = first


def wanted_names(wanted: Wanted) -> Callable[[str], bool] | None:
    """Whether a name is wanted, asked once for each name of many; None: all of them are."""
    if wanted.names is None:
        return None
    return lru_cache(NAMES_MAX)(partial(matches, wanted.names))


def kept_records(
    batch: Batch, topic: str, wants: Callable[[str], bool] | None, where: Where | None
) -> Mask | None:
    """Which records of the batch are kept; None: all of them."""
    count = batch.header.count
    keep: Mask | None = None
    if wants is not None:
        ids = batch.name_ids()
        if ids is None:
            keep = np.full(count, count > 0 and wants(batch.strings[0]))
        else:
            keep = np.array([wants(name) for name in batch.strings], np.bool_)[np.asarray(ids)]
    if where is not None and (keep is None or keep.any()):
        records = batch.records(topic, batch.base_offset, batch.end_offset)
        if keep is None:
            keep = np.fromiter(map(where.passes, records), np.bool_, count)
        else:
            for index in np.flatnonzero(keep):
                keep[index] = where.passes(records[index])
    return keep


def kept_rows(arrow: pa.RecordBatch, keep: Mask, batch: Batch, start: int) -> pa.RecordBatch:
    """Of the rows from offset `start` on that were made of a batch, those that are kept."""
    first = max(start - batch.base_offset, 0)
    return arrow.filter(pa.array(keep[first : first + arrow.num_rows]))


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth their overhead; none is empty."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if not held and batch.num_rows >= ROWS:
            yield batch
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS or size >= ROWS_BYTES_MAX:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)
