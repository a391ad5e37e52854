"""What one log has promised, and whether it kept it.

The book is written by the callers of the log (what was appended, what was acknowledged) and by
`on_commit` (what became visible); it is compared with what readers see, and with what a new
process finds after a crash.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.core.delivery.run import Run
from penstock.log.format.batch import Batch
from penstock.log.format.marks import NO_RECORD, Mark
from penstock.model.record import Record


class Broken(AssertionError):
    """A promise was not kept."""


def demand(condition: bool, text: str) -> None:
    if not condition:
        raise Broken(text)


Stored = tuple[object, ...]  # everything of a record but its place and time


def stored_of(record: Record) -> Stored:
    r = record
    return (r.name, r.payload, r.headers, r.publisher, r.qos, r.retain, r.expires_at, r.kind)


def stored_by(draft: Run) -> list[Stored]:
    d = draft
    rest = (d.headers, d.publisher, d.qos, d.retain, d.expires_at or None, d.kind)
    return [
        (d.name, d.data[start : start + length], *rest)
        for start, length in zip(d.starts, d.lengths, strict=True)
    ]


@dataclass(eq=False)
class Call:
    """One append, from its call to its answer."""

    records: list[Stored]
    marks: list[Mark]
    future: asyncio.Future[int]
    was_full: bool  # the disk, when it was called
    base: int = -1  # its first offset, once visible
    is_fenced: bool = False  # it was refused because a sync failed

    @property
    def is_refused(self) -> bool:
        done = self.future.done() and not self.future.cancelled()
        return done and self.future.exception() is not None


@dataclass
class Placed:
    """A mark that must be found: beside `offset`, or (no record) in a batch that begins there."""

    offset: int
    has_record: bool


@dataclass
class Promises:
    """The book of one log."""

    name: str
    visible: list[Stored] = field(default_factory=list)  # by offset
    times: list[int] = field(default_factory=list)
    first: int = 0  # offsets before it may be gone
    synced_end: int = 0  # offsets before it survive everything
    epoch: int = 1
    marks: dict[bytes, Placed] = field(default_factory=dict)
    calls: deque[Call] = field(default_factory=deque)  # neither visible nor refused, in order
    refused: list[Call] = field(default_factory=list)  # since the last sync

    # While the process lives

    def see_commit(self, batch: Batch, is_synced: bool) -> None:
        """A batch became visible: it holds the next calls, whole and in order, and no others."""
        demand(
            batch.base_offset == len(self.visible),
            f"{self.name}: a batch at {batch.base_offset} follows {len(self.visible)}",
        )
        records = batch.records(self.name, batch.base_offset, batch.end_offset)
        marks = batch.marks()
        at = 0
        while at < len(records) or marks:
            demand(bool(self.calls), f"{self.name}: a batch holds records that nobody published")
            call = self.calls.popleft()
            if call.is_refused:
                continue  # the answer is on its way to the caller
            found = [stored_of(record) for record in records[at : at + len(call.records)]]
            own = [Mark(m.kind, m.key, _shift(m.index, at)) for m in call.marks]
            if (found != call.records or marks[: len(own)] != own) and call.future.cancelled():
                continue  # given up while it still waited to be taken
            demand(found == call.records, f"{self.name}: a batch does not hold what was published")
            demand(marks[: len(own)] == own, f"{self.name}: marks are not those of the call")
            marks = marks[len(own) :]
            self._place(call, batch.base_offset + at)
            at += len(call.records)
        self.visible += [stored_of(record) for record in records]
        times = [record.timestamp for record in records]
        demand(
            times == sorted(times) and (not self.times or not times or times[0] >= self.times[-1]),
            f"{self.name}: time runs backwards",
        )
        self.times += times
        if is_synced:
            self.synced_end = len(self.visible)
            self.refused.clear()

    def _place(self, call: Call, base: int) -> None:
        call.base = base
        for mark in call.marks:
            has_record = mark.index != NO_RECORD
            offset = base + mark.index if has_record else base
            self.marks[mark.key] = Placed(offset, has_record)

    def see_ack(self, call: Call, offset: int) -> None:
        demand(call.base >= 0, f"{self.name}: acknowledged {offset} before it was visible")
        demand(call.base == offset, f"{self.name}: told {offset}, stored at {call.base}")

    def see_refusal(self, call: Call, is_fenced: bool) -> None:
        demand(call.base < 0, f"{self.name}: refused what is stored at {call.base}")
        with suppress(ValueError):
            self.calls.remove(call)
        call.is_fenced = is_fenced
        self.refused.append(call)

    def see_records(self, records: Sequence[Record], first: int) -> None:
        """A reader got these, asked for `first` on."""
        end = first + len(records)
        offsets = [record.offset for record in records]
        demand(offsets == list(range(first, end)), f"{self.name}: {offsets} from {first} on")
        demand(
            end <= len(self.visible), f"{self.name}: {len(self.visible)} to {end} is not visible"
        )
        found = [stored_of(record) for record in records]
        if found != self.visible[first:end]:
            wrong = [at for at in offsets if found[at - first] != self.visible[at]]
            raise Broken(f"{self.name}: {wrong} are not what was published")
        times = [record.timestamp for record in records]
        demand(times == self.times[first:end], f"{self.name}: {first} to {end} changed their time")

    # After the process ended

    def see_recovered(
        self,
        records: Sequence[Record],
        first: int,
        epoch: int,
        *,
        keeps: int,
        marks_may_go: bool,
        ghosts_allowed: bool,
    ) -> None:
        """A new process found these; offsets below `keeps` had to survive."""
        end = first + len(records)
        demand(first <= self.first, f"{self.name}: begins at {first}, {self.first} was not trimmed")
        demand(end >= keeps, f"{self.name}: ends at {end}, {keeps} had to survive")
        shared = min(end, len(self.visible))
        if shared > first:
            self.see_records(records[: shared - first], first)
        if end < len(self.visible):
            demand(epoch > self.epoch, f"{self.name}: lost from {end} on without a new epoch")
        demand(epoch >= self.epoch, f"{self.name}: epoch {epoch} follows {self.epoch}")
        tail = records[shared - first :] if shared >= first else records
        self._lose_from(end)
        if marks_may_go:  # those that stood alone at or after the last sync
            self.marks = {k: m for k, m in self.marks.items() if m.has_record or m.offset < keeps}
        self._adopt(list(tail), ghosts_allowed)
        self.synced_end = len(self.visible)
        self.first = first
        self.epoch = epoch
        self.calls.clear()
        self.refused.clear()

    def _lose_from(self, end: int) -> None:
        if end < len(self.visible):
            del self.visible[end:]
            del self.times[end:]
            self.marks = {
                key: placed
                for key, placed in self.marks.items()
                if placed.offset < end  # one that stood at the very end may be there or not
            }

    def _adopt(self, tail: list[Record], ghosts_allowed: bool) -> None:
        """Records nobody was told of: whole calls, in order, nothing in between."""
        if not tail:
            return
        candidates = [
            list(self.calls),
            *([self.refused + list(self.calls)] if ghosts_allowed else []),
        ]
        for calls in candidates:
            for start in range(len(calls)):
                taken = _match(tail, calls[start:])
                if taken is None:
                    continue
                base = len(self.visible)
                for call in taken:
                    if not call.future.cancelled():  # else it may never have been taken
                        self._place(call, base)
                    base += len(call.records)
                self.visible += [stored_of(record) for record in tail]
                self.times += [record.timestamp for record in tail]
                return
        raise Broken(
            f"{self.name}: {len(tail)} records from {len(self.visible)} on that nobody published, "
            "or that were refused, or in another order"
        )

    def see_marks(self, found: list[tuple[bytes, int, bool]]) -> None:
        """All marks on disk as (key, offset, has a record): promised ones exactly once."""
        seen: dict[bytes, tuple[int, bool]] = {}
        for key, offset, has_record in found:
            demand(key not in seen, f"{self.name}: mark {key!r} is stored twice")
            seen[key] = (offset, has_record)
        for key, placed in self.marks.items():
            if placed.offset < self.first + (not placed.has_record):
                continue  # trimmed with its segment
            demand(key in seen, f"{self.name}: mark {key!r} at {placed.offset} is gone")
            demand(
                seen[key] == (placed.offset, placed.has_record),
                f"{self.name}: mark {key!r} moved from {placed.offset} to {seen[key][0]}",
            )
        for key, (offset, has_record) in seen.items():
            if key not in self.marks:  # a call that nobody was told of
                self.marks[key] = Placed(offset, has_record)


def _shift(index: int, at: int) -> int:
    return index if index == NO_RECORD else index + at


def _match(tail: list[Record], calls: list[Call]) -> list[Call] | None:
    """The calls that these records are, or None."""
    taken: list[Call] = []
    at = 0
    for call in calls:
        if at == len(tail):
            break
        found = [stored_of(record) for record in tail[at : at + len(call.records)]]
        if found == call.records:
            taken.append(call)
            at += len(found)
        elif not call.future.cancelled():
            return None
    return taken if at == len(tail) else None
