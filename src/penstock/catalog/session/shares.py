"""Shared subscriptions in the catalog: where each stands, and what is out.

Rows of what is out are of three kinds, told apart by their QoS: 1, to be given out again after a
crash; 2, pinned to the session that was being sent it; 0, done, and known only because the stored
position lies before it. A share that had connected members and has no position of its own in a
topic stands at the topic's level, as sessions do (catalog.sessions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.model.record import TenantId


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A message of a share that is not known to be done, or must not be given out again."""

    topic_id: int
    offset: int
    qos: int
    client_id: str = ""
    packet_id: int = 0
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class ShareState:
    """All that is kept of a share."""

    share_id: int
    filter: str  # all of $share/{name}/{filter}
    is_live: bool  # stands at the level of every topic without a position
    positions: Sequence[tuple[int, int, int]]  # topic id, epoch, next offset
    rows: Sequence[ShareRow]


@dataclass(frozen=True, slots=True)
class StoredShare:
    """A share as it was found, and whose sessions hold it: client id -> QoS."""

    state: ShareState
    holders: dict[str, int]


class ShareCatalog:
    """The catalog's tables for shares; every method is one durable unit of work."""

    def __init__(self, runner: Runner, tenant: TenantId) -> None:
        self._runner = runner
        self._tenant = tenant

    async def recover(self) -> list[StoredShare]:
        """After any end: what there is, when nobody is connected."""
        return await self._runner.run(lambda database: _recover(database, self._tenant))

    async def remove(self, share_id: int) -> None:
        """No member holds it."""

        def work(database: Database) -> None:
            database.execute(
                "delete from shares where tenant = $1 and share_id = $2", self._tenant, share_id
            )

        await self._runner.run(work)


def save_shares(database: Database, tenant: TenantId, states: Sequence[ShareState]) -> None:
    """Replace what is stored of these shares."""
    database.execute_many(
        "insert into shares (tenant, share_id, filter, is_live) values ($1, $2, $3, $4)"
        " on conflict (tenant, share_id) do update set is_live = excluded.is_live",
        [(tenant, one.share_id, one.filter, int(one.is_live)) for one in states],
    )
    for table in ("share_positions", "share_outstanding"):
        database.execute_many(
            f"delete from {table} where tenant = $1 and share_id = $2",
            [(tenant, one.share_id) for one in states],
        )
    database.execute_many(
        "insert into share_positions (tenant, share_id, topic_id, epoch, next_offset)"
        " select $1, $2, $3, $4, $5 where exists (select 1 from topics where topic_id = $3)",
        [(tenant, one.share_id, *position) for one in states for position in one.positions],
    )
    put_share_rows(database, tenant, [(one.share_id, row) for one in states for row in one.rows])


def put_share_rows(
    database: Database, tenant: TenantId, rows: Sequence[tuple[int, ShareRow]]
) -> None:
    """Add or replace what is out of shares, each with the share's id."""
    database.execute_many(
        "insert into share_outstanding"
        " (tenant, share_id, topic_id, message_offset, qos, client_id, packet_id, is_released)"
        " select $1, $2, $3, $4, $5, $6, $7, $8"
        " where exists (select 1 from topics where topic_id = $3)"
        " and exists (select 1 from shares where tenant = $1 and share_id = $2)"
        " on conflict (tenant, share_id, topic_id, message_offset)"
        " do update set qos = excluded.qos, client_id = excluded.client_id,"
        " packet_id = excluded.packet_id, is_released = excluded.is_released",
        [
            (
                tenant,
                share_id,
                row.topic_id,
                row.offset,
                row.qos,
                row.client_id,
                row.packet_id,
                int(row.is_released),
            )
            for share_id, row in rows
        ],
    )


def _recover(database: Database, tenant: TenantId) -> list[StoredShare]:
    database.execute(
        "insert into share_positions (tenant, share_id, topic_id, epoch, next_offset)"
        " select s.tenant, s.share_id, l.topic_id, l.epoch, l.level_offset"
        " from shares s join topics t on t.tenant = s.tenant"
        " join levels l on l.topic_id = t.topic_id where s.tenant = $1 and s.is_live = 1"
        " on conflict (tenant, share_id, topic_id) do nothing",
        tenant,
    )
    database.execute("update shares set is_live = 0 where tenant = $1 and is_live = 1", tenant)
    # The session is gone, and nobody else may have what it was being sent (MQTT 5 §4.8.2).
    database.execute(
        "update share_outstanding set qos = 0, client_id = ''"
        " where tenant = $1 and qos = 2 and not exists"
        " (select 1 from sessions s where s.tenant = share_outstanding.tenant"
        " and s.client_id = share_outstanding.client_id)",
        tenant,
    )
    database.execute(
        "delete from shares where tenant = $1 and not exists (select 1 from subscriptions s"
        " where s.tenant = shares.tenant and s.filter = shares.filter)"
        " and not exists (select 1 from share_outstanding o where o.tenant = shares.tenant"
        " and o.share_id = shares.share_id and o.qos = 2)",
        tenant,
    )
    found = database.fetch(
        "select share_id, filter from shares where tenant = $1 order by share_id", tenant
    )
    return [_load(database, tenant, share_id, filter) for share_id, filter in found]


def _load(database: Database, tenant: TenantId, share_id: int, filter: str) -> StoredShare:
    key = (tenant, share_id)
    positions = database.fetch(
        "select topic_id, epoch, next_offset from share_positions"
        " where tenant = $1 and share_id = $2",
        *key,
    )
    rows = database.fetch(
        "select topic_id, message_offset, qos, client_id, packet_id, is_released"
        " from share_outstanding where tenant = $1 and share_id = $2"
        " order by topic_id, message_offset",
        *key,
    )
    holders = database.fetch(
        "select client_id, qos from subscriptions where tenant = $1 and filter = $2",
        tenant,
        filter,
    )
    state = ShareState(
        share_id,
        filter,
        False,
        [(topic_id, epoch, offset) for topic_id, epoch, offset in positions],
        [
            ShareRow(topic_id=a, offset=b, qos=c, client_id=d, packet_id=e, is_released=bool(f))
            for a, b, c, d, e, f in rows
        ],
    )
    return StoredShare(state, dict(holders))
