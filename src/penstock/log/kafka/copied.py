"""A partition that receives records at the offsets that they have in another log.

Kafka gives out offsets one after the other and begins at 0. So offsets whose records no longer
exist are filled with control records, which Kafka then removes, and every batch must land at the
very offset that comes next. Who goes on after a crash asks the partition how far it is.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Final

from penstock.core.fences import Fences
from penstock.log.format.batch import Batch
from penstock.log.kafka.asking import fetch_patiently, open_state
from penstock.log.kafka.fetched import decode_fetched
from penstock.log.kafka.records.compression import GZIP
from penstock.log.kafka.records.mapping import encode_batch
from penstock.log.kafka.records.properties import KEY, Properties, encode_properties
from penstock.log.kafka.records.record_batch import (
    NULL,
    SEQUENCE_MASK,
    Records,
    encode_record_headers,
    encode_time,
    seal_bytes,
)
from penstock.log.kafka.requests import Partition
from penstock.log.kafka.work import KafkaJob, KafkaWork
from penstock.model.errors import UnavailableError

FILL_RECORDS: Final = 100_000  # in one batch: 3 MB that are sent as a few KiB
FILL_BATCHES: Final = 50  # after so many, Kafka may remove what is filled


class MisplacedError(UnavailableError):
    """A batch has another offset than it must have: somebody else wrote to the partition."""


class CopiedPartition:
    """One partition; used by one task at a time. `start` before anything else."""

    def __init__(self, work: KafkaWork, partition: Partition) -> None:
        self.partition = partition
        self.first = 0
        self.end = 0  # one past the last record that is on its way or stored
        self.epoch = 1
        self._work = work
        self._sequence = 0
        self._sending: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """See how far an earlier run came."""
        (self.first, self.end), self.epoch, _ = await open_state(self._work, self.partition)

    async def fill(self, end: int, stamp_us: int) -> None:
        """Let the partition begin at `end`: offsets before it have no records any more."""
        batches = 0
        while self.end < end:
            count = min(FILL_RECORDS, end - self.end)
            stored = _control_records(count)
            times = stamp_us // 1_000, stamp_us // 1_000
            data = seal_bytes(stored, count, times, self._work.producer, self._sequence, codec=GZIP)
            await self._send(data, count)
            batches += 1
            if batches % FILL_BATCHES == 0:
                await self.trim(self.end)
        await self.trim(end)

    async def append(self, batch: Batch) -> None:
        """Store a batch at its own offset, which is the next one. It may still be on its way."""
        assert batch.base_offset == self.end, f"offset {batch.base_offset}, not {self.end}"
        data = encode_batch(batch, self._work.producer, self._sequence)
        await self._send(data, batch.header.count)

    async def finish(self) -> None:
        """All that was appended is stored, where it should be."""
        sending, self._sending = self._sending, None
        if sending is not None:
            await sending

    async def trim(self, first: int) -> None:
        """Remove what is before `first`, once it is stored."""
        await self.finish()
        if first > self.first:
            self.first = await self._work.client.delete_before(self.partition, first)

    async def _send(self, data: bytes, count: int) -> None:
        """One batch is on its way while the next one is made."""
        await self.finish()
        job = KafkaJob(self.partition, data)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        expected = self.end
        self.end += count
        self._sequence = self._sequence + count & SEQUENCE_MASK
        self._sending = stored

        def answered() -> None:
            if stored.cancelled():
                return
            if job.error is not None:
                stored.set_exception(job.error)
            elif job.base_offset != expected:
                stored.set_exception(
                    MisplacedError(
                        f"Kafka stored records of {self.partition.topic!r} at offset "
                        f"{job.base_offset}, not at {expected}: another program writes to it"
                    )
                )
            else:
                stored.set_result(None)

        self._work.send(job, answered)

    async def read(self, start: int, end: int) -> AsyncIterator[Batch]:
        """What is stored in [start, end), without a gap between the batches."""
        offset = start
        while offset < end:
            fetched = await fetch_patiently(self._work.client, self.partition, offset)
            found = decode_fetched(fetched, offset, end, "", Fences())
            for batch in found:
                yield batch
                offset = batch.end_offset
            if not found:
                return


@lru_cache(maxsize=2)  # full batches, and the last one
def _control_records(count: int) -> bytes:
    """So many records without a key that hold no marks, compressed."""
    records = Records()
    tail = encode_record_headers([(KEY, encode_properties(Properties(0, 0, 0)))])
    start = encode_time(0)
    for _ in range(count):
        records.add(start, NULL, None, tail)
    packing = zlib.compressobj(wbits=31)
    return packing.compress(records.to_bytes()) + packing.flush()
