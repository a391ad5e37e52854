"""Groups: several readers with one position in one partition; each record goes to one of them.

Invariant: a record below `next_offset` that the group wants is in exactly one state.

    held       one member was given it and has not answered; leased ones for a time only
    delayed    its member gave it back and asked that nobody gets it for a while
    waiting    its member left, refused it or was too slow: it is given out again, before new ones
    left       a member may not have it: it is given to the next one that may
    dead       given out as often as allowed: nobody gets it again, until somebody buries it
    done       acknowledged or discarded, and remembered no longer

So a member that never answers keeps what it holds and stalls nobody; nor does one that may not have
what comes next. At most `records_max` records are held, delayed, waiting or dead, and as many left:
then the first of them is done. Time comes from the caller; so does what the records are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

NO_LEASE: Final = 0  # held until the member answers or leaves
NEVER_DEAD: Final = 0  # as a number of deliveries: no bound
NOTHING_WAITS: Final = -1
AS_GROUP: Final = -1  # as a lease or a number of deliveries: that of the group


class Hold:
    """What records that one member was given together have in common."""

    __slots__ = ("deadline_us", "deliveries", "deliveries_max", "is_pinned")

    def __init__(
        self, deliveries: int, deadline_us: int, is_pinned: bool, deliveries_max: int = AS_GROUP
    ) -> None:
        self.deliveries = deliveries  # this one included
        self.deadline_us = deadline_us  # NO_LEASE: none
        self.is_pinned = is_pinned  # nobody else gets it, whatever becomes of the member
        self.deliveries_max = deliveries_max


class Terms:
    """How long what is given out now is leased, and how often it may be given out in all."""

    __slots__ = ("deliveries_max", "lease_us")

    def __init__(self, lease_us: int = AS_GROUP, deliveries_max: int = AS_GROUP) -> None:
        self.lease_us = lease_us
        self.deliveries_max = deliveries_max


_GROUPS_OWN: Final = Terms()


class Group:
    """One position of several readers. Read its attributes; only methods change them.

    Except `lease_us` and `deliveries_max`: set, they hold for what is given out or given back next.
    """

    __slots__ = (
        "_ahead",
        "_dead",
        "_delayed",
        "_deliveries",
        "_held",
        "_held_count",
        "_left",
        "_waiting",
        "deliveries_max",
        "lease_us",
        "next_offset",
        "records_max",
    )

    def __init__(
        self,
        next_offset: int,
        records_max: int,
        lease_us: int = NO_LEASE,
        deliveries_max: int = NEVER_DEAD,
    ) -> None:
        assert next_offset >= 0, f"offset {next_offset}"
        assert records_max >= 1, f"room for {records_max}"
        self.next_offset = next_offset
        self.records_max = records_max
        self.lease_us = lease_us  # a group either leases all it gives out, or nothing
        self.deliveries_max = deliveries_max
        # Of each member in the order of the deadlines, which is that of giving until it extends.
        self._held: dict[str, dict[int, Hold]] = {}
        self._held_count = 0
        self._waiting: list[int] = []  # ascending
        self._deliveries: dict[int, int] = {}  # of those that wait
        self._delayed: dict[int, tuple[int, int]] = {}  # offset -> until when, deliveries
        self._dead: dict[int, int] = {}  # offset -> deliveries
        self._left: dict[int, int] = {}  # offset -> deliveries
        # At or past next_offset, and given out before a crash that forgot how far the group was.
        self._ahead: set[int] = set()

    # How it stands

    @property
    def count(self) -> int:
        """Records that are not done, besides those that are left."""
        return self._held_count + len(self._delayed) + len(self._waiting) + len(self._dead)

    @property
    def room(self) -> int:
        """How many new ones may be given out; none while others wait to be given again."""
        return 0 if self._waiting else max(self.records_max - self.count, 0)

    @property
    def first_waiting(self) -> int:
        """The lowest offset that waits to be given out again, or NOTHING_WAITS."""
        return self._waiting[0] if self._waiting else NOTHING_WAITS

    @property
    def first_open(self) -> int:
        """Every wanted record below it is done."""
        opened = [offset for held in self._held.values() for offset in held]
        opened += [*self._delayed, *self._waiting[:1], *self._left, *self._dead]
        return min([self.next_offset, *opened])

    @property
    def next_deadline_us(self) -> int:
        """When the next lease or delay runs out; NO_LEASE if none does."""
        firsts = [next(iter(held.values())).deadline_us for held in self._held.values()]
        ends = [*filter(None, firsts), *(until_us for until_us, _ in self._delayed.values())]
        return min(ends, default=NO_LEASE)

    def waiting(self) -> list[int]:
        """Offsets to be given out again, ascending."""
        return list(self._waiting)

    def left(self) -> list[int]:
        """Offsets that some member may not have, ascending."""
        return sorted(self._left)

    def dead(self) -> dict[int, int]:
        """Offsets that nobody gets again, with how often they were given out."""
        return dict(self._dead)

    def held(self, member: str) -> dict[int, Hold]:
        """What a member has not answered, in the order of giving."""
        return dict(self._held.get(member, {}))

    def all_held(self) -> dict[int, Hold]:
        """What any member has not answered."""
        return {offset: hold for held in self._held.values() for offset, hold in held.items()}

    def leases(self) -> list[tuple[str, int, int, int]]:
        """What members hold for a time: member, offset, until when, deliveries allowed in all.

        What is delayed is held by nobody, '', until it may be given out again.
        """
        leased = [
            (member, offset, hold.deadline_us, hold.deliveries_max)
            for member, held in self._held.items()
            for offset, hold in held.items()
            if hold.deadline_us != NO_LEASE
        ]
        for offset, (until_us, _) in self._delayed.items():
            leased.append(("", offset, until_us, NEVER_DEAD))
        return leased

    def to_give_again(self) -> dict[int, int]:
        """What a crash now would leave to be given out again: offset -> deliveries so far."""
        again = self._deliveries | self._left | self._dead
        again |= {offset: deliveries for offset, (_, deliveries) in self._delayed.items()}
        for held in self._held.values():
            again |= {offset: one.deliveries for offset, one in held.items() if not one.is_pinned}
        return again

    def ahead(self) -> set[int]:
        """Offsets at or past next_offset that were given out before, whatever became of them."""
        return set(self._ahead)

    def is_ahead(self, offset: int) -> bool:
        """Was this record given out before, although it lies at or past next_offset?"""
        return offset in self._ahead

    # Giving out

    def take(
        self,
        member: str,
        offset: int,
        count: int,
        now_us: int = 0,
        *,
        is_pinned: bool = False,
        terms: Terms | None = None,
    ) -> None:
        """Give [offset, offset + count) to a member; what lies before is passed over."""
        assert offset >= self.next_offset, f"{offset} lies before {self.next_offset}"
        assert 1 <= count <= self.room, f"{count} taken, room for {self.room}"
        if self._ahead:
            assert self._ahead.isdisjoint(range(offset, offset + count)), "given out before"
        hold = self._hold(1, now_us, is_pinned, terms)
        held = self._held.setdefault(member, {})
        for one in range(offset, offset + count):
            held[one] = hold
        self._held_count += count
        self.pass_to(offset + count)

    def retake(
        self,
        member: str,
        offset: int,
        now_us: int = 0,
        *,
        is_pinned: bool = False,
        terms: Terms | None = None,
    ) -> int:
        """Give a record that waits or is left to a member; how often it was given out by now."""
        deliveries = self._stop_waiting(offset) + 1
        hold = self._hold(deliveries, now_us, is_pinned, terms)
        self._held.setdefault(member, {})[offset] = hold
        self._held_count += 1
        return deliveries

    def leave_to_others(self, offset: int) -> int:
        """A member may not have this record, which waits or is new; how many are done by it.

        New ones before it are passed over.
        """
        if offset in self._deliveries:
            self._left[offset] = self._stop_waiting(offset)
        elif offset not in self._left:
            assert offset >= self.next_offset, f"{offset} is neither new nor waiting"
            self.pass_to(offset + 1)
            self._left[offset] = 0
        if len(self._left) <= self.records_max:
            return 0
        del self._left[min(self._left)]
        return 1

    def pass_to(self, offset: int) -> None:
        """Nothing below `offset` is wanted that was not given out."""
        if offset <= self.next_offset:
            return
        self.next_offset = offset
        if self._ahead:
            self._ahead = {one for one in self._ahead if one >= offset}

    def _hold(self, deliveries: int, now_us: int, is_pinned: bool, terms: Terms | None) -> Hold:
        assert not is_pinned or self.lease_us == NO_LEASE, "what is leased comes back"
        if self.lease_us == NO_LEASE:
            return Hold(deliveries, NO_LEASE, is_pinned)
        own = _GROUPS_OWN if terms is None else terms
        lease_us = self.lease_us if own.lease_us == AS_GROUP else own.lease_us
        return Hold(deliveries, now_us + lease_us, is_pinned, own.deliveries_max)

    # Answers

    def ack(self, member: str, offset: int) -> bool:
        """The member is done with a record; False if it does not hold it."""
        return self._let_go(member, offset) is not None

    def nack(self, member: str, offset: int, until_us: int = 0) -> bool:
        """The member gives a record back, for others at once or from `until_us` on.

        False if it does not hold it.
        """
        hold = self._let_go(member, offset)
        if hold is None:
            return False
        if until_us and not self._is_last(hold.deliveries, hold.deliveries_max):
            self._delayed[offset] = (until_us, hold.deliveries)
        else:
            self._give_back(offset, hold.deliveries, hold.deliveries_max)
        return True

    def extend(self, member: str, offsets: Sequence[int], now_us: int, lease_us: int) -> None:
        """The member needs longer: its leases of these records end `lease_us` from now."""
        assert lease_us > 0 and self.lease_us != NO_LEASE, "only a lease can be extended"
        held = self._held[member]
        for offset in offsets:
            hold = held[offset]
            held[offset] = Hold(hold.deliveries, now_us + lease_us, False, hold.deliveries_max)
        self._held[member] = dict(sorted(held.items(), key=_by_deadline))

    def leave(self, member: str) -> int:
        """The member is away: what it holds goes back, except what is pinned; how many."""
        held = self._held.get(member, {})
        given = [(offset, hold) for offset, hold in held.items() if not hold.is_pinned]
        for offset, hold in given:
            self._let_go(member, offset)
            self._give_back(offset, hold.deliveries, hold.deliveries_max)
        return len(given)

    def forget(self, member: str) -> int:
        """The member never comes back: what is pinned to it is done; how many that were."""
        self.leave(member)
        pinned = list(self._held.get(member, {}))
        for offset in pinned:
            self._let_go(member, offset)
        return len(pinned)

    def expire(self, now_us: int) -> int:
        """Leases and delays that ran out: their records go back; how many."""
        due = [offset for offset, (until_us, _) in self._delayed.items() if until_us <= now_us]
        for offset in due:
            self._give_back(offset, self._delayed.pop(offset)[1], NEVER_DEAD)
        given = len(due)
        if self.lease_us == NO_LEASE:
            return given
        for member, held in list(self._held.items()):
            late = []
            for offset, hold in held.items():
                if hold.deadline_us > now_us:
                    break
                late.append((offset, hold))
            for offset, hold in late:
                self._let_go(member, offset)
                self._give_back(offset, hold.deliveries, hold.deliveries_max)
            given += len(late)
        return given

    def _let_go(self, member: str, offset: int) -> Hold | None:
        held = self._held.get(member)
        hold = None if held is None else held.pop(offset, None)
        if hold is not None:
            self._held_count -= 1
            if not held:
                del self._held[member]
        return hold

    def _is_last(self, deliveries: int, deliveries_max: int) -> bool:
        bound = self.deliveries_max if deliveries_max == AS_GROUP else deliveries_max
        return bound != NEVER_DEAD and deliveries >= bound

    def _give_back(self, offset: int, deliveries: int, deliveries_max: int) -> None:
        if self._is_last(deliveries, deliveries_max):
            self._dead[offset] = deliveries
        else:
            insort(self._waiting, offset)
            self._deliveries[offset] = deliveries

    # What nobody gets

    def discard(self, offset: int) -> None:
        """Drop a record that waits or is left: it expired, or retention removed it."""
        self._stop_waiting(offset)

    def bury(self, offset: int) -> None:
        """A dead record was put where somebody will look at it."""
        del self._dead[offset]

    def trim(self, first_offset: int) -> int:
        """Retention took all below `first_offset`: what was to be given out, and is gone.

        The number counts what waited, and new ones as if all of them had been wanted.
        """
        gone = bisect_left(self._waiting, first_offset)
        for offset in self._waiting[:gone]:
            del self._deliveries[offset]
        del self._waiting[:gone]
        for offset in [one for one in self._dead if one < first_offset]:
            del self._dead[offset]
        late = [one for one in self._delayed if one < first_offset]
        for offset in late:
            del self._delayed[offset]
        gone += len(late)
        left = [one for one in self._left if one < first_offset]
        for offset in left:
            del self._left[offset]
        gone += len(left)
        passed = max(first_offset - self.next_offset, 0)
        self.pass_to(first_offset)
        return gone + passed

    def _stop_waiting(self, offset: int) -> int:
        if offset in self._left:
            return self._left.pop(offset)
        at = bisect_left(self._waiting, offset)
        assert at < len(self._waiting) and self._waiting[at] == offset, f"{offset} does not wait"
        del self._waiting[at]
        return self._deliveries.pop(offset)

    # Coming back after a crash

    def put_waiting(self, offset: int, deliveries: int = 1) -> None:
        """A record that was held or waited when the group was saved."""
        self._note_ahead(offset)
        self._give_back(offset, deliveries, AS_GROUP)

    def put_leased(
        self, member: str, offset: int, deliveries: int, deadline_us: int, deliveries_max: int
    ) -> None:
        """A record that this member was given and goes on holding."""
        self._note_ahead(offset)
        held = self._held.setdefault(member, {})
        held[offset] = Hold(deliveries, deadline_us, False, deliveries_max)
        self._held[member] = dict(sorted(held.items(), key=_by_deadline))
        self._held_count += 1

    def put_pinned(self, member: str, offset: int) -> None:
        """A record that only this member may have."""
        self._note_ahead(offset)
        self._held.setdefault(member, {})[offset] = Hold(1, NO_LEASE, True)
        self._held_count += 1

    def put_done(self, offset: int) -> None:
        """A record that was done when the group was saved."""
        self._note_ahead(offset)

    def _note_ahead(self, offset: int) -> None:
        if offset >= self.next_offset:
            self._ahead.add(offset)


def _by_deadline(held: tuple[int, Hold]) -> int:
    return held[1].deadline_us


def deal(count: int, rooms: Sequence[int]) -> list[int]:
    """How many of `count` records each member gets: as even as their rooms allow.

    Whoever comes first gets one more when it does not come out even.
    """
    given = [0] * len(rooms)
    left = count
    takers = [at for at, room in enumerate(rooms) if room > 0]
    while left and takers:
        share = left // len(takers)
        if not share:
            for at in takers[:left]:
                given[at] += 1
            break
        for at in takers:
            more = min(share, rooms[at] - given[at])
            given[at] += more
            left -= more
        takers = [at for at in takers if given[at] < rooms[at]]
    return given
