"""The lease of a node: renewed from the event loop, so that a node that stands still loses it.

A connection of its own, so that no transaction of the catalog delays a heartbeat. It also hears of
changes that other nodes commit, and finds nodes that have died: those whose lease has run out, and
those whose connection, and with it their lock, is gone for DEAD_S.

Invariant: a node acknowledges nothing once its lease has passed since it sent the newest heartbeat
that was confirmed: it is told to end after ENDED_PART of it, and the others wait for all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.types.numeric import Int8Dumper

from penstock.catalog.cluster.joining import node_part
from penstock.catalog.cluster.nodes import DEAD, LIVE, SERVER_US
from penstock.catalog.cluster.triggers import ASK, WATCHED, channel
from penstock.postgres.connection import OPTIONS, RETRY_S_MIN, one_line, shown_url
from penstock.postgres.locks import lock_key

LOG: Final = logging.getLogger("penstock.cluster")

LEASE_S: Final = 3.0  # unless the settings say otherwise
BEATS_PER_LEASE: Final = 6
ENDED_PART: Final = 0.8
DEAD_S: Final = 1.0  # a node that lost its connection, and is well, is back sooner
MARK_MS_MAX: Final = 500  # for the transactions of a dead node to end; then with the next beat

_BEAT: Final = (
    f"with beat as (update leases set expires = {SERVER_US} + $2, clients = $3 where inc = $1)"
    " select state, is_draining from nodes where inc = $1"
)
_OTHERS: Final = (
    f"select n.inc, n.state, coalesce(l.expires, 0), coalesce(l.expires, 0) < {SERVER_US}"
    " from nodes n left join leases l on l.inc = n.inc where n.state in ('live', 'dead')"
    " and n.inc <> $1 order by n.inc"
)
_LOCKS: Final = (
    "select (classid::bigint << 32) | objid::bigint from pg_locks where locktype = 'advisory'"
    " and granted and objsubid = 1"
    " and database = (select oid from pg_database where datname = current_database())"
)
_END_SESSIONS: Final = (
    "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted"
    " and objsubid = 1 and (classid::bigint << 32) | objid::bigint = $1"
    " and database = (select oid from pg_database where datname = current_database())"
)
# Only what was seen counts: a heartbeat that came meanwhile proves that the node lives.
_MARK_DEAD: Final = (
    "update nodes set state = 'dead', recoverer = $2 where inc = $1 and state = 'live' and not"
    " exists (select 1 from leases l where l.inc = $1 and l.expires <> $3)"
)

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


@dataclass
class Listeners:
    """Who hears what a heartbeat finds; called on the event loop."""

    ended: list[Callable[[str], None]] = field(default_factory=list)  # this node must end; why
    changed: list[Callable[[frozenset[str]], None]] = field(default_factory=list)  # which tables
    died: list[Callable[[int], None]] = field(default_factory=list)  # this node may be recovered
    draining: list[Callable[[bool], None]] = field(default_factory=list)  # asked to, or no longer
    asked: list[Callable[[bytes], None]] = field(default_factory=list)  # what another node asks for


class Heartbeat:
    """Of one node, from `start` to `close`."""

    def __init__(
        self,
        url: str,
        schema: str,
        inc: int,
        lease_s: float = LEASE_S,
        count_clients: Callable[[], int] = lambda: 0,
    ) -> None:
        self.inc = inc
        self.lease_s = lease_s
        self.unsettled: frozenset[int] | None = None  # nodes that are dead or may be; None: unknown
        self._beat_s = lease_s / BEATS_PER_LEASE
        self._ended_s = lease_s * ENDED_PART
        self._count_clients = count_clients
        self.listeners = Listeners()
        self._url = url
        self._schema = schema
        self._loop = asyncio.get_running_loop()
        self._confirmed_s = self._loop.time()  # when the newest confirmed heartbeat was sent
        self._unlocked: dict[int, tuple[int, float]] = {}  # inc -> its lease, since when
        self._is_ended = False
        self._is_draining = False
        self._trouble = ""
        self._watched_s = self._confirmed_s  # when the watchdog looked last
        self._task: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._confirmed_s = self._watched_s = self._loop.time()
        self._task = self._loop.create_task(self._run(), name="penstock-heartbeat")
        self._watch()

    async def close(self) -> None:
        """Stop; the lease runs out unless the node has left."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _watch(self) -> None:
        """End the node when its lease can no longer be renewed in time."""
        now_s = self._loop.time()
        if now_s - self._watched_s >= self._ended_s / 2:
            self._trouble = "the process stood still"
        self._watched_s = now_s
        if now_s - self._confirmed_s >= self._ended_s:
            silent = f"PostgreSQL at {shown_url(self._url)} does not answer"
            self._end(
                f"the lease of this node was not renewed for {self._ended_s:g} seconds "
                f"({self._trouble or silent})"
            )
        else:
            self._watchdog = self._loop.call_later(self._beat_s / 2, self._watch)

    def _end(self, reason: str) -> None:
        if not self._is_ended:
            self._is_ended = True
            for ended in self.listeners.ended:
                ended(reason)

    async def _run(self) -> None:
        while not self._is_ended:
            try:
                connection = await self._connect()
            except (psycopg.Error, OSError) as failed:
                self._note_trouble(failed)
                continue_s = RETRY_S_MIN
            else:
                continue_s = 0.0
                try:
                    await self._serve(connection)
                except (psycopg.Error, OSError) as failed:
                    self._note_trouble(failed)
                    continue_s = RETRY_S_MIN
                finally:
                    await connection.close()
            await asyncio.sleep(continue_s)

    def _note_trouble(self, failed: Exception) -> None:
        self._trouble = f"PostgreSQL at {shown_url(self._url)}: {one_line(failed)}"
        values = {"event": "heartbeat failed", "reason": self._trouble}
        LOG.warning("a heartbeat failed: %(reason)s", values)

    async def _connect(self) -> Connection:
        connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, cursor_factory=psycopg.AsyncRawCursor, **OPTIONS
        )
        try:
            connection.adapters.register_dumper(int, Int8Dumper)
            path = sql.SQL("set search_path to {}").format(sql.Identifier(self._schema))
            await connection.execute(path.as_bytes(connection))
            # A heartbeat need not survive a crash of the server, and waits for no disk.
            await connection.execute("set synchronous_commit to off")
            await connection.execute(f"listen {channel(self._schema)}")
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _serve(self, connection: Connection) -> None:
        self._tell_changed(frozenset(WATCHED))  # what was told before is unknown
        while not self._is_ended:
            await self._beat(connection)
            await self._look_at_others(connection)
            found: set[str] = set()
            async for note in connection.notifies(timeout=self._beat_s, stop_after=1):
                found.add(note.payload)
            async for note in connection.notifies(timeout=0):
                found.add(note.payload)
            self._tell(found)

    def _tell(self, payloads: set[str]) -> None:
        asks = {one for one in payloads if one.startswith(ASK)}
        for one in asks:
            for asked in self.listeners.asked:
                asked(one.removeprefix(ASK).encode())
        if payloads - asks:
            self._tell_changed(frozenset(payloads - asks))

    def _tell_changed(self, tables: frozenset[str]) -> None:
        for changed in self.listeners.changed:
            changed(tables)

    async def _beat(self, connection: Connection) -> None:
        sent_s = self._loop.time()
        lease_us = int(self.lease_s * 1_000_000)
        cursor = await connection.execute(_BEAT, (self.inc, lease_us, self._count_clients()))
        row = await cursor.fetchone()
        if row is None or row[0] != LIVE:
            self._end("another node declared this one dead because its lease had run out")
            return
        self._confirmed_s = sent_s
        self._trouble = ""
        if bool(row[1]) != self._is_draining:
            self._is_draining = bool(row[1])
            for draining in self.listeners.draining:
                draining(self._is_draining)

    # Nodes that died

    async def _look_at_others(self, connection: Connection) -> None:
        cursor = await connection.execute(_OTHERS, (self.inc,))
        others = await cursor.fetchall()
        if not others:
            self._unlocked.clear()
            self.unsettled = frozenset()
            return
        cursor = await connection.execute(_LOCKS)
        locked = {row[0] for row in await cursor.fetchall()}
        now_s = self._loop.time()
        still: dict[int, tuple[int, float]] = {}
        doubtful: set[int] = set()
        for inc, state, expires, has_expired in others:
            if state == DEAD:
                doubtful.add(inc)
                self._tell_died(inc)
            elif has_expired:
                doubtful.add(inc)
                await self._mark_dead(connection, inc, expires)
            elif lock_key(self._schema, node_part(inc)) not in locked:
                lease, since_s = self._unlocked.get(inc, (expires, now_s))
                if lease != expires:  # it is alive and about to lock again
                    since_s = now_s
                still[inc] = (expires, since_s)
                doubtful.add(inc)
                if now_s - since_s >= DEAD_S:
                    await self._mark_dead(connection, inc, expires)
        self._unlocked = still
        self.unsettled = frozenset(doubtful)

    async def _mark_dead(self, connection: Connection, inc: int, expires: int) -> None:
        """Its sessions are ended first: a transaction of a frozen node would lock its row."""
        await connection.execute(_END_SESSIONS, (lock_key(self._schema, node_part(inc)),))
        try:
            async with connection.transaction():
                await connection.execute(f"set local lock_timeout to '{MARK_MS_MAX}ms'")
                await connection.execute("set local synchronous_commit to on")
                cursor = await connection.execute(_MARK_DEAD, (inc, self.inc, expires))
                is_marked = cursor.rowcount > 0
        except psycopg.errors.LockNotAvailable:
            return
        if is_marked:
            values = {"event": "node died", "inc": inc}
            LOG.warning("node %(inc)d no longer renews its lease: it counts as dead", values)
            self._tell_died(inc)

    def _tell_died(self, inc: int) -> None:
        for died in self.listeners.died:
            died(inc)
