"""The users of a data directory that no broker has open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.app.wiring import CATALOG_NAME
from penstock.broker.access import Access
from penstock.broker.metrics import Metrics
from penstock.catalog.catalog import Catalog
from penstock.catalog.sqlite import SqliteDatabase
from penstock.catalog.thread import InlineRunner
from penstock.log.directory import DataDirectory, read_holder
from penstock.model.clock import SystemClock
from penstock.model.errors import UnavailableError


@asynccontextmanager
async def open_users(path: Path) -> AsyncIterator[Access]:
    """Lock the directory, making it if needed, and open only its catalog; blocking, and brief."""
    directory = DataDirectory(path)
    try:
        directory.take()
    except UnavailableError:
        holder = read_holder(path)
        if holder is None:
            raise
        raise UnavailableError(
            f"{path} is open in process {holder.get('pid', 'unknown')}, which alone may change "
            "its users: stop that broker, run this command, and start it again"
        ) from None
    try:
        catalog = await Catalog.open(
            InlineRunner(SqliteDatabase(path / CATALOG_NAME)), SystemClock()
        )
        access = Access(catalog.credentials, Metrics())
        try:
            await access.load()
            yield access
        finally:
            access.close()
            await catalog.close()
    finally:
        directory.release()
