"""What a checkpoint and the end of a connection write: one transaction each.

A node writes where several use one catalog: what is a session's only while it owns it, how far it
is under its own incarnation, and retained messages only as far as no other node has saved them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.catalog.access.clients import ClientRow, save_clients
from penstock.catalog.access.credentials import REMOVED_OWNER
from penstock.catalog.clock import save_reading
from penstock.catalog.cluster.share_parts import (
    OwnedParts,
    SettledPin,
    save_parts,
    settle_pins,
)
from penstock.catalog.database.interface import Database
from penstock.catalog.queue.keys import KeyRow, save_keys
from penstock.catalog.session.feeds import FeedRow, put_feeds
from penstock.catalog.session.retained import RetainedRow, save_retained
from penstock.catalog.session.shares import ShareState, save_shares
from penstock.catalog.session.stored_sessions import OutstandingRow
from penstock.catalog.session.wills import delete_wills
from penstock.model.record import TenantId
from penstock.model.timeline import ClockReading

Levels = dict[int, tuple[int, int]]  # topic id -> epoch, offset
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
    settled: Sequence[SettledPin] = ()  # what it was sent of shares and is done with


@dataclass(slots=True)
class Checkpoint:
    """Changes since the last one; applied whole or not at all."""

    levels: Levels = field(default_factory=dict)
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
    parts: list[OwnedParts] = field(default_factory=list)  # of shares, where several nodes have it
    settled: list[SettledPin] = field(default_factory=list)  # there as well
    keys: list[KeyRow] = field(default_factory=list)  # idempotency keys that are in the logs by now
    arrived: list[ClientRow] = field(default_factory=list)  # clients that connected
    left: list[tuple[str, int]] = field(default_factory=list)  # clients that disconnected, and when
    clock: ClockReading | None = None  # goes along, so that a crash loses little of it
    endings: list[Ending] = field(default_factory=list)  # not known to be saved; before the rest


_PUT_POSITION = (
    "insert into session_positions (tenant, client_id, topic_id, epoch, next_offset)"
    " values ($1, $2, $3, $4, $5) on conflict (tenant, client_id, topic_id)"
    " do update set epoch = excluded.epoch, next_offset = excluded.next_offset"
)
PUT_OUTSTANDING = (
    "insert into outstanding"
    " (tenant, client_id, topic_id, message_offset, packet_id, qos, is_released, feed_id)"
    " select $1, $2, $3, $4, $5, $6, $7, $8 where exists"
    " (select 1 from sessions where tenant = $1 and client_id = $2"
    " and coalesce(owner_inc, 0) = $9)"
    " on conflict (tenant, client_id, feed_id, topic_id, message_offset)"
    " do update set packet_id = excluded.packet_id, is_released = excluded.is_released"
)
_PUT_OPENED = (
    "insert into opened (tenant, client_id, topic_id, packet_id) select $1, $2, $3, $4 where exists"
    " (select 1 from sessions where tenant = $1 and client_id = $2"
    " and coalesce(owner_inc, 0) = $5)"
    " on conflict (tenant, client_id, topic_id, packet_id) do nothing"
)


def outstanding_values(
    tenant: TenantId, client_id: str, row: OutstandingRow, inc: int
) -> tuple[str | int, ...]:
    message = (row.topic_id, row.offset, row.packet_id, row.qos)
    return (tenant, client_id, *message, int(row.is_released), row.feed_id, inc)


def save_end(database: Database, tenant: TenantId, ending: Ending, inc: int = 0) -> None:
    """Where a session stands that has no client any more; only while it is this node's."""
    key = (tenant, ending.client_id)
    if not database.execute(
        "update sessions set is_connected = 0, owner_inc = null, disconnected_at = $4,"
        " expiry_s = case when owner like $6 then 0 else $5 end"
        " where tenant = $1 and client_id = $2 and incarnation = $3"
        " and coalesce(owner_inc, 0) = $7",
        *key,
        ending.incarnation,
        ending.at_us,
        ending.expiry_s,
        "%" + REMOVED_OWNER,
        inc,
    ):
        return
    for table in ("session_positions", "outstanding", "opened"):
        database.execute(f"delete from {table} where tenant = $1 and client_id = $2", *key)
    database.execute_many(_PUT_POSITION, [(*key, *position) for position in ending.positions])
    put_outstanding(database, tenant, [(ending.client_id, row) for row in ending.outstanding], 0)
    database.execute_many(_PUT_OPENED, [(*key, *one, 0) for one in ending.opened])
    put_feeds(database, tenant, ending.client_id, ending.feed_ids, ending.feeds)
    settle_pins(database, tenant, ending.settled)


def put_outstanding(
    database: Database, tenant: TenantId, rows: Sequence[tuple[str, OutstandingRow]], inc: int
) -> None:
    """Messages that are out to clients whose sessions belong to this node."""
    database.execute_many(
        PUT_OUTSTANDING,
        [outstanding_values(tenant, client_id, row, inc) for client_id, row in rows],
    )


def save_checkpoint(
    database: Database, tenant: TenantId, checkpoint: Checkpoint, inc: int = 0
) -> None:
    """Move the views and positions to the levels of the checkpoint."""
    for ending in checkpoint.endings:
        save_end(database, tenant, ending, inc)
    if inc:
        _save_shared(database, tenant, checkpoint, inc)
    else:
        save_levels(database, checkpoint.levels)
        save_retained(database, tenant, checkpoint.retained, checkpoint.forgotten)
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
    put_outstanding(database, tenant, checkpoint.outstanding, inc)
    for client_id, feed_ids, feeds in checkpoint.feeds:
        put_feeds(database, tenant, client_id, feed_ids, feeds)
    save_shares(database, tenant, checkpoint.shares)
    settle_pins(database, tenant, checkpoint.settled)
    save_parts(database, tenant, inc, checkpoint.parts)
    save_keys(database, tenant, checkpoint.keys)
    save_opened(database, tenant, checkpoint.opened, checkpoint.released, inc)
    delete_wills(database, checkpoint.wills)
    save_clients(database, tenant, checkpoint.arrived, checkpoint.left)
    if checkpoint.clock is not None:
        save_reading(database, checkpoint.clock)


def save_opened(
    database: Database,
    tenant: TenantId,
    opened: Sequence[OpenedRow],
    released: Sequence[OpenedRow],
    inc: int,
) -> None:
    """Packet ids of QoS 2 that clients have opened, and those that they have released.

    Only of sessions that belong to this node: another one may have changed them since.
    """
    database.execute_many(_PUT_OPENED, [(tenant, *one, inc) for one in opened])
    database.execute_many(
        "delete from opened where tenant = $1 and client_id = $2 and topic_id = $3"
        " and packet_id = $4 and exists (select 1 from sessions where tenant = $1"
        " and client_id = $2 and coalesce(owner_inc, 0) = $5)",
        [(tenant, *one, inc) for one in released],
    )


def save_levels(database: Database, levels: Levels, *, is_first: bool = False) -> None:
    """Where topics are now; `is_first`: unless that is known."""
    change = "set epoch = excluded.epoch, level_offset = excluded.level_offset"
    database.execute_many(
        "insert into levels (topic_id, epoch, level_offset) select $1, $2, $3"
        " where exists (select 1 from topics where topic_id = $1)"
        f" on conflict (topic_id) do {'nothing' if is_first else f'update {change}'}",
        [(topic_id, *level) for topic_id, level in levels.items()],
    )


def _lock_level(database: Database, topic_id: int) -> int:
    """How far the retained messages of a topic are saved; nobody changes that meanwhile."""
    for _ in range(2):
        rows = database.fetch(
            "select level_offset from levels where topic_id = $1 for update", topic_id
        )
        if rows:
            return int(rows[0][0])
        save_levels(database, {topic_id: (0, 0)}, is_first=True)  # or another node just did
    return 0  # the topic is gone


def _save_shared(database: Database, tenant: TenantId, checkpoint: Checkpoint, inc: int) -> None:
    """How far this node is, and those retained messages that no other node has saved.

    A row of `levels` is what the retained messages of all nodes are saved up to: it only grows, and
    who moves it holds its lock. So a message is saved by whichever node comes first.
    """
    database.execute_many(
        "insert into node_levels (inc, topic_id, epoch, level_offset) select $1, $2, $3, $4"
        " where exists (select 1 from topics where topic_id = $2)"
        " on conflict (inc, topic_id) do update set epoch = excluded.epoch,"
        " level_offset = excluded.level_offset",
        [(inc, topic_id, *level) for topic_id, level in sorted(checkpoint.levels.items())],
    )
    saved: dict[int, int] = {}
    for topic_id in sorted(checkpoint.levels):  # in one order, so that nodes never block each other
        saved[topic_id] = _lock_level(database, topic_id)
    newer = [row for row in checkpoint.retained if row.offset >= saved.get(row.topic_id, 0)]
    # What this node has not seen yet is not deleted by what it has.
    database.execute_many(
        "delete from retained where tenant = $1 and name = $2 and message_offset <"
        " (select level_offset from node_levels n where n.inc = $3"
        " and n.topic_id = retained.topic_id)",
        [(tenant, name, inc) for name in checkpoint.forgotten],
    )
    save_retained(database, tenant, sorted(newer, key=lambda row: row.name), ())
    ahead = {
        topic_id: level
        for topic_id, level in checkpoint.levels.items()
        if level[1] > saved[topic_id]
    }
    save_levels(database, dict(sorted(ahead.items())))
