"""What a fetch brought, as batches without a gap: aborted transactions are left out."""

from __future__ import annotations

import struct
from typing import Final

from penstock.core.fences import Fences
from penstock.log.format.batch import Batch
from penstock.log.kafka.client import Fetched
from penstock.log.kafka.records.mapping import decode_batch, empty_batch
from penstock.log.kafka.records.record_batch import RecordBatch, read_records, split
from penstock.log.kafka.records.undecoded import read_batch

_MARKER: Final = struct.Struct(">hh")  # version, what the transaction came to
_ABORT: Final = 0


def kept_batches(fetched: Fetched, offset: int) -> list[tuple[RecordBatch, bool]]:
    """The record batches from `offset` on, and whether each was aborted by its producer."""
    aborted = sorted(fetched.aborted, key=lambda one: one[1])
    aborting: set[int] = set()  # producers whose transaction will be aborted
    kept: list[tuple[RecordBatch, bool]] = []
    at = 0
    for stored in split(fetched.data):
        while at < len(aborted) and aborted[at][1] < stored.end_offset:
            aborting.add(aborted[at][0])
            at += 1
        if stored.is_control and _is_abort(stored):
            aborting.discard(stored.producer_id)
        if stored.end_offset > offset:
            is_aborted = stored.is_transactional and stored.producer_id in aborting
            kept.append((stored, is_aborted))
    return kept


def _is_abort(stored: RecordBatch) -> bool:
    data = stored.records()
    columns = read_records(data, stored.count)
    _, outcome = _MARKER.unpack_from(data, columns.key_starts[0])
    return bool(outcome == _ABORT)


def decode_fetched(
    fetched: Fetched, offset: int, end: int, topic: str, fences: Fences
) -> list[Batch]:
    """The batches that hold the offsets from `offset` up to `end`; the first may begin earlier.

    All fences before `end` are known.
    """
    batches: list[Batch] = []
    for stored, is_aborted in kept_batches(fetched, offset):
        if stored.base_offset >= end:
            break
        reached = batches[-1].end_offset if batches else offset
        batches += decode_stored(stored, is_aborted, reached, topic, fences)
    return [batch for batch in batches if batch.end_offset > offset]


def decode_stored(
    stored: RecordBatch, is_aborted: bool, reached: int, topic: str, fences: Fences
) -> list[Batch]:
    """The batches of one record batch; offsets that Kafka left out before it have one, too."""
    gap = _gap_before(stored, is_aborted, reached)
    return gap if is_aborted else gap + decode_batch(stored, topic, fences if fences else None)


def follow_stored(
    stored: RecordBatch, is_aborted: bool, reached: int, topic: str, fences: Fences
) -> list[Batch]:
    """As `decode_stored`, for a log that follows: what nobody may want is not decoded yet."""
    gap = _gap_before(stored, is_aborted, reached)
    return gap if is_aborted else gap + read_batch(stored, topic, fences if fences else None)


def _gap_before(stored: RecordBatch, is_aborted: bool, reached: int) -> list[Batch]:
    """Offsets without messages, from `reached` on: before a record batch, or all of it."""
    gap: list[Batch] = []
    if stored.base_offset > reached:
        gap = [empty_batch(reached, stored.base_offset, stored)]
    if is_aborted:
        gap.append(empty_batch(stored.base_offset, stored.end_offset, stored))
    return gap
