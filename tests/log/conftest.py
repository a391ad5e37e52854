"""Logs of every backend, made small, on a clock that moves when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.log.files.commit import ThreadWorkers
from penstock.log.files.disk import RealDisk
from penstock.log.files.store import EmbeddedStore
from penstock.log.interface import KeptLog, LogIdentity, LogSettings, LogStore
from penstock.log.memory import MemoryStore
from penstock.log.postgres.store import PostgresStore
from penstock.model.clock import ManualClock
from tests.log.files.stores import StoreWorld, open_world
from tests.log.postgres.postgres_world import PostgresWorld, open_tables
from tests.postgres_proxy import PostgresProxy
from tests.postgres_server import PostgresServer

IDENTITY = LogIdentity("default", 1, "orders")


class Bench:
    """A store under test; `reopen` closes the log and opens it again where the backend keeps it."""

    def __init__(
        self, store: LogStore, clock: ManualClock, *, is_durable: bool, is_dense: bool = True
    ) -> None:
        self.store = store
        self.clock = clock
        self.is_durable = is_durable
        self.is_dense = is_dense  # else marks alone take an offset, and others may write, too
        self.settings = LogSettings()
        self.log: KeptLog

    async def create(self, settings: LogSettings | None = None) -> KeptLog:
        self.settings = settings or LogSettings()
        self.log = await self.store.create(IDENTITY, "Orders", self.settings)
        return self.log

    async def reopen(self) -> KeptLog:
        if self.is_durable:
            await self.log.close()
            self.log = await self.store.open(IDENTITY, self.settings)
        return self.log


@asynccontextmanager
async def open_bench(
    backend: str, root: Path, server: PostgresServer | None
) -> AsyncIterator[Bench]:
    loop = asyncio.get_running_loop()
    clock = ManualClock()
    if backend == "memory":
        yield Bench(MemoryStore(clock, loop), clock, is_durable=False)
        return
    if backend == "postgres":
        assert server is not None
        tables = await PostgresStore.start(server.url, server.new_schema(), clock)
        try:
            yield Bench(tables, clock, is_durable=True)
        finally:
            await tables.close()
        return
    workers = ThreadWorkers(loop)
    store = EmbeddedStore(root, RealDisk(), clock, loop, workers)
    bench = Bench(store, clock, is_durable=True)
    try:
        yield bench
    finally:
        if hasattr(bench, "log"):
            await bench.log.close()
        workers.close()


@pytest.fixture(params=["memory", "files", "postgres"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """A store of each backend."""
    server: PostgresServer | None = None
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
    async with open_bench(request.param, tmp_path, server) as opened:
        yield opened


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[StoreWorld]:
    """A store in files, on a disk that fails when told to."""
    async with open_world(tmp_path) as opened:
        yield opened


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[PostgresProxy]:
    """A way to the server that fails when told to."""
    with PostgresProxy(postgres.url) as opened:
        yield opened


@pytest.fixture
async def tables(postgres: PostgresServer, proxy: PostgresProxy) -> AsyncIterator[PostgresWorld]:
    """A store in tables, behind a network that fails when told to."""
    async with open_tables(postgres, proxy) as opened:
        yield opened
