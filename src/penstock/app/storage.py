"""What a broker keeps its catalog in: SQLite in its data directory, or PostgreSQL.

A directory stays with the backends it began with: what is not in its SQLite file is written down
in the file `storage.json`, so that nobody opens it with the wrong ones and finds it empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from penstock.broker.settings import BrokerSettings
from penstock.catalog.database import Database
from penstock.catalog.outside import CATALOG_NAME
from penstock.catalog.sqlite import SqliteDatabase
from penstock.log.files import RealDisk, write_file
from penstock.model.errors import CorruptError, InvalidSetting, RefusedError

STORAGE_NAME: Final = "storage.json"
SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"
GIVE_UP_S: Final = 10.0  # a close waits this long for a database that is gone


class Backends(msgspec.Struct, frozen=True):
    """Which kind of store holds the catalog."""

    catalog: str = SQLITE


def backends(settings: BrokerSettings) -> Backends:
    """What the settings choose; InvalidSetting when that does not work here."""
    if not settings.catalog_url:
        return Backends()
    if find_spec("psycopg") is None:
        raise InvalidSetting(
            "a catalog in PostgreSQL needs the package psycopg, which is not installed:"
            " pip install 'penstock[postgres]'"
        )
    return Backends(POSTGRES)


def check_backends(path: Path, chosen: Backends) -> None:
    """Refuse a directory that began with other backends."""
    known = _read(path) or chosen
    if known != chosen:
        raise RefusedError(
            f"{path} keeps its catalog in {_catalog_text(known)} and was opened with"
            f" {_catalog_text(chosen)}: give the setting it began with ([catalog] url), or use"
            " another directory"
        )


def keep_backends(path: Path, chosen: Backends) -> None:
    """Write down what a new directory began with, once that has worked."""
    if _read(path) is None:
        text = msgspec.json.format(msgspec.json.encode(chosen))
        write_file(RealDisk(), path / STORAGE_NAME, text + b"\n")


def _catalog_text(kind: Backends) -> str:
    return "SQLite" if kind.catalog == SQLITE else "PostgreSQL"


def _read(path: Path) -> Backends | None:
    """The backends of a directory; None while it has none."""
    file = path / STORAGE_NAME
    try:
        return msgspec.json.decode(file.read_bytes(), type=Backends)
    except FileNotFoundError:
        return Backends() if (path / CATALOG_NAME).exists() else None
    except msgspec.DecodeError as broken:
        raise CorruptError(
            f"{file}: {broken}: it says what holds the catalog, such as"
            f" {msgspec.json.encode(Backends(POSTGRES)).decode()}; write it anew"
        ) from broken


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
