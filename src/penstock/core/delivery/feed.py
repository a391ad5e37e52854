"""A feed: the position of one reader at work in one partition.

It hands over every matching record once, in offset order, with no gap and no repeat, in bounded
memory, however slow the reader is and however the durable end moves. It does no IO: the engine
asks it what to do and tells it what happened.

    RESUMING   the engine reads the log from `level` and supplies what matches
    LIVE       the engine offers what matches whenever the durable end moves

`supply` turns RESUMING into LIVE in the call that levels with the durable end; `fall_back`, also
when an offer overflows the backlog, turns LIVE into RESUMING. Nothing lies between the two.

Invariant, all ranges half-open:

    next_offset <= level <= durable end
    matching records below next_offset          were taken, once, in order
    matching records in [next_offset, level)    are the backlog, at most backlog_max of them

So `next_offset` may be saved at any moment, and a feed made from a saved one repeats nothing that
lies below it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """One reader's position in one partition. Read its attributes; only methods change them."""

    __slots__ = (
        "_backlog",
        "_skip_end",
        "backlog_max",
        "is_live",
        "level",
        "overflows",
        "skipped",
    )

    def __init__(self, next_offset: int, backlog_max: int) -> None:
        assert next_offset >= 0, f"offset {next_offset}"
        assert backlog_max >= 1, f"backlog of {backlog_max}"
        self.backlog_max = backlog_max
        self.level = next_offset  # while RESUMING: where the engine reads next
        self.is_live = False
        self.overflows = 0
        self.skipped = 0  # offsets that retention took before they were read
        self._backlog: list[tuple[int, T]] = []
        self._skip_end = 0  # of the last skip; `level` never falls below it

    @property
    def next_offset(self) -> int:
        """What may be saved: the first record waiting, else all that is known to be passed."""
        return self._backlog[0][0] if self._backlog else self.level

    @property
    def waiting(self) -> int:
        """How many records the next `take` could return."""
        return len(self._backlog)

    @property
    def wants_read(self) -> bool:
        """True while the engine should read the log from `level` and `supply` what matches."""
        return not self.is_live and len(self._backlog) < self.backlog_max

    def supply(self, items: list[tuple[int, T]], start: int, end: int, durable_end: int) -> None:
        """Take over a read of [start, end), of which `items` match; LIVE once level with the end.

        `durable_end` is the one at this call, not at the read: whatever becomes durable later is
        offered. What finds no room is left to a later read. A read that no longer fits (the feed
        is LIVE by now, or went back before `start`) changes nothing, so a pass over the log may
        supply all its readers alike.
        """
        assert start <= end <= durable_end, f"read [{start}, {end}) of {durable_end} durable"
        if self.is_live or start > self.level:
            return
        assert self.level <= durable_end, f"level {self.level} past durable end {durable_end}"
        fresh = self._fresh(items, start, end)
        room = self.backlog_max - len(self._backlog)
        if len(fresh) > room:
            self._backlog.extend(fresh[:room])
            self.level = fresh[room][0]
            return
        self._backlog.extend(fresh)
        self.level = max(self.level, end)
        if self.level >= durable_end:
            self.is_live = True

    def offer(self, items: list[tuple[int, T]], start: int, end: int) -> None:
        """[start, end) became durable and `items` of it match; what was already passed is ignored.

        Ignored while RESUMING: reading brings it. `start` may reach back as far as the caller
        knows that nothing else matched, so a feed need not hear of every move of the end.
        """
        if not self.is_live:
            return
        assert start <= self.level, f"offer from {start} leaves a gap after {self.level}"
        if end <= self.level:
            return
        fresh = self._fresh(items, start, end)
        if len(self._backlog) + len(fresh) > self.backlog_max:
            self.fall_back()
            return
        self._backlog.extend(fresh)
        self.level = end

    def fall_back(self) -> None:
        """Drop the backlog and resume at its first record: slow readers cost no memory (law 4).

        `offer` does it at backlog_max; the engine may do it sooner, where records are large. What
        waits from before a skip stays: no log holds it any more.
        """
        kept = _count_below(self._backlog, self._skip_end)
        if kept < len(self._backlog):
            self.level = self._backlog[kept][0]
            del self._backlog[kept:]
        self.is_live = False
        self.overflows += 1

    def take(self, limit: int) -> list[tuple[int, T]]:
        """The next records with their offsets, at most `limit`; they will not come again."""
        assert limit >= 0, f"limit {limit}"
        taken = self._backlog[:limit]
        del self._backlog[:limit]
        return taken

    def go_back(self, offset: int) -> None:
        """What was taken from `offset` on was not used: resume there."""
        assert offset < self.next_offset, f"{offset} was not taken"
        self._backlog.clear()
        self.level = offset
        self.is_live = False

    def skip_to(self, first_offset: int) -> int:
        """Retention removed what lies below: go on there; how many unread offsets were lost.

        What waits in the backlog is kept. A LIVE feed has nothing left to read and loses nothing.
        """
        if self.is_live or first_offset <= self.level:
            return 0
        lost = first_offset - self.level
        self.level = first_offset
        self._skip_end = first_offset
        self.skipped += lost
        return lost

    def _fresh(self, items: list[tuple[int, T]], start: int, end: int) -> list[tuple[int, T]]:
        """The items not passed yet."""
        if not items:
            return items
        assert start <= items[0][0] and items[-1][0] < end, f"items outside [{start}, {end})"
        if items[0][0] >= self.level:
            return items
        return items[_count_below(items, self.level) :]


def _count_below(items: list[tuple[int, T]], offset: int) -> int:
    """How many of `items`, which ascend, lie below `offset`."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle][0] < offset:
            low = middle + 1
        else:
            high = middle
    return low
