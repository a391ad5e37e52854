"""A partition, a careless writer and a few readers, driven by any source of choices.

The world appends, commits, crashes and trims; its engine reads in chunks while the end moves,
offers late and twice, and takes in odd amounts. Each reader keeps its own account of what it was
given, without looking into the feed: `cursor` and what was lost to retention. Whatever a feed does
is checked against that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.core.delivery.feed import Feed

Choose = Callable[[int], int]  # choose(n) is one of 0 … n-1
Item = tuple[int, int]  # offset, identity

NAMES = 3
PENDING_MAX = 10


@dataclass(slots=True, frozen=True)
class Rec:
    identity: int  # offsets are used again after a crash, identities never
    name: int


@dataclass(slots=True)
class Reader:
    feed: Feed[int]
    names: tuple[bool, ...]
    cursor: int = 0  # every matching record below was delivered or lost
    saved: int = 0
    offered: int = 0  # the tail was offered up to here
    lost: set[int] = field(default_factory=set)  # offsets that retention took unread
    reads: list[tuple[list[Item], int, int]] = field(default_factory=list)  # begun, not supplied

    def wants(self, record: Rec) -> bool:
        return self.names[record.name]


class FeedWorld:
    """One run. Every step asserts; `settle` ends it and checks that nothing is missing."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.seen: Counter[str] = Counter()
        self.records: list[Rec] = []  # index is offset; those from `durable` on are pending
        self.durable = 0
        self.first = 0  # retained
        self.identity = 0
        self.readers = [self.new_reader() for _ in range(1 + choose(2))]
        # Each world has habits of its own: a rare meeting of events is common in some of them.
        self.steps: tuple[tuple[int, Callable[[], None]], ...] = (
            (8 + choose(20), self.append),
            (8 + choose(10), self.commit),
            (10 + choose(20), self.offer),
            (10 + choose(10), self.begin_read),
            (10 + choose(10), self.end_read),
            (6 + choose(20), self.take_some),
            (choose(3), self.fall_back),
            (choose(8), self.save),
            (choose(2), self.crash),
            (choose(6), self.trim),
        )
        self.tickets = sum(weight for weight, _ in self.steps)

    def new_reader(self) -> Reader:
        names = (True, *(self.choose(2) == 0 for _ in range(NAMES - 1)))
        feed: Feed[int] = Feed(0, 1 + self.choose(4))
        return Reader(feed, names)

    def step(self) -> None:
        ticket = self.choose(self.tickets)
        for weight, action in self.steps:
            ticket -= weight
            if ticket < 0:
                action()
                break
        for reader in self.readers:
            self.check(reader)

    # -- the writer

    def append(self) -> None:
        start = len(self.records)
        if start - self.durable >= PENDING_MAX:
            return
        for _ in range(1 + self.choose(3)):
            self.identity += 1
            self.records.append(Rec(self.identity, self.choose(NAMES)))

    def commit(self) -> None:
        pending = len(self.records) - self.durable
        if pending:
            self.durable += pending if self.choose(2) else 1 + self.choose(pending)

    def crash(self) -> None:
        """Any prefix of what was pending survives; readers come back at what they had saved."""
        self.seen["crashes"] += 1
        self.durable += self.choose(len(self.records) - self.durable + 1)
        del self.records[self.durable :]
        for reader in self.readers:
            assert reader.saved <= self.durable
            reader.feed = Feed(reader.saved, reader.feed.backlog_max)
            reader.cursor = reader.saved
            reader.offered = self.durable
            reader.lost.clear()
            reader.reads.clear()

    def trim(self) -> None:
        self.first += self.choose(self.durable - self.first + 1)

    # -- the engine

    def any_reader(self) -> Reader:
        return self.readers[self.choose(len(self.readers))]

    def matching(self, reader: Reader, start: int, end: int) -> list[Item]:
        return [
            (offset, self.records[offset].identity)
            for offset in range(start, end)
            if reader.wants(self.records[offset])
        ]

    def offer(self) -> None:
        reader = self.any_reader()
        start = max(0, reader.offered - self.choose(3))  # now and then again
        end = self.durable - (self.choose(self.durable - start + 1) if self.choose(3) == 0 else 0)
        overflows = reader.feed.overflows
        reader.feed.offer(self.matching(reader, start, end), start, end)
        reader.offered = max(reader.offered, end)
        self.seen["overflows"] += reader.feed.overflows - overflows

    def fall_back(self) -> None:
        self.any_reader().feed.fall_back()

    def begin_read(self) -> None:
        reader = self.any_reader()
        feed = reader.feed
        if len(reader.reads) == 2 or (not feed.wants_read and self.choose(4)):
            return
        self.skip(reader)
        start = max(self.first, feed.level - self.choose(3))
        end = self.durable - (self.choose(self.durable - start + 1) if self.choose(2) else 0)
        reader.reads.append((self.matching(reader, start, end), start, end))

    def skip(self, reader: Reader) -> None:
        feed = reader.feed
        level, was_live = feed.level, feed.is_live
        lost = feed.skip_to(self.first)
        assert lost == (0 if was_live else max(0, self.first - level))
        offsets = range(level, level + lost)
        assert reader.lost.isdisjoint(offsets), "a loss is counted twice"
        reader.lost.update(offsets)
        self.seen["skips"] += lost > 0

    def end_read(self) -> None:
        reader = self.any_reader()
        if reader.reads:
            items, start, end = reader.reads.pop(self.choose(len(reader.reads)))
            was_live = reader.feed.is_live
            reader.feed.supply(items, start, end, self.durable)
            if reader.feed.is_live and not was_live:
                assert reader.feed.level == self.durable
                self.seen["hand-overs"] += 1

    def take_some(self) -> None:
        self.take(self.any_reader(), self.choose(4))

    def take(self, reader: Reader, limit: int) -> None:
        taken = reader.feed.take(limit)
        assert len(taken) <= limit
        for offset, identity in taken:
            assert reader.cursor <= offset, f"{offset} came again"
            assert offset < self.durable, f"{offset} is not durable"
            self.check_accounted(reader, offset)
            record = self.records[offset]
            assert record.identity == identity and reader.wants(record)
            assert offset not in reader.lost
            reader.cursor = offset + 1
            self.seen["taken"] += 1

    def save(self) -> None:
        reader = self.any_reader()
        reader.saved = reader.feed.next_offset

    # -- what must hold

    def check(self, reader: Reader) -> None:
        feed = reader.feed
        assert feed.waiting <= feed.backlog_max
        assert reader.cursor <= feed.next_offset <= feed.level <= self.durable
        self.check_accounted(reader, feed.next_offset)  # any moment is one to save the position

    def check_accounted(self, reader: Reader, end: int) -> None:
        for offset in range(reader.cursor, end):
            record = self.records[offset]
            assert not reader.wants(record) or offset in reader.lost, f"{offset} was passed over"

    def settle(self) -> None:
        """Everything becomes durable and everybody reads on: all is delivered."""
        self.durable = len(self.records)
        for reader in self.readers:
            feed = reader.feed
            for _ in range(2 * self.durable + 10):
                self.settle_round(reader)
                if feed.is_live and feed.level == self.durable and not feed.waiting:
                    break
            else:
                raise AssertionError("the feed never becomes level")
            assert feed.next_offset == self.durable
            self.check(reader)

    def settle_round(self, reader: Reader) -> None:
        feed = reader.feed
        feed.offer(
            self.matching(reader, reader.offered, self.durable), reader.offered, self.durable
        )
        reader.offered = self.durable
        if feed.wants_read:
            reader.reads.clear()
            self.skip(reader)
            start = feed.level
            feed.supply(
                self.matching(reader, start, self.durable), start, self.durable, self.durable
            )
        self.take(reader, limit=feed.backlog_max)
