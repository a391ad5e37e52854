"""Which parts a broker is made of: files and SQLite in a directory, or memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.broker.engine import Engine
from penstock.broker.settings import BrokerSettings
from penstock.catalog.catalog import Catalog
from penstock.catalog.sqlite import SqliteDatabase
from penstock.catalog.thread import CatalogThread, InlineRunner
from penstock.log.commit import ThreadWorkers
from penstock.log.directory import DataDirectory
from penstock.log.files import RealDisk
from penstock.log.memory import MemoryStore
from penstock.log.store import EmbeddedStore
from penstock.model.clock import SystemClock

CATALOG_NAME = "catalog.db"


class OpenBroker:
    """An open engine and how to close all that it stands on."""

    def __init__(
        self, engine: Engine, close: Callable[[bool], Awaitable[None]], notes: list[str]
    ) -> None:
        self.engine = engine
        self.close = close  # told whether it is a clean close
        self.notes = notes  # what recovery found, for people
        self.announce: Callable[[list[str]], None] = lambda addresses: None


async def open_directory(
    path: Path, settings: BrokerSettings, make_workers: type[ThreadWorkers] = ThreadWorkers
) -> OpenBroker:
    """Lock the directory, recover what is in it, and begin."""
    loop = asyncio.get_running_loop()
    directory = DataDirectory(path)
    directory.take()
    workers = make_workers(loop)
    clock = SystemClock()
    disk = RealDisk()
    try:
        store = EmbeddedStore(path, disk, clock, loop, workers, directory.free_reserve)
        store.finish_deletions()
        runner = await CatalogThread.start(
            lambda: SqliteDatabase(path / CATALOG_NAME), on_full=directory.free_reserve
        )
        catalog = await Catalog.open(runner, clock)

        def free_space() -> tuple[int, int]:
            directory.set_reserve()  # anew, when space has returned
            return disk.free_bytes(path)

        engine = Engine(settings, catalog, store, clock, free_space)
        try:
            await engine.open()
        except BaseException:
            await engine.close()
            raise
    except BaseException:
        workers.close()
        directory.release()
        raise

    async def close(is_clean: bool) -> None:
        try:
            await engine.close(is_clean=is_clean)
        finally:
            workers.close()
            directory.release()

    opened = OpenBroker(engine, close, store.notes)
    opened.announce = directory.announce
    return opened


async def open_memory(settings: BrokerSettings) -> OpenBroker:
    """A broker that is gone when it is closed."""
    clock = SystemClock()
    store = MemoryStore(clock, asyncio.get_running_loop())
    catalog = await Catalog.open(InlineRunner(SqliteDatabase(":memory:")), clock)
    engine = Engine(settings, catalog, store, clock, lambda: (1, 1))
    await engine.open()
    return OpenBroker(engine, lambda is_clean: engine.close(is_clean=is_clean), [])
