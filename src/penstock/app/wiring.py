"""Which parts a broker is made of: those of a data directory, or memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.nodes import JoinedNode, NodeWork, begin_following
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
from penstock.broker.cluster.node import Node
from penstock.broker.engine import Engine
from penstock.broker.settings import BrokerSettings, NodeSettings
from penstock.broker.shared import Shared
from penstock.broker.tenants import Tenants
from penstock.catalog.catalog import Catalog
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.database.thread import CatalogThread, InlineRunner
from penstock.catalog.schema.upgrade import copy_before_upgrade
from penstock.log.files.commit import ThreadWorkers
from penstock.log.files.directory import FILES, KAFKA, SQLITE, DataDirectory, check_restored
from penstock.log.files.disk import RealDisk
from penstock.log.files.store import EmbeddedStore
from penstock.log.history.place import history_root, note_root
from penstock.log.history.reading.process import HistoryProcess
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
    path: Path,
    settings: BrokerSettings,
    make_workers: type[ThreadWorkers] = ThreadWorkers,
    node_settings: NodeSettings | None = None,
) -> OpenBroker:
    """Lock the directory, recover what is in it, and begin; as a node, among the others."""
    opening = _Opening(path, settings)
    chosen, directory, clock = opening.chosen, opening.directory, opening.clock
    async with AsyncExitStack() as parts:  # undone in reverse if one of them fails
        directory.take()
        parts.callback(directory.release)
        unless_opened = parts.enter_context(ExitStack())
        unless_opened.callback(directory.give_up)
        check_restored(path)
        keep_private(path)
        check_backends(path, chosen)
        store: EmbeddedStore | PostgresStore | KafkaStore
        node: Node | None = None
        work: NodeWork | None = None
        if node_settings is not None:
            joined = JoinedNode(path, settings, clock, opening.giving_up, node_settings)
            catalog, store, node = await joined.open(parts)
        else:
            catalog, store = await opening.open_alone(parts, make_workers)
        keep_backends(path, chosen)
        shared = Shared(
            settings,
            catalog,
            store,
            clock=clock,
            free_space=opening.free_space,
            directory=path,
            node=node,
        )
        tenants = Tenants(shared)
        parts.push_async_callback(tenants.close)
        await tenants.open()
        if node is not None:
            work = await begin_following(node, tenants)
            parts.push_async_callback(work.close)
        store.notes += tenants.notes
        for engine in tenants.engines.values():
            store.notes += await finish_staged(engine)
        unless_opened.pop_all()
        opened_parts = parts.pop_all()

    async def close(is_clean: bool) -> None:
        opening.hurry()
        async with opened_parts:
            if work is not None:
                await work.close()
            await tenants.close(is_clean=is_clean)

    opened = OpenBroker(tenants, close, store.notes)
    opened.announce = directory.announce
    opened.give_up = directory.give_up
    opened.hurry = opening.hurry
    return opened


class _Opening:
    """What the parts of a data directory are opened with."""

    def __init__(self, path: Path, settings: BrokerSettings) -> None:
        self.path = path
        self.settings = settings
        self.chosen = backends(settings)
        self.directory = DataDirectory(path)
        self.clock = Timeline(SystemClock(), read_boot_id())
        self.disk = RealDisk()
        self.giving_up = threading.Event()  # set: no longer wait for a database
        self._loop = asyncio.get_running_loop()

    async def open_alone(
        self, parts: AsyncExitStack, make_workers: type[ThreadWorkers]
    ) -> tuple[Catalog, EmbeddedStore | PostgresStore | KafkaStore]:
        """The store and the catalog of a broker that has both for itself."""
        store: EmbeddedStore | PostgresStore | KafkaStore
        if self.chosen.log == FILES:
            store = self.open_files(parts, make_workers)
        else:
            store = await self.open_elsewhere(parts)
        runner = await CatalogThread.start(
            catalog_opener(self.path, self.settings, self.giving_up),
            on_full=self.directory.free_reserve,
        )
        parts.push_async_callback(runner.close)
        if self.chosen.catalog == SQLITE:
            store.notes += await asyncio.to_thread(copy_before_upgrade, self.path)
        return await Catalog.open(runner, self.clock), store

    def open_files(self, parts: AsyncExitStack, make_workers: type[ThreadWorkers]) -> EmbeddedStore:
        workers = make_workers(self._loop)
        parts.callback(workers.close)
        tier, reader = _open_history(self.path, self.settings, self.disk, parts)
        store = EmbeddedStore(
            self.path,
            self.disk,
            self.clock,
            loop=self._loop,
            workers=workers,
            on_full=self.directory.free_reserve,
            history=reader,
            tier=tier,
        )
        store.finish_deletions()
        return store

    async def open_elsewhere(self, parts: AsyncExitStack) -> PostgresStore | KafkaStore:
        owner = owner_of(self.path) if self.chosen.log == KAFKA else ""
        store = await open_store(self.settings, self.clock, self.giving_up, owner)
        parts.push_async_callback(store.close)
        if owner:  # before a catalog without it could be found
            keep_backends(self.path, self.chosen, owner)
        return store

    def free_space(self) -> tuple[int, int]:
        if self.chosen.log != FILES:
            return 1, 1  # the database's disk is its own to look after
        self.directory.set_reserve()  # anew, when space has returned
        return self.disk.free_bytes(self.path)

    def hurry(self) -> None:
        self._loop.call_later(GIVE_UP_S, self.giving_up.set)


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
