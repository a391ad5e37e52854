"""Erasing records: which ones, and what is left of them.

An erased record keeps its offset, time, name and QoS. It has no payload, no headers and no
publisher, its kind is `erased`, it is not retained, and it expired when it was stored: so whoever
may not deliver expired messages passes over it. Erasing it again changes nothing.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, compress, pairwise

from penstock.core.erasure import Erasure
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.builder import Columns, assemble
from penstock.model.record import KIND_ERASED, KIND_MASK, KIND_SHIFT, QOS_MASK


def find(batch: Batch, erasure: Erasure) -> list[int]:
    """The indexes of the records to erase, in order; without those that are erased already."""
    last = min(batch.header.count, max(erasure.end - batch.base_offset, 0))
    if erasure.before_us is not None:
        last = min(last, batch.index_at(erasure.before_us))
    wanted = [erasure.has_name(text) for text in batch.strings]
    if last == 0 or not any(wanted):
        return []
    ids = batch.name_ids()
    chosen = [wanted[0]] * last if ids is None else [wanted[i] for i in ids[:last]]
    flags = batch.flags(0, last)
    return [i for i in compress(range(last), chosen) if not _is_erased(flags[i])]


def _is_erased(flags: int) -> bool:
    return (flags >> KIND_SHIFT) & KIND_MASK == KIND_ERASED


def erase(batch: Batch, erasure: Erasure) -> Batch:
    """The same batch with these records erased; itself if there are none."""
    found = find(batch, erasure)
    if not found:
        return batch
    count = batch.header.count
    payloads = batch.payloads(0, count)
    publishers = batch.publishers(0, count)
    headers = _encoded_headers(batch)
    flags = bytearray(batch.flags(0, count))
    stamps = batch.timestamps(0, count)
    expiries = [at or 0 for at in batch.expiries(0, count)]
    for i in found:
        payloads[i] = headers[i] = b""
        publishers[i] = ""
        flags[i] = flags[i] & QOS_MASK | KIND_ERASED << KIND_SHIFT
        expiries[i] = stamps[i]
    columns = Columns()
    columns.count = count
    columns.marks = batch.marks()
    columns.base_timestamp = batch.header.base_timestamp
    columns.last_timestamp = batch.header.last_timestamp
    _fill_times(columns, stamps)
    _fill_strings(columns, batch.names(0, count), publishers)
    columns.starts = array("I", accumulate(map(len, payloads), initial=0)).tobytes()
    columns.flags = bytes(flags)
    columns.expires = array("q", expiries).tobytes()
    if any(headers):
        columns.headers = b"".join(headers)
        columns.header_starts = array("I", accumulate(map(len, headers), initial=0)).tobytes()
    h = batch.header
    return assemble(columns, b"".join(payloads), h.epoch, h.base_offset, h.prev_checksum)


def _fill_times(columns: Columns, stamps: list[int]) -> None:
    deltas = [stamp - columns.base_timestamp for stamp in stamps]
    if deltas[-1] > 0xFFFF_FFFF:
        columns.wide_times = array("Q", deltas).tobytes()
    elif deltas[-1]:
        columns.times = array("I", deltas).tobytes()


def _fill_strings(columns: Columns, names: list[str], publishers: list[str]) -> None:
    """The dictionary anew: the publisher of an erased record is not left in it."""
    strings: dict[str, int] = {}
    columns.names = array("I", [strings.setdefault(n, len(strings)) for n in names]).tobytes()
    columns.publishers = array(
        "I", [strings.setdefault(p, len(strings)) if p else fmt.NO_STRING for p in publishers]
    ).tobytes()
    columns.strings = list(strings)


def _encoded_headers(batch: Batch) -> list[bytes]:
    """The headers of each record, as they are stored."""
    plan = batch.plan
    count = batch.header.count
    if plan.header_starts < 0:
        return [b""] * count
    at = plan.strings + batch.header.strings_length
    bounds = batch.u32(plan.header_starts, count + 1).tolist()
    return [bytes(batch.columns[at + a : at + b]) for a, b in pairwise(bounds)]
