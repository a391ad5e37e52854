"""Where the feeds of persistent sessions stand: the SQL behind `catalog.sessions`.

A feed belongs to one subscription of one session and has a row per topic. While its client is
connected, only the topics in which it lags have one; in the others it stands at the level of the
checkpoint. While its client is away, every topic has one. Functions run inside the caller's
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.catalog.database.interface import Database
from penstock.model.record import TenantId

FeedRow = tuple[int, int, int, int]  # feed id, topic id, epoch, next offset
FeedPositions = dict[int, dict[int, tuple[int, int]]]  # feed id -> topic id -> epoch, next offset

_PUT: Final = (
    "insert into feed_positions (tenant, client_id, feed_id, topic_id, epoch, next_offset)"
    " select $1, $2, $3, $4, $5, $6 where exists"
    " (select 1 from sessions where tenant = $1 and client_id = $2)"
    " and exists (select 1 from topics where topic_id = $4)"
    " on conflict (tenant, client_id, feed_id, topic_id)"
    " do update set epoch = excluded.epoch, next_offset = excluded.next_offset"
)


def recover_feeds(database: Database, tenant: TenantId) -> None:
    """Feeds of sessions that were connected, and level in a topic, stand at its level."""
    database.execute(
        "insert into feed_positions (tenant, client_id, feed_id, topic_id, epoch, next_offset)"
        " select s.tenant, s.client_id, f.feed_id, l.topic_id, l.epoch, l.level_offset"
        " from sessions s join subscriptions f"
        " on f.tenant = s.tenant and f.client_id = s.client_id and f.feed_id > 0"
        " join topics t on t.tenant = s.tenant join levels l on l.topic_id = t.topic_id"
        " where s.tenant = $1 and s.is_connected = 1 and s.owner_inc is null"
        " on conflict (tenant, client_id, feed_id, topic_id) do nothing",
        tenant,
    )


def recover_feeds_of(database: Database, inc: int) -> None:
    """The same for the sessions of a dead node, which stand at its own level."""
    database.execute(
        "insert into feed_positions (tenant, client_id, feed_id, topic_id, epoch, next_offset)"
        " select s.tenant, s.client_id, f.feed_id, l.topic_id, l.epoch, l.level_offset"
        " from sessions s join subscriptions f"
        " on f.tenant = s.tenant and f.client_id = s.client_id and f.feed_id > 0"
        " join topics t on t.tenant = s.tenant"
        " join node_levels l on l.topic_id = t.topic_id and l.inc = s.owner_inc"
        " where s.owner_inc = $1 and s.is_connected = 1"
        " on conflict (tenant, client_id, feed_id, topic_id) do nothing",
        inc,
    )


def begin_new_topics(database: Database, tenant: TenantId, client_id: str) -> None:
    """Where a feed of a client that comes back has no position, it has that of the session.

    So it is in topics born while the client was away.
    """
    database.execute(
        "insert into feed_positions (tenant, client_id, feed_id, topic_id, epoch, next_offset)"
        " select p.tenant, p.client_id, s.feed_id, p.topic_id, p.epoch, p.next_offset"
        " from subscriptions s join session_positions p"
        " on p.tenant = s.tenant and p.client_id = s.client_id"
        " where s.tenant = $1 and s.client_id = $2 and s.feed_id > 0"
        " on conflict (tenant, client_id, feed_id, topic_id) do nothing",
        tenant,
        client_id,
    )


def load_feeds(database: Database, tenant: TenantId, client_id: str) -> FeedPositions:
    found: FeedPositions = {}
    rows = database.fetch(
        "select feed_id, topic_id, epoch, next_offset from feed_positions"
        " where tenant = $1 and client_id = $2",
        tenant,
        client_id,
    )
    for feed_id, topic_id, epoch, offset in rows:
        found.setdefault(feed_id, {})[topic_id] = (epoch, offset)
    return found


def put_feeds(
    database: Database,
    tenant: TenantId,
    client_id: str,
    feed_ids: Iterable[int],
    rows: Sequence[FeedRow],
) -> None:
    """These feeds stand there, and nowhere else; other feeds of the client are left alone."""
    database.execute_many(
        "delete from feed_positions where tenant = $1 and client_id = $2 and feed_id = $3",
        [(tenant, client_id, feed_id) for feed_id in feed_ids],
    )
    database.execute_many(_PUT, [(tenant, client_id, *row) for row in rows])


def drop_feeds(database: Database, tenant: TenantId, client_id: str) -> None:
    """Forget the feeds of subscriptions that are gone."""
    database.execute(
        "delete from feed_positions where tenant = $1 and client_id = $2 and not exists"
        " (select 1 from subscriptions s where s.tenant = feed_positions.tenant"
        " and s.client_id = feed_positions.client_id and s.feed_id = feed_positions.feed_id)",
        tenant,
        client_id,
    )
