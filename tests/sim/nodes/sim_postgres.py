"""A PostgreSQL in memory: the real tables and SQL in SQLite, advisory locks, notifications.

A transaction happens at one moment, so no statement ever waits for a lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import psycopg

from penstock.catalog.cluster import heartbeat
from penstock.catalog.cluster.joining import FIRST_LEASE_S, node_part
from penstock.catalog.cluster.nodes import SERVER_US, insert_node, start_lease
from penstock.catalog.database.interface import Database, Row, Value
from penstock.catalog.database.sqlite import MEMORY, SqliteDatabase
from penstock.catalog.schema.migrations import MIGRATIONS, bring_up
from penstock.model.errors import UnavailableError
from penstock.postgres.locks import lock_key
from tests.sim.nodes.clockwork import Clockwork, Network, ProcessLoop

T = TypeVar("T")
SCHEMA = "simulated"


class Translated:
    """A `Database` whose SQL is PostgreSQL's."""

    def __init__(self, server: SimPostgres) -> None:
        self._server = server

    def _text(self, sql: str) -> str:
        now_us = str(int(self._server.clockwork.now_s * 1_000_000))
        return sql.replace(SERVER_US, now_us).replace(" for update", "").replace(" for share", "")

    def execute(self, sql: str, *args: Value) -> int:
        return self._server.database.execute(self._text(sql), *args)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> int:
        return self._server.database.execute_many(self._text(sql), rows)

    def fetch(self, sql: str, *args: Value) -> list[Row]:
        if sql == "select pg_notify($1, $2)":
            self._server.notify(str(args[1]))
            return []
        return self._server.database.fetch(self._text(sql), *args)

    def transaction(self) -> AbstractContextManager[None]:
        return self._server.database.transaction()

    def scrub(self) -> None:
        pass

    def check_scrubbed(self) -> None:
        pass

    def close(self) -> None:
        pass


class SimPostgres:
    """The server."""

    def __init__(self, clockwork: Clockwork, topics: dict[int, str]) -> None:
        self.clockwork = clockwork
        self.checks_rows = True  # every transaction of a node needs its row to be live
        self.database = SqliteDatabase(MEMORY)
        self.translated = Translated(self)
        self.locks: set[int] = set()
        self.listening: list[SimConnection] = []
        with self.database.transaction():
            bring_up(MIGRATIONS, self.database)
            self.database.execute("insert into tenants (tenant, created_at) values ('default', 0)")
            for topic_id, name in topics.items():
                self.database.execute(
                    "insert into topics (tenant, topic_id, key, declared, settings, created_at)"
                    " values ('default', $1, $2, $2, '{}', 0)",
                    *(topic_id, name),
                )

    def join(self) -> int:
        """A new node, locked before anybody sees it."""
        with self.database.transaction():
            inc = insert_node(self.translated, "", "", 0)
            start_lease(self.translated, inc, int(FIRST_LEASE_S * 1_000_000))
        self.lock(inc)
        return inc

    def lock(self, inc: int) -> None:
        self.locks.add(lock_key(SCHEMA, node_part(inc)))

    def unlock(self, inc: int) -> None:
        self.locks.discard(lock_key(SCHEMA, node_part(inc)))

    def notify(self, payload: str) -> None:
        for connection in self.listening:
            self.clockwork.after(0.001, lambda one=connection: one.hear(payload))

    def run(self, inc: int, work: Callable[[Database], T]) -> T | Exception:
        """A transaction of a node, or why it was rejected."""
        try:
            with self.database.transaction():
                if self.checks_rows and self.state(inc) != "live":
                    raise UnavailableError(f"incarnation {inc} was declared dead")
                return work(self.translated)
        except Exception as failed:
            return failed

    def fetch(self, sql: str, *args: Value) -> list[Row]:
        with self.database.transaction():
            return self.database.fetch(sql, *args)

    def state(self, inc: int) -> str:
        rows = self.fetch("select state from nodes where inc = $1", inc)
        return str(rows[0][0]) if rows else ""


class SimRunner:
    """The `Runner` of one node: its units of work one after the other."""

    def __init__(self, server: SimPostgres, network: Network, inc: int) -> None:
        self._server = server
        self._network = network
        self._inc = inc
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[Database], T]) -> T:
        async with self._turn:
            return await self._network.ask(  # type: ignore[no-any-return]
                lambda answer: answer(self._server.run(self._inc, work))
            )

    async def close(self) -> None:
        pass


class SimConnection:
    """What a heartbeat does with a connection of psycopg."""

    def __init__(self, server: SimPostgres, network: Network, loop: ProcessLoop) -> None:
        self._server = server
        self._network = network
        self._loop = loop
        self._heard: list[str] = []
        self._news = asyncio.Event()
        server.listening.append(self)

    def hear(self, payload: str) -> None:
        if not self._loop.is_dead:
            self._loop.call_soon(self._take, payload)

    def _take(self, payload: str) -> None:
        self._heard.append(payload)
        self._news.set()

    async def execute(self, text: str, values: Sequence[Value] = ()) -> Any:
        return await self._network.ask(lambda answer: answer(self._serve(text, values)))

    def _serve(self, text: str, values: Sequence[Value]) -> Any:
        server, rows, count = self._server, [], 0
        if text == heartbeat._LOCKS:
            rows = [(key,) for key in server.locks]
        elif text == heartbeat._END_SESSIONS:
            server.locks.discard(int(values[0]))  # type: ignore[arg-type]
        elif not text.startswith("set local"):
            try:
                with server.database.transaction():
                    rows, count = self._ask(text, values)
            except Exception as failed:
                return psycopg.OperationalError(str(failed))

        async def fetchone() -> Row | None:
            return rows[0] if rows else None

        async def fetchall() -> list[Row]:
            return rows

        return SimpleNamespace(fetchone=fetchone, fetchall=fetchall, rowcount=count)

    def _ask(self, text: str, values: Sequence[Value]) -> tuple[list[Row], int]:
        translated = self._server.translated
        if text == heartbeat._BEAT:  # SQLite changes nothing inside of a `with`
            _, rest = text.split("(", 1)
            update, select = rest.rsplit(") select", 1)
            translated.execute(update, *values)
            return translated.fetch(f"select{select}", *values), 0
        if text.startswith("update"):
            return [], translated.execute(text, *values)
        return translated.fetch(text, *values), 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def notifies(
        self,
        *,
        timeout: float,  # noqa: ASYNC109
        stop_after: int | None = None,
    ) -> AsyncIterator[SimpleNamespace]:
        if not self._heard and timeout:
            self._news.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            except TimeoutError:
                return
        heard, self._heard = self._heard, []
        for payload in heard:
            yield SimpleNamespace(payload=payload)

    async def close(self) -> None:
        if self in self._server.listening:
            self._server.listening.remove(self)


class SimHeartbeat(heartbeat.Heartbeat):
    """The real one, on a connection in memory."""

    def __init__(
        self, server: SimPostgres, network: Network, loop: ProcessLoop, inc: int, lease_s: float
    ) -> None:
        super().__init__("postgresql://simulated", SCHEMA, inc, lease_s)
        self._server = server
        self._network = network
        self._process = loop

    async def _connect(self) -> Any:
        await self._network.ask(lambda answer: answer(None))
        return SimConnection(self._server, self._network, self._process)
