"""Redrives: dead letters go back to their topic, each of them once.

Dead letters are put back in batches. The catalog has the offsets of a batch, and a mark, before the
batch is appended to the topic together with that mark. So after a crash the log says whether the
batch was stored, and no dead letter is lost or put back twice. It stays in the dead-letter topic
until retention removes it; the catalog knows which ones were put back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import uuid4

from penstock.broker.metrics import Metrics
from penstock.broker.queue.consumers import read_matching
from penstock.broker.queue.dead import dead_topic, read_letter
from penstock.broker.topics import Topic, Topics
from penstock.catalog.redrives import RedriveCatalog, RedriveRow
from penstock.core.access import PUBLISH, Principal, authorise, denial
from penstock.core.names import check_group, quoted, topic_key
from penstock.core.ranges import OffsetRanges
from penstock.core.run import Run
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
from penstock.model.groups import Redriven
from penstock.model.limits import MIB
from penstock.model.record import Record, TopicId

REDRIVE_MAX: Final = 10_000  # dead letters of one call
BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 4 * MIB
SCAN_BYTES_MAX: Final = 64 * MIB  # of the dead-letter topic, looked at by one call
RANGES_MAX: Final = 100_000  # of offsets that were put back while others between them were not


class _Redrive:
    """What was done with the dead letters of a topic."""

    def __init__(self, dead_id: TopicId) -> None:
        self.dead_id = dead_id
        self.done = OffsetRanges()
        self.mark = ""  # of those under way; empty: none are
        self.under_way: list[int] = []
        self.epoch = 0
        self.end_offset = 0
        self.lock = asyncio.Lock()

    def settle(self, *, is_stored: bool) -> None:
        """It is known whether those under way were stored."""
        if is_stored:
            for offset in self.under_way:
                self.done.add(offset)
        self.mark, self.under_way = "", []


class _Wanted:
    """Which records of a dead-letter topic a redrive is about."""

    def __init__(self, key: str, group: str, done: OffsetRanges, where: Where | None) -> None:
        self._key = key  # of the topic they came from
        self._group = group
        self._done = done
        self._where = where

    def passes(self, record: Record) -> bool:
        if record.offset in self._done:
            return False
        letter = read_letter(record)
        if letter is None or letter.group != self._group or topic_key(letter.topic) != self._key:
            return False
        return self._where is None or self._where.passes(record)


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
            redrive.epoch, redrive.end_offset = row.epoch, row.end_offset
            if redrive.mark:
                with suppress(UnavailableError, CorruptError):  # the next call tries again
                    await self._find_out(row.topic_id, log, redrive)

    def forget(self, topic: Topic) -> None:
        """The topic is gone."""
        self._redrives.pop(topic.id, None)

    async def redrive(
        self,
        topic: Topic,
        group: str,
        principal: Principal,
        *,
        start: int = 0,
        limit: int = REDRIVE_MAX,
        where: Where | None = None,
        is_dry_run: bool = False,
    ) -> Redriven:
        """Put dead letters of a group back, from the offset `start` of the dead-letter topic on.

        Looks at a bounded part of the dead-letter topic; `next_offset` says where to go on.
        """
        check_group(group)
        try:
            dead = self._topics.get(dead_topic(topic.declared))
        except TopicNotFound:
            return Redriven(dead_topic(topic.declared), 0, 0, True, is_dry_run)
        work = self._run(topic, dead, group, principal, start, limit, where, is_dry_run)
        return await asyncio.shield(asyncio.ensure_future(work))  # once begun, it is finished

    async def _run(
        self,
        topic: Topic,
        dead: Topic,
        group: str,
        principal: Principal,
        start: int,
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
                await self._find_out(topic.id, topic.log, redrive)
            first, end = dead.log.bounds()
            redrive.done.trim(first)
            wanted = _Wanted(topic.key, group, redrive.done, where)
            count, offset, scan_end = 0, max(start, first), end
            scanned = 0
            while offset < scan_end and count < limit and scanned < SCAN_BYTES_MAX:
                try:
                    found, offset = await read_matching(
                        dead,
                        offset,
                        scan_end,
                        min(limit - count, BATCH_RECORDS_MAX),
                        wanted,
                        bytes_max=BATCH_BYTES_MAX,
                        scan_bytes_max=BATCH_BYTES_MAX,
                    )
                except Gap:  # retention removed what was to be read
                    offset = max(offset, dead.log.bounds().first)
                    continue
                scanned += BATCH_BYTES_MAX
                if found and not is_dry_run:
                    await self._put_back(topic, redrive, found, principal)
                count += len(found)
        return Redriven(dead.declared, count, offset, offset >= scan_end, is_dry_run)

    async def _put_back(
        self, topic: Topic, redrive: _Redrive, found: list[Record], principal: Principal
    ) -> None:
        """One batch; durable on return."""
        runs = [letter.original for letter in map(read_letter, found) if letter is not None]
        for run in runs:
            if not authorise(principal, PUBLISH, run.name, topic.key):
                raise NotAuthorized(denial(principal, PUBLISH, run.name))
            self._check(topic, run)
        if len(redrive.done) + len(found) > RANGES_MAX:
            raise RefusedError(
                f"too many separate dead letters of topic {quoted(topic.declared)} were redriven "
                f"(the limit is {RANGES_MAX} ranges of offsets): redrive without a filter"
            )
        mark = uuid4()
        redrive.mark, redrive.under_way = mark.hex, [record.offset for record in found]
        redrive.epoch, redrive.end_offset = topic.log.epoch, topic.log.bounds().end
        await self._save(topic.id, redrive)
        await append_durably(topic.log, runs, [Mark(MARK_REDRIVE, mark.bytes, 0)])
        redrive.settle(is_stored=True)
        self._metrics.records_redriven += len(found)
        await self._save(topic.id, redrive)

    async def _find_out(self, topic_id: TopicId, log: KeptLog, redrive: _Redrive) -> None:
        """Is the mark of the batch under way in the log of the topic?"""
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
                topic_id,
                redrive.dead_id,
                redrive.done.pairs(),
                redrive.mark,
                redrive.under_way,
                redrive.epoch,
                redrive.end_offset,
            )
        )
