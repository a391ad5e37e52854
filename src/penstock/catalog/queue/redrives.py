"""Redrives in the catalog: which dead letters of a topic were put back, and which are under way.

A row is replaced as a whole, so what is stored is always one moment of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.model.record import TenantId, TopicId


@dataclass(frozen=True, slots=True)
class RedriveRow:
    """What was done with the dead letters of one topic."""

    topic_id: TopicId
    dead_topic_id: TopicId  # which the offsets belong to
    done: list[tuple[int, int]]  # half-open ranges of partition << 48 | offset, ascending
    mark: str  # of those under way: their batch in the topic has it; empty: none are
    under_way: list[int]
    epoch: int  # of the topic, when those under way were begun
    end_offset: int  # its end at that time: their batch is not before it
    partition: int = 0  # of the topic, which those under way are put into


class RedriveCatalog:
    """The redrives of a tenant; every method is one durable unit of work."""

    def __init__(self, runner: Runner, tenant: TenantId) -> None:
        self._runner = runner
        self._tenant = tenant

    async def load(self) -> list[RedriveRow]:
        def work(database: Database) -> list[RedriveRow]:
            rows = database.fetch(
                "select topic_id, dead_topic_id, done, mark, under_way, epoch, end_offset,"
                " partition from redrives where tenant = $1",
                self._tenant,
            )
            return [
                RedriveRow(
                    topic_id=topic_id,
                    dead_topic_id=dead_topic_id,
                    done=msgspec.json.decode(done, type=list[tuple[int, int]]),
                    mark=mark,
                    under_way=msgspec.json.decode(under_way, type=list[int]),
                    epoch=epoch,
                    end_offset=end_offset,
                    partition=partition,
                )
                for (
                    topic_id,
                    dead_topic_id,
                    done,
                    mark,
                    under_way,
                    epoch,
                    end_offset,
                    partition,
                ) in rows
            ]

        return await self._runner.run(work)

    async def save(self, row: RedriveRow) -> None:
        """Make or replace it."""
        done = msgspec.json.encode(row.done).decode()
        under_way = msgspec.json.encode(row.under_way).decode()

        def work(database: Database) -> None:
            database.execute(
                "insert into redrives"
                " (tenant, topic_id, dead_topic_id, done, mark, under_way, epoch, end_offset,"
                " partition) values ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
                " on conflict (tenant, topic_id) do update set"
                " dead_topic_id = excluded.dead_topic_id, done = excluded.done,"
                " mark = excluded.mark, under_way = excluded.under_way,"
                " epoch = excluded.epoch, end_offset = excluded.end_offset,"
                " partition = excluded.partition",
                self._tenant,
                row.topic_id,
                row.dead_topic_id,
                done,
                row.mark,
                under_way,
                row.epoch,
                row.end_offset,
                row.partition,
            )

        await self._runner.run(work)
