"""A log in tables of a real PostgreSQL, behind a network that fails when told to."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.log.interface import OS, KeptLog, LogIdentity, LogSettings
from penstock.log.postgres.log import PostgresLog
from penstock.log.postgres.store import PostgresStore
from penstock.log.postgres.tables import views_schema
from penstock.model.clock import ManualClock
from tests.log.files.stores import read_all
from tests.postgres_proxy import PostgresProxy
from tests.postgres_server import PostgresServer

ORDERS = LogIdentity("default", 1, "orders")
LOOSE = LogSettings(durability=OS)


class PostgresWorld:
    """A store behind a network that fails when told to."""

    def __init__(self, server: PostgresServer, proxy: PostgresProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.schema = server.new_schema()
        self.views = views_schema(self.schema)
        self.clock = ManualClock()
        self.giving_up = threading.Event()
        self.store: PostgresStore

    async def open(self) -> PostgresStore:
        self.store = await PostgresStore.start(
            self.proxy.url, self.schema, self.clock, self.giving_up
        )
        return self.store

    async def create(
        self, settings: LogSettings | None = None, topic_id: int = 1, declared: str = "Orders"
    ) -> PostgresLog:
        identity = LogIdentity("default", topic_id, "orders")
        return await self.store.create(identity, declared, settings or LogSettings())

    async def reopen(self, log: PostgresLog) -> PostgresLog:
        """As after kill -9: nothing is closed in order."""
        await self.store.close()
        await self.open()
        return await self.store.open(LogIdentity("default", log.topic_id, "orders"), log.settings)

    def sql(self, text: str, *args: object) -> list[tuple[object, ...]]:
        return self.server.fetch(text.format(s=self.schema, v=self.views), *args)


@asynccontextmanager
async def open_tables(server: PostgresServer, proxy: PostgresProxy) -> AsyncIterator[PostgresWorld]:
    world = PostgresWorld(server, proxy)
    await world.open()
    try:
        yield world
    finally:
        world.giving_up.set()
        await world.store.close()


async def payloads(log: KeptLog) -> list[bytes]:
    return [record.payload for record in await read_all(log)]
