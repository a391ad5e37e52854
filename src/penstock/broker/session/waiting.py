"""How many messages wait for readers: counted in the logs, in one pass for all of them.

A reader is counted what the delivery rule (core/delivery/rule) gives it from the log. A pass looks
at a bounded amount of a topic; beyond that, and where a log cannot be read, a number is a lower
bound and says so.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.queue.consumers import read_batches
from penstock.broker.topic.topics import Topic
from penstock.core.delivery.rule import (
    ANYBODY,
    NEVER_KEPT,
    Stretch,
    Want,
    is_ever_kept,
    is_from,
    kept_from_qos,
    stretches,
)
from penstock.core.delivery.tags import make_place, make_tag
from penstock.core.naming.trie import FilterTrie
from penstock.core.where import Where
from penstock.log.format.batch import Batch
from penstock.model.errors import CorruptError, Gap, UnavailableError
from penstock.model.limits import MIB
from penstock.model.record import QOS_MASK
from penstock.model.timeline import Timeline

SCAN_BYTES_MAX: Final = 64 * MIB  # looked at in one topic for one report
TURN_MAX: Final = 5_000  # names and records looked at before others get their turn


@dataclass(frozen=True, slots=True)
class Wish:
    """A filter and its options; `since` and `owed` by topic id, as a Subscription has them."""

    filter: str
    qos: int
    since: dict[int, int]
    no_local: bool = False
    owed: dict[int, int] | None = None

    def want(self, topic_id: int) -> Want:
        """As it counts in a topic."""
        owed_until = 0 if self.owed is None else self.owed.get(topic_id, 0)
        since = self.since.get(topic_id, 0)
        return Want(self.qos, since, self.no_local, owed_until=owed_until)


@dataclass(slots=True, eq=False)
class Reader:
    """One position of a session in every topic, and the filters that go with it."""

    client_id: str
    positions: dict[int, int]  # topic id -> next offset; level with a topic that is not in it
    wishes: list[Wish]
    out: Set[int]  # tags of what was sent, or is done, although it lies behind the position
    feed_id: int = 0
    where: Where | None = None
    keeps_qos0: bool = False  # messages of QoS 0 wait for it, too
    waiting: int = 0
    is_exact: bool = True

    def is_behind(self, topic_id: int, end: int) -> bool:
        """May something wait for it in a topic that ends there?"""
        return self.positions.get(topic_id, end) < end and any(
            is_ever_kept(wish.want(topic_id), keeps_qos0=self.keeps_qos0) for wish in self.wishes
        )


async def count_waiting(topic: Topic, readers: list[Reader], clock: Timeline) -> None:
    """Add what waits in one topic to each reader."""
    first, end = topic.log.bounds()
    behind = [one for one in readers if one.is_behind(topic.id, end)]
    if not behind:
        return
    pass_ = _Pass(topic, behind, end, clock)
    offset = max(min(one.positions[topic.id] for one in behind), first)
    scanned_bytes = 0
    try:
        while offset < end:
            if topic.refusal or scanned_bytes > SCAN_BYTES_MAX:
                break
            try:
                batches = await read_batches(topic, offset)
            except Gap:
                offset = topic.log.bounds().first
                continue
            for batch in batches:
                scanned_bytes += batch.memory_bytes
                await pass_.count(batch)
                offset = max(offset, batch.end_offset)
            if not batches:
                break
    except (CorruptError, UnavailableError):
        pass  # the count covers what could be read
    if offset < end:
        for one in behind:
            one.is_exact = False


@dataclass(slots=True)
class _Found:
    """Offsets of a batch under one name that have not expired."""

    all: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)  # those above QoS 0

    def kept(self, stretch: Stretch, *, keeps_qos0: bool) -> list[int]:
        """Those of a QoS that comes from the log, for somebody who takes them this way."""
        lowest = kept_from_qos(stretch.reading, keeps_qos0=keeps_qos0)
        if lowest == NEVER_KEPT:
            return []
        return self.above if lowest else self.all


class _Pass:
    """Counts batch by batch."""

    def __init__(self, topic: Topic, readers: list[Reader], end: int, clock: Timeline) -> None:
        self._topic = topic
        self._end = end
        self._clock = clock
        self._now_us = clock.steady_us()
        self._filters: FilterTrie[tuple[Reader, int]] = FilterTrie()
        for reader in readers:
            for number, wish in enumerate(reader.wishes):
                self._filters.add(wish.filter, (reader, number))
        self._done = 0  # names and records since others had their turn

    async def count(self, batch: Batch) -> None:
        for name, found in self._by_name(batch).items():
            wishes: dict[Reader, list[Wish]] = {}
            for reader, number in self._filters.match(name):
                wishes.setdefault(reader, []).append(reader.wishes[number])
            for reader, mine in wishes.items():
                for stretch in stretches([wish.want(self._topic.id) for wish in mine]):
                    offsets = found.kept(stretch, keeps_qos0=reader.keeps_qos0)
                    reader.waiting += self._count(batch, reader, stretch, offsets)
            self._done += len(wishes) + 1
            if self._done >= TURN_MAX:
                self._done = 0
                await asyncio.sleep(0)

    def _by_name(self, batch: Batch) -> dict[str, _Found]:
        found: dict[str, _Found] = {}
        last = min(batch.header.count, self._end - batch.base_offset)
        if last <= 0:
            return found
        self._done += last
        columns = zip(
            batch.names(0, last), batch.flags(0, last), batch.expiries(0, last), strict=True
        )
        for offset, (name, flags, expires_at) in enumerate(columns, batch.base_offset):
            if expires_at is not None:
                stamp_us = batch.timestamp(offset - batch.base_offset)
                if self._clock.until_us(stamp_us, expires_at) <= self._now_us:
                    continue
            one = found.get(name)
            if one is None:
                one = found[name] = _Found()
            one.all.append(offset)
            if flags & QOS_MASK:
                one.above.append(offset)
        return found

    def _count(self, batch: Batch, reader: Reader, stretch: Stretch, offsets: list[int]) -> int:
        start = max(reader.positions[self._topic.id], stretch.start)
        mine = offsets[bisect_left(offsets, start) : bisect_left(offsets, stretch.end)]
        if stretch.publishers == ANYBODY and not reader.out and reader.where is None:
            return len(mine)
        return sum(self._is_sent(batch, reader, stretch, one) for one in mine)

    def _is_sent(self, batch: Batch, reader: Reader, stretch: Stretch, offset: int) -> bool:
        """Would the reader be sent this record of the stretch?"""
        self._done += 1
        topic = self._topic
        if make_tag(make_place(reader.feed_id, topic.id), offset) in reader.out:
            return False
        (record,) = batch.records(topic.declared, offset, offset + 1, topic.partition)
        if not is_from(stretch.publishers, is_own=record.publisher == reader.client_id):
            return False
        return reader.where is None or reader.where.passes(record)
