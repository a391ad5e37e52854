"""Topics in a schema of PostgreSQL: made, opened and removed, each in one transaction."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Final

import msgspec
import psycopg
from psycopg import sql

from penstock.log.broken import DamagedLog
from penstock.log.cache import CACHE_BYTES_MAX, ChunkCache
from penstock.log.interface import FSYNC, OS, LogIdentity, LogSettings
from penstock.log.postgres.log import PostgresLog
from penstock.log.postgres.tables import (
    CREATE_TABLES,
    CREATE_TOPIC,
    NAME_BYTES_MAX,
    VERSION,
    LogState,
    is_whole,
    read_state,
    set_loose,
    settings_text,
    topic_table,
    views_schema,
)
from penstock.log.postgres.work import PostgresJob, PostgresWork
from penstock.log.rounds import Committer
from penstock.model.clock import Clock
from penstock.model.errors import RefusedError, TopicNotFound, UnavailableError
from penstock.model.record import DEFAULT_TENANT
from penstock.postgres.connection import Connection

_VIEW: Final = sql.SQL(
    "create view {view} as select messageid, {text}(message) as message from {table}"
)


class PostgresStore:
    """Implements `LogStore`; made by `start`, closed after its logs."""

    durabilities = (FSYNC, OS)

    def __init__(self, work: PostgresWork, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.notes: list[str] = []  # what opening found, for people
        self._work = work
        self._clock = clock
        self._loop = loop
        self._committer: Committer[PostgresJob] = Committer(loop, work)
        self.has_history = False
        self.partitions_max = 1
        self.cache = ChunkCache(CACHE_BYTES_MAX)
        self._identities: dict[int, LogIdentity] = {}  # all there are, by topic id
        self._open: dict[int, PostgresLog] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        work.listen(self)

    @classmethod
    async def start(
        cls, url: str, schema: str, clock: Clock, giving_up: threading.Event | None = None
    ) -> PostgresStore:
        """Take hold of the schema's logs and see which there are."""
        work = await PostgresWork.start(url, schema, giving_up)
        store = cls(work, clock, asyncio.get_running_loop())
        try:
            rows = await work.change(_prepare, schema)
        except BaseException:
            await work.close()
            raise
        for tenant, topic_id, slug in rows:
            store._identities[topic_id] = LogIdentity(tenant, topic_id, slug)
        return store

    async def close(self) -> None:
        await self._work.close()

    async def create(
        self, identity: LogIdentity, declared: str, settings: LogSettings
    ) -> PostgresLog:
        def change(connection: Connection) -> None:
            connection.execute(
                "insert into logs (topic_id, tenant, slug, declared, settings, last_timestamp)"
                " values ($1, $2, $3, $4, $5, 0)",
                (
                    identity.topic_id,
                    identity.tenant,
                    identity.slug,
                    declared,
                    settings_text(settings),
                ),
            )
            connection.execute(CREATE_TOPIC.format(table=topic_table(identity.topic_id)))
            self._create_view(connection, identity, declared)

        await self._work.change(change)
        self._identities[identity.topic_id] = identity
        return await self.open(identity, settings)

    def _create_view(self, connection: Connection, identity: LogIdentity, declared: str) -> None:
        """A view with the topic's own name, where that is possible; only of the default tenant."""
        if identity.tenant != DEFAULT_TENANT or len(declared.encode()) > NAME_BYTES_MAX:
            return
        schema = self._work.schema
        text = _VIEW.format(
            view=sql.Identifier(views_schema(schema), declared),
            text=sql.Identifier(schema, "message_text"),
            table=sql.Identifier(schema, topic_table(identity.topic_id)),
        )
        try:
            connection.execute(text.as_bytes(connection))
        except psycopg.errors.DuplicateTable:
            raise RefusedError(
                f"schema {views_schema(schema)!r} has a table or view {declared!r} that Penstock "
                "did not create, and the topic needs a view with this name: rename that table or "
                "view, or choose another topic name"
            ) from None

    async def open(self, identity: LogIdentity, settings: LogSettings) -> PostgresLog:
        state, began = await self._work.change(_open_state, identity.topic_id)
        if state is None:
            raise DamagedLog(
                f"schema {self._work.schema!r} has no row of topic {identity.topic_id} in table "
                "logs: restore it from a backup, or delete the topic",
                0,
                0,
            )
        if not await self._work.read(is_whole, state):
            raise DamagedLog(
                f"schema {self._work.schema!r} has no table {topic_table(identity.topic_id)} with "
                f"the rows from {state.first_offset} to {state.end_offset} (exclusive): restore "
                "it from a backup, or delete the topic",
                state.epoch,
                state.end_offset,
            )
        if began:
            self.notes.append(
                f"{identity.slug}-{identity.topic_id}: epoch {state.epoch} begins at offset"
                f" {state.end_offset}"
            )
        log = PostgresLog(
            state,
            settings,
            self._clock,
            loop=self._loop,
            committer=self._committer,
            work=self._work,
            cache=self.cache,
        )
        self._open[identity.topic_id] = log
        return log

    async def delete(self, identity: LogIdentity) -> None:
        def change(connection: Connection) -> None:
            rows = connection.execute(
                "delete from logs where topic_id = $1 returning declared", (identity.topic_id,)
            ).fetchall()
            if not rows:
                return
            view = sql.Identifier(views_schema(self._work.schema), rows[0][0])
            if identity.tenant == DEFAULT_TENANT:  # no other tenant's topic has a view
                text = sql.SQL("drop view if exists {}").format(view)
                connection.execute(text.as_bytes(connection))
            table = sql.Identifier(topic_table(identity.topic_id))
            text = sql.SQL("drop table if exists {}").format(table)
            connection.execute(text.as_bytes(connection))

        await self._work.change(change)
        self._identities.pop(identity.topic_id, None)
        self._open.pop(identity.topic_id, None)

    async def declare(self, identity: LogIdentity, declared: str, settings: LogSettings) -> None:
        def change(connection: Connection) -> None:
            connection.execute(
                "update logs set settings = $2 where topic_id = $1",
                (identity.topic_id, settings_text(settings)),
            )

        await self._work.change(change)

    async def describe(self, identity: LogIdentity) -> tuple[str, LogSettings]:
        def ask(connection: Connection) -> list[tuple[str, str]]:
            return connection.execute(
                "select declared, settings from logs where topic_id = $1", (identity.topic_id,)
            ).fetchall()

        rows = await self._work.read(ask)
        if not rows:
            raise TopicNotFound(f"no log {identity.slug}-{identity.topic_id} in this store")
        declared, settings = rows[0]
        return declared, msgspec.json.decode(settings, type=LogSettings)

    def list(self) -> list[LogIdentity]:
        return list(self._identities.values())

    # How the writer fares

    def on_trouble(self, error: UnavailableError) -> None:
        for log in self._open.values():
            log.refuse_waiting(error)

    def on_rewind(self, ends: dict[int, int]) -> None:
        for topic_id, log in self._open.items():
            end = ends.get(topic_id, 0)
            if end < log.bounds().end and not log.fence:
                log.fence_off(end)
                # That the next opening begins an epoch is tried; where a commit was confirmed
                # before it was synced, the row says so already.
                task = self._loop.create_task(self._loosen(topic_id))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _loosen(self, topic_id: int) -> None:
        with suppress(UnavailableError):
            await self._work.change(set_loose, topic_id, is_loose=True)


def _prepare(connection: Connection, schema: str) -> list[tuple[str, int, str]]:
    """Make the tables that are missing; the logs there are: tenant, topic id, slug."""
    for statement in CREATE_TABLES:
        connection.execute(statement)
    ((version,),) = connection.execute("select coalesce(max(version), 0) from log_version")
    if version > VERSION:
        raise RefusedError(
            f"the topics in schema {schema!r} have table version {version}, but this Penstock "
            f"supports versions up to {VERSION}: run the newer Penstock"
        )
    if version == 0:
        connection.execute("insert into log_version (version) values ($1)", (VERSION,))
    views = views_schema(schema)
    if not connection.execute("select 1 from pg_namespace where nspname = $1", (views,)).fetchall():
        text = sql.SQL("create schema {}").format(sql.Identifier(views))
        connection.execute(text.as_bytes(connection))
    return connection.execute("select tenant, topic_id, slug from logs").fetchall()


def _open_state(connection: Connection, topic_id: int) -> tuple[LogState | None, bool]:
    """The row of a topic; an epoch begins, and is told, if shown records may be lost."""
    state = read_state(connection, topic_id)
    if state is None or not state.is_loose:
        return state, False
    connection.execute(
        "update logs set epoch_starts = epoch_starts || end_offset, is_loose = false"
        " where topic_id = $1",
        (topic_id,),
    )
    return read_state(connection, topic_id), True
