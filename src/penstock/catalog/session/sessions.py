"""Persistent sessions, retained messages and the checkpoint that ties them to the logs.

The checkpoint is one transaction: the level of every topic, the positions of the sessions that are
behind it, and every view as of that level. After a crash a session that was connected and has no
position of its own stands at the level; views are brought up to date by reading the logs from
there. So a session that is level with its topics costs nothing to save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.catalog.access.clients import ClientCatalog
from penstock.catalog.access.credentials import REMOVED_OWNER
from penstock.catalog.cluster.holdings import check_made
from penstock.catalog.cluster.share_parts import (
    PartCatalog,
    attach_share,
    end_pins,
    load_pins,
    place_live_shares,
)
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.catalog.outside import SEE_LEVELS, fetch_sessions
from penstock.catalog.queue.keys import KeyCatalog
from penstock.catalog.session.feeds import (
    FeedRow,
    begin_new_topics,
    drop_feeds,
    put_feeds,
    recover_feeds,
)
from penstock.catalog.session.retained import (
    RetainedHead,
    RetainedRow,
    erase_retained,
    fetch_retained,
    load_retained,
)
from penstock.catalog.session.saving import (
    Checkpoint,
    Ending,
    Levels,
    put_outstanding,
    save_checkpoint,
    save_end,
)
from penstock.catalog.session.shares import (
    ShareCatalog,
    ShareRow,
    ShareState,
    put_share_rows,
    save_shares,
)
from penstock.catalog.session.stored_sessions import (
    OutstandingRow,
    StoredSession,
    SubscriptionRow,
    load_session,
)
from penstock.core.erasure import Erasure
from penstock.core.quotas import SESSIONS, Limits
from penstock.model.clock import Clock
from penstock.model.errors import NotAuthorized, UnavailableError
from penstock.model.record import TenantId

NEVER_EXPIRES: Final = 0xFFFF_FFFF


# Owner of each stored session by client id, levels by topic id, retained messages.
Recovered = tuple[dict[str, str], Levels, list[RetainedHead]]
MayHave = Callable[[str], bool]  # whether a session of this user may be given to who connects


class SessionElsewhere(UnavailableError):
    """The session of a client belongs to another node, which has to release it first."""

    def __init__(self, client_id: str, owner_inc: int) -> None:
        super().__init__(
            f"the session of client {client_id!r} is on another node (incarnation {owner_inc}), "
            "which has not released it: try again"
        )
        self.owner_inc = owner_inc


class SessionCatalog:
    """The sessions of a tenant; every method is one durable unit of work."""

    def __init__(self, runner: Runner, clock: Clock, tenant: TenantId, inc: int = 0) -> None:
        """`inc` is the incarnation of a node; 0 where one broker has the catalog for itself."""
        self._inc = inc
        self.shares = ShareCatalog(runner, tenant)
        self.parts = PartCatalog(runner, tenant, inc)
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
                " where s.tenant = $1 and s.is_connected = 1 and s.owner_inc is null"
                " on conflict (tenant, client_id, topic_id) do nothing",
                tenant,
            )
            recover_feeds(database, tenant)
            if self._inc:
                place_live_shares(database, tenant)
            database.execute(
                "update sessions set is_connected = 0, disconnected_at = $2"
                " where tenant = $1 and is_connected = 1 and owner_inc is null",
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

    async def filter_counts(self) -> list[tuple[str, int]]:
        """How many filters each stored session has."""
        tenant = self._tenant

        def work(database: Database) -> list[tuple[str, int]]:
            rows = database.fetch(
                "select client_id, count(*) from subscriptions where tenant = $1"
                " group by client_id",
                tenant,
            )
            return [(client_id, count) for client_id, count in rows]

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

    async def scrub(self) -> None:
        """Leave nothing of what was deleted in the catalog's files; UnavailableError says why not.

        It does not wait for other programs that hold the files.
        """
        await self._runner.run(lambda database: database.scrub())
        await self._runner.run(lambda database: database.check_scrubbed())

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
        self,
        client_id: str,
        owner: str,
        expiry_s: int,
        *,
        is_clean: bool,
        may_have: MayHave | None = None,
        limits: tuple[Limits, Limits] | None = None,
    ) -> tuple[StoredSession, bool]:
        """The session of a client that connects, and whether it was there before.

        The caller has seen to it that a stored session belongs to `owner`, or gives `may_have`:
        then it is NotAuthorized. A node is refused what another one has (SessionElsewhere), and
        what is beyond the quotas `limits` of a tenant and its users (QuotaExceeded).
        """

        def work(database: Database) -> tuple[StoredSession, bool]:
            if self._inc:
                self._claim(database, client_id, may_have)
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
                    "update sessions set is_connected = 1, expiry_s = $3, owner = $4,"
                    " owner_inc = $5 where tenant = $1 and client_id = $2",
                    self._tenant,
                    client_id,
                    expiry_s,
                    owner,
                    self._inc or None,
                )
                _begin_new_topics(database, self._tenant, client_id)
            else:
                _insert(database, self._tenant, client_id, owner, expiry_s=expiry_s, inc=self._inc)
                if limits is not None:
                    check_made(database, self._tenant, SESSIONS, owner, limits)
            stored = load_session(database, self._tenant, client_id)
            if self._inc:
                stored.pins.extend(load_pins(database, self._tenant, client_id))
            return stored, bool(found)

        return await self._runner.run(work)

    def _claim(self, database: Database, client_id: str, may_have: MayHave | None) -> None:
        """Lock the row of a session, if there is one, and see that it can become this node's."""
        rows = database.fetch(
            "select owner, coalesce(owner_inc, 0) from sessions"
            " where tenant = $1 and client_id = $2 for update",
            *(self._tenant, client_id),
        )
        for owner, owner_inc in rows:
            is_removed = owner.endswith(REMOVED_OWNER)
            if may_have is not None and not is_removed and not may_have(owner):
                raise NotAuthorized(f"the session of client {client_id!r} belongs to another user")
            if owner_inc not in (0, self._inc):
                raise SessionElsewhere(client_id, owner_inc)

    async def end(self, ending: Ending) -> None:
        """The client went: keep where it stands. Nothing happens to a newer incarnation."""
        await self._runner.run(lambda database: save_end(database, self._tenant, ending, self._inc))

    async def leave(self, client_id: str, incarnation: int) -> None:
        """The client went before its session changed: only its time begins anew."""
        now_us = self._clock.steady_us()

        def work(database: Database) -> None:
            database.execute(
                "update sessions set is_connected = 0, owner_inc = null, disconnected_at = $4"
                " where tenant = $1 and client_id = $2 and incarnation = $3"
                " and coalesce(owner_inc, 0) = $5",
                self._tenant,
                client_id,
                incarnation,
                now_us,
                self._inc,
            )

        await self._runner.run(work)

    async def give_up(self, client_id: str) -> None:
        """This node has the session and no client for it; nothing happened to it here."""
        now_us = self._clock.steady_us()

        def work(database: Database) -> None:
            database.execute(
                "update sessions set is_connected = 0, owner_inc = null, disconnected_at = $4"
                " where tenant = $1 and client_id = $2 and owner_inc = $3",
                *(self._tenant, client_id, self._inc, now_us),
            )

        await self._runner.run(work)

    async def remove(self, client_id: str, incarnation: int) -> None:
        """The session ended for good."""

        def work(database: Database) -> None:
            removed = database.execute(
                "delete from sessions where tenant = $1 and client_id = $2 and incarnation = $3"
                " and coalesce(owner_inc, 0) = $4",
                self._tenant,
                client_id,
                incarnation,
                self._inc,
            )
            if self._inc and removed:
                end_pins(database, self._tenant, client_id)

        await self._runner.run(work)

    async def forget(self, client_id: str) -> None:
        """A client came with a clean start and wants nothing kept."""
        await self._runner.run(lambda database: _delete(database, self._tenant, client_id))

    async def forget_away(self, client_id: str) -> bool:
        """Remove the session of a client unless it is connected, or about to be; whether it was."""

        def work(database: Database) -> bool:
            removed = database.execute(
                "delete from sessions where tenant = $1 and client_id = $2 and is_connected = 0"
                " and owner_inc is null",
                self._tenant,
                client_id,
            )
            return bool(removed)

        return await self._runner.run(work)

    async def expire(self) -> list[str]:
        """Remove sessions whose time has run out; their clients."""
        now_us = self._clock.steady_us()

        def work(database: Database) -> list[str]:
            due = (
                " is_connected = 0 and owner_inc is null and expiry_s < $2"
                " and disconnected_at + expiry_s * 1000000 < $3"
            )
            asked = (self._tenant, NEVER_EXPIRES, now_us)
            rows = database.fetch(
                f"select client_id from sessions where tenant = $1 and{due} order by client_id",
                *asked,
            )
            return [
                client_id
                for (client_id,) in rows
                if database.execute(  # its client may connect to another node meanwhile
                    f"delete from sessions where tenant = $1 and client_id = $4 and{due}",
                    *(*asked, client_id),
                )
            ]

        return await self._runner.run(work)

    async def subscribe(
        self,
        client_id: str,
        rows: Sequence[SubscriptionRow],
        feeds: Sequence[FeedRow] = (),
        shares: Sequence[ShareState] = (),
    ) -> dict[str, int]:
        """Add or replace filters, with where their feeds and new shares begin; then durable.

        A node is told the ids of the shares, by what clients write.
        """

        def work(database: Database) -> dict[str, int]:
            ids = {}
            if self._inc:
                ids = {
                    one.filter: attach_share(database, self._tenant, one.filter, one.positions)
                    for one in sorted(shares, key=lambda one: one.filter)
                }
            elif shares:
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
            return ids

        return await self._runner.run(work)

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
            own = [(client_id, row) for row in rows]
            put_outstanding(database, self._tenant, own, self._inc)
            put_share_rows(database, self._tenant, shared)

        await self._runner.run(work)

    async def save(self, checkpoint: Checkpoint) -> None:
        """Move the views and positions to the levels of the checkpoint, all or nothing."""
        await self._runner.run(
            lambda database: save_checkpoint(database, self._tenant, checkpoint, self._inc)
        )


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
    database: Database, tenant: TenantId, client_id: str, owner: str, expiry_s: int, inc: int
) -> None:
    database.execute(
        "update counters set next_value = next_value + 1 where counter = $1", "incarnation"
    )
    ((following,),) = database.fetch(
        "select next_value from counters where counter = $1", "incarnation"
    )
    if inc:
        end_pins(database, tenant, client_id)  # of an earlier session
    database.execute(
        "insert into sessions"
        " (tenant, client_id, owner, incarnation, expiry_s, is_connected, disconnected_at,"
        " owner_inc) values ($1, $2, $3, $4, $5, 1, 0, $6)",
        tenant,
        client_id,
        owner,
        following - 1,
        expiry_s,
        inc or None,
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
