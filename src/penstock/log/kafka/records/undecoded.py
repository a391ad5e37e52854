"""A batch of Kafka as a batch of a log that nobody has read yet.

Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.core.fences import Fences
from penstock.log.format.batch import Batch, Undecoded
from penstock.log.format.builder import Columns, assemble
from penstock.log.kafka.records.mapping import decode_batch
from penstock.log.kafka.records.record_batch import RecordBatch
from penstock.log.kafka.records.scanning import Glance, glance
from penstock.log.kafka.records.sections import own_name, shown_name

COLUMN_BYTES: Final = 20  # about what the columns of a record take once it is decoded


class UndecodedRecords(Undecoded):
    """Plain messages as Kafka stored them."""

    def __init__(self, stored: RecordBatch, topic: str, seen: Glance) -> None:
        self._stored = stored
        self._topic = topic
        self._seen = seen
        self._names: list[str] | None = None

    def names(self) -> list[str]:
        if self._names is None:
            seen, topic = self._seen, self._topic
            if seen.is_foreign:
                self._names = [shown_name(key, topic) for key in seen.keys]
            else:
                self._names = [own_name(key) for key in seen.keys]
        return self._names

    def decode(self) -> Batch:
        (batch,) = decode_batch(self._stored, self._topic)
        return batch


def read_batch(stored: RecordBatch, topic: str, fences: Fences | None) -> list[Batch]:
    """As `decode_batch`; a batch of plain messages is decoded when somebody reads it."""
    if stored.is_control or stored.count == 0:
        return decode_batch(stored, topic, fences)
    data = stored.records()
    seen = glance(data, stored.count)
    if not seen.is_plain or stored.end_offset != stored.base_offset + stored.count:
        return decode_batch(stored, topic, fences)
    columns = Columns()
    columns.base_timestamp = stored.base_ms * 1_000
    columns.last_timestamp = stored.max_ms * 1_000
    columns.section = bytes(8)
    batch = assemble(columns, b"", stored.leader_epoch + 1, stored.base_offset, 0)
    header = batch.header
    header.count = stored.count
    header.columns_length = COLUMN_BYTES * stored.count
    header.blob_length = header.blob_raw_length = len(data)
    batch.end_offset = stored.end_offset
    batch.incarnation = seen.incarnation
    batch.undecoded = UndecodedRecords(stored, topic, seen)
    return [batch]
