"""Consumers: durable positions, read in batches.

A consumer's saved position never runs ahead of what it may have handled: with `commit=True` a batch
counts as handled when the consumer comes back for the next one, commits, or closes cleanly. A crash
repeats a batch, it never skips one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from penstock.broker.access.making import Making
from penstock.broker.access.owners import Owners
from penstock.broker.access.quotas import Quotas
from penstock.broker.figures.metrics import Metrics
from penstock.broker.topic.parts import check_offset, partition_offsets, resolve_all, shown_offsets
from penstock.broker.topic.topics import Topic, Topics
from penstock.catalog.catalog import Catalog, ConsumerRow
from penstock.catalog.queue.positions import PositionSaver
from penstock.core.access import Gate
from penstock.core.naming.names import check_consumer, matches, quoted
from penstock.core.position import Position
from penstock.core.quotas import CONSUMERS
from penstock.core.where import Where
from penstock.log.files.segment import StaleSegment
from penstock.log.format.batch import Batch
from penstock.log.interface import KeptLog
from penstock.model.errors import (
    AlreadySubscribed,
    Gap,
    NotSubscribed,
    UnavailableError,
)
from penstock.model.limits import KIB
from penstock.model.record import ConsumerInfo, Offsets, Record

SLICE_BYTES: Final = 256 * KIB  # looked at in one go: a few milliseconds
RECORD_WORK_BYTES: Final = 256  # looking at a record costs as much as that, however short it is


class Consumer:
    """One consumer of one part of a topic. `next_offset` is what it reads next."""

    def __init__(
        self, name: str, next_offset: int, owner: str | None = None, partition: int = 0
    ) -> None:
        self.name = name
        self.owner = owner  # the user who made it; None: nobody
        self.partition = partition
        self.next_offset = next_offset
        self.confirmed = next_offset  # handled up to here: what may be saved
        # The newest batch counts as handled at the next consume, or at a clean close.
        self.confirms_itself = False
        self.key = ""  # of the call that was given the newest batch, and where the batch begins
        self.batch_offset = next_offset
        self.turn = asyncio.Lock()  # one for all partitions of its topic
        self.batch_part = 0  # the partition that the newest batch begins with
        self.next_part = 0  # and the one that the next batch begins with

    def start(self, key: str, offset: int | None) -> int:
        """Where a call with this key reads from: its own batch again, or behind the newest one."""
        if not key or key != self.key:
            return self.next_offset
        if offset is None:
            return self.batch_offset
        return min(max(offset, self.batch_offset), self.next_offset)


class Consumers:
    """All consumers of a broker, by (id of a topic's part, name)."""

    def __init__(
        self, catalog: Catalog, saver: PositionSaver, metrics: Metrics, quotas: Quotas
    ) -> None:
        self._quotas = quotas
        self._catalog = catalog
        self._saver = saver
        self._metrics = metrics
        self._consumers: dict[tuple[int, str], Consumer] = {}
        self._owners: Owners[tuple[int, str]] = Owners()
        self._count = 0  # however many partitions each reads

    async def load(self, rows: list[ConsumerRow], topics: Topics) -> None:
        """Take over saved positions; one past what the log still holds is moved back, counted."""
        for row in rows:
            part = topics.by_id(row.topic_id)
            if part is None:  # another node made it a moment ago, with its consumer
                continue
            offset = await part.log.clamp(row.epoch, row.next_offset)
            if offset < row.next_offset:
                self._metrics.dropped["epoch"] += row.next_offset - offset
            self._add(part, row.consumer, offset, row.owner)

    def _add(self, part: Topic, name: str, offset: int, owner: str | None) -> None:
        consumer = Consumer(name, offset, owner, part.partition)
        lead = self._consumers.get((part.parts[0].id, name))
        if lead is not None:
            consumer.turn = lead.turn
        self._consumers[part.id, name] = consumer
        if not part.partition:
            self._count += 1
            self._owners.put((part.id, name), owner)
            self._quotas.note(CONSUMERS, owner, 1)

    def get(self, topic: Topic, name: str) -> Consumer:
        consumer = self._consumers.get((topic.id, name))
        if consumer is None:
            check_consumer(name)
            raise NotSubscribed(
                f"consumer {quoted(name)} does not read topic {quoted(topic.declared)}: "
                "subscribe it first"
            )
        return consumer

    def parts(self, topic: Topic, name: str) -> list[tuple[Topic, Consumer]]:
        """A consumer in all parts of its topic."""
        first = self.get(topic, name)
        if len(topic.parts) == 1:
            return [(topic, first)]
        return [(part, self.get(part, name)) for part in topic.parts]

    def next_offsets(self, topic: Topic, name: str) -> list[int]:
        """What a consumer reads next in each partition."""
        return [one.next_offset for _, one in self.parts(topic, name)]

    def waiting(self, topic: Topic, name: str) -> int:
        """How many records it has not been given yet."""
        return sum([_lag(part, one) for part, one in self.parts(topic, name)])

    def starts(self, topic: Topic, name: str, key: str, offset: Offsets | None) -> list[int]:
        """Where a call with this key reads from, in each partition."""
        given = {} if offset is None else partition_offsets(topic, offset)
        return [one.start(key, given.get(one.partition)) for _, one in self.parts(topic, name)]

    def of(self, topic: Topic) -> list[Consumer]:
        """The consumers of a topic, in the order of their names."""
        found = [c for (topic_id, _), c in self._consumers.items() if topic_id == topic.id]
        return sorted(found, key=lambda consumer: consumer.name)

    def lags(self, logs: Mapping[int, KeptLog]) -> list[int]:
        """How far each consumer is behind; `logs` by topic id."""
        found = [(one, logs.get(topic_id)) for (topic_id, _), one in self._consumers.items()]
        return [log.count_from(one.next_offset) for one, log in found if log is not None]

    def describe(self, topic: Topic) -> list[ConsumerInfo]:
        return [self.describe_one(topic, one.name) for one in self.of(topic)]

    def describe_one(self, topic: Topic, name: str) -> ConsumerInfo:
        offsets = self.next_offsets(topic, name)
        return ConsumerInfo(name, shown_offsets(offsets), self.waiting(topic, name))

    async def subscribe(
        self, topic: Topic, name: str, start: Position, owner: str | None = None
    ) -> None:
        """Durable on return. `owner` is the user whose consumer it is; None: everybody's."""
        check_consumer(name)
        offsets = await resolve_all(topic, start)
        if (topic.id, name) in self._consumers:
            raise AlreadySubscribed(
                f"consumer {quoted(name)} already reads topic {quoted(topic.declared)}: "
                "unsubscribe it first, or seek"
            )
        async with self.making(owner):
            pairs = zip(topic.parts, offsets, strict=True)
            first, *others = [(part.id, part.log.epoch, offset) for part, offset in pairs]
            await self._catalog.insert_consumer(first[0], name, *first[1:], owner, others)
            self.admit(topic, name, offsets, owner)

    def making(self, owner: str | None) -> Making:
        """Around making a consumer; QuotaExceeded if the tenant or user may not have another."""
        held_by_user = 0 if owner is None else self._owners.count_of(owner)
        return Making(self._quotas, CONSUMERS, self._count, owner, held_by_user)

    def admit(
        self, topic: Topic, name: str, next_offsets: Sequence[int], owner: str | None
    ) -> None:
        """A consumer that is stored, with an offset for each partition."""
        for part, offset in zip(topic.parts, next_offsets, strict=True):
            self._add(part, name, offset, owner)

    async def unsubscribe(self, topic: Topic, name: str) -> None:
        self.get(topic, name)
        for part in topic.parts:
            self._saver.forget((self._catalog.tenant, part.id, name))
        await self._catalog.delete_consumer(topic.id, name, len(topic.parts))
        for part in topic.parts:
            self._drop(part, name)

    def forget(self, topic: Topic) -> None:
        """The topic is gone, and its consumers with it."""
        for consumer in self.of(topic):
            self._saver.forget((self._catalog.tenant, topic.id, consumer.name))
            self._drop(topic, consumer.name)

    def _drop(self, part: Topic, name: str) -> None:
        dropped = self._consumers.pop((part.id, name), None)
        if dropped is not None and not part.partition:
            self._count -= 1
            self._owners.pop((part.id, name))
            self._quotas.note(CONSUMERS, dropped.owner, -1)

    async def consume(
        self,
        topic: Topic,
        name: str,
        limit: int | None,
        where: Where | None,
        *,
        commit: bool,
        on_gap: str,
        bytes_max: int | None = None,
        scan_bytes_max: int | None = None,
        key: str = "",
        offset: Offsets | None = None,
        gate: Gate | None = None,
    ) -> list[Record]:
        """The next records up to the end at this call, at most `limit` of those that pass.

        Partitions have their turns: a batch begins with the one after the last that was read. The
        same `key` again means the same batch again, or more of it from `offset` on: an answer
        that was lost is given again, and nothing of the batch counts as handled.
        """
        parts = self.parts(topic, name)
        lead = parts[0][1]
        given = {} if offset is None else partition_offsets(topic, offset)
        async with lead.turn:
            if not key or key != lead.key:
                lead.batch_part = lead.next_part
            ends = [part.log.bounds().end for part, _ in parts]
            for part, one in parts:
                self._begin(part, one, key, given.get(one.partition))
            found: list[Record] = []
            for at in range(len(parts)):
                number = (lead.batch_part + at) % len(parts)
                part, one = parts[number]
                left = None if limit is None else limit - len(found)
                new = await self._consume(
                    part,
                    one,
                    ends[number],
                    limit=left,
                    where=where,
                    on_gap=on_gap,
                    bytes_max=bytes_max,
                    scan_bytes_max=scan_bytes_max,
                    gate=gate,
                )
                found += new
                lead.next_part = (number + 1) % len(parts)
                if at + 1 == len(parts) or (limit is not None and len(found) >= limit):
                    break
                if bytes_max is not None:
                    bytes_max -= sum([len(record.payload) for record in new])
                    if bytes_max <= 0:
                        break
            for _, one in parts:
                one.confirms_itself = commit
            self._metrics.note_read(len(found))
            return found

    async def _consume(
        self,
        topic: Topic,
        consumer: Consumer,
        end: int,
        limit: int | None,
        where: Where | None,
        on_gap: str,
        bytes_max: int | None,
        scan_bytes_max: int | None,
        gate: Gate | None,
    ) -> list[Record]:
        """What one part has for it."""
        while True:
            first = topic.log.bounds().first
            if consumer.next_offset < first:
                self._skip_gap(topic, consumer, first, on_gap)
            start = consumer.next_offset
            try:
                found, consumer.next_offset = await read_matching(
                    topic,
                    start,
                    end,
                    limit=limit,
                    where=where,
                    names=None,
                    bytes_max=bytes_max,
                    scan_bytes_max=scan_bytes_max,
                    gate=gate,
                )
                return found
            except Gap:
                continue  # trimmed while we read: the bounds say so now

    def _begin(self, topic: Topic, consumer: Consumer, key: str, offset: int | None) -> None:
        """Go to where this call reads from; a new batch means that the one before is handled."""
        consumer.next_offset = consumer.start(key, offset)
        if key and key == consumer.key:
            return
        if consumer.confirms_itself:
            self._confirm(topic, consumer, consumer.next_offset)
        consumer.key, consumer.batch_offset = key, consumer.next_offset

    def _skip_gap(self, topic: Topic, consumer: Consumer, first: int, on_gap: str) -> None:
        lost = first - consumer.next_offset
        if on_gap == "error":
            raise Gap(
                f"consumer {quoted(consumer.name)} is at offset {consumer.next_offset}, but the "
                f"first stored record of topic {quoted(topic.declared)} is {first}: {lost} records "
                "are gone; seek to 'earliest' or consume with on_gap='skip'"
            )
        self._metrics.dropped["retention"] += lost
        consumer.next_offset = first

    def _confirm(self, topic: Topic, consumer: Consumer, offset: int) -> None:
        if offset != consumer.confirmed:
            consumer.confirmed = offset
            self._note(topic, consumer)

    def _note(self, topic: Topic, consumer: Consumer) -> None:
        self._saver.note(
            self._catalog.tenant, topic.id, consumer.name, topic.log.epoch, consumer.confirmed
        )

    async def commit(self, topic: Topic, name: str, offset: Offsets | None) -> None:
        """What was handed out (or all before `offset`) is handled; durable on return."""
        parts = self.parts(topic, name)
        given = {} if offset is None else partition_offsets(topic, offset)
        async with parts[0][1].turn:
            for number, at in given.items():
                check_offset(topic.parts[number], at)
            for part, consumer in parts:
                if offset is not None and part.partition not in given:
                    continue
                handled = given.get(part.partition, consumer.next_offset)
                # What is handled is not handed out again, even if it never was.
                self._place(part, consumer, max(consumer.next_offset, handled), handled)
        await self._saver.flush()

    async def seek(self, topic: Topic, name: str, position: Position) -> Offsets:
        """Go on reading at `position`; durable on return."""
        parts = self.parts(topic, name)
        offsets = await resolve_all(topic, position)
        async with parts[0][1].turn:
            for (part, consumer), offset in zip(parts, offsets, strict=True):
                self._place(part, consumer, offset, offset)
        await self._saver.flush()
        return shown_offsets(offsets)

    def _place(self, part: Topic, consumer: Consumer, next_offset: int, confirmed: int) -> None:
        consumer.next_offset = next_offset
        consumer.confirmed = confirmed
        consumer.confirms_itself = False
        consumer.key = ""
        self._note(part, consumer)

    async def hand_over(self, topics: list[Topic]) -> None:
        """Another node reads on: save all positions.

        The newest batch of a consumer counts as handled if its next call would have said so. With
        a key that call may ask for the same batch again, so that one is not.
        """
        for topic in topics:
            for consumer in self.of(topic):
                async with consumer.turn:
                    if consumer.confirms_itself and not consumer.key:
                        self._confirm(topic, consumer, consumer.next_offset)
        await self._saver.flush()

    async def close(self, topics: list[Topic], *, is_clean: bool) -> None:
        """Save all positions; if it is a clean close, past the batches that confirm themselves."""
        for topic in topics:
            for consumer in self.of(topic):
                async with consumer.turn:
                    if is_clean and consumer.confirms_itself:
                        self._confirm(topic, consumer, consumer.next_offset)
        await self._saver.close()


class Wanted(Protocol):
    """Says which records are wanted; a filter expression is one."""

    def passes(self, record: Record) -> bool: ...


async def read_matching(
    topic: Topic,
    start: int,
    end: int,
    limit: int | None,
    where: Wanted | None,
    names: str | None = None,
    bytes_max: int | None = None,
    scan_bytes_max: int | None = None,
    *,
    gate: Gate | None = None,
) -> tuple[list[Record], int]:
    """Records of [start, end) that pass, at most `limit`, and the offset to go on at.

    Gap when the first of them are gone; those found before a gap are returned, with the offset
    that is gone. `bytes_max` bounds their payloads, unless the first alone is larger;
    `scan_bytes_max` what is looked at for them.
    """
    found: list[Record] = []
    found_bytes = scanned_bytes = 0
    offset = start
    while offset < end:
        if scan_bytes_max is not None and scanned_bytes >= scan_bytes_max:
            return found, offset
        try:
            batches = await read_batches(topic, offset)
        except Gap:
            if found:
                return found, offset
            raise
        for batch in batches:
            stop = end
            is_filtered = not may_read_all(gate, batch)
            if limit is not None and where is None and names is None and not is_filtered:
                stop = min(end, offset + limit - len(found))  # decode no more than are wanted
            records = batch.records(topic.declared, offset, stop, topic.partition)
            if names is not None:
                records = [record for record in records if matches(names, record.name)]
            if gate is not None and is_filtered:
                records = [record for record in records if gate.passes(record.name)]
            if where is not None:
                records = await _passing(records, where)
            if bytes_max is not None:
                for at, record in enumerate(records):
                    found_bytes += len(record.payload)
                    if found_bytes > bytes_max and (found or at):
                        found += records[:at]
                        return found, record.offset
            found += records
            if limit is not None and len(found) >= limit:
                del found[limit:]
                return found, found[-1].offset + 1
            offset = min(max(offset, batch.end_offset), end)
            scanned_bytes += batch.header.blob_raw_length
    return found, offset


async def read_range(
    part: Topic, offset: int, end: int, limit: int | None, where: Where | None, names: str | None
) -> list[Record]:
    """Records of [offset, end) that pass, without those that retention has taken."""
    while True:
        offset = max(offset, part.log.bounds().first)
        try:
            found, _ = await read_matching(part, offset, end, limit=limit, where=where, names=names)
            return found
        except Gap:
            continue  # trimmed while we read: the bounds say so now


def may_read_all(gate: Gate | None, batch: Batch) -> bool:
    """Does every record of the batch pass? Its names are looked at only if some do not."""
    return gate is None or gate.is_open or gate.pass_all(_names_in(batch))


def _names_in(batch: Batch) -> list[str]:
    """Every name that a record of the batch has."""
    strings, ids = batch.strings, batch.name_ids()
    return strings[:1] if ids is None else [strings[at] for at in set(ids)]


async def _passing(records: list[Record], where: Wanted) -> list[Record]:
    """Those that pass. Others get their turn meanwhile, however much there is to look at."""
    passing: list[Record] = []
    looked_bytes = 0
    for record in records:
        if where.passes(record):
            passing.append(record)
        looked_bytes += len(record.payload) + RECORD_WORK_BYTES
        if looked_bytes >= SLICE_BYTES:
            looked_bytes = 0
            await asyncio.sleep(0)
    return passing


async def read_batches(topic: Topic, offset: int, *, is_patient: bool = False) -> list[Batch]:
    """As Log.read; what files that were closed, deleted or broken meanwhile raise is one error.

    A patient reader waits for a log that is away, as one in a database may be.
    """
    try:
        return await (topic.read(offset) if is_patient else topic.log.read(offset))
    except (OSError, RuntimeError, StaleSegment) as failed:
        raise UnavailableError(
            f"topic {quoted(topic.declared)} cannot be read at {offset}: it was closed or deleted "
            f"meanwhile, or its files are damaged ({failed})"
        ) from failed


def _lag(part: Topic, consumer: Consumer) -> int:
    return part.log.count_from(consumer.next_offset)
