"""The users of a data directory that no broker has open."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from penstock.app.private import keep_private
from penstock.app.storage import backends, catalog_opener, check_backends, keep_backends
from penstock.broker.access import Access
from penstock.broker.figures.metrics import Metrics
from penstock.broker.settings import BrokerSettings
from penstock.catalog.catalog import Catalog
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.schema.upgrade import copy_before_upgrade
from penstock.log.files.directory import SQLITE, DataDirectory, check_restored, read_holder
from penstock.model.clock import SystemClock
from penstock.model.errors import UnavailableError

LOG: Final = logging.getLogger("penstock.catalog")


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
        check_restored(path)
        keep_private(path)
        check_backends(path, chosen)
        runner = InlineRunner(catalog_opener(path, settings)())
        if chosen.catalog == SQLITE:
            for note in copy_before_upgrade(path):
                LOG.warning(note)
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
