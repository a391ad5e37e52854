"""The catalog for other processes: read in one transaction while a broker has it open.

Nothing is changed and no lock is kept: a look is one short read transaction. It sees what the
broker has committed: sessions of clients that are away are exact, those of connected clients are as
the newest checkpoint has them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.catalog.database.interface import Row
from penstock.catalog.schema.migrations import MIGRATIONS
from penstock.core.naming.names import quoted
from penstock.model.errors import RefusedError, UnavailableError
from penstock.model.record import DEFAULT_TENANT, TenantId

CATALOG_NAME: Final = "catalog.db"  # in the data directory
BUSY_S_MAX: Final = 5.0

Fetch = Callable[..., list[Row]]  # SQL and its arguments
At = tuple[int, int]  # epoch, next offset
SessionRows = dict[str, list[Row]]  # by table; `see_sessions` knows the columns

SEE_LEVELS: Final = (  # of a tenant's topics
    "select l.topic_id, l.epoch, l.level_offset from levels l"
    " join topics t on t.topic_id = l.topic_id where t.tenant = $1"
)
_SESSION_TABLES: Final = (  # table, columns, order
    ("sessions", "client_id, is_connected", "order by client_id"),
    (
        "subscriptions",
        "client_id, filter, qos, options, since, feed_id, expression",
        "order by client_id, filter",
    ),
    ("session_positions", "client_id, topic_id, epoch, next_offset", ""),
    ("feed_positions", "client_id, feed_id, topic_id, epoch, next_offset", ""),
    ("outstanding", "client_id, feed_id, topic_id, message_offset", ""),
)


class CatalogPlace(msgspec.Struct, frozen=True):
    """Where a broker keeps its catalog: in its data directory unless `url` names a PostgreSQL."""

    data: Path
    url: str = ""
    schema: str = "penstock"


class FilterSeen(msgspec.Struct, frozen=True):
    """A filter of a persistent session."""

    client_id: str
    filter: str
    qos: int
    no_local: bool
    since: dict[int, int]  # by topic id
    feed_id: int  # 0: it has no feed of its own
    expression: str


class SessionsSeen(msgspec.Struct):
    """All persistent sessions at one moment."""

    connected: dict[str, bool] = msgspec.field(default_factory=dict)  # by client id
    filters: list[FilterSeen] = msgspec.field(default_factory=list)
    levels: dict[int, At] = msgspec.field(default_factory=dict)  # by topic id
    positions: dict[str, dict[int, At]] = msgspec.field(default_factory=dict)  # by client, topic id
    feeds: dict[tuple[str, int], dict[int, At]] = msgspec.field(
        default_factory=dict
    )  # (client, feed id)
    # What was sent to a session or a feed, wherever it stands: (topic id, offset).
    out: dict[tuple[str, int], set[tuple[int, int]]] = msgspec.field(default_factory=dict)

    def at(self, client_id: str, feed_id: int, topic_id: int) -> At:
        """Where a session, or one of its feeds, goes on in a topic."""
        own = self.positions.get(client_id, {}).get(topic_id)
        is_connected = self.connected[client_id]
        if feed_id:
            fed = self.feeds.get((client_id, feed_id), {}).get(topic_id)
            own = fed if fed is not None or is_connected else own
        if own is not None:
            return own
        if is_connected:  # level with the topic, as of the newest checkpoint
            return self.levels.get(topic_id, (0, 0))
        return 0, 0  # the topic was born while the client was away


class ConsumerSeen(msgspec.Struct, frozen=True):
    """Who reads a topic, and where it goes on."""

    kind: str  # consumer or group
    name: str
    topic_id: int
    epoch: int
    next_offset: int


class TopicSeen(msgspec.Struct, frozen=True):
    """A declared topic."""

    topic_id: int
    declared: str
    settings: str  # JSON


@contextmanager
def look(place: CatalogPlace, *, is_closed: bool = False) -> Iterator[Fetch]:
    """Queries that all see the same moment.

    `is_closed`: the caller keeps everybody from opening the directory. Then a look leaves no file
    of SQLite behind; UnavailableError if the catalog was not closed in order.
    """
    if place.url:
        with _look_postgres(place) as fetch:
            yield fetch
        return
    file = place.data / CATALOG_NAME
    if not file.exists():
        raise RefusedError(
            f"{quoted(str(place.data))} contains no catalog: give a broker's data directory; if "
            "the catalog is in PostgreSQL, set PENSTOCK_CATALOG__URL"
        )
    address = closed_address(file) if is_closed else f"{file.absolute().as_uri()}?mode=ro"
    try:
        connection = sqlite3.connect(address, BUSY_S_MAX, isolation_level=None, uri=True)
        try:
            connection.execute("begin")
            yield lambda sql, *args: connection.execute(sql, _named(args)).fetchall()
        finally:
            connection.close()
    except sqlite3.OperationalError as failed:
        raise UnavailableError(f"catalog {file} cannot be read: {failed}") from failed


def closed_address(file: Path) -> str:
    """Where SQLite reads a catalog that nobody has open, and leaves no file of its own behind."""
    if file.with_name(f"{CATALOG_NAME}-wal").exists():
        raise UnavailableError(
            f"catalog {file} was not closed cleanly: start a broker on "
            "this directory once to repair it"
        )
    return f"{file.absolute().as_uri()}?mode=ro&immutable=1"


@contextmanager
def _look_postgres(place: CatalogPlace) -> Iterator[Fetch]:
    from penstock.postgres.connection import connect

    connection = connect(place.url, place.schema)
    try:
        connection.execute("begin transaction isolation level repeatable read, read only")
        yield lambda sql, *args: connection.execute(sql, args).fetchall()
    finally:
        connection.close()


def see_topics(fetch: Fetch, tenant: TenantId = DEFAULT_TENANT) -> list[TopicSeen]:
    """The topics of the tenant; UnavailableError if a broker would change the tables first."""
    ((version,),) = fetch("select max(version) from schema_version")
    if version != MIGRATIONS[-1].number:
        raise UnavailableError(
            f"the catalog has schema version {version} but version {MIGRATIONS[-1].number} is "
            "needed: start a broker on this directory once to upgrade it"
        )
    sql = "select topic_id, declared, settings from topics where tenant = $1 order by topic_id"
    return [TopicSeen(*row) for row in fetch(sql, tenant)]


def fetch_sessions(fetch: Fetch, tenant: TenantId = DEFAULT_TENANT) -> SessionRows:
    """The persistent sessions of the tenant, whole, by table."""
    rows = {
        table: fetch(f"select {columns} from {table} where tenant = $1 {order}", tenant)
        for table, columns, order in _SESSION_TABLES
    }
    rows["levels"] = fetch(SEE_LEVELS, tenant)
    return rows


def see_sessions(rows: SessionRows) -> SessionsSeen:
    """What `fetch_sessions` brought, from here or from a broker that was asked."""
    seen = SessionsSeen()
    for client_id, is_connected in rows["sessions"]:
        seen.connected[client_id] = bool(is_connected)
    seen.filters = [
        FilterSeen(
            client_id=client_id,
            filter=filter,
            qos=qos,
            no_local=bool(options & 1),
            since=_since(since),
            feed_id=feed_id,
            expression=expression,
        )
        for client_id, filter, qos, options, since, feed_id, expression in rows["subscriptions"]
    ]
    for topic_id, epoch, offset in rows["levels"]:
        seen.levels[topic_id] = (epoch, offset)
    for client_id, topic_id, epoch, offset in rows["session_positions"]:
        seen.positions.setdefault(client_id, {})[topic_id] = (epoch, offset)
    for client_id, feed_id, topic_id, epoch, offset in rows["feed_positions"]:
        seen.feeds.setdefault((client_id, feed_id), {})[topic_id] = (epoch, offset)
    for client_id, feed_id, topic_id, offset in rows["outstanding"]:
        seen.out.setdefault((client_id, feed_id), set()).add((topic_id, offset))
    return seen


def see_consumers(fetch: Fetch, tenant: TenantId = DEFAULT_TENANT) -> list[ConsumerSeen]:
    """Consumers and groups with their saved positions."""
    consumers = fetch(
        "select c.consumer, c.topic_id, coalesce(p.epoch, 0), coalesce(p.next_offset, 0)"
        " from consumers c left join positions p on p.tenant = c.tenant"
        " and p.topic_id = c.topic_id and p.consumer = c.consumer where c.tenant = $1"
        " order by c.consumer",
        tenant,
    )
    groups = fetch(
        "select group_name, topic_id, epoch, next_offset from groups where tenant = $1"
        " order by group_name",
        tenant,
    )
    return [ConsumerSeen("consumer", *row) for row in consumers] + [
        ConsumerSeen("group", *row) for row in groups
    ]


@lru_cache(maxsize=1_000)  # clients that subscribed at about the same time say the same
def _since(text: str) -> dict[int, int]:
    return msgspec.json.decode(text, type=dict[int, int])


def _named(args: tuple[Any, ...]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(args, 1)}
