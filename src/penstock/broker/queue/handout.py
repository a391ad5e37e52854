"""What one fetch of a group hands out: first what comes again, then what is new.

Records, bytes and the work of one fetch are bounded. A record that the reader may not read is left
to another one; where there are many, the next fetch goes on behind those that were looked at.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from penstock.broker.queue.consumers import may_read_all, read_batches
from penstock.broker.queue.kept_group import KeptGroup
from penstock.broker.topic.topics import Topic
from penstock.core.access import Gate
from penstock.core.groups import Group, Terms
from penstock.log.format.batch import Batch
from penstock.model.errors import Gap
from penstock.model.limits import MIB
from penstock.model.record import Record

GIVE_BYTES_MAX: Final = 8 * MIB  # of payloads in one answer; the first record always fits
READS_MAX: Final = 16  # chunks of the log for one answer
LOOKS_MAX: Final = 20_000  # records that the reader may not read: some 20 ms
SLICE: Final = 2_000  # looked at before others get their turn


@dataclass(frozen=True, slots=True)
class Given:
    """A record on its way to a reader, and how often it has been given out by now."""

    record: Record
    deliveries: int


class Handout:
    """One fetch of one reader, who is known by the receipt. Its limits hold for all partitions."""

    def __init__(
        self,
        kept: KeptGroup,
        receipt: str,
        limit: int,
        gate: Gate | None,
        terms: Terms | None = None,
    ) -> None:
        self._kept = kept
        self._receipt = receipt
        self._limit = limit
        self._gate = gate
        self._terms = terms
        self._bytes_left = GIVE_BYTES_MAX
        self._reads_left = READS_MAX
        self._looks_left = LOOKS_MAX
        self.given: list[Given] = []
        self.expired = 0  # records that retention removed before anybody got them
        self.passed_over = 0  # records that too many others were left behind

    @property
    def is_full(self) -> bool:
        is_idle = self._reads_left <= 0 or self._looks_left <= 0
        return is_idle or len(self.given) >= self._limit or self._bytes_left <= 0

    def _room(self, group: Group) -> int:
        """How many new ones of a partition fit."""
        return min(group.room, self._kept.room)

    async def _read(self, part: Topic, offset: int) -> list[Batch]:
        """The batches from `offset` on; empty if it is gone or has not come yet."""
        self._reads_left -= 1
        try:
            return await read_batches(part, offset)
        except Gap:
            return []

    def _may_read(self, name: str) -> bool:
        return self._gate is None or self._gate.passes(name)

    async def _leave(self, group: Group, offset: int) -> None:
        self.passed_over += group.leave_to_others(offset)
        self._looks_left -= 1
        if not self._looks_left % SLICE:
            await asyncio.sleep(0)

    def _fits(self, record: Record) -> bool:
        """Count its bytes; False if they are too many besides those of others."""
        self._bytes_left -= len(record.payload)
        return self._bytes_left >= 0 or not self.given

    async def give_again(self, part: Topic, group: Group, now_us: int, look_from: int) -> int:
        """What waits, and what others left, from `look_from` on; where to look next time."""
        again = sorted({*group.waiting(), *group.left()})
        again = [one for one in again if one >= look_from] or again
        at = 0
        while at < len(again) and not self.is_full:
            batches = await self._read(part, again[at])
            if not batches or batches[0].base_offset > again[at]:
                group.discard(again[at])
                self.expired += 1
                at += 1
                continue
            for batch in batches:
                while at < len(again) and again[at] < batch.end_offset and not self.is_full:
                    offset = again[at]
                    name = batch.names(offset - batch.base_offset, offset - batch.base_offset + 1)
                    if self._may_read(name[0]):
                        record = _record(batch, part, offset)
                        if not self._fits(record):
                            return offset
                        deliveries = group.retake(self._receipt, offset, now_us, terms=self._terms)
                        self.given.append(Given(record, deliveries))
                    else:
                        await self._leave(group, offset)
                    at += 1
        return again[at] if at < len(again) else 0

    async def give_new(self, part: Topic, group: Group, now_us: int) -> None:
        """What nobody was given yet."""
        while self._room(group) > 0 and not self.is_full:
            if group.next_offset >= part.log.bounds().end:
                return
            batches = await self._read(part, group.next_offset)
            if not batches:
                return
            for batch in batches:
                first = max(group.next_offset, batch.base_offset)
                end = batch.base_offset + batch.header.count
                if first >= end:
                    pass  # the rest of its offsets have no records
                elif may_read_all(self._gate, batch):
                    self._take_all(part, group, batch, first, now_us)
                else:
                    await self._take_some(part, group, batch, first, now_us)
                if group.next_offset < end:
                    return
                group.pass_to(batch.end_offset)

    def _take_all(self, part: Topic, group: Group, batch: Batch, first: int, now_us: int) -> None:
        count = min(self._limit - len(self.given), self._room(group))
        taken = 0
        for record in batch.records(part.declared, first, first + count, part.partition):
            if not self._fits(record):
                break
            self.given.append(Given(record, 1))
            taken += 1
        if taken:
            group.take(self._receipt, first, taken, now_us, terms=self._terms)

    async def _take_some(
        self, part: Topic, group: Group, batch: Batch, first: int, now_us: int
    ) -> None:
        base = batch.base_offset
        for offset, name in enumerate(batch.names(first - base, batch.header.count), first):
            if self.is_full or self._room(group) <= 0:
                return
            if not self._may_read(name):
                await self._leave(group, offset)
                continue
            record = _record(batch, part, offset)
            if not self._fits(record):
                return
            group.take(self._receipt, offset, 1, now_us, terms=self._terms)
            self.given.append(Given(record, 1))


def _record(batch: Batch, part: Topic, offset: int) -> Record:
    return batch.records(part.declared, offset, offset + 1, part.partition)[0]


async def expected_bytes(topic: Topic, kept: KeptGroup, limit: int) -> int:
    """About how many bytes of payloads the next handout has, by the chunks it begins with."""
    counted = size = 0
    for part, group in kept.turns(topic):
        again = [*group.waiting()[:1], *group.left()[:1], group.next_offset]
        try:
            batches = await read_batches(part, min(again))
        except Gap:
            continue
        counted += sum(batch.header.count for batch in batches)
        size += sum(batch.header.blob_raw_length for batch in batches)
        if counted >= limit:
            break
    return min(size * limit // max(counted, 1), max(size, GIVE_BYTES_MAX))
