"""The queue of seed 001: who produces and who consumes, by ids that say so themselves.

An id is the ordinal (no digits for the first), the topic's id in nine digits, and a flag: 0 for a
consumer, 1 for a producer. A consumer's id is also its name among the consumers of the topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from penstock.broker.access.making import Making
from penstock.broker.access.quotas import Quotas
from penstock.broker.queue.consumers import Consumers
from penstock.broker.topic.topics import Topic
from penstock.catalog.queue.seed_ids import QueueCatalog
from penstock.core.naming.names import quoted
from penstock.core.quotas import PRODUCERS
from penstock.model.errors import RefusedError

CONSUMER: Final = "0"
PRODUCER: Final = "1"
TOPIC_DIGITS: Final = 9
TOPIC_ID_MAX: Final = 10**TOPIC_DIGITS - 1
ID_DIGITS_MIN: Final = TOPIC_DIGITS + 1
ID_DIGITS_MAX: Final = ID_DIGITS_MIN + 18
CHECKED_MAX: Final = 1_024  # remembered ids of a topic's producers; a full memory starts anew


def make_id(topic_id: int, ordinal: int, flag: str) -> str:
    return f"{ordinal or ''}{topic_id:0{TOPIC_DIGITS}d}{flag}"


class _Counts:
    __slots__ = ("checked", "consumers", "producers")

    def __init__(self, consumers: int = 0, producers: int = 0) -> None:
        self.consumers = consumers
        self.producers = producers
        self.checked: set[str] = set()  # ids of producers that are good: they stay so


class Queue:
    """Registrations, in step with the catalog."""

    def __init__(self, catalog: QueueCatalog, consumers: Consumers, quotas: Quotas) -> None:
        self._quotas = quotas
        self._catalog = catalog
        self._consumers = consumers
        self._counts: dict[int, _Counts] = {}  # by topic id
        self._producer_count = 0
        self._owned: dict[int, Counter[str]] = {}  # producers of a topic, by their owners
        self._owned_in_all: Counter[str] = Counter()

    async def load(self, topic_ids: Collection[int]) -> None:
        """Those of these topics."""
        for row in await self._catalog.load():
            if row.topic_id not in topic_ids:
                continue
            self._counts[row.topic_id] = _Counts(row.consumers, row.producers)
            self._producer_count += row.producers
        for owned in await self._catalog.load_owners():
            if owned.topic_id not in topic_ids:
                continue
            self._owned.setdefault(owned.topic_id, Counter())[owned.owner] = owned.producers
            self._owned_in_all[owned.owner] += owned.producers
        for topic_id in topic_ids:
            self._note_producers(topic_id, 1)

    def forget(self, topic: Topic) -> None:
        """The topic is gone; its id never comes back, and neither do the ids made of it."""
        self._note_producers(topic.id, -1)
        counts = self._counts.pop(topic.id, None)
        if counts is not None:
            self._producer_count -= counts.producers
        self._owned_in_all -= self._owned.pop(topic.id, Counter())

    def _note_producers(self, topic_id: int, sign: int) -> None:
        """Those of a topic are counted here from now on, or (-1) no longer."""
        counts = self._counts.get(topic_id)
        if counts is not None:
            owned = self._owned.get(topic_id, Counter())
            for owner, count in owned.items():
                self._quotas.note(PRODUCERS, owner, sign * count)
            self._quotas.note(PRODUCERS, None, sign * (counts.producers - owned.total()))

    async def register_producer(self, topic: Topic, owner: str | None) -> str:
        """The new producer's id; durable on return. `owner`: whose quota counts it."""
        _check_topic_id(topic)
        held_by_user = 0 if owner is None else self._owned_in_all[owner]
        async with Making(self._quotas, PRODUCERS, self._producer_count, owner, held_by_user):
            ordinal = await self._catalog.register_producer(topic.id, owner)
            self._count_producer(topic, ordinal, owner)
        return make_id(topic.id, ordinal, PRODUCER)

    def _count_producer(self, topic: Topic, ordinal: int, owner: str | None) -> None:
        counts = self._counts.setdefault(topic.id, _Counts())
        counts.producers = max(counts.producers, ordinal + 1)
        self._producer_count += 1
        self._quotas.note(PRODUCERS, owner, 1)
        if owner is not None:
            self._owned.setdefault(topic.id, Counter())[owner] += 1
            self._owned_in_all[owner] += 1

    async def register_consumer(self, topic: Topic, owner: str | None) -> str:
        """The new consumer's id; it begins with the first record there is. Durable on return."""
        _check_topic_id(topic)
        async with self._consumers.making(owner):
            ordinal = await self._catalog.register_consumer(
                topic.id,
                lambda ordinal: make_id(topic.id, ordinal, CONSUMER),
                [(part.id, part.log.epoch, part.log.bounds().first) for part in topic.parts],
                owner,
            )
            counts = self._counts.setdefault(topic.id, _Counts())
            counts.consumers = max(counts.consumers, ordinal + 1)
            consumer_id = make_id(topic.id, ordinal, CONSUMER)
            firsts = [part.log.bounds().first for part in topic.parts]
            self._consumers.admit(topic, consumer_id, firsts, owner)
        return consumer_id

    def check_producer(self, topic: Topic, producer_id: str) -> None:
        """RefusedError unless it is the id of a producer of this topic."""
        counts = self._counts.get(topic.id)
        if counts is None or producer_id not in counts.checked:
            self._check(topic, producer_id, PRODUCER, counts.producers if counts else 0)
            assert counts is not None, "it has a producer"
            if len(counts.checked) >= CHECKED_MAX:
                counts.checked.clear()
            counts.checked.add(producer_id)

    def check_consumer(self, topic: Topic, consumer_id: str) -> None:
        """RefusedError unless it is the id of a consumer of this topic."""
        counts = self._counts.get(topic.id)
        self._check(topic, consumer_id, CONSUMER, counts.consumers if counts else 0)

    def _check(self, topic: Topic, id: str, flag: str, count: int) -> None:
        role = "consumer" if flag == CONSUMER else "producer"
        if not id.isascii() or not id.isdigit() or not ID_DIGITS_MIN <= len(id) <= ID_DIGITS_MAX:
            raise RefusedError(
                f"{quoted(id)} is not a valid {role} id: an id has {ID_DIGITS_MIN} to "
                f"{ID_DIGITS_MAX} digits; register to get one"
            )
        if id[-1] != flag:
            raise RefusedError(f"id {id} is not a {role} id: {role} ids end in {flag}")
        if int(id[-ID_DIGITS_MIN:-1]) != topic.id:
            raise RefusedError(
                f"{role} id {id} belongs to another topic than {quoted(topic.declared)}: "
                "register for this one"
            )
        digits = id[:-ID_DIGITS_MIN]
        ordinal = int(digits or 0)
        if ordinal >= count or make_id(topic.id, ordinal, flag) != id:
            raise RefusedError(
                f"no {role} of topic {quoted(topic.declared)} has the id {id}: register first"
            )


def _check_topic_id(topic: Topic) -> None:
    if topic.id > TOPIC_ID_MAX:
        raise RefusedError(
            f"topic {quoted(topic.declared)} has the id {topic.id}, but ids of producers and "
            f"consumers can contain only {TOPIC_DIGITS} digits of it: use /v1"
        )
