"""The users of a data directory that no broker has open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.app.private import keep_private
from penstock.app.storage import backends, catalog_opener, check_backends, keep_backends
from penstock.broker.access import Access
from penstock.broker.metrics import Metrics
from penstock.broker.settings import BrokerSettings
from penstock.catalog.catalog import Catalog
from penstock.catalog.thread import InlineRunner
from penstock.log.files.directory import DataDirectory, read_holder
from penstock.model.clock import SystemClock
from penstock.model.errors import UnavailableError


@asynccontextmanager
async def open_users(path: Path, settings: BrokerSettings | None = None) -> AsyncIterator[Access]:
    """Lock the directory, making it if needed, and open only its catalog; blocking, and brief."""
    settings = settings or BrokerSettings()
    chosen = backends(settings)
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
        keep_private(path)
        check_backends(path, chosen)
        runner = InlineRunner(catalog_opener(path, settings)())
        catalog = await Catalog.open(runner, SystemClock())
        keep_backends(path, chosen)
        access = Access(catalog.credentials, Metrics())
        try:
            await access.load()
            access.tenants = {row.tenant for row in await catalog.tenants.load()}
            yield access
        finally:
            access.close()
            await catalog.close()
    finally:
        directory.release()
