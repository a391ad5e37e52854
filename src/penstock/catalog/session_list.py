"""Looking at stored sessions without touching them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.catalog.database import Database
from penstock.catalog.feeds import FeedPositions, load_feeds
from penstock.catalog.thread import Runner
from penstock.model.record import DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class FilterRow:
    """A filter of a session, as far as it says what waits."""

    filter: str
    qos: int
    since: dict[int, int]
    feed_id: int
    expression: str


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in the catalog."""

    client_id: str
    owner: str
    expiry_s: int
    disconnected_at: int  # µs since 1970, UTC
    filters: list[FilterRow]
    positions: dict[int, tuple[int, int]]  # topic id -> epoch, next offset
    outstanding: int
    feeds: FeedPositions


class SessionList:
    """Reads, over the catalog's runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def find(self, client_ids: list[str]) -> list[SessionRow]:
        """Those of these clients that have one."""

        def work(database: Database) -> list[SessionRow]:
            found = [_load(database, client_id) for client_id in client_ids]
            return [row for row in found if row is not None]

        return await self._runner.run(work)


def _load(database: Database, client_id: str) -> SessionRow | None:
    key = (DEFAULT_TENANT, client_id)
    rows = database.fetch(
        "select owner, expiry_s, disconnected_at from sessions"
        " where tenant = $1 and client_id = $2",
        *key,
    )
    if not rows:
        return None
    filters = database.fetch(
        "select filter, qos, since, feed_id, expression from subscriptions"
        " where tenant = $1 and client_id = $2 order by filter",
        *key,
    )
    positions = database.fetch(
        "select topic_id, epoch, next_offset from session_positions"
        " where tenant = $1 and client_id = $2",
        *key,
    )
    ((outstanding,),) = database.fetch(
        "select count(*) from outstanding"
        " where tenant = $1 and client_id = $2 and packet_id <> 0 and is_released = 0",
        *key,
    )
    owner, expiry_s, disconnected_at = rows[0]
    return SessionRow(
        client_id,
        owner,
        expiry_s,
        disconnected_at,
        [
            FilterRow(
                filter, qos, msgspec.json.decode(since, type=dict[int, int]), feed_id, expression
            )
            for filter, qos, since, feed_id, expression in filters
        ],
        {topic_id: (epoch, offset) for topic_id, epoch, offset in positions},
        outstanding,
        load_feeds(database, client_id),
    )
