"""What a broker keeps its catalog and its topics in, as the settings choose.

A directory stays with the backends it began with: what is not in its SQLite file is written down
in the file `storage.json`, so that nobody opens it with the wrong ones and finds it empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.broker.settings import BrokerSettings, check_storage
from penstock.catalog.database import Database
from penstock.catalog.outside import CATALOG_NAME
from penstock.catalog.sqlite import SqliteDatabase
from penstock.log.files.directory import (
    FILES,
    POSTGRES,
    SQLITE,
    Backends,
    read_backends,
    write_backends,
)
from penstock.model.clock import Clock
from penstock.model.errors import InvalidSetting, RefusedError

if TYPE_CHECKING:
    from penstock.log.postgres.store import PostgresStore

GIVE_UP_S: Final = 10.0  # a close waits this long for a database that is gone


def backends(settings: BrokerSettings) -> Backends:
    """What the settings choose; InvalidSetting when it does not work together, or not here."""
    check_storage(settings)
    if not settings.catalog_url:
        return Backends()
    if find_spec("psycopg") is None:
        raise InvalidSetting(
            "a catalog in PostgreSQL needs the package psycopg, which is not installed:"
            " pip install 'penstock[postgres]'"
        )
    return Backends(POSTGRES, settings.log_backend)


def check_backends(path: Path, chosen: Backends) -> None:
    """Refuse a directory that began with other backends."""
    known = _known(path) or chosen
    if known != chosen:
        raise RefusedError(
            f"{path} was created with {_text(known)}, but the settings now have {_text(chosen)}: "
            "set [catalog] url and [log] backend as they were, or use another directory"
        )


def keep_backends(path: Path, chosen: Backends) -> None:
    """Write down what a new directory began with, once that has worked."""
    if _known(path) is None:
        write_backends(path, chosen)


def _known(path: Path) -> Backends | None:
    """The backends of a directory; None while it has none."""
    return read_backends(path) or (Backends() if (path / CATALOG_NAME).exists() else None)


def _text(kind: Backends) -> str:
    names = {FILES: "files", POSTGRES: "PostgreSQL", SQLITE: "SQLite"}
    return f"the catalog in {names[kind.catalog]} and the topics in {names[kind.log]}"


def catalog_opener(
    path: Path, settings: BrokerSettings, giving_up: threading.Event | None = None
) -> Callable[[], Database]:
    """Opens the catalog's database, on the thread that will use it."""
    if not settings.catalog_url:
        return lambda: SqliteDatabase(path / CATALOG_NAME)
    from penstock.catalog.postgres import PostgresDatabase

    return lambda: PostgresDatabase(
        settings.catalog_url, settings.catalog_schema, giving_up=giving_up
    )


async def open_store(
    settings: BrokerSettings, clock: Clock, giving_up: threading.Event
) -> PostgresStore:
    """Topics as tables in the database of the catalog."""
    from penstock.log.postgres.store import PostgresStore

    return await PostgresStore.start(
        settings.catalog_url, settings.catalog_schema, clock, giving_up
    )
