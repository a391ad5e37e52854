"""Records of batches that several readers go through at once, decoded once for all of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.broker.topic.topics import Topic
from penstock.log.format.batch import Batch
from penstock.model.limits import MIB
from penstock.model.record import Record

BYTES_MAX: Final = 16 * MIB  # a thousand readers are seldom further apart
RECORD_BYTES: Final = 256  # a record as an object, its payload aside; measured, rounded up


class Decoded:
    """The batches that were asked for last, bounded by the memory their records take."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._is_used = False  # since `release_unused` was called last
        # By the identity of the batch, which is kept too, so that it stays its own.
        self._kept: OrderedDict[int, tuple[Batch, list[Record]]] = OrderedDict()

    def records(self, topic: Topic, batch: Batch, start: int, end: int) -> list[Record]:
        """Those of [start, end) in the batch."""
        self._is_used = True
        entry = self._kept.get(id(batch))
        if entry is None:
            records = batch.records(
                topic.declared, batch.base_offset, batch.end_offset, topic.partition
            )
            self._keep(batch, records)
        else:
            records = entry[1]
            self._kept.move_to_end(id(batch))
        base = batch.base_offset
        return records[max(start - base, 0) : max(end - base, 0)]

    def _keep(self, batch: Batch, records: list[Record]) -> None:
        size = _size(batch)
        if size > self._bytes_max:
            return
        self._kept[id(batch)] = (batch, records)
        self._bytes += size
        while self._bytes > self._bytes_max:
            _, (oldest, _) = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)

    @property
    def bytes(self) -> int:
        return self._bytes

    def release_unused(self) -> None:
        """Give everything back if nobody has asked since the last call."""
        if not self._is_used:
            self._kept.clear()
            self._bytes = 0
        self._is_used = False


def _size(batch: Batch) -> int:
    """Its records, their payloads, and the batch itself."""
    header = batch.header
    return batch.memory_bytes + header.blob_raw_length + RECORD_BYTES * header.count
