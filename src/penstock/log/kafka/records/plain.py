"""Plain messages of Kafka as the columns of a batch: one walk, and no object for each record.

Plain are records that Penstock wrote, or that others wrote, but not both in one record batch; at
offsets that follow each other, without marks, and not void. `mapping` decodes all other batches.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final

from mypy_extensions import i64

from penstock.core.fences import Fences
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.builder import Columns, assemble
from penstock.log.kafka.records.record_batch import RecordBatch
from penstock.log.kafka.records.scanning import find_parts, read_number
from penstock.log.kafka.records.sections import (
    FOREIGN_FLAGS,
    Shared,
    header_of_key,
    own_name,
    shown_name,
)
from penstock.model.errors import CorruptError

_US: Final = 1_000  # in a millisecond


class _Found:
    """What the records of one batch have, by their index, and the texts they refer to."""

    def __init__(self) -> None:
        self.starts: list[int] = []  # of payloads
        self.lengths: list[int] = []
        self.key_ids: list[int] = []
        self.keys: dict[bytes, int] = {}  # null is empty
        self.section_ids: list[int] = []
        self.sections: list[Shared] = []
        self.times: list[int] = []  # of foreign records, in ms after the first; empty: all are 0
        self.is_own = False


def decode_plain(
    stored: RecordBatch, data: bytes, topic: str, fences: Fences | None
) -> Batch | None:
    """The messages of a record batch with these records; None if they are not plain.

    None as well if they are damaged: whoever decodes them otherwise says what is wrong.
    """
    found = _Found()
    try:
        if not _walk(data, stored.count, fences is not None, found):
            return None
    except (IndexError, CorruptError):
        return None
    columns = Columns()
    columns.count = stored.count
    columns.starts = array("I", found.starts).tobytes()
    columns.lengths = array("I", found.lengths).tobytes()
    strings = _fill_names(columns, found, topic)
    if found.is_own:
        _fill_own(columns, found, strings)
    else:
        _fill_foreign(columns, found, stored.base_ms)
    _fill_headers(columns, found)
    columns.strings = list(strings)
    batch = assemble(columns, data, stored.leader_epoch + 1, stored.base_offset, 0)
    batch.end_offset = stored.end_offset
    properties = found.sections[0].properties
    batch.incarnation = 0 if properties is None else properties.incarnation
    return batch


def _walk(data: bytes, count: int, is_guarding: bool, found: _Found) -> bool:
    """Find the parts of all records; False at the first that is not plain."""
    starts, lengths, times = found.starts, found.lengths, found.times
    key_ids, keys, section_ids = found.key_ids, found.keys, found.section_ids
    ids: dict[bytes, int] = {}
    section = b""  # of the record before
    section_id = 0
    at: i64 = 0
    size: i64 = len(data)
    for index in range(count):
        delta, time_at, key_at, key_length, value_at, value_length, end = find_parts(data, at, size)
        if delta != index:
            return False  # records between them were removed
        key = data[key_at : key_at + key_length] if key_length > 0 else b""
        key_id = keys.get(key, -1)
        if key_id < 0:
            key_id = keys[key] = len(keys)
        key_ids.append(key_id)
        if value_length < 0:
            value_length = 0
        starts.append(value_at)
        lengths.append(value_length)
        here = data[value_at + value_length : end]
        if here != section:
            section = here
            section_id = ids.get(section, -1)
            if section_id < 0:
                section_id = ids[section] = len(ids)
                if not _add_section(found, section, is_guarding):
                    return False
        if key_length < 0 and found.is_own:
            return False  # marks only
        section_ids.append(section_id)
        if not found.is_own and (data[time_at] or times):
            if not times:
                times += [0] * index
            time, _ = read_number(data, time_at)
            times.append(time)
        at = end
    return at == size


def _add_section(found: _Found, section: bytes, is_guarding: bool) -> bool:
    """Decode headers that no record before had; False if their records are not plain."""
    shared = Shared(section)
    properties = shared.properties
    is_own = properties is not None
    if not found.sections:
        found.is_own = is_own
    found.sections.append(shared)
    if properties is not None and (properties.marks or (is_guarding and properties.is_guarded)):
        return False
    return is_own == found.is_own


def _fill_names(columns: Columns, found: _Found, topic: str) -> dict[str, int]:
    """The texts of the batch and their numbers; so far those of the names."""
    strings: dict[str, int] = {}
    numbers: list[int] = []
    for key in found.keys:
        name = own_name(key) if found.is_own else shown_name(key, topic)
        numbers.append(strings.setdefault(name, len(strings)))
    if len(strings) > 1:
        ids = found.key_ids
        if len(strings) < len(numbers):  # two keys became one name
            ids = [numbers[i] for i in ids]
        columns.names = array("I", ids).tobytes()
    return strings


def _fill_own(columns: Columns, found: _Found, strings: dict[str, int]) -> None:
    """What `~p` says of each record."""
    stamps: list[int] = []
    publishers: list[int] = []
    flags: list[int] = []
    expiries: list[int] = []
    for shared in found.sections:
        properties = shared.properties
        assert properties is not None
        stamps.append(properties.stamp)
        flags.append(properties.flags)
        expiries.append(properties.expires_at)
        if properties.publisher:
            publishers.append(strings.setdefault(properties.publisher, len(strings)))
        else:
            publishers.append(fmt.NO_STRING)
    ids = found.section_ids
    columns.record_flags = flags[0]
    columns.publisher_id = publishers[0]
    if _differ(publishers):
        columns.publishers = array("I", [publishers[i] for i in ids]).tobytes()
    if _differ(flags):
        columns.flags = bytes([flags[i] for i in ids])
    if any(expiries):
        columns.expires = array("q", [expiries[i] for i in ids]).tobytes()
    if _differ(stamps):
        fill_times(columns, [stamps[i] for i in ids])
    else:
        columns.base_timestamp = columns.last_timestamp = max(stamps[0], 0)


def _fill_foreign(columns: Columns, found: _Found, base_ms: int) -> None:
    columns.record_flags = FOREIGN_FLAGS
    if found.times:
        fill_times(columns, [(base_ms + delta) * _US for delta in found.times])
    else:
        columns.base_timestamp = columns.last_timestamp = max(base_ms * _US, 0)


def fill_times(columns: Columns, stamps: list[int]) -> None:
    """A producer may stamp as it likes; times here never fall."""
    latest = 0
    deltas: list[int] = []
    base = max(stamps[0], 0)
    for stamp in stamps:
        latest = max(latest, stamp)
        deltas.append(latest - base)
    columns.base_timestamp = base
    columns.last_timestamp = latest
    spread = latest - base
    if spread > 0xFFFF_FFFF:
        columns.wide_times = array("Q", deltas).tobytes()
    elif spread:
        columns.times = array("I", deltas).tobytes()


def _fill_headers(columns: Columns, found: _Found) -> None:
    encoded = [shared.encoded_headers for shared in found.sections]
    of_keys = [b"" if found.is_own else header_of_key(key) for key in found.keys]
    if not any(encoded) and not any(of_keys):
        return
    pairs = zip(found.section_ids, found.key_ids, strict=True)
    each = [encoded[section_id] + of_keys[key_id] for section_id, key_id in pairs]
    columns.headers = b"".join(each)
    columns.header_starts = array("I", accumulate(map(len, each), initial=0)).tobytes()


def _differ(values: list[int]) -> bool:
    return values.count(values[0]) < len(values)
