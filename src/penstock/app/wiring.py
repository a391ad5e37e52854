"""Which parts a broker is made of: those of a data directory, or memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.private import keep_private
from penstock.app.storage import (
    GIVE_UP_S,
    backends,
    catalog_opener,
    check_backends,
    keep_backends,
    open_store,
    owner_of,
)
from penstock.broker.engine import Engine
from penstock.broker.settings import BrokerSettings
from penstock.broker.shared import Shared
from penstock.broker.tenants import Tenants
from penstock.catalog.catalog import Catalog
from penstock.catalog.sqlite import SqliteDatabase
from penstock.catalog.thread import CatalogThread, InlineRunner
from penstock.catalog.upgrade import copy_before_upgrade
from penstock.log.files.commit import ThreadWorkers
from penstock.log.files.directory import FILES, KAFKA, SQLITE, DataDirectory, check_restored
from penstock.log.files.disk import RealDisk
from penstock.log.files.store import EmbeddedStore
from penstock.log.history.place import history_root, note_root
from penstock.log.history.process import HistoryProcess
from penstock.log.history.tier import HistoryTier
from penstock.log.interface import KeptLog
from penstock.log.memory import MemoryStore
from penstock.log.staging.area import AREA, StagingArea
from penstock.log.staging.intake import finish_all
from penstock.model.clock import SystemClock, read_boot_id
from penstock.model.errors import InvalidSetting, PenstockError
from penstock.model.record import DEFAULT_TENANT
from penstock.model.timeline import Timeline

if TYPE_CHECKING:
    from penstock.log.kafka.store import KafkaStore
    from penstock.log.postgres.store import PostgresStore


class OpenBroker:
    """The open tenants of a broker and how to close all that they stand on."""

    def __init__(
        self, tenants: Tenants, close: Callable[[bool], Awaitable[None]], notes: list[str]
    ) -> None:
        self.tenants = tenants
        self.close = close  # told whether it is a clean close
        self.notes = notes  # what recovery found, for people
        self.announce: Callable[[list[str], str], None] = lambda addresses, socket_name: None
        self.give_up: Callable[[], None] = lambda: None  # closing removes a directory it made
        self.hurry: Callable[[], None] = lambda: None  # bounds the wait for a database that is gone

    @property
    def engine(self) -> Engine:
        """That of the default tenant."""
        return self.tenants.get(DEFAULT_TENANT)


async def open_directory(
    path: Path, settings: BrokerSettings, make_workers: type[ThreadWorkers] = ThreadWorkers
) -> OpenBroker:
    """Lock the directory, recover what is in it, and begin."""
    chosen = backends(settings)
    loop = asyncio.get_running_loop()
    directory = DataDirectory(path)
    clock = Timeline(SystemClock(), read_boot_id())
    disk = RealDisk()
    giving_up = threading.Event()
    async with AsyncExitStack() as parts:  # undone in reverse if one of them fails
        directory.take()
        parts.callback(directory.release)
        unless_opened = parts.enter_context(ExitStack())
        unless_opened.callback(directory.give_up)
        check_restored(path)
        keep_private(path)
        check_backends(path, chosen)
        store: EmbeddedStore | PostgresStore | KafkaStore
        owner = owner_of(path) if chosen.log == KAFKA else ""
        if chosen.log == FILES:
            workers = make_workers(loop)
            parts.callback(workers.close)
            tier, reader = _open_history(path, settings, disk, parts)
            store = EmbeddedStore(
                path, disk, clock, loop, workers, directory.free_reserve, reader, tier=tier
            )
            store.finish_deletions()
        else:
            store = await open_store(settings, clock, giving_up, owner)
            parts.push_async_callback(store.close)
            if owner:
                keep_backends(path, chosen, owner)  # before a catalog without it could be found
        runner = await CatalogThread.start(
            catalog_opener(path, settings, giving_up), on_full=directory.free_reserve
        )
        parts.push_async_callback(runner.close)
        if chosen.catalog == SQLITE:
            store.notes += await asyncio.to_thread(copy_before_upgrade, path)
        catalog = await Catalog.open(runner, clock)
        keep_backends(path, chosen)

        def free_space() -> tuple[int, int]:
            if chosen.log != FILES:
                return 1, 1  # the database's disk is its own to look after
            directory.set_reserve()  # anew, when space has returned
            return disk.free_bytes(path)

        tenants = Tenants(Shared(settings, catalog, store, clock, free_space, path))
        parts.push_async_callback(tenants.close)
        await tenants.open()
        store.notes += tenants.notes
        for engine in tenants.engines.values():
            store.notes += await finish_staged(engine)
        unless_opened.pop_all()
        opened_parts = parts.pop_all()

    def hurry() -> None:
        loop.call_later(GIVE_UP_S, giving_up.set)

    async def close(is_clean: bool) -> None:
        hurry()
        async with opened_parts:
            await tenants.close(is_clean=is_clean)

    opened = OpenBroker(tenants, close, store.notes)
    opened.announce = directory.announce
    opened.give_up = directory.give_up
    opened.hurry = hurry
    return opened


def _open_history(
    path: Path, settings: BrokerSettings, disk: RealDisk, parts: AsyncExitStack
) -> tuple[HistoryTier | None, HistoryProcess | None]:
    """What writes and what reads histories, if `[history] url` names a place for them."""
    if not settings.history_url:
        return None, None
    root = history_root(settings.history_url, settings.history_options)
    note_root(disk, path, root)
    tier = HistoryTier(root, path, disk)
    parts.callback(tier.close)
    reader = HistoryProcess(asyncio.get_running_loop(), root)
    parts.callback(reader.close)
    return tier, reader


async def finish_staged(engine: Engine) -> list[str]:
    """Take in what was handed over and then interrupted; what to tell people."""
    directory = engine.directory
    if directory is None or not (directory / AREA).is_dir():
        return []

    async def log_of(topic_id: int) -> KeptLog | None:
        topic = engine.topics.by_id(topic_id)
        return None if topic is None else topic.log

    try:
        records = await finish_all(StagingArea(directory), log_of, engine.clock)
    except (PenstockError, OSError) as failed:
        return [f"staged records are still waiting: {failed}"]
    return [f"{records} staged records were stored"] if records else []


async def open_memory(settings: BrokerSettings) -> OpenBroker:
    """A broker that is gone when it is closed."""
    if settings.catalog_url or settings.log_backend != FILES or settings.history_url:
        raise InvalidSetting(
            "a broker in memory stores nothing: omit catalog_url, log_backend and history_url, or "
            "give a data directory"
        )
    clock = Timeline(SystemClock(), read_boot_id())
    store = MemoryStore(clock, asyncio.get_running_loop())
    catalog = await Catalog.open(InlineRunner(SqliteDatabase(":memory:")), clock)
    tenants = Tenants(Shared(settings, catalog, store, clock, lambda: (1, 1)))
    await tenants.open()
    return OpenBroker(tenants, lambda is_clean: tenants.close(is_clean=is_clean), [])
