"""The queue's producers and consumers, numbered per topic; durable in SQL.

A number is given out once in the life of a topic, and the next registration has a larger one,
whatever was unregistered or crashed in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.catalog.existing import check_topic
from penstock.model.clock import Clock
from penstock.model.record import TenantId, TopicId

FirstPlace = tuple[TopicId, int, int]  # id of a part, its epoch, the next offset to read


@dataclass(frozen=True, slots=True)
class OrdinalsRow:
    """How many consumers and producers a topic has been given; the next ones have these numbers."""

    topic_id: TopicId
    consumers: int
    producers: int


@dataclass(frozen=True, slots=True)
class ProducersRow:
    """How many producers of a topic a user has registered."""

    topic_id: TopicId
    owner: str
    producers: int


class QueueCatalog:
    """The ordinals of a tenant's topics, over the catalog's runner."""

    def __init__(self, runner: Runner, clock: Clock, tenant: TenantId) -> None:
        self._runner = runner
        self._tenant = tenant
        self._clock = clock

    async def load(self) -> list[OrdinalsRow]:
        def work(database: Database) -> list[OrdinalsRow]:
            rows = database.fetch(
                "select topic_id, consumers, producers from ordinals where tenant = $1",
                self._tenant,
            )
            return [OrdinalsRow(*row) for row in rows]

        return await self._runner.run(work)

    async def load_owners(self) -> list[ProducersRow]:
        """Whose the producers are; those that nobody owns are not among them."""

        def work(database: Database) -> list[ProducersRow]:
            rows = database.fetch(
                "select topic_id, owner, producers from producers_by_owner where tenant = $1",
                self._tenant,
            )
            return [ProducersRow(*row) for row in rows]

        return await self._runner.run(work)

    async def register_producer(self, topic_id: TopicId, owner: str | None = None) -> int:
        """The producer's number; TopicNotFound when the topic is gone."""

        def work(database: Database) -> int:
            row = _ordinals(database, self._tenant, topic_id)
            database.execute(
                "update ordinals set producers = producers + 1 where tenant = $1 and topic_id = $2",
                self._tenant,
                topic_id,
            )
            if owner is not None:
                database.execute(
                    "insert into producers_by_owner (tenant, topic_id, owner, producers)"
                    " values ($1, $2, $3, 1) on conflict (tenant, topic_id, owner)"
                    " do update set producers = producers_by_owner.producers + 1",
                    self._tenant,
                    topic_id,
                    owner,
                )
            return row.producers

        return await self._runner.run(work)

    async def register_consumer(
        self,
        topic_id: TopicId,
        name_of: Callable[[int], str],
        places: Sequence[FirstPlace],
        owner: str | None = None,
    ) -> int:
        """The number of a new consumer, which is stored under its name with its first positions.

        Numbers whose names are taken already are passed over.
        """
        now_us = self._clock.now_us()

        def work(database: Database) -> int:
            ordinal = _ordinals(database, self._tenant, topic_id).consumers
            while not add_consumer(
                database, self._tenant, name_of(ordinal), places=places, now_us=now_us, owner=owner
            ):
                ordinal += 1
            database.execute(
                "update ordinals set consumers = $3 where tenant = $1 and topic_id = $2",
                self._tenant,
                topic_id,
                ordinal + 1,
            )
            return ordinal

        return await self._runner.run(work)


def add_consumer(
    database: Database,
    tenant: TenantId,
    consumer: str,
    places: Sequence[FirstPlace],
    now_us: int,
    owner: str | None,
) -> bool:
    """Store a consumer with a position for each partition; False if the topic has one like it."""
    for topic_id, epoch, next_offset in places:
        inserted = database.execute(
            "insert into consumers (tenant, topic_id, consumer, created_at, owner)"
            " values ($1, $2, $3, $4, $5) on conflict (tenant, topic_id, consumer) do nothing",
            tenant,
            topic_id,
            consumer,
            now_us,
            owner,
        )
        if not inserted:
            return False
        database.execute(
            "insert into positions (tenant, topic_id, consumer, epoch, next_offset, saved_at)"
            " values ($1, $2, $3, $4, $5, $6)",
            tenant,
            topic_id,
            consumer,
            epoch,
            next_offset,
            now_us,
        )
    return True


def _ordinals(database: Database, tenant: TenantId, topic_id: TopicId) -> OrdinalsRow:
    """The topic's row, made if it is missing."""
    check_topic(database, tenant, topic_id)
    database.execute(
        "insert into ordinals (tenant, topic_id, consumers, producers) values ($1, $2, 0, 0)"
        " on conflict (tenant, topic_id) do nothing",
        tenant,
        topic_id,
    )
    (row,) = database.fetch(
        "select topic_id, consumers, producers from ordinals where tenant = $1 and topic_id = $2",
        tenant,
        topic_id,
    )
    return OrdinalsRow(*row)
