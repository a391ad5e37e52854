"""Tenants, topics, bindings, consumers and their positions, durable in SQL.

Every method is one unit of work: when it returns, what it changed is durable; when it raises,
nothing was changed. The catalog holds no state except its runner: `load` gives the
whole of it at boot, and the broker keeps what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.catalog.access.credentials import Credentials
from penstock.catalog.access.tenants import TenantList
from penstock.catalog.clock import ClockCatalog
from penstock.catalog.cluster.cluster import ClusterCatalog
from penstock.catalog.cluster.holdings import HoldingCatalog
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.catalog.existing import check_topic, topic_not_found
from penstock.catalog.queue.groups import GroupCatalog
from penstock.catalog.queue.redrives import RedriveCatalog
from penstock.catalog.queue.seed_ids import FirstPlace, QueueCatalog, add_consumer
from penstock.catalog.runs import RunCatalog
from penstock.catalog.schema.migrations import migrate
from penstock.catalog.session.session_list import SessionList
from penstock.catalog.session.sessions import SessionCatalog
from penstock.catalog.session.wills import WillCatalog
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import (
    AlreadySubscribed,
    NotSubscribed,
    RefusedError,
    TopicExists,
)
from penstock.model.record import DEFAULT_TENANT, TenantId, TopicId

T = TypeVar("T")
Position = tuple[TenantId, TopicId, str, int, int]  # …, consumer, epoch, next offset


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A declared topic. `key` is its name casefolded: the identity within the tenant."""

    tenant: TenantId
    topic_id: TopicId
    key: str
    declared: str  # the name as it was spelled when declared
    settings: str  # JSON, which the catalog does not read
    created_at: int  # µs since 1970, UTC
    is_automatic: int = 0  # 1: made by a publish, and not by somebody who asked for it
    owner: str | None = None  # the user who made it; None: nobody
    partition: int = 0  # above 0: a further part of the topic whose id is lower by this much


@dataclass(frozen=True, slots=True)
class BindingRow:
    """Names that match `filter` are placed in the topic; the lowest matching position wins."""

    tenant: TenantId
    position: int
    filter: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer of a topic, and where it goes on reading."""

    tenant: TenantId
    topic_id: TopicId
    consumer: str
    epoch: int
    next_offset: int
    owner: str | None = None  # the user who made it; None: nobody


_TOPICS: Final = (
    "select tenant, topic_id, key, declared, settings, created_at, is_automatic, owner, partition"
    " from topics"
)
Snapshot = tuple[list[TopicRow], list[BindingRow], list[ConsumerRow]]


class Catalog:
    """The catalog over a runner, as one tenant sees it; made by `open`, which gives the default's.

    Clock, credentials, tenants and topic ids belong to all tenants, everything else to its own.
    """

    def __init__(
        self, runner: Runner, clock: Clock, tenant: TenantId = DEFAULT_TENANT, inc: int = 0
    ) -> None:
        """`inc` is the incarnation of a node; 0 where one broker has the catalog for itself."""
        self._runner = runner
        self._inc = inc
        self._clock = clock
        self.tenant = tenant
        self.clock = ClockCatalog(runner)
        self.credentials = Credentials(runner, clock)
        self.tenants = TenantList(runner, clock)
        self.sessions = SessionCatalog(runner, clock, tenant, inc)
        self.session_list = SessionList(runner, tenant, inc)
        self.queue = QueueCatalog(runner, clock, tenant)
        self.groups = GroupCatalog(runner, clock, tenant)
        self.redrives = RedriveCatalog(runner, tenant)
        self.wills = WillCatalog(runner, tenant, inc)
        self.runs = RunCatalog(runner, tenant)
        self.cluster = ClusterCatalog(runner)
        self.holdings = HoldingCatalog(runner, tenant, inc)

    @classmethod
    async def open(cls, runner: Runner, clock: Clock | None = None, inc: int = 0) -> Catalog:
        """Bring the tables to this program's version and make sure the default tenant exists."""
        catalog = cls(runner, clock or SystemClock(), inc=inc)
        await migrate(runner)
        await catalog.tenants.ensure(DEFAULT_TENANT)
        return catalog

    def for_tenant(self, tenant: TenantId) -> Catalog:
        """The same catalog as another tenant sees it; it is closed with this one."""
        return Catalog(self._runner, self._clock, tenant, self._inc)

    async def close(self) -> None:
        """Finish what was asked for and close the database."""
        await self._runner.close()

    async def stand_still(self, work: Callable[[], T]) -> T:
        """Run `work` on the catalog's thread: nothing is committed meanwhile. May run twice."""
        return await self._runner.run(lambda database: work())

    async def load(self) -> Snapshot:
        """All of the tenant, as of one moment; bindings in the order in which they are tried."""
        return await self._runner.run(lambda database: _load(database, self.tenant))

    async def all_topics(self) -> list[TopicRow]:
        """The topics of all tenants."""

        def work(database: Database) -> list[TopicRow]:
            return [TopicRow(*row) for row in database.fetch(f"{_TOPICS} order by topic_id")]

        return await self._runner.run(work)

    async def reserve_topic_id(self, count: int = 1) -> TopicId:
        """The first of ids that no topic ever had or will have, not even after a crash."""

        def work(database: Database) -> TopicId:
            database.execute(
                "update counters set next_value = next_value + $2 where counter = $1",
                "topic_id",
                count,
            )
            ((next_id,),) = database.fetch(
                "select next_value from counters where counter = $1", "topic_id"
            )
            return TopicId(next_id - count)

        return await self._runner.run(work)

    async def peek_topic_id(self) -> TopicId:
        """The id that `reserve_topic_id` would give next; no topic has it or a larger one."""

        def work(database: Database) -> TopicId:
            ((next_id,),) = database.fetch(
                "select next_value from counters where counter = $1", "topic_id"
            )
            return TopicId(next_id)

        return await self._runner.run(work)

    async def level(self, topic_id: TopicId) -> tuple[int, int]:
        """(epoch, offset) that a checkpoint last saved for a topic; (1, 0) if none did."""

        def work(database: Database) -> tuple[int, int]:
            rows = database.fetch(
                "select epoch, level_offset from levels where topic_id = $1", topic_id
            )
            return (rows[0][0], rows[0][1]) if rows else (1, 0)

        return await self._runner.run(work)

    async def adopt_topic(self, *rows: TopicRow) -> None:
        """Take in a topic whose ids this catalog never gave out; the counter moves past them."""
        last_id = rows[-1].topic_id

        def work(database: Database) -> None:
            database.execute(
                "update counters set next_value = $2 where counter = $1 and next_value <= $3",
                "topic_id",
                last_id + 1,
                last_id,
            )
            for row in rows:
                _insert_topic(database, row)

        await self._runner.run(work)

    async def insert_topic(self, *rows: TopicRow) -> None:
        """A row for each partition. Raises TopicExists when the tenant has a topic of this key."""

        def work(database: Database) -> None:
            for row in rows:
                _insert_topic(database, row)

        await self._runner.run(work)

    async def alter_topic(self, topic_id: TopicId, settings: str, partitions: int = 1) -> None:
        """Replace the settings; raises TopicNotFound."""

        def work(database: Database) -> None:
            if not database.execute(
                "update topics set settings = $2 where topic_id >= $1 and topic_id < $3",
                topic_id,
                settings,
                topic_id + partitions,
            ):
                raise topic_not_found(topic_id)

        await self._runner.run(work)

    async def delete_topic(self, topic_id: TopicId, partitions: int = 1) -> None:
        """Remove the topic with its bindings, consumers and positions; raises TopicNotFound."""

        def work(database: Database) -> None:
            if not database.execute(
                "delete from topics where topic_id >= $1 and topic_id < $2",
                topic_id,
                topic_id + partitions,
            ):
                raise topic_not_found(topic_id)

        await self._runner.run(work)

    async def insert_binding(self, filter_text: str, topic_id: TopicId) -> BindingRow:
        """Bind after all others of the tenant. Raises RefusedError when the filter is bound."""
        tenant = self.tenant

        def work(database: Database) -> BindingRow:
            check_topic(database, tenant, topic_id)
            ((position,),) = database.fetch(
                "select coalesce(max(position) + 1, 0) from bindings where tenant = $1", tenant
            )
            inserted = database.execute(
                "insert into bindings (tenant, position, filter, topic_id)"
                " values ($1, $2, $3, $4) on conflict (tenant, filter) do nothing",
                tenant,
                position,
                filter_text,
                topic_id,
            )
            if not inserted:
                raise RefusedError(
                    f"filter {filter_text!r} is already bound, and a filter can be bound to one "
                    "topic only: unbind it first"
                )
            return BindingRow(tenant, position, filter_text, topic_id)

        return await self._runner.run(work)

    async def delete_binding(self, filter_text: str) -> None:
        """Raises RefusedError when the filter is not bound."""

        def work(database: Database) -> None:
            if not database.execute(
                "delete from bindings where tenant = $1 and filter = $2", self.tenant, filter_text
            ):
                raise RefusedError(
                    f"filter {filter_text!r} is not bound: give the filter exactly as it was bound"
                )

        await self._runner.run(work)

    async def insert_consumer(
        self,
        topic_id: TopicId,
        consumer: str,
        epoch: int,
        next_offset: int,
        owner: str | None = None,
        others: Sequence[FirstPlace] = (),
    ) -> None:
        """Subscribe with a first position in each partition: AlreadySubscribed, TopicNotFound."""
        tenant = self.tenant
        now_us = self._clock.now_us()
        places = [(topic_id, epoch, next_offset), *others]

        def work(database: Database) -> None:
            check_topic(database, tenant, topic_id)
            if not add_consumer(
                database, tenant, consumer, places=places, now_us=now_us, owner=owner
            ):
                raise AlreadySubscribed(
                    f"consumer {consumer!r} already reads the topic with id {topic_id}:"
                    " unsubscribe it first, or seek"
                )

        await self._runner.run(work)

    async def delete_consumer(self, topic_id: TopicId, consumer: str, partitions: int = 1) -> None:
        """Unsubscribe, and forget the position. Raises NotSubscribed."""

        def work(database: Database) -> None:
            if not database.execute(
                "delete from consumers where tenant = $1 and topic_id >= $2 and topic_id < $4"
                " and consumer = $3",
                self.tenant,
                topic_id,
                consumer,
                topic_id + partitions,
            ):
                raise NotSubscribed(
                    f"consumer {consumer!r} does not read the topic with id {topic_id}:"
                    " subscribe it first"
                )

        await self._runner.run(work)

    async def save_positions(self, positions: Sequence[Position]) -> None:
        """Save all in one unit. A consumer that is gone stays gone: only rows there are updated."""
        now_us = self._clock.now_us()

        def work(database: Database) -> None:
            database.execute_many(
                "update positions set epoch = $4, next_offset = $5, saved_at = $6"
                " where tenant = $1 and topic_id = $2 and consumer = $3",
                ((*position, now_us) for position in positions),
            )

        await self._runner.run(work)


def _load(database: Database, tenant: TenantId) -> Snapshot:
    topics = database.fetch(f"{_TOPICS} where tenant = $1 order by topic_id", tenant)
    bindings = database.fetch(
        "select tenant, position, filter, topic_id from bindings where tenant = $1"
        " order by position",
        tenant,
    )
    consumers = database.fetch(
        "select tenant, topic_id, consumer, epoch, next_offset, owner"
        " from positions join consumers using (tenant, topic_id, consumer)"
        " where tenant = $1 order by topic_id",
        tenant,
    )
    return (
        [TopicRow(*row) for row in topics],
        [BindingRow(*row) for row in bindings],
        [ConsumerRow(*row) for row in consumers],
    )


def _insert_topic(database: Database, row: TopicRow) -> None:
    inserted = database.execute(
        "insert into topics"
        " (tenant, topic_id, key, declared, settings, created_at, is_automatic, owner, partition)"
        " values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (tenant, key) do nothing",
        row.tenant,
        row.topic_id,
        row.key,
        row.declared,
        row.settings,
        row.created_at,
        row.is_automatic,
        row.owner,
        row.partition,
    )
    if not inserted:
        raise TopicExists(
            f"topic {row.declared!r} already exists: use it, or choose a name that differs by more"
            " than letter case"
        )
