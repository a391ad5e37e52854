"""Groups: several readers of a topic share one position; each record is leased to one of them.

What a reader does not acknowledge in time goes to another. A record given out too often is put into
the topic `<topic>.dead` with the reason, under the name `<topic>.dead/<original name>`, so one that
nobody can handle stops nobody. An acknowledgement is durable when it is answered; after a crash
only what was not acknowledged comes again. The dead-letter topic may hold a record twice if the
broker crashed between its two commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from penstock.broker.access.making import Making
from penstock.broker.access.owners import Owners
from penstock.broker.access.quotas import Quotas
from penstock.broker.figures.metrics import Metrics
from penstock.broker.queue.consumers import read_batches
from penstock.broker.queue.dead import Fate, dead_letter, dead_topic
from penstock.broker.queue.handout import Given, Handout, expected_bytes
from penstock.broker.queue.kept_group import OPEN_MAX, Held, KeptGroup, describe
from penstock.broker.topic.parts import resolve_all, wait_past_any
from penstock.broker.topic.topics import Topic, Topics
from penstock.broker.trace.watch import Watch
from penstock.catalog.queue.groups import GroupCatalog
from penstock.core.access import Gate
from penstock.core.delivery.run import Run
from penstock.core.groups import AS_GROUP, NEVER_DEAD, NO_LEASE, Group, Terms
from penstock.core.naming.names import check_group, quoted
from penstock.core.position import Position
from penstock.core.quotas import GROUPS
from penstock.log.interface import KeptLog
from penstock.model.clock import Clock
from penstock.model.errors import Gap, NotSubscribed, RefusedError
from penstock.model.groups import (
    DELIVERIES,
    LEASE_S,
    GroupInfo,
    PlacesLike,
    check_deliveries_max,
    check_lease_s,
)
from penstock.model.record import Record, TopicId

GROUPS_MAX: Final = 1_000  # of one topic
DELAY_S_MAX: Final = 24 * 3600.0
REASON_CHARS_MAX: Final = 500
_US: Final = 1_000_000

Publish = Callable[[Topic, Run], Awaitable[int]]


class Groups:
    """All groups of a broker, by (topic id, name). Used on the event loop."""

    def __init__(
        self,
        topics: Topics,
        catalog: GroupCatalog,
        clock: Clock,
        metrics: Metrics,
        publish: Publish,
        *,
        quotas: Quotas,
        watch: Callable[[], Watch | None],
    ) -> None:
        self._quotas = quotas
        self._watch = watch  # who hears what becomes of records: somebody while a trace is on
        self._topics = topics
        self._catalog = catalog
        self._clock = clock
        self._metrics = metrics
        self._publish = publish
        self._groups: dict[tuple[TopicId, str], KeptGroup] = {}
        self._owners: Owners[tuple[int, str]] = Owners()

    async def load(self, logs: dict[TopicId, KeptLog]) -> None:
        """Take over what is stored; whatever was given out waits to be given out again.

        Unless another node has handed it over: then its readers go on holding it.
        """
        found: dict[tuple[TopicId, str], tuple[Group, str | None]] = {}
        for row in await self._catalog.load():
            log = logs.get(row.topic_id)
            if log is None:
                continue
            offset = await log.clamp(row.epoch, row.next_offset)
            group = Group(offset, OPEN_MAX, row.lease_us, row.deliveries_max)
            leased = {one[1]: one for one in row.leases}
            for one, deliveries in row.open.items():
                if one < offset and one in leased:
                    member, _, deadline_us, allowed = leased[one]
                    group.put_leased(member, one, deliveries, deadline_us, allowed)
                elif one < offset:
                    group.put_waiting(one, deliveries)
            found[row.topic_id, row.name] = group, row.owner
        for (topic_id, name), (_, owner) in found.items():
            topic = self._topics.by_id(topic_id)
            assert topic is not None, "its log is open"
            keys = [(part.id, name) for part in topic.parts]
            if topic.partition == 0 and all(key in found for key in keys):
                groups = [found[key][0] for key in keys]
                self._add(topic_id, KeptGroup(name, groups, owner))

    async def hand_over(self, topics: Sequence[Topic]) -> None:
        """Another node goes on with the groups of these topics: save who holds what."""
        rows = []
        for topic in topics:
            for (topic_id, _), kept in list(self._groups.items()):
                if topic_id == topic.id:
                    async with kept.lock:
                        rows += kept.rows(topic, with_leases=True)
        if rows:
            await self._catalog.save(*rows)

    def get(self, topic: Topic, name: str) -> KeptGroup:
        kept = self._groups.get((topic.id, name))
        if kept is None:
            check_group(name)
            raise NotSubscribed(
                f"topic {quoted(topic.declared)} has no group {quoted(name)}: "
                "the first fetch creates it"
            )
        return kept

    def of(self, topic: Topic) -> list[GroupInfo]:
        """The groups of a topic, in the order of their names."""
        names = sorted(name for topic_id, name in self._groups if topic_id == topic.id)
        return [self.describe(topic, name) for name in names]

    def lags(self, logs: Mapping[int, KeptLog]) -> list[int]:
        """How far each group is behind; `logs` by topic id."""
        lags = []
        for (topic_id, _), kept in self._groups.items():
            wanted = [logs.get(topic_id + number) for number in range(len(kept.groups))]
            known = [one for one in wanted if one is not None]
            if len(known) == len(wanted):
                lags.append(kept.lag(known))
        return lags

    def forget(self, topic: Topic) -> None:
        """The topic is gone, and its groups with it."""
        for topic_id, name in [key for key in self._groups if key[0] == topic.id]:
            self._drop(topic_id, name)

    # Reading

    async def fetch(
        self,
        topic: Topic,
        name: str,
        limit: int,
        wait_s: float,
        start: Position,
        *,
        gate: Gate | None = None,
        lease_s: float | None = None,
        deliveries_max: int | None = None,
        owner: str | None = None,
    ) -> tuple[str, list[Given]]:
        """Records for one reader and the receipt it answers with; a new group begins at `start`.

        What this reader may not read waits for another one. `lease_s` and `deliveries_max` hold
        for what this fetch gives out, else those of the group. A new group counts for `owner`.

        Waits up to `wait_s` for a first one; then there may be none. NotSubscribed if the group or
        its topic was deleted meanwhile.
        """
        # There is no topic for the dead letters of a built-in one: its records come again.
        terms = _terms(lease_s, NEVER_DEAD if topic.is_built_in else deliveries_max)
        kept = await self._get_or_make(topic, name, start, owner)
        receipt = uuid4().hex
        clock = self._clock
        until_s = clock.monotonic_s() + wait_s
        while True:
            async with kept.lock:
                await self._tidy(topic, kept)
                kept.changed.clear()
                given = await self._give(topic, kept, receipt, limit=limit, gate=gate, terms=terms)
            left_s = until_s - clock.monotonic_s()
            if given or left_s <= 0:
                self._metrics.note_read(len(given))
                return receipt, given
            await self._wait(topic, kept, left_s)
            if self.get(topic, name) is not kept:  # deleted, and made anew
                kept = await self._get_or_make(topic, name, start, owner)

    async def wait(self, topic: Topic, name: str, left_s: float) -> None:
        """Until there may be something to give, or the time is up; NotSubscribed as `fetch`."""
        await self._wait(topic, self.get(topic, name), left_s)
        self.get(topic, name)

    async def create(
        self, topic: Topic, name: str, start: Position, owner: str | None = None
    ) -> bool:
        """Make a group that is not there, durably; False if it is."""
        is_there = (topic.id, name) in self._groups
        await self._get_or_make(topic, name, start, owner)
        return not is_there

    async def alter(
        self, topic: Topic, name: str, lease_s: float | None, deliveries_max: int | None
    ) -> None:
        """Change settings of a group, durably; None stays as it is."""
        terms = _terms(lease_s, deliveries_max)
        kept = self.get(topic, name)
        async with kept.lock:
            if terms.lease_us != AS_GROUP:
                for group in kept.groups:
                    group.lease_us = terms.lease_us
            if terms.deliveries_max != AS_GROUP:
                for group in kept.groups:
                    group.deliveries_max = terms.deliveries_max
            await self._catalog.save(*kept.rows(topic))

    async def _get_or_make(
        self, topic: Topic, name: str, start: Position, owner: str | None
    ) -> KeptGroup:
        kept = self._groups.get((topic.id, name))
        if kept is not None:
            return kept
        check_group(name)
        if sum(topic_id == topic.id for topic_id, _ in self._groups) >= GROUPS_MAX:
            raise RefusedError(
                f"topic {quoted(topic.declared)} has {GROUPS_MAX} groups: delete one first"
            )
        offsets = await resolve_all(topic, start)
        lease_us = round(LEASE_S * _US)
        groups = [Group(offset, OPEN_MAX, lease_us, DELIVERIES) for offset in offsets]
        kept = KeptGroup(name, groups, owner)
        held_by_user = 0 if owner is None else self._owners.count_of(owner)
        async with Making(self._quotas, GROUPS, len(self._groups), owner, held_by_user):
            await self._catalog.save(*kept.rows(topic))
            known = self._groups.get((topic.id, name))
            if known is not None:  # somebody else made it meanwhile
                return known
            self._add(topic.id, kept)
            return kept

    def _add(self, topic_id: TopicId, kept: KeptGroup) -> None:
        self._groups[topic_id, kept.name] = kept
        self._owners.put((topic_id, kept.name), kept.owner)
        self._quotas.note(GROUPS, kept.owner, 1)

    def _drop(self, topic_id: TopicId, name: str) -> None:
        kept = self._groups.pop((topic_id, name), None)
        if kept is not None:
            kept.changed.set()
            self._owners.pop((topic_id, name))
            self._quotas.note(GROUPS, kept.owner, -1)

    async def _give(
        self,
        topic: Topic,
        kept: KeptGroup,
        receipt: str,
        limit: int,
        gate: Gate | None,
        terms: Terms,
    ) -> list[Given]:
        """What others left first, then new ones."""
        now_us = self._clock.steady_us()
        handout = Handout(kept, receipt, limit, gate, terms)
        for part, group in kept.turns(topic):
            look_from = kept.look_from[part.partition]
            kept.look_from[part.partition] = await handout.give_again(
                part, group, now_us, look_from
            )
        for part, group in kept.turns(topic):
            if handout.is_full:
                break
            await handout.give_new(part, group, now_us)
            kept.next_part = (part.partition + 1) % len(topic.parts)
        self._metrics.dropped["retention"] += handout.expired
        self._metrics.dropped["not_authorized"] += handout.passed_over
        return handout.given

    async def expected_bytes(self, topic: Topic, name: str, limit: int) -> int:
        """About how many bytes of payloads a fetch would return."""
        kept = self._groups.get((topic.id, name))
        return 0 if kept is None else await expected_bytes(topic, kept, limit)

    async def _read(self, topic: Topic, start: int, end: int) -> list[Record]:
        """Records of [start, end) that one read returns; empty if retention removed them."""
        try:
            batches = await read_batches(topic, start)
        except Gap:
            return []
        return [
            one
            for batch in batches
            for one in batch.records(topic.declared, start, end, topic.partition)
        ]

    async def _wait(self, topic: Topic, kept: KeptGroup, left_s: float) -> None:
        """Until there may be something to give, or the time is up."""
        deadline_us = kept.next_deadline_us
        if deadline_us != NO_LEASE:
            left_s = min(left_s, (deadline_us - self._clock.steady_us()) / _US)
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(kept.changed.wait())]
        open_parts = [(part, group) for part, group in kept.turns(topic) if group.room]
        if open_parts and kept.room > 0:
            parts = [part for part, _ in open_parts]
            offsets = [group.next_offset for _, group in open_parts]
            waits.append(asyncio.ensure_future(wait_past_any(parts, offsets)))
        try:
            done, _ = await asyncio.wait(
                waits, timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED
            )
            for one in done:
                one.result()  # the log may be closed
        finally:
            for one in waits:
                one.cancel()

    # Answers

    async def ack(self, topic: Topic, name: str, receipt: str, places: PlacesLike = None) -> int:
        """Durable on return; how many records are done by it. None: all that the receipt holds.

        RefusedError names offsets that the receipt does not hold; nothing was changed then.
        """
        kept = self.get(topic, name)
        async with kept.lock:
            await self._tidy(topic, kept)
            wanted = kept.held(topic, receipt, places)
            for number, offsets in wanted.items():
                for offset in offsets:
                    kept.groups[number].ack(receipt, offset)
                    kept.reasons.pop((number, offset), None)
            kept.changed.set()
            await self._catalog.save(*kept.rows(topic, list(wanted)))
        self._tell_settled(topic, kept, wanted)
        return _count(wanted)

    def _tell_settled(self, topic: Topic, kept: KeptGroup, places: Held, why: str = "") -> None:
        watch = self._watch()
        if watch is not None:
            watch.settled(f"group {kept.name}", topic, places, why)

    async def nack(
        self,
        topic: Topic,
        name: str,
        receipt: str,
        places: PlacesLike,
        delay_s: float,
        reason: str,
    ) -> int:
        """Give records back, for others at once or after a delay; how many."""
        if not 0 <= delay_s <= DELAY_S_MAX:
            raise RefusedError(f"a delay of {delay_s:g} s: use 0 to {DELAY_S_MAX:g}")
        kept = self.get(topic, name)
        async with kept.lock:
            await self._tidy(topic, kept)
            wanted = kept.held(topic, receipt, places)
            now_us = self._clock.steady_us()
            until_us = now_us + round(delay_s * _US) if delay_s else 0
            for number, offsets in wanted.items():
                for offset in offsets:
                    kept.groups[number].nack(receipt, offset, until_us)
                    kept.reasons[number, offset] = reason[:REASON_CHARS_MAX] or "given back"
            self._tell_settled(topic, kept, wanted, reason or "no reason given")
            await self._bury(topic, kept)
            kept.changed.set()
        return _count(wanted)

    async def extend(
        self,
        topic: Topic,
        name: str,
        receipt: str,
        places: PlacesLike,
        lease_s: float | None,
    ) -> tuple[int, float]:
        """A reader needs longer: its leases end `lease_s` from now, else that of the group.

        How many records, and for how many seconds. Leases do not outlive the broker.
        """
        wanted_s = check_lease_s(lease_s)
        kept = self.get(topic, name)
        async with kept.lock:
            await self._tidy(topic, kept)
            wanted = kept.held(topic, receipt, places)
            length_s = kept.lease_s if wanted_s is None else wanted_s
            now_us = self._clock.steady_us()
            for number, offsets in wanted.items():
                kept.groups[number].extend(receipt, offsets, now_us, round(length_s * _US))
            kept.changed.set()
        return _count(wanted), length_s

    # Keeping house

    async def _tidy(self, topic: Topic, kept: KeptGroup) -> None:
        """Leases that ran out, records that retention took, and those that nobody handles."""
        now_us = self._clock.steady_us()
        for part, group in kept.turns(topic):
            self._metrics.dropped["retention"] += group.trim(part.log.bounds().first)
            group.expire(now_us)
        await self._bury(topic, kept)

    async def _bury(self, topic: Topic, kept: KeptGroup) -> None:
        buried = []
        for part, group in kept.turns(topic):
            dead = group.dead()
            for offset, deliveries in dead.items():
                for record in await self._read(part, offset, offset + 1):
                    await self._put_dead(part, kept, record, deliveries)
                group.bury(offset)
                kept.reasons.pop((part.partition, offset), None)
            if dead:
                buried.append(part.partition)
        if buried:
            await self._catalog.save(*kept.rows(topic, buried))

    async def _put_dead(
        self, topic: Topic, kept: KeptGroup, record: Record, deliveries: int
    ) -> None:
        target = await self._topics.create(
            dead_topic(topic.declared), topic.log.settings, exist_ok=True
        )
        place = record.partition, record.offset
        reason = kept.reasons.get(place, "the lease has ended")
        fate = Fate(topic.declared, kept.name, deliveries, reason, len(topic.parts) > 1)
        run = dead_letter(record, target.declared, fate)
        offset = await self._publish(target, run)
        self._metrics.records_dead += 1
        watch = self._watch()
        if watch is not None:
            places = range(record.offset, record.offset + 1)
            letter = f"{target.declared}@{offset}" if len(target.parts) == 1 else target.declared
            why = f"dead letter {letter} after delivery {deliveries}: {reason}"
            watch.lost(f"group {kept.name}", topic, record.name, places, why)

    async def delete(self, topic: Topic, name: str) -> None:
        """Durable on return; what was given out belongs to nobody."""
        self.get(topic, name)
        await self._catalog.delete([part.id for part in topic.parts], name)
        self._drop(topic.id, name)

    def describe(self, topic: Topic, name: str) -> GroupInfo:
        """Leases that ran out meanwhile count as waiting."""
        return describe(topic, self.get(topic, name), self._clock)


def _terms(lease_s: float | None, deliveries_max: int | None) -> Terms:
    """InvalidSetting for values outside their range; None stands for that of the group."""
    lease_s, deliveries_max = check_lease_s(lease_s), check_deliveries_max(deliveries_max)
    return Terms(
        AS_GROUP if lease_s is None else round(lease_s * _US),
        AS_GROUP if deliveries_max is None else deliveries_max,
    )


def _count(held: Held) -> int:
    return sum([len(offsets) for offsets in held.values()])
