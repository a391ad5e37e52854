"""Groups in the catalog: how far each is, and what lies open behind that.

A group's row is replaced as a whole, so what is stored is always one moment of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.catalog.existing import check_topic
from penstock.model.clock import Clock
from penstock.model.record import TenantId, TopicId

Lease = tuple[str, int, int, int]  # who holds which offset, until when, deliveries allowed


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of readers in one part of a topic."""

    topic_id: TopicId
    name: str
    epoch: int
    next_offset: int
    open: dict[int, int]  # below next_offset and not done: offset -> how often it was given out
    lease_us: int
    deliveries_max: int  # 0: no bound
    owner: str | None = None  # the user who made it; None: nobody
    leases: list[Lease] = field(default_factory=list)  # only if another node goes on with them


class GroupCatalog:
    """The groups of a tenant; every method is one durable unit of work."""

    def __init__(self, runner: Runner, clock: Clock, tenant: TenantId) -> None:
        self._runner = runner
        self._tenant = tenant
        self._clock = clock

    async def load(self) -> list[GroupRow]:
        def work(database: Database) -> list[GroupRow]:
            rows = database.fetch(
                "select topic_id, group_name, epoch, next_offset, open_offsets, lease_us,"
                " deliveries_max, owner, leases from groups where tenant = $1",
                self._tenant,
            )
            return [
                GroupRow(
                    topic_id=topic_id,
                    name=name,
                    epoch=epoch,
                    next_offset=next_offset,
                    open=dict(msgspec.json.decode(opened)),
                    lease_us=lease_us,
                    deliveries_max=deliveries_max,
                    owner=owner,
                    leases=[tuple(one) for one in msgspec.json.decode(leases)],
                )
                for (
                    topic_id,
                    name,
                    epoch,
                    next_offset,
                    opened,
                    lease_us,
                    deliveries_max,
                    owner,
                    leases,
                ) in rows
            ]

        return await self._runner.run(work)

    async def save(self, *rows: GroupRow) -> None:
        """Make or replace them, all or none. Raises TopicNotFound."""
        now_us = self._clock.now_us()

        def work(database: Database) -> None:
            for row in rows:
                check_topic(database, self._tenant, row.topic_id)
                self._save(database, row, now_us)

        await self._runner.run(work)

    def _save(self, database: Database, row: GroupRow, now_us: int) -> None:
        opened = msgspec.json.encode(sorted(row.open.items())).decode()
        database.execute(
            "insert into groups"
            " (tenant, topic_id, group_name, epoch, next_offset, open_offsets, saved_at,"
            " lease_us, deliveries_max, owner, leases)"
            " values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
            " on conflict (tenant, topic_id, group_name) do update set"
            " epoch = excluded.epoch, next_offset = excluded.next_offset,"
            " open_offsets = excluded.open_offsets, saved_at = excluded.saved_at,"
            " lease_us = excluded.lease_us, deliveries_max = excluded.deliveries_max,"
            " leases = excluded.leases",
            self._tenant,
            row.topic_id,
            row.name,
            row.epoch,
            row.next_offset,
            opened,
            now_us,
            row.lease_us,
            row.deliveries_max,
            row.owner,
            msgspec.json.encode(row.leases).decode(),
        )

    async def delete(self, topic_ids: Sequence[TopicId], name: str) -> None:
        """Of all these parts of its topic."""

        def work(database: Database) -> None:
            for topic_id in topic_ids:
                database.execute(
                    "delete from groups where tenant = $1 and topic_id = $2 and group_name = $3",
                    self._tenant,
                    topic_id,
                    name,
                )

        await self._runner.run(work)
