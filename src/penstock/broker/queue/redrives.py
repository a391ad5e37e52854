"""Redrives: dead letters go back to their topic, each of them once.

Dead letters are put back in batches. The catalog has the offsets of a batch, and a mark, before the
batch is appended to the topic together with that mark. So after a crash the log says whether the
batch was stored, and no dead letter is lost or put back twice. It stays in the dead-letter topic
until retention removes it; the catalog knows which ones were put back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final
from uuid import uuid4

from penstock.broker.figures.metrics import Metrics
from penstock.broker.queue.consumers import read_matching
from penstock.broker.queue.dead import dead_topic, read_letter
from penstock.broker.topic.parts import partition_offsets, shown_offsets
from penstock.broker.topic.topics import Topic, Topics
from penstock.catalog.queue.redrives import RedriveCatalog, RedriveRow
from penstock.core.access import PUBLISH, Gate, Principal, authorise, denial
from penstock.core.delivery.run import Run
from penstock.core.delivery.tags import make_tag
from penstock.core.naming.names import check_group, quoted, topic_key
from penstock.core.ranges import OffsetRanges
from penstock.core.where import Where
from penstock.log.format.marks import MARK_REDRIVE, Mark
from penstock.log.interface import KeptLog
from penstock.log.waiting import append_durably
from penstock.model.errors import (
    CorruptError,
    Gap,
    NotAuthorized,
    RefusedError,
    TopicNotFound,
    UnavailableError,
)
from penstock.model.groups import FROM_START, Redriven
from penstock.model.limits import MIB
from penstock.model.record import Offsets, Record, TopicId

REDRIVE_MAX: Final = 10_000  # dead letters of one call
BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 4 * MIB
SCAN_BYTES_MAX: Final = 64 * MIB  # of the dead-letter topic, looked at by one call
RANGES_MAX: Final = 100_000  # of offsets that were put back while others between them were not


class _Redrive:
    """What was done with the dead letters of a topic; each is a tag of partition and offset."""

    def __init__(self, dead_id: TopicId) -> None:
        self.dead_id = dead_id
        self.done = OffsetRanges()
        self.mark = ""  # of those under way; empty: none are
        self.partition = 0  # of the topic: those under way go there
        self.under_way: list[int] = []
        self.epoch = 0
        self.end_offset = 0
        self.lock = asyncio.Lock()

    def settle(self, *, is_stored: bool) -> None:
        """It is known whether those under way were stored."""
        if is_stored:
            for tag in self.under_way:
                self.done.add(tag)
        self.mark, self.under_way = "", []


class _Wanted:
    """Which records of a dead-letter topic a redrive is about."""

    def __init__(
        self, key: str, group: str, done: OffsetRanges, where: Where | None, gate: Gate
    ) -> None:
        """`gate` lets through what may be read: other records are not told apart by `where`."""
        self._key = key  # of the topic they came from
        self._group = group
        self._done = done
        self._where = where
        self._gate = gate

    def passes(self, record: Record) -> bool:
        if _tag(record) in self._done:
            return False
        letter = read_letter(record)
        if letter is None or letter.group != self._group or topic_key(letter.topic) != self._key:
            return False
        if self._where is None:
            return True
        return self._gate.passes(record.name) and self._where.passes(record)


class Redrives:
    """The redrives of all topics of a broker. Used on the event loop."""

    def __init__(
        self,
        topics: Topics,
        catalog: RedriveCatalog,
        metrics: Metrics,
        check: Callable[[Topic, Run], None],
    ) -> None:
        self._topics = topics
        self._catalog = catalog
        self._metrics = metrics
        self._check = check
        self._redrives: dict[TopicId, _Redrive] = {}

    async def load(self, logs: dict[TopicId, KeptLog]) -> None:
        """Take over what is stored, and find out what became of what was under way."""
        for row in await self._catalog.load():
            log = logs.get(row.topic_id)
            if log is None:
                continue
            redrive = self._redrives[row.topic_id] = _Redrive(row.dead_topic_id)
            redrive.done = OffsetRanges(row.done)
            redrive.mark, redrive.under_way = row.mark, row.under_way
            redrive.partition = row.partition
            redrive.epoch, redrive.end_offset = row.epoch, row.end_offset
            if redrive.mark:
                with suppress(UnavailableError, CorruptError):  # the next call tries again
                    await self._find_out(row.topic_id, redrive, logs)

    def forget(self, topic: Topic) -> None:
        """The topic is gone."""
        self._redrives.pop(topic.id, None)

    async def redrive(
        self,
        topic: Topic,
        group: str,
        principal: Principal,
        *,
        start: Offsets = FROM_START,
        limit: int = REDRIVE_MAX,
        where: Where | None = None,
        is_dry_run: bool = False,
    ) -> Redriven:
        """Put dead letters of a group back, from the offset `start` of the dead-letter topic on.

        FROM_START means all partitions. Looks at a bounded part of the dead-letter topic;
        `next_offset` says where to go on.
        """
        check_group(group)
        try:
            dead = self._topics.get(dead_topic(topic.declared))
        except TopicNotFound:
            return Redriven(dead_topic(topic.declared), 0, 0, True, is_dry_run)
        given = {} if start == FROM_START else partition_offsets(dead, start)
        work = self._run(
            topic,
            dead,
            group,
            principal=principal,
            given=given,
            limit=limit,
            where=where,
            is_dry_run=is_dry_run,
        )
        return await asyncio.shield(asyncio.ensure_future(work))  # once begun, it is finished

    async def _run(
        self,
        topic: Topic,
        dead: Topic,
        group: str,
        principal: Principal,
        given: dict[int, int],
        limit: int,
        where: Where | None,
        is_dry_run: bool,
    ) -> Redriven:
        redrive = self._redrives.setdefault(topic.id, _Redrive(dead.id))
        async with redrive.lock:
            if redrive.dead_id != dead.id:  # deleted and made anew: other records
                redrive.dead_id, redrive.done = dead.id, OffsetRanges()
                redrive.settle(is_stored=False)
            if redrive.mark:
                await self._find_out(topic.id, redrive, {part.id: part.log for part in topic.parts})
            wanted = _Wanted(topic.key, group, redrive.done, where, Gate(principal, dead.key))
            count = scanned = 0
            offsets: list[int] = []
            is_complete = True
            for part in dead.parts:
                first, end = part.log.bounds()
                redrive.done.trim(make_tag(part.partition, first), make_tag(part.partition, 0))
                offset = max(given.get(part.partition, 0), first)
                while offset < end and count < limit and scanned < SCAN_BYTES_MAX:
                    try:
                        found, offset = await read_matching(
                            part,
                            offset,
                            end,
                            min(limit - count, BATCH_RECORDS_MAX),
                            wanted,
                            bytes_max=BATCH_BYTES_MAX,
                            scan_bytes_max=BATCH_BYTES_MAX,
                        )
                    except Gap:  # retention removed what was to be read
                        offset = max(offset, part.log.bounds().first)
                        continue
                    scanned += BATCH_BYTES_MAX
                    if found and not is_dry_run:
                        await self._put_back_all(topic, redrive, found, principal)
                    count += len(found)
                offsets.append(offset)
                is_complete = is_complete and offset >= end
        return Redriven(dead.declared, count, shown_offsets(offsets), is_complete, is_dry_run)

    async def _put_back_all(
        self, topic: Topic, redrive: _Redrive, found: list[Record], principal: Principal
    ) -> None:
        """A batch for each partition that the dead letters came from; durable on return."""
        batches: dict[int, list[tuple[Record, Run]]] = {}
        for record in found:
            letter = read_letter(record)
            if letter is not None:
                part = topic.part_of(letter.original.name)
                batches.setdefault(part.partition, []).append((record, letter.original))
        for partition, batch in batches.items():
            await self._put_back(topic.parts[partition], redrive, batch, principal)

    async def _put_back(
        self,
        topic: Topic,
        redrive: _Redrive,
        batch: list[tuple[Record, Run]],
        principal: Principal,
    ) -> None:
        """One batch for one part of the topic; durable on return."""
        runs = [run for _, run in batch]
        for run in runs:
            if not authorise(principal, PUBLISH, run.name, topic.key):
                raise NotAuthorized(denial(principal, PUBLISH, run.name))
            self._check(topic, run)
        if len(redrive.done) + len(batch) > RANGES_MAX:
            raise RefusedError(
                f"too many separate dead letters of topic {quoted(topic.declared)} were redriven "
                f"(the limit is {RANGES_MAX} ranges of offsets): redrive without a filter"
            )
        mark = uuid4()
        redrive.mark, redrive.under_way = mark.hex, [_tag(record) for record, _ in batch]
        redrive.partition = topic.partition
        redrive.epoch, redrive.end_offset = topic.log.epoch, topic.log.bounds().end
        await self._save(topic.parts[0].id, redrive)
        await append_durably(topic.log, runs, [Mark(MARK_REDRIVE, mark.bytes, 0)])
        redrive.settle(is_stored=True)
        self._metrics.records_redriven += len(batch)
        await self._save(topic.parts[0].id, redrive)

    async def _find_out(
        self, topic_id: TopicId, redrive: _Redrive, logs: Mapping[TopicId, KeptLog]
    ) -> None:
        """Is the mark of the batch under way in the log that it was for?"""
        log = logs[TopicId(topic_id + redrive.partition)]
        wanted = bytes.fromhex(redrive.mark)
        is_stored = False
        start = await log.clamp(redrive.epoch, redrive.end_offset)
        async for batch in log.batches_since(max(start, log.bounds().first)):
            if any(one.kind == MARK_REDRIVE and one.key == wanted for one in batch.marks()):
                is_stored = True
                break
        redrive.settle(is_stored=is_stored)
        await self._save(topic_id, redrive)

    async def _save(self, topic_id: TopicId, redrive: _Redrive) -> None:
        await self._catalog.save(
            RedriveRow(
                topic_id=topic_id,
                dead_topic_id=redrive.dead_id,
                done=redrive.done.pairs(),
                mark=redrive.mark,
                under_way=redrive.under_way,
                epoch=redrive.epoch,
                end_offset=redrive.end_offset,
                partition=redrive.partition,
            )
        )


def _tag(record: Record) -> int:
    return make_tag(record.partition, record.offset)
