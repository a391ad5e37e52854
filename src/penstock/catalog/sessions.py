"""Persistent sessions, retained messages and the checkpoint that ties them to the logs.

The checkpoint is one transaction: the level of every topic, the positions of the sessions that are
behind it, and every view as of that level. After a crash a session that was connected and has no
position of its own stands at the level; views are brought up to date by reading the logs from
there. So a session that is level with its topics costs nothing to save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.catalog.clients import ClientCatalog, ClientRow, save_clients
from penstock.catalog.clock import save_reading
from penstock.catalog.credentials import REMOVED_OWNER
from penstock.catalog.database import Database
from penstock.catalog.feeds import (
    FeedRow,
    begin_new_topics,
    drop_feeds,
    put_feeds,
    recover_feeds,
)
from penstock.catalog.keys import KeyCatalog, KeyRow, save_keys
from penstock.catalog.outside import SEE_LEVELS, fetch_sessions
from penstock.catalog.retained import (
    RetainedHead,
    RetainedRow,
    erase_retained,
    fetch_retained,
    load_retained,
    save_retained,
)
from penstock.catalog.shares import ShareCatalog, ShareRow, ShareState, put_share_rows, save_shares
from penstock.catalog.stored_sessions import (
    OutstandingRow,
    StoredSession,
    SubscriptionRow,
    load_session,
)
from penstock.catalog.thread import Runner
from penstock.catalog.wills import delete_wills
from penstock.core.erasure import Erasure
from penstock.model.clock import Clock
from penstock.model.record import TenantId
from penstock.model.timeline import ClockReading

NEVER_EXPIRES: Final = 0xFFFF_FFFF


BehindRow = tuple[str, int, int, int]  # client id, topic id, epoch, next offset
OpenedRow = tuple[str, int, int]  # client id, topic id, packet id


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """Where a session stood when its client went."""

    client_id: str
    incarnation: int
    expiry_s: int
    at_us: int  # steady time
    positions: Sequence[tuple[int, int, int]]  # topic id, epoch, next offset
    outstanding: Sequence[OutstandingRow]
    opened: Sequence[tuple[int, int]]  # topic id, packet id
    feed_ids: Sequence[int]
    feeds: Sequence[FeedRow]


@dataclass(slots=True)
class Checkpoint:
    """Changes since the last one; applied whole or not at all."""

    levels: dict[int, tuple[int, int]] = field(default_factory=dict)  # topic id -> epoch, offset
    busy: list[str] = field(default_factory=list)  # clients whose rows below replace the old ones
    behind: list[BehindRow] = field(default_factory=list)
    outstanding: list[tuple[str, OutstandingRow]] = field(default_factory=list)
    feeds: list[tuple[str, list[int], list[FeedRow]]] = field(default_factory=list)  # of the busy
    opened: list[OpenedRow] = field(default_factory=list)
    released: list[OpenedRow] = field(default_factory=list)
    retained: list[RetainedRow] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)  # names whose retained message is gone
    wills: list[int] = field(default_factory=list)  # ids of wills that are in the logs by now
    shares: list[ShareState] = field(default_factory=list)
    keys: list[KeyRow] = field(default_factory=list)  # idempotency keys that are in the logs by now
    arrived: list[ClientRow] = field(default_factory=list)  # clients that connected
    left: list[tuple[str, int]] = field(default_factory=list)  # clients that disconnected, and when
    clock: ClockReading | None = None  # goes along, so that a crash loses little of it
    endings: list[Ending] = field(default_factory=list)  # not known to be saved; before the rest


# Owner of each stored session by client id, levels by topic id, retained messages.
Recovered = tuple[dict[str, str], dict[int, tuple[int, int]], list[RetainedHead]]


class SessionCatalog:
    """The sessions of a tenant; every method is one durable unit of work."""

    def __init__(self, runner: Runner, clock: Clock, tenant: TenantId) -> None:
        self.shares = ShareCatalog(runner, tenant)
        self.keys = KeyCatalog(runner, tenant)
        self.clients = ClientCatalog(runner, tenant)
        self._runner = runner
        self._tenant = tenant
        self._clock = clock

    async def recover(self) -> Recovered:
        """After any end: give sessions that were connected their position; what there is."""
        now_us = self._clock.steady_us()
        tenant = self._tenant

        def work(database: Database) -> Recovered:
            database.execute(
                "insert into session_positions (tenant, client_id, topic_id, epoch, next_offset)"
                " select s.tenant, s.client_id, l.topic_id, l.epoch, l.level_offset"
                " from sessions s join topics t on t.tenant = s.tenant"
                " join levels l on l.topic_id = t.topic_id"
                " where s.tenant = $1 and s.is_connected = 1"
                " on conflict (tenant, client_id, topic_id) do nothing",
                tenant,
            )
            recover_feeds(database, tenant)
            database.execute(
                "update sessions set is_connected = 0, disconnected_at = $2"
                " where tenant = $1 and is_connected = 1",
                tenant,
                now_us,
            )
            clients = database.fetch(
                "select client_id, owner from sessions where tenant = $1", tenant
            )
            levels = database.fetch(SEE_LEVELS, tenant)
            return (
                {row[0]: row[1] for row in clients},
                {topic_id: (epoch, offset) for topic_id, epoch, offset in levels},
                load_retained(database, tenant),
            )

        return await self._runner.run(work)

    async def fetch_retained(self, names: Sequence[str]) -> list[RetainedRow]:
        """The retained messages of these names, as the newest checkpoint has them."""
        tenant = self._tenant
        return await self._runner.run(lambda database: fetch_retained(database, tenant, names))

    async def erase_retained(self, topic_id: int, erasure: Erasure, *, dry_run: bool) -> int:
        """Delete the retained messages of these records; how many there were."""
        tenant = self._tenant
        return await self._runner.run(
            lambda database: erase_retained(database, tenant, topic_id, erasure, dry_run=dry_run)
        )

    async def rows_as_json(self) -> bytes:
        """All sessions as they are stored now, for `see_sessions` elsewhere."""
        # Encoded on the catalog's thread: there may be a hundred thousand.
        return await self._runner.run(
            lambda database: msgspec.json.encode(fetch_sessions(database.fetch, self._tenant))
        )

    async def incarnations(self) -> dict[int, str]:
        """Which client each living incarnation belongs to."""

        def work(database: Database) -> dict[int, str]:
            rows = database.fetch(
                "select incarnation, client_id from sessions where tenant = $1", self._tenant
            )
            return {row[0]: row[1] for row in rows}

        return await self._runner.run(work)

    async def begin(
        self, client_id: str, owner: str, expiry_s: int, *, is_clean: bool
    ) -> tuple[StoredSession, bool]:
        """The session of a client that connects, and whether it was there before.

        The caller has seen to it that a stored session belongs to `owner`.
        """

        def work(database: Database) -> tuple[StoredSession, bool]:
            if is_clean:
                _delete(database, self._tenant, client_id)
            else:
                _delete_removed(database, self._tenant, client_id)
            found = database.fetch(
                "select incarnation from sessions where tenant = $1 and client_id = $2",
                self._tenant,
                client_id,
            )
            if found:
                database.execute(
                    "update sessions set is_connected = 1, expiry_s = $3, owner = $4"
                    " where tenant = $1 and client_id = $2",
                    self._tenant,
                    client_id,
                    expiry_s,
                    owner,
                )
                _begin_new_topics(database, self._tenant, client_id)
            else:
                _insert(database, self._tenant, client_id, owner, expiry_s)
            return load_session(database, self._tenant, client_id), bool(found)

        return await self._runner.run(work)

    async def end(self, ending: Ending) -> None:
        """The client went: keep where it stands. Nothing happens to a newer incarnation."""
        await self._runner.run(lambda database: _end(database, self._tenant, ending))

    async def leave(self, client_id: str, incarnation: int) -> None:
        """The client went before its session changed: only its time begins anew."""
        now_us = self._clock.steady_us()

        def work(database: Database) -> None:
            database.execute(
                "update sessions set is_connected = 0, disconnected_at = $4"
                " where tenant = $1 and client_id = $2 and incarnation = $3",
                self._tenant,
                client_id,
                incarnation,
                now_us,
            )

        await self._runner.run(work)

    async def remove(self, client_id: str, incarnation: int) -> None:
        """The session ended for good."""

        def work(database: Database) -> None:
            database.execute(
                "delete from sessions where tenant = $1 and client_id = $2 and incarnation = $3",
                self._tenant,
                client_id,
                incarnation,
            )

        await self._runner.run(work)

    async def forget(self, client_id: str) -> None:
        """A client came with a clean start and wants nothing kept."""
        await self._runner.run(lambda database: _delete(database, self._tenant, client_id))

    async def forget_away(self, client_id: str) -> bool:
        """Remove the session of a client unless it is connected, or about to be; whether it was."""

        def work(database: Database) -> bool:
            removed = database.execute(
                "delete from sessions where tenant = $1 and client_id = $2 and is_connected = 0",
                self._tenant,
                client_id,
            )
            return bool(removed)

        return await self._runner.run(work)

    async def expire(self) -> list[str]:
        """Remove sessions whose time has run out; their clients."""
        now_us = self._clock.steady_us()

        def work(database: Database) -> list[str]:
            due = database.fetch(
                "select client_id from sessions where tenant = $1 and is_connected = 0"
                " and expiry_s < $2 and disconnected_at + expiry_s * 1000000 < $3",
                self._tenant,
                NEVER_EXPIRES,
                now_us,
            )
            for (client_id,) in due:
                _delete(database, self._tenant, client_id)
            return [client_id for (client_id,) in due]

        return await self._runner.run(work)

    async def subscribe(
        self,
        client_id: str,
        rows: Sequence[SubscriptionRow],
        feeds: Sequence[FeedRow] = (),
        shares: Sequence[ShareState] = (),
    ) -> None:
        """Add or replace filters, with where their feeds and new shares begin; then durable."""

        def work(database: Database) -> None:
            if shares:
                save_shares(database, self._tenant, shares)
            database.execute_many(
                "insert into subscriptions (tenant, client_id, filter, qos, options, identifier,"
                " since, feed_id, expression) values ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
                " on conflict (tenant, client_id, filter)"
                " do update set qos = excluded.qos, options = excluded.options,"
                " identifier = excluded.identifier, since = excluded.since,"
                " feed_id = excluded.feed_id, expression = excluded.expression",
                [
                    (
                        self._tenant,
                        client_id,
                        row.filter,
                        row.qos,
                        row.no_local | row.retain_as_published << 1,
                        row.identifier,
                        msgspec.json.encode(row.since).decode(),
                        row.feed_id,
                        row.expression,
                    )
                    for row in rows
                ],
            )
            put_feeds(database, self._tenant, client_id, {row[0] for row in feeds}, feeds)
            drop_feeds(database, self._tenant, client_id)

        await self._runner.run(work)

    async def unsubscribe(self, client_id: str, filters: Sequence[str]) -> None:
        def work(database: Database) -> None:
            database.execute_many(
                "delete from subscriptions where tenant = $1 and client_id = $2 and filter = $3",
                [(self._tenant, client_id, filter) for filter in filters],
            )
            drop_feeds(database, self._tenant, client_id)

        await self._runner.run(work)

    async def put_outstanding(
        self,
        client_id: str,
        rows: Sequence[OutstandingRow],
        shared: Sequence[tuple[int, ShareRow]] = (),
    ) -> None:
        """Messages that may leave once this returns; also to note that they are released.

        `shared` are those that came from a share, with its id.
        """

        def work(database: Database) -> None:
            database.execute_many(
                _PUT_OUTSTANDING, [_outstanding(self._tenant, client_id, row) for row in rows]
            )
            put_share_rows(database, self._tenant, shared)

        await self._runner.run(work)

    async def save(self, checkpoint: Checkpoint) -> None:
        """Move the views and positions to the levels of the checkpoint, all or nothing."""
        await self._runner.run(lambda database: _save(database, self._tenant, checkpoint))


_PUT_POSITION = (
    "insert into session_positions (tenant, client_id, topic_id, epoch, next_offset)"
    " values ($1, $2, $3, $4, $5) on conflict (tenant, client_id, topic_id)"
    " do update set epoch = excluded.epoch, next_offset = excluded.next_offset"
)
_PUT_OUTSTANDING = (
    "insert into outstanding"
    " (tenant, client_id, topic_id, message_offset, packet_id, qos, is_released, feed_id)"
    " select $1, $2, $3, $4, $5, $6, $7, $8 where exists"
    " (select 1 from sessions where tenant = $1 and client_id = $2)"
    " on conflict (tenant, client_id, feed_id, topic_id, message_offset)"
    " do update set packet_id = excluded.packet_id, is_released = excluded.is_released"
)
_PUT_OPENED = (
    "insert into opened (tenant, client_id, topic_id, packet_id) select $1, $2, $3, $4 where exists"
    " (select 1 from sessions where tenant = $1 and client_id = $2)"
    " on conflict (tenant, client_id, topic_id, packet_id) do nothing"
)


def _outstanding(tenant: TenantId, client_id: str, row: OutstandingRow) -> tuple[str | int, ...]:
    message = (row.topic_id, row.offset, row.packet_id, row.qos)
    return (tenant, client_id, *message, int(row.is_released), row.feed_id)


def _delete(database: Database, tenant: TenantId, client_id: str) -> None:
    database.execute("delete from sessions where tenant = $1 and client_id = $2", tenant, client_id)


def _delete_removed(database: Database, tenant: TenantId, client_id: str) -> None:
    """A session whose owner was removed is nobody's: a new user of that name begins anew."""
    database.execute(
        "delete from sessions where tenant = $1 and client_id = $2 and owner like $3",
        tenant,
        client_id,
        "%" + REMOVED_OWNER,
    )


def _insert(
    database: Database, tenant: TenantId, client_id: str, owner: str, expiry_s: int
) -> None:
    database.execute(
        "update counters set next_value = next_value + 1 where counter = $1", "incarnation"
    )
    ((following,),) = database.fetch(
        "select next_value from counters where counter = $1", "incarnation"
    )
    database.execute(
        "insert into sessions"
        " (tenant, client_id, owner, incarnation, expiry_s, is_connected, disconnected_at)"
        " values ($1, $2, $3, $4, $5, 1, 0)",
        tenant,
        client_id,
        owner,
        following - 1,
        expiry_s,
    )


def _begin_new_topics(database: Database, tenant: TenantId, client_id: str) -> None:
    """Topics born while the client was away are read from 0, also if a crash comes first.

    Without a row a connected session stands at the level, which such a topic may have passed.
    """
    database.execute(
        "insert into session_positions (tenant, client_id, topic_id, epoch, next_offset)"
        " select $1, $2, topic_id, 0, 0 from topics where tenant = $1"
        " on conflict (tenant, client_id, topic_id) do nothing",
        tenant,
        client_id,
    )
    begin_new_topics(database, tenant, client_id)


def _end(database: Database, tenant: TenantId, ending: Ending) -> None:
    key = (tenant, ending.client_id)
    if not database.execute(
        "update sessions set is_connected = 0, disconnected_at = $4,"
        " expiry_s = case when owner like $6 then 0 else $5 end"
        " where tenant = $1 and client_id = $2 and incarnation = $3",
        *key,
        ending.incarnation,
        ending.at_us,
        ending.expiry_s,
        "%" + REMOVED_OWNER,
    ):
        return
    for table in ("session_positions", "outstanding", "opened"):
        database.execute(f"delete from {table} where tenant = $1 and client_id = $2", *key)
    database.execute_many(_PUT_POSITION, [(*key, *position) for position in ending.positions])
    database.execute_many(
        _PUT_OUTSTANDING,
        [_outstanding(tenant, ending.client_id, row) for row in ending.outstanding],
    )
    database.execute_many(_PUT_OPENED, [(*key, *one) for one in ending.opened])
    put_feeds(database, tenant, ending.client_id, ending.feed_ids, ending.feeds)


def _save(database: Database, tenant: TenantId, checkpoint: Checkpoint) -> None:
    for ending in checkpoint.endings:
        _end(database, tenant, ending)
    database.execute_many(
        "insert into levels (topic_id, epoch, level_offset) select $1, $2, $3"
        " where exists (select 1 from topics where topic_id = $1)"
        " on conflict (topic_id) do update set epoch = excluded.epoch,"
        " level_offset = excluded.level_offset",
        [(topic_id, *level) for topic_id, level in checkpoint.levels.items()],
    )
    for table in ("session_positions", "outstanding"):
        database.execute_many(
            f"delete from {table} where tenant = $1 and client_id = $2",
            [(tenant, client_id) for client_id in checkpoint.busy],
        )
    database.execute_many(
        "insert into session_positions (tenant, client_id, topic_id, epoch, next_offset)"
        " select $1, $2, $3, $4, $5 where exists (select 1 from sessions"
        " where tenant = $1 and client_id = $2 and is_connected = 1)"
        " on conflict (tenant, client_id, topic_id) do update set epoch = excluded.epoch,"
        " next_offset = excluded.next_offset",
        [(tenant, *row) for row in checkpoint.behind],
    )
    database.execute_many(
        _PUT_OUTSTANDING,
        [_outstanding(tenant, client_id, row) for client_id, row in checkpoint.outstanding],
    )
    for client_id, feed_ids, feeds in checkpoint.feeds:
        put_feeds(database, tenant, client_id, feed_ids, feeds)
    save_shares(database, tenant, checkpoint.shares)
    save_keys(database, tenant, checkpoint.keys)
    database.execute_many(_PUT_OPENED, [(tenant, *one) for one in checkpoint.opened])
    database.execute_many(
        "delete from opened where tenant = $1 and client_id = $2 and topic_id = $3"
        " and packet_id = $4",
        [(tenant, *one) for one in checkpoint.released],
    )
    delete_wills(database, checkpoint.wills)
    save_clients(database, tenant, checkpoint.arrived, checkpoint.left)
    if checkpoint.clock is not None:
        save_reading(database, checkpoint.clock)
    save_retained(database, tenant, checkpoint.retained, checkpoint.forgotten)
