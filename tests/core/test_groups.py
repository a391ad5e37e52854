"""Does a group give every record to one member at a time, lose none, and stay within its bounds?"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.groups import NEVER_DEAD, NO_LEASE, NOTHING_WAITS, Group, Terms, deal

MEMBERS = ["anna", "ben", "cleo"]
OPERATIONS = ["take", "take", "take", "pinned", "retake", "ack", "ack", "nack", "leave", "forget"]
OPERATIONS += [
    "extend",
    "expire",
    "discard",
    "bury",
    "pass_over",
    "trim",
    "crash",
    "hand_over",
    "put_by",
    "pick_up",
]
STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2), st.integers(0, 12)), max_size=60
)


@dataclass
class Fate:
    """What became of one record."""

    state: str  # held, waiting, left, dead, done
    member: str = ""
    deliveries: int = 0
    deadline_us: int = 0
    is_pinned: bool = False


@dataclass
class Model:
    """Every record there ever was, with its fate: slow, and obviously right."""

    fates: dict[int, Fate] = field(default_factory=dict)

    def of(self, *states: str) -> list[int]:
        return sorted(offset for offset, fate in self.fates.items() if fate.state in states)

    def held(self, member: str) -> list[int]:
        return [one for one in self.of("held") if self.fates[one].member == member]


@dataclass
class GroupAndModel:
    """A group and its model, told the same."""

    records_max: int
    lease_us: int
    deliveries_max: int
    now_us: int = 100

    def __post_init__(self) -> None:
        self.model = Model()
        self.group = self.make(0)

    def make(self, next_offset: int) -> Group:
        return Group(next_offset, self.records_max, self.lease_us, self.deliveries_max)

    def run_and_check(self, operation: str, which: int, number: int) -> None:
        getattr(self, operation)(MEMBERS[which], number)
        self.now_us += 1
        self.check()

    def take(self, member: str, number: int, is_pinned: bool = False) -> None:
        group = self.group
        offset = group.next_offset + number // 4
        while group.is_ahead(offset):
            offset += 1
        count = min(1 + number % 4, group.room)
        while count and any(group.is_ahead(one) for one in range(offset, offset + count)):
            count -= 1
        if count:
            group.take(member, offset, count, self.now_us, is_pinned=is_pinned)
            for one in range(offset, offset + count):
                assert one not in self.model.fates, "given out twice"
                self.model.fates[one] = Fate("held", member, 1, self.deadline, is_pinned)

    def pinned(self, member: str, number: int) -> None:
        self.take(member, number, is_pinned=not self.lease_us)

    @property
    def deadline(self) -> int:
        return self.now_us + self.lease_us if self.lease_us else NO_LEASE

    def retake(self, member: str, number: int) -> None:
        for offset in self.group.waiting()[:number]:
            fate = self.model.fates[offset]
            deliveries = self.group.retake(member, offset, self.now_us)
            assert deliveries == fate.deliveries + 1
            self.model.fates[offset] = Fate("held", member, deliveries, self.deadline)

    def put_by(self, member: str, number: int) -> None:
        """A member may not have what comes next: what waits, or else something new."""
        group, fates = self.group, self.model.fates
        offset = group.first_waiting
        if offset == NOTHING_WAITS:
            offset = group.next_offset + number % 3
            while group.is_ahead(offset):
                offset += 1
            assert offset not in fates
            fates[offset] = Fate("left")
        fates[offset].state = "left"
        left = self.model.of("left")
        done = left[:1] if len(left) > self.records_max else []
        assert group.leave_to_others(offset) == len(done)
        for one in done:
            fates[one].state = "done"

    def pick_up(self, member: str, number: int) -> None:
        for offset in self.group.left()[:number]:
            fate = self.model.fates[offset]
            if self.group.count >= self.records_max:
                return
            deliveries = self.group.retake(member, offset, self.now_us)
            assert deliveries == fate.deliveries + 1
            self.model.fates[offset] = Fate("held", member, deliveries, self.deadline)

    def ack(self, member: str, number: int) -> None:
        is_held = number in self.model.held(member)
        assert self.group.ack(member, number) == is_held
        if is_held:
            self.model.fates[number].state = "done"

    def nack(self, member: str, number: int) -> None:
        is_held = number in self.model.held(member)
        assert self.group.nack(member, number) == is_held
        if is_held:
            self.give_back(number)

    def extend(self, member: str, number: int) -> None:
        if not self.lease_us:
            return
        some = self.model.held(member)[number % 2 :: 2]
        if some:
            self.group.extend(member, some, self.now_us, number + 1)
        for offset in some:
            self.model.fates[offset].deadline_us = self.now_us + number + 1

    def give_back(self, offset: int) -> None:
        fate = self.model.fates[offset]
        is_dead = self.deliveries_max and fate.deliveries >= self.deliveries_max
        fate.state = "dead" if is_dead else "waiting"
        fate.is_pinned = False

    def leave(self, member: str, number: int) -> None:
        held = self.model.held(member)
        given = [one for one in held if not self.model.fates[one].is_pinned]
        assert self.group.leave(member) == len(given)
        for offset in given:
            self.give_back(offset)

    def forget(self, member: str, number: int) -> None:
        held = self.model.held(member)
        pinned = [one for one in held if self.model.fates[one].is_pinned]
        assert self.group.forget(member) == len(pinned)
        for offset in held:
            if offset in pinned:
                self.model.fates[offset].state = "done"
            else:
                self.give_back(offset)

    def expire(self, member: str, number: int) -> None:
        self.now_us += number
        fates = self.model.fates
        due = [
            one
            for one in self.model.of("held")
            if fates[one].deadline_us and fates[one].deadline_us <= self.now_us
        ]
        assert self.group.expire(self.now_us) == len(due)
        for offset in due:
            self.give_back(offset)

    def discard(self, member: str, number: int) -> None:
        for offset in self.group.waiting()[:1]:
            self.group.discard(offset)
            self.model.fates[offset].state = "done"

    def bury(self, member: str, number: int) -> None:
        for offset in list(self.group.dead())[:1]:
            self.group.bury(offset)
            self.model.fates[offset].state = "done"

    def pass_over(self, member: str, number: int) -> None:
        self.group.pass_to(self.group.next_offset + number)

    def trim(self, member: str, number: int) -> None:
        lost = [one for one in self.model.of("waiting", "left") if one < number]
        passed = max(number - self.group.next_offset, 0)
        assert self.group.trim(number) == len(lost) + passed
        for offset in [*lost, *self.model.of("dead")]:
            if offset < number:
                self.model.fates[offset].state = "done"

    def crash(self, member: str, number: int) -> None:
        """What is open and what is pinned was saved as it is; how far the group was, long ago."""
        old = self.group
        again = old.to_give_again()
        assert sorted(again) == [
            one
            for one in self.model.of("held", "waiting", "left", "dead")
            if not self.model.fates[one].is_pinned
        ]
        new = self.make(max(old.next_offset - number, 0))
        for offset, deliveries in again.items():
            assert deliveries == self.model.fates[offset].deliveries
            new.put_waiting(offset, deliveries)
            self.give_back(offset)
        for offset, fate in self.model.fates.items():
            if fate.state == "held":
                new.put_pinned(fate.member, offset)
            elif fate.state == "done":
                new.put_done(offset)
        self.group = new

    def hand_over(self, member: str, number: int) -> None:
        """Somebody else goes on with it, and with the leases: only how it is divided changes."""
        if not self.lease_us:
            return
        old = self.group
        leases = {one[1]: one for one in old.leases()}
        assert sorted(leases) == self.model.of("held")
        new = self.make(old.next_offset)
        for offset, deliveries in old.to_give_again().items():
            if offset in leases:
                holder, _, deadline_us, allowed = leases[offset]
                new.put_leased(holder, offset, deliveries, deadline_us, allowed)
            else:
                new.put_waiting(offset, deliveries)
                self.give_back(offset)
        for offset in old.ahead():
            new.put_done(offset)
        self.group = new

    def check(self) -> None:
        group, model = self.group, self.model
        assert group.waiting() == model.of("waiting")
        assert group.left() == model.of("left")
        assert sorted(group.dead()) == model.of("dead")
        for member in MEMBERS:
            assert sorted(group.held(member)) == model.held(member)
        opened = model.of("held", "waiting", "dead")
        assert group.count == len(opened)
        assert len(group.left()) <= self.records_max
        room = max(self.records_max - len(opened), 0)  # what was left may wait after a crash
        assert group.room == (0 if model.of("waiting") else room)
        assert group.first_waiting == (model.of("waiting") or [NOTHING_WAITS])[0]
        assert group.first_open == min([group.next_offset, *opened, *model.of("left")])
        deadlines = [model.fates[one].deadline_us for one in model.of("held")]
        assert group.next_deadline_us == min(deadlines, default=NO_LEASE)
        ahead = {one for one in model.fates if one >= group.next_offset}
        assert {one for one in range(200) if group.is_ahead(one)} == ahead == group.ahead()


@given(
    records_max=st.integers(1, 8),
    lease_us=st.sampled_from([NO_LEASE, 5]),
    deliveries_max=st.sampled_from([NEVER_DEAD, 1, 3]),
    steps=STEPS,
)
def test_a_group_agrees_with_a_list_of_fates(
    records_max: int, lease_us: int, deliveries_max: int, steps: list[tuple[str, int, int]]
) -> None:
    world = GroupAndModel(records_max, lease_us, deliveries_max)
    for step in steps:
        world.run_and_check(*step)


@given(steps=STEPS, records_max=st.integers(1, 8))
def test_everything_is_done_once_somebody_acknowledges_all(
    steps: list[tuple[str, int, int]], records_max: int
) -> None:
    world = GroupAndModel(records_max, NO_LEASE, NEVER_DEAD)
    for step in steps:
        world.run_and_check(*step)
    for member in MEMBERS:
        for offset in list(world.group.held(member)):
            assert world.group.ack(member, offset)
    for offset in [*world.group.waiting(), *world.group.left()]:
        world.group.retake("anna", offset)
        assert world.group.ack("anna", offset)
    assert (world.group.count, world.group.first_open) == (0, world.group.next_offset)


def test_what_is_given_out_on_its_own_terms_comes_back_on_them() -> None:
    group = Group(0, 10, lease_us=5, deliveries_max=3)
    group.take("anna", 0, 1, 100, terms=Terms(lease_us=50, deliveries_max=1))
    group.take("ben", 1, 1, 100, terms=Terms(deliveries_max=NEVER_DEAD))
    assert group.expire(105) == 1 and group.waiting() == [1]
    assert group.expire(150) == 1 and group.dead() == {0: 1}
    for deliveries in range(2, 10):
        assert group.retake("ben", 1, 200, terms=Terms(deliveries_max=NEVER_DEAD)) == deliveries
        assert group.nack("ben", 1)
    group.retake("ben", 1, 200)
    group.nack("ben", 1, until_us=300)
    assert group.dead() == {0: 1, 1: 10}


def test_settings_that_change_hold_from_then_on() -> None:
    group = Group(0, 10, lease_us=5, deliveries_max=3)
    group.take("anna", 0, 1, 100)
    group.lease_us, group.deliveries_max = 50, 1
    group.take("anna", 1, 1, 100)
    assert group.expire(105) == 1 and group.dead() == {0: 1}
    assert group.next_deadline_us == 150


def test_a_member_that_never_answers_stalls_nobody() -> None:
    group = Group(0, 10)
    group.take("silent", 0, 3)
    for offset in range(3, 1_000):
        group.take("busy", offset, 1)
        assert group.ack("busy", offset)
    assert list(group.held("silent")) == [0, 1, 2]
    assert (group.next_offset, group.first_open) == (1_000, 0)


def test_what_waits_is_given_out_before_anything_new() -> None:
    group = Group(0, 10)
    group.take("anna", 0, 2)
    group.leave("anna")
    assert group.room == 0
    with pytest.raises(AssertionError):
        group.take("ben", 2, 1)
    assert [group.retake("ben", offset) for offset in (0, 1)] == [2, 2]
    assert group.room == 8


def test_what_is_pinned_waits_for_its_member_and_ends_with_it() -> None:
    group = Group(0, 10)
    group.take("anna", 0, 1, is_pinned=True)
    group.take("anna", 1, 1)
    assert group.leave("anna") == 1
    assert group.waiting() == [1]
    assert list(group.held("anna")) == [0]
    assert group.forget("anna") == 1
    assert (group.waiting(), group.count) == ([1], 1)


def test_a_lease_that_runs_out_comes_back_and_after_five_deliveries_it_is_dead() -> None:
    group = Group(0, 10, lease_us=30, deliveries_max=5)
    group.take("anna", 0, 1, 0)
    for deliveries in range(2, 6):
        now_us = group.next_deadline_us
        assert group.expire(now_us - 1) == 0
        assert group.expire(now_us) == 1
        assert group.retake("ben", 0, now_us) == deliveries
    assert not group.ack("anna", 0)  # too late: it is somebody else's
    assert group.nack("ben", 0)
    assert (group.waiting(), group.dead()) == ([], {0: 5})
    group.bury(0)
    assert group.count == 0


@given(count=st.integers(0, 200), rooms=st.lists(st.integers(0, 40), max_size=12))
def test_records_are_dealt_as_evenly_as_the_rooms_allow(count: int, rooms: list[int]) -> None:
    given = deal(count, rooms)
    assert sum(given) == min(count, sum(rooms))
    assert all(0 <= got <= room for got, room in zip(given, rooms, strict=True))
    most = max(given, default=0)
    assert all(
        got >= most - 1 or got == room for got, room in zip(given, rooms, strict=True)
    )  # who got less than another had no room for more


def test_whoever_comes_first_gets_what_is_left_over() -> None:
    assert deal(7, [9, 9, 9]) == [3, 2, 2]
    assert deal(1, [0, 5, 5]) == [0, 1, 0]
    assert deal(10, [1, 0, 9]) == [1, 0, 9]
    assert deal(5, []) == []


def test_a_member_that_may_not_have_what_comes_next_stalls_nobody() -> None:
    group = Group(0, 10)
    assert sum(group.leave_to_others(offset) for offset in range(30)) == 20
    assert group.left() == list(range(20, 30)) and group.room == 10
    group.take("ben", 30, 10)
    assert [group.retake("cleo", offset) for offset in (20, 25)] == [1, 1]
    assert group.left() == [21, 22, 23, 24, 26, 27, 28, 29]
