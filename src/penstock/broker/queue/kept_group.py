"""A group at work: one position in each partition of its topic, under one name and one lock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.broker.topic.parts import check_known, shown_offsets
from penstock.broker.topic.topics import Topic
from penstock.catalog.queue.groups import GroupRow
from penstock.core.groups import NO_LEASE, Group
from penstock.core.naming.names import quoted
from penstock.core.position import read_partition
from penstock.log.interface import KeptLog
from penstock.model.clock import Clock
from penstock.model.errors import InvalidSetting, RefusedError
from penstock.model.groups import GroupInfo, Pending, PlacesLike

OPEN_MAX: Final = 1_000  # records of a group that are given out or wait to be given out again
_US: Final = 1_000_000
_WHY_GONE: Final = (
    "its lease has ended, it was already answered, or it comes from another fetch; fetch again"
)

Held = dict[int, list[int]]  # partition -> offsets


class KeptGroup:
    """A group at work. `groups` has its position in each partition."""

    def __init__(self, name: str, groups: list[Group], owner: str | None) -> None:
        self.name = name
        self.owner = owner  # the user who made it; None: nobody
        self.groups = groups
        self.lock = asyncio.Lock()
        self.changed = asyncio.Event()  # something was given back, or there is room again
        self.reasons: dict[tuple[int, int], str] = {}  # partition, offset -> why it was given back
        # Where a fetch goes on among the records that others left, and with which partition.
        self.look_from = [0] * len(groups)
        self.next_part = 0

    @property
    def lease_s(self) -> float:
        return self.groups[0].lease_us / _US

    @property
    def room(self) -> int:
        """How many records may be given out besides those that are not done."""
        return OPEN_MAX - sum([group.count for group in self.groups])

    @property
    def next_offsets(self) -> list[int]:
        return [group.next_offset for group in self.groups]

    @property
    def next_deadline_us(self) -> int:
        """When the next lease or delay runs out; NO_LEASE if none does."""
        deadlines = [group.next_deadline_us for group in self.groups]
        return min(filter(None, deadlines), default=NO_LEASE)

    def turns(self, topic: Topic) -> Iterator[tuple[Topic, Group]]:
        """All parts of the topic; the first is the one whose turn it is."""
        count = len(self.groups)
        for at in range(self.next_part, self.next_part + count):
            yield topic.parts[at % count], self.groups[at % count]

    def lag(self, logs: Sequence[KeptLog]) -> int:
        """Records that were never given out; `logs` are those of each part."""
        pairs = zip(self.groups, logs, strict=True)
        return sum([log.count_from(group.next_offset) for group, log in pairs])

    def rows(
        self, topic: Topic, partitions: Sequence[int] | None = None, *, with_leases: bool = False
    ) -> list[GroupRow]:
        """What the catalog stores of it: of some partitions, or of all."""
        chosen = range(len(self.groups)) if partitions is None else partitions
        pairs = [(topic.parts[number], self.groups[number]) for number in chosen]
        return [self._row(part, group, with_leases=with_leases) for part, group in pairs]

    def _row(self, part: Topic, group: Group, *, with_leases: bool) -> GroupRow:
        return GroupRow(
            topic_id=part.id,
            name=self.name,
            epoch=part.log.epoch,
            next_offset=group.next_offset,
            open=group.to_give_again(),
            lease_us=group.lease_us,
            deliveries_max=group.deliveries_max,
            owner=self.owner,
            leases=group.leases() if with_leases else [],
        )

    def held(self, topic: Topic, receipt: str, places: PlacesLike) -> Held:
        """What an answer is about; None stands for all that the receipt holds.

        RefusedError if the receipt does not hold one of them.
        """
        held = [group.held(receipt) for group in self.groups]
        if places is None:
            found = {number: list(offsets) for number, offsets in enumerate(held) if offsets}
            if not found:
                raise RefusedError(f"receipt {quoted(receipt)} holds no records: {_WHY_GONE}")
            return found
        wanted = _read_places(topic, places)
        missing = [
            str(offset) if len(held) == 1 else f"{offset} of partition {number}"
            for number, offsets in wanted.items()
            for offset in offsets
            if offset not in held[number]
        ]
        if missing:
            shown = ", ".join(missing[:10])
            raise RefusedError(f"receipt {quoted(receipt)} does not hold {shown}: {_WHY_GONE}")
        if not any(wanted.values()):
            empty = "{}" if isinstance(places, Mapping) else "[]"
            raise InvalidSetting(
                f"offsets {empty} names no record: name at least one, or omit the field for all "
                "records of the receipt"
            )
        return {number: list(dict.fromkeys(offsets)) for number, offsets in wanted.items()}


def _read_places(topic: Topic, places: Sequence[int] | Mapping[str, Sequence[int]]) -> Held:
    """Offsets by partition; a list alone is enough where there is only one."""
    if isinstance(places, Mapping):
        wanted = {read_partition(number): list(offsets) for number, offsets in places.items()}
        check_known(topic, set(wanted))
        return wanted
    if len(topic.parts) > 1:
        raise InvalidSetting(
            f"offsets alone do not identify records of topic {quoted(topic.declared)}: it has "
            f"{len(topic.parts)} partitions; give the offsets of each, as in "
            '{"0": [23, 24], "1": [7]}'
        )
    return {0: list(places)}


def describe(topic: Topic, kept: KeptGroup, clock: Clock) -> GroupInfo:
    """How a group stands. Leases that ran out meanwhile count as waiting."""
    first = kept.groups[0]
    pending = [
        one
        for part, group in zip(topic.parts, kept.groups, strict=True)
        for one in _pending(part, group, clock)
    ]
    lag = kept.lag([part.log for part in topic.parts])
    offsets = shown_offsets(kept.next_offsets)
    return GroupInfo(
        group=kept.name,
        next_offset=offsets,
        lag=lag,
        pending=pending,
        lease_s=kept.lease_s,
        deliveries_max=first.deliveries_max,
    )


def _pending(part: Topic, group: Group, clock: Clock) -> Iterator[Pending]:
    now_us = clock.steady_us()
    wall_us = clock.now_us() - now_us  # people are told when by their own clock
    held = group.all_held()
    for offset, deliveries in sorted(group.to_give_again().items()):
        hold = held.get(offset)
        if hold is not None and hold.deadline_us > now_us:
            until_us = hold.deadline_us + wall_us
            yield Pending(offset, hold.deliveries, "leased", until_us, part.partition)
        else:
            yield Pending(offset, deliveries, "waiting", 0, part.partition)
