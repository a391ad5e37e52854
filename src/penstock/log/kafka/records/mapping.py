"""Messages as Kafka records and back: a stored record batch is one batch of a log, or a few.

One record per message: the key is the name, the value the payload, headers are headers, and `~p`
says the rest. A record without a key but with `~p` holds marks only. A record without `~p` comes
from another program: its QoS is 1, its name is its key. Batches made here leave no offset out: one
that covers offsets without messages has a larger `end_offset` than its records need. Where several
nodes write, records that a fence made void (core/fences.py) are such offsets, too.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final

from penstock.core.fences import Fences
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.builder import Columns, assemble
from penstock.log.format.marks import NO_RECORD, Mark
from penstock.log.kafka.records.plain import decode_plain, fill_times
from penstock.log.kafka.records.properties import KEY, Properties, encode_properties
from penstock.log.kafka.records.record_batch import (
    NULL,
    RecordBatch,
    RecordColumns,
    Records,
    encode_bytes,
    encode_record_headers,
    encode_time,
    read_records,
    seal,
)
from penstock.log.kafka.records.sections import (
    FOREIGN_FLAGS,
    Shared,
    header_of_key,
    own_name,
    shown_name,
)
from penstock.model.record import Headers

_US: Final = 1_000  # in a millisecond


# Writing


def encode_batch(
    batch: Batch,
    producer: tuple[int, int],
    sequence: int,
    incarnation: int = 0,
    guarded: list[tuple[int, int]] | None = None,
) -> bytes:
    """The record batch that stores a batch: a record per message, or one for its marks alone.

    Where several nodes write, `guarded` are the index ranges of records that share the fate of
    their marks, and marks of no record have a record of their own at the end.
    """
    count = batch.header.count
    marks = batch.marks() if batch.header.marks_length else []
    records = Records()
    if count == 0:
        stamp = batch.header.last_timestamp
        records.add(encode_time(0), NULL, None, _encode_marks(incarnation, stamp, marks))
        return seal(records, stamp // _US, stamp // _US, producer, sequence)
    stamps = batch.timestamps(0, count)
    base_ms = stamps[0] // _US
    alone: list[Mark] = []
    if guarded is not None and marks:
        alone = [mark for mark in marks if mark.index == NO_RECORD]
        marks = [mark for mark in marks if mark.index != NO_RECORD]
    _add_messages(records, batch, stamps, _Node(incarnation, marks, guarded or [], count))
    if alone:
        time_part = encode_time(stamps[-1] // _US - base_ms)
        records.add(time_part, NULL, None, _encode_marks(incarnation, stamps[-1], alone))
    return seal(records, base_ms, stamps[-1] // _US, producer, sequence)


def record_count(batch: Batch, *, is_shared: bool = False) -> int:
    """How many records, and so offsets, a batch takes in Kafka; shared: if several nodes write."""
    count = batch.header.count
    if is_shared and count and batch.header.marks_length:
        return count + any(mark.index == NO_RECORD for mark in batch.marks())
    return count or 1


def _encode_marks(incarnation: int, stamp: int, marks: list[Mark]) -> bytes:
    """The headers of a record that holds marks only."""
    properties = Properties(0, incarnation, stamp)
    properties.marks = marks
    return encode_record_headers([(KEY, encode_properties(properties))])


class _Node:
    """What the node that writes a batch adds to its records."""

    def __init__(
        self, incarnation: int, marks: list[Mark], guarded: list[tuple[int, int]], count: int
    ) -> None:
        self.incarnation = incarnation
        self.marks = _marks_by_index(marks, count)
        self.guards = bytearray(count)
        for start, end in guarded:
            for i in range(start, end):
                self.guards[i] = 1


def _add_messages(records: Records, batch: Batch, stamps: list[int], node: _Node) -> None:
    count = batch.header.count
    names = batch.names(0, count)
    payloads = batch.payloads(0, count)
    publishers = batch.publishers(0, count)
    flags = batch.flags(0, count)
    expiries = batch.expiries(0, count)
    all_headers = batch.record_headers(0, count)
    marks, guards = node.marks, node.guards
    base_ms = stamps[0] // _US
    key_parts: dict[str, bytes] = {}
    name, stamp, publisher, flag, expiry, guard = "", -1, "", -1, -1, -1
    headers: Headers | None = None
    key_part = time_part = tail = b""
    for i in range(count):
        if names[i] != name or i == 0:
            name = names[i]
            key_part = key_parts.get(name, b"")
            if not key_part:
                key_part = key_parts[name] = encode_bytes(name.encode())
        here = marks.get(i) if marks else None
        expires_at = expiries[i] or 0
        if (
            here is not None
            or stamps[i] != stamp
            or publishers[i] != publisher
            or flags[i] != flag
            or expires_at != expiry
            or guards[i] != guard
            or all_headers[i] != headers
        ):
            if stamps[i] != stamp:
                time_part = encode_time(stamps[i] // _US - base_ms)
            stamp, publisher, flag, expiry = stamps[i], publishers[i], flags[i], expires_at
            headers, guard = all_headers[i], guards[i]
            properties = Properties(flag, node.incarnation, stamp)
            properties.expires_at = expiry
            properties.publisher = publisher
            properties.is_guarded = bool(guard)
            if here is not None:
                properties.marks = here
                headers = None  # the next record has other marks, or none
            tail = _encode_tail(all_headers[i], properties)
        records.add(time_part, key_part, payloads[i], tail)


def _marks_by_index(marks: list[Mark], count: int) -> dict[int, list[Mark]]:
    """The marks that go with each record; those of no record go with the last one."""
    beside: dict[int, list[Mark]] = {}
    for mark in marks:
        if mark.index == NO_RECORD:
            beside.setdefault(count - 1, []).append(mark)
        else:
            beside.setdefault(mark.index, []).append(Mark(mark.kind, mark.key, 0))
    return beside


def _encode_tail(headers: Headers, properties: Properties) -> bytes:
    pairs: list[tuple[bytes, bytes | None]]
    pairs = [(key.encode(), value.encode()) for key, value in headers]
    pairs.append((KEY, encode_properties(properties)))
    return encode_record_headers(pairs)


# Reading


def decode_batch(stored: RecordBatch, topic: str, fences: Fences | None = None) -> list[Batch]:
    """The batches that hold the records of one record batch, without a gap between them.

    `topic` is the name of messages whose key is not a name. Records of Kafka itself, and those that
    are void, are offsets without messages.
    """
    if stored.is_control or stored.count == 0:
        return [empty_batch(stored.base_offset, stored.end_offset, stored)]
    data = stored.records()
    plain = decode_plain(stored, data, topic, fences)
    return decode_records(stored, data, topic, fences) if plain is None else [plain]


def decode_records(
    stored: RecordBatch, data: bytes, topic: str, fences: Fences | None
) -> list[Batch]:
    """As `decode_batch`, record by record: for batches that are not plain."""
    columns = read_records(data, stored.count)
    shared_by_section: dict[bytes, Shared] = {}
    shared: list[Shared] = []
    for start, end in zip(columns.header_starts, columns.header_ends, strict=True):
        section = data[start:end]
        one = shared_by_section.get(section)
        if one is None:
            one = shared_by_section[section] = Shared(section)
            if fences is not None:
                one.judge(fences, stored.base_offset)
        shared.append(one)
    batches: list[Batch] = []
    offset = stored.base_offset
    for first, last in _stretches(columns, shared):
        base = stored.base_offset + columns.offset_deltas[first]
        if base > offset:  # somebody removed records between two others
            if batches:
                batches[-1].end_offset = base
            else:
                batches.append(empty_batch(offset, base, stored))
        stretch = _Stretch(stored, data, columns, shared, topic)
        batches.append(stretch.batch(first, last, base))
        offset = base + last - first
    if not batches:
        return [empty_batch(stored.base_offset, stored.end_offset, stored)]
    batches[-1].end_offset = stored.end_offset
    return batches


def own_stamp(stored: RecordBatch) -> int:
    """When Penstock received the newest message of a record batch; 0 if none is ours."""
    if stored.is_control:
        return 0
    data = stored.records()
    columns = read_records(data, stored.count)
    sections = zip(columns.header_starts, columns.header_ends, strict=True)
    found = [Shared(section).properties for section in {data[a:b] for a, b in sections}]
    return max([one.stamp for one in found if one is not None], default=0)


def empty_batch(base: int, end: int, stored: RecordBatch) -> Batch:
    """Offsets that hold no messages."""
    columns = Columns()
    columns.starts = bytes(4)
    columns.base_timestamp = columns.last_timestamp = stored.max_ms * _US
    batch = assemble(columns, b"", stored.leader_epoch + 1, base, 0)
    batch.end_offset = end
    return batch


def _is_marks(columns: RecordColumns, index: int, shared: Shared) -> bool:
    return columns.key_lengths[index] < 0 and shared.properties is not None


def _stretches(columns: RecordColumns, shared: list[Shared]) -> list[tuple[int, int]]:
    """Index ranges of records whose offsets follow each other; marks alone are one of their own.

    Void records are in none of them.
    """
    count = len(shared)
    has_marks = any(_is_marks(columns, i, shared[i]) for i in range(count))
    has_void = any(one.is_void for one in shared)
    is_dense = columns.offset_deltas[-1] - columns.offset_deltas[0] == count - 1
    if is_dense and not has_marks and not has_void:
        return [(0, count)]
    stretches: list[tuple[int, int]] = []
    first = 0
    for i in range(count):
        if i > first:
            is_next = columns.offset_deltas[i] == columns.offset_deltas[i - 1] + 1
            is_alone = _is_marks(columns, i, shared[i]) or _is_marks(columns, i - 1, shared[i - 1])
            if not is_next or is_alone or shared[i].is_void:
                stretches.append((first, i))
                first = i
        if shared[i].is_void:
            first = i + 1
    if first < count:
        stretches.append((first, count))
    return stretches


class _Stretch:
    """Records of one record batch on their way into columns."""

    def __init__(
        self,
        stored: RecordBatch,
        data: bytes,
        columns: RecordColumns,
        shared: list[Shared],
        topic: str,
    ) -> None:
        self._stored = stored
        self._data = data
        self._columns = columns
        self._shared = shared
        self._topic = topic
        self._strings: dict[str, int] = {}

    def batch(self, first: int, last: int, base: int) -> Batch:
        """The records with index in [first, last)."""
        if _is_marks(self._columns, first, self._shared[first]):
            return self._marks_alone(first, base)
        columns = Columns()
        columns.count = last - first
        self._fill_names(columns, first, last)
        self._fill_publishers(columns, first, last)
        columns.strings = list(self._strings)
        self._fill_times(columns, first, last)
        self._fill_flags(columns, first, last)
        self._fill_headers(columns, first, last)
        for i in range(first, last):
            properties = self._shared[i].properties
            if properties is not None and properties.marks:
                for mark in properties.marks:
                    index = i - first if mark.index == 0 else NO_RECORD
                    columns.marks.append(Mark(mark.kind, mark.key, index))
        starts = self._columns.value_starts[first:last]
        lengths = [max(length, 0) for length in self._columns.value_lengths[first:last]]
        blob = self._data
        if columns.marks:  # readers elsewhere get the blob as it is, and marks are not for them
            pairs = zip(starts, lengths, strict=True)
            blob = b"".join([blob[start : start + length] for start, length in pairs])
            columns.starts = array("I", accumulate(lengths, initial=0)).tobytes()
        else:
            columns.starts = array("I", starts).tobytes()
            columns.lengths = array("I", lengths).tobytes()
        batch = assemble(columns, blob, self._stored.leader_epoch + 1, base, 0)
        properties = self._shared[first].properties
        batch.incarnation = 0 if properties is None else properties.incarnation
        return batch

    def _marks_alone(self, index: int, base: int) -> Batch:
        properties = self._shared[index].properties
        assert properties is not None
        columns = Columns()
        columns.starts = bytes(4)
        columns.base_timestamp = columns.last_timestamp = properties.stamp
        columns.marks = [Mark(mark.kind, mark.key) for mark in properties.marks]
        batch = assemble(columns, b"", self._stored.leader_epoch + 1, base, 0)
        batch.end_offset = base + 1
        batch.incarnation = properties.incarnation
        return batch

    def _fill_names(self, columns: Columns, first: int, last: int) -> None:
        strings = self._strings
        by_key: dict[bytes, int] = {}  # of our own records
        by_foreign_key: dict[bytes, int] = {}
        data, starts, lengths = self._data, self._columns.key_starts, self._columns.key_lengths
        ids: list[int] = []
        for i in range(first, last):
            length = lengths[i]
            key = data[starts[i] : starts[i] + length] if length > 0 else b""
            is_foreign = self._shared[i].properties is None
            known = by_foreign_key if is_foreign else by_key
            number = known.get(key, -1)
            if number < 0:
                name = shown_name(key, self._topic) if is_foreign else own_name(key)
                number = known[key] = strings.setdefault(name, len(strings))
            ids.append(number)
        if len(strings) > 1:
            columns.names = array("I", ids).tobytes()

    def _fill_publishers(self, columns: Columns, first: int, last: int) -> None:
        strings = self._strings
        ids: list[int] = []
        for i in range(first, last):
            properties = self._shared[i].properties
            if properties is None or not properties.publisher:
                ids.append(fmt.NO_STRING)
            else:
                ids.append(strings.setdefault(properties.publisher, len(strings)))
        columns.publisher_id = ids[0]
        if ids.count(ids[0]) < len(ids):
            columns.publishers = array("I", ids).tobytes()

    def _fill_times(self, columns: Columns, first: int, last: int) -> None:
        base_ms = self._stored.base_ms
        deltas = self._columns.time_deltas
        stamps: list[int] = []
        for i in range(first, last):
            properties = self._shared[i].properties
            foreign = (base_ms + deltas[i]) * _US
            stamps.append(foreign if properties is None else properties.stamp)
        fill_times(columns, stamps)

    def _fill_flags(self, columns: Columns, first: int, last: int) -> None:
        flags: list[int] = []
        expiries: list[int] = []
        for i in range(first, last):
            properties = self._shared[i].properties
            flags.append(FOREIGN_FLAGS if properties is None else properties.flags)
            expiries.append(0 if properties is None else properties.expires_at)
        columns.record_flags = flags[0]
        if flags.count(flags[0]) < len(flags):
            columns.flags = bytes(flags)
        if any(expiries):
            columns.expires = array("q", expiries).tobytes()

    def _fill_headers(self, columns: Columns, first: int, last: int) -> None:
        encoded: list[bytes] = []
        for i in range(first, last):
            section = self._shared[i].encoded_headers
            if self._shared[i].properties is None and self._columns.key_lengths[i] > 0:
                start = self._columns.key_starts[i]
                key = self._data[start : start + self._columns.key_lengths[i]]
                section += header_of_key(key)
            encoded.append(section)
        if any(encoded):
            columns.headers = b"".join(encoded)
            columns.header_starts = array("I", accumulate(map(len, encoded), initial=0)).tobytes()
