"""Snapshots: the catalog and all logs at one moment, for a backup that is copied from them.

The moment is one call on the event loop, during which the catalog's thread stands still: whatever
was acknowledged before it is in the snapshot, and no position in the catalog is past the end of
its log. The files are linked after that, so a snapshot costs milliseconds and no copy.

A snapshot stays while somebody holds its file `held` locked, and goes with whoever held it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import uuid
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from penstock.broker.engine import Engine
from penstock.broker.shared import Shared
from penstock.catalog.outside import CATALOG_NAME
from penstock.catalog.view import CatalogView
from penstock.log.files.directory import FILES
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.upkeep.moment import (
    DESCRIPTION,
    HELD,
    SNAPSHOTS,
    LogFiles,
    Moment,
    Moved,
    link_log,
)
from penstock.model.errors import RefusedError, UnavailableError
from penstock.model.limits import DIRECTORY_MODE, FILE_MODE
from penstock.model.record import TenantId
from penstock.model.version import VERSION

TRIES: Final = 10  # a log is sealed, or a topic deleted, between the moment and its links
TRIES_BESIDE: Final = 3  # after so many, changes of topics and sealing wait for the snapshot
CAPTURE_S_MAX: Final = 10.0  # the catalog's thread waits this long for the loop
HOLD_S: Final = 20.0  # time to begin copying; then a snapshot that nobody holds goes

Captured = tuple[list[tuple[str, LogFiles]], list[str]]  # logs by tenant; topics left out, and why


class Snapshots:
    """Those of one data directory. Used on the event loop."""

    def __init__(self, shared: Shared, engines: dict[TenantId, Engine]) -> None:
        self._shared = shared
        self._engines = engines
        self._turn = asyncio.Lock()
        self._watches: dict[str, asyncio.Task[None]] = {}  # by id

    async def take(self) -> str:
        """A new snapshot; its id is its name in the directory `.snapshots`."""
        root = self._root()
        async with self._turn:
            await asyncio.to_thread(remove_unheld, root, set(self._watches))
            snapshot_id = uuid.uuid4().hex
            for number in range(TRIES):
                try:
                    await self._try(root / snapshot_id, is_alone=number >= TRIES_BESIDE)
                    break
                except Moved:
                    await asyncio.to_thread(shutil.rmtree, root / snapshot_id, ignore_errors=True)
            else:
                raise UnavailableError(
                    f"the files of topics changed {TRIES} times while they were linked: try again"
                )
        watch = asyncio.create_task(self._watch(root / snapshot_id), name="penstock-snapshot")
        self._watches[snapshot_id] = watch
        return snapshot_id

    async def drop(self, snapshot_id: str) -> None:
        """It was copied. RefusedError if there is no such snapshot."""
        watch = self._watches.pop(snapshot_id, None)
        if watch is None:
            raise RefusedError(f"there is no snapshot {snapshot_id!r}: it was dropped before")
        watch.cancel()
        await asyncio.to_thread(shutil.rmtree, self._root() / snapshot_id, ignore_errors=True)

    async def clean(self) -> None:
        """Remove what is left of others, at the start and at the end; what is copied stays."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()
        directory = self._shared.directory
        if directory is not None and (directory / SNAPSHOTS).exists():
            await asyncio.to_thread(remove_unheld, directory / SNAPSHOTS)

    def _root(self) -> Path:
        settings, directory = self._shared.settings, self._shared.directory
        if directory is None:
            raise RefusedError("a broker in memory has no files: there is nothing to back up")
        if settings.log_backend != FILES or settings.catalog_url:
            raise RefusedError(
                "this broker has its catalog or its topics in PostgreSQL or Kafka: back up "
                "PostgreSQL with pg_basebackup or pg_dump, and let Kafka replicate its topics "
                "(`penstock backup` copies files)"
            )
        return directory / SNAPSHOTS

    async def _try(self, target: Path, *, is_alone: bool) -> None:
        """Take it. Where topics come, go or seal all the time, only while none of them does."""
        async with AsyncExitStack() as stack:
            for engine in list(self._engines.values()) if is_alone else ():
                await stack.enter_async_context(engine.topics.changing())
                for topic in engine.topics.all():
                    if isinstance(topic.log, EmbeddedLog):
                        await stack.enter_async_context(topic.log.standing_still())
            await self._take(target)

    async def _take(self, target: Path) -> None:
        directory = target.parent.parent
        views: list[CatalogView] = []
        loop = asyncio.get_running_loop()

        def capture() -> Captured:
            # The catalog may call it twice: the newest view counts.
            views.append(CatalogView(directory))
            captured: Future[Captured] = Future()
            loop.call_soon_threadsafe(_answer, captured, partial(self._capture, views[-1].topics))
            return captured.result(CAPTURE_S_MAX)

        try:
            logs, left_out = await self._shared.catalog.stand_still(capture)
            now_us = self._shared.clock.now_us()
            await asyncio.to_thread(_write, target, views[-1], logs, left_out, now_us)
        finally:
            for view in views:
                view.close()

    def _capture(self, rows: list[tuple[str, int]]) -> Captured:
        """Where all logs end now; Moved if the catalog knows one that is being made or deleted."""
        logs, left_out = [], []
        for tenant, topic_id in rows:
            engine = self._engines.get(TenantId(tenant))
            topic = None if engine is None else engine.topics.by_id(topic_id)
            if topic is None:
                raise Moved(f"topic {topic_id} is being created or deleted")
            if isinstance(topic.log, EmbeddedLog):
                logs.append((tenant, topic.log.files()))
            else:
                left_out.append(f"topic {topic.declared} of tenant {tenant}: {topic.refusal}")
        return logs, left_out

    async def _watch(self, target: Path) -> None:
        """Remove it when whoever copies it is gone."""
        while True:
            await asyncio.sleep(HOLD_S)
            if not await asyncio.to_thread(_is_held, target):
                self._watches.pop(target.name, None)
                await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
                return


def _answer(captured: Future[Captured], capture: partial[Captured]) -> None:
    try:
        captured.set_result(capture())
    except Exception as failed:
        captured.set_exception(failed)


def _write(
    target: Path,
    view: CatalogView,
    logs: list[tuple[str, LogFiles]],
    left_out: list[str],
    now_us: int,
) -> None:
    """Link and copy what was captured. Nothing is synced: a snapshot does not outlive a crash."""
    target.mkdir(mode=DIRECTORY_MODE, parents=True)
    linked = [link_log(target, tenant, files) for tenant, files in logs]
    view.copy_to(target / CATALOG_NAME)
    moment = Moment(now_us, VERSION, linked, left_out)
    (target / HELD).touch(FILE_MODE)
    (target / DESCRIPTION).write_bytes(msgspec.json.encode(moment))


def remove_unheld(root: Path, but: Collection[str] = ()) -> None:
    """Remove the snapshots that nobody copies, except those in `but`. Blocking."""
    with suppress(FileNotFoundError):
        for target in root.iterdir():
            if target.name not in but and not _is_held(target):
                shutil.rmtree(target, ignore_errors=True)
        with suppress(OSError):  # one is held
            root.rmdir()


def _is_held(target: Path) -> bool:
    try:
        fd = os.open(target / HELD, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # never finished
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
