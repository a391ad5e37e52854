"""Idempotency keys and what they stored, durable in SQL for as long as they count.

A key is stored with its messages in the log; this table is a view of that, moved together with the
levels up to which the logs were followed (catalog.sessions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.model.record import TenantId


@dataclass(frozen=True, slots=True)
class KeyRow:
    """Messages [first_offset, first_offset + count) of a topic were stored under a key."""

    topic_id: int
    key: str  # with its user and a line feed in front
    digest: int  # of what was asked
    first_offset: int
    count: int
    stored_at: int  # steady time

    @property
    def owner(self) -> str:
        """The user who sent it."""
        return self.key.partition("\n")[0]


class KeyCatalog:
    """The keys of a tenant's topics, over the catalog's runner."""

    def __init__(self, runner: Runner, tenant: TenantId) -> None:
        self._runner = runner
        self._tenant = tenant

    async def find(self, topic_id: int, key: str) -> KeyRow | None:
        rows = await self.find_all(topic_id, 1, key)
        return rows[0] if rows else None

    async def find_all(self, topic_id: int, partitions: int, key: str) -> list[KeyRow]:
        """What a key stored in each partition of a topic."""

        def work(database: Database) -> list[KeyRow]:
            rows = database.fetch(
                "select topic_id, key, digest, first_offset, message_count, stored_at"
                " from idempotency_keys"
                " where tenant = $1 and topic_id >= $2 and topic_id < $4 and key = $3",
                self._tenant,
                topic_id,
                key,
                topic_id + partitions,
            )
            return [KeyRow(*row) for row in rows]

        return await self._runner.run(work)

    async def expire(self, before_us: int) -> int:
        """Forget keys stored before this time; how many."""

        def work(database: Database) -> int:
            return database.execute(
                "delete from idempotency_keys where tenant = $1 and stored_at < $2",
                self._tenant,
                before_us,
            )

        return await self._runner.run(work)

    async def trim(self, share_of: Callable[[list[int]], int]) -> int:
        """Forget the oldest keys of each user beyond a share; how many.

        `share_of` is told how many each user has, and says how many one user may have. Counts them:
        0.1 s for a million.
        """

        def work(database: Database) -> int:
            counts = database.fetch(
                "select owner, count(*) from idempotency_keys where tenant = $1 group by owner",
                self._tenant,
            )
            share = share_of([count for _, count in counts])
            return sum(
                database.execute(
                    "delete from idempotency_keys where tenant = $1 and owner = $2 and stored_at <="
                    " (select stored_at from idempotency_keys where tenant = $1 and owner = $2"
                    " order by stored_at desc limit 1 offset $3)",
                    self._tenant,
                    owner,
                    share,
                )
                for owner, count in counts
                if count > share
            )

        return await self._runner.run(work)


def save_keys(database: Database, tenant: TenantId, rows: Sequence[KeyRow]) -> None:
    """Part of a checkpoint. A topic that is gone keeps none; a key that comes again is newer."""
    database.execute_many(
        "insert into idempotency_keys"
        " (tenant, topic_id, key, digest, first_offset, message_count, stored_at, owner)"
        " select $1, $2, $3, $4, $5, $6, $7, $8 where exists"
        " (select 1 from topics where tenant = $1 and topic_id = $2)"
        " on conflict (tenant, topic_id, key) do update set digest = excluded.digest,"
        " first_offset = excluded.first_offset, message_count = excluded.message_count,"
        " stored_at = excluded.stored_at",
        [
            (
                tenant,
                row.topic_id,
                row.key,
                row.digest,
                row.first_offset,
                row.count,
                row.stored_at,
                row.owner,
            )
            for row in rows
        ],
    )
