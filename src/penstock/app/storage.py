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
from uuid import uuid4

from msgspec import UNSET

from penstock.broker.settings import BrokerSettings, check_storage
from penstock.catalog.database.interface import Database
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.outside import CATALOG_NAME
from penstock.log.files.directory import (
    FILES,
    KAFKA,
    POSTGRES,
    SQLITE,
    Backends,
    read_backends,
    write_backends,
)
from penstock.model.clock import Clock
from penstock.model.errors import InvalidSetting, RefusedError

if TYPE_CHECKING:
    from penstock.log.kafka.client import KafkaAddress
    from penstock.log.kafka.store import KafkaStore
    from penstock.log.postgres.store import PostgresStore

GIVE_UP_S: Final = 10.0  # a close waits this long for a database that is gone


def backends(settings: BrokerSettings) -> Backends:
    """What the settings choose; InvalidSetting when it does not work together, or not here."""
    check_storage(settings)
    if settings.log_backend == KAFKA and find_spec("aiokafka") is None:
        raise InvalidSetting(
            "topics in Kafka need the package aiokafka, which is not installed:"
            " pip install 'penstock[kafka]'"
        )
    if not settings.catalog_url:
        return Backends(SQLITE, settings.log_backend)
    if find_spec("psycopg") is None:
        raise InvalidSetting(
            "a catalog in PostgreSQL needs the package psycopg, which is not installed:"
            " pip install 'penstock[postgres]'"
        )
    return Backends(POSTGRES, settings.log_backend)


def check_backends(path: Path, chosen: Backends) -> None:
    """Refuse a directory that began with other backends."""
    known = _known(path) or chosen
    if (known.catalog, known.log) != (chosen.catalog, chosen.log):
        raise RefusedError(
            f"{path} was created with {_text(known)}, but the settings now have {_text(chosen)}: "
            "set [catalog] url and [log] backend as they were, or use another directory"
        )


def keep_backends(path: Path, chosen: Backends, owner: str = "") -> None:
    """Write down what a new directory began with, once that has worked."""
    known = read_backends(path)
    is_new = known is None and chosen != Backends()
    if is_new or (known is not None and owner and not known.owner):
        write_backends(path, Backends(chosen.catalog, chosen.log, owner or UNSET))


def owner_of(path: Path, otherwise: str | None = None) -> str:
    """Under which name this directory claims topics in Kafka; a new one if it has none."""
    known = read_backends(path)
    own = known.owner or "" if known is not None else ""
    return own or (uuid4().hex if otherwise is None else otherwise)


def _known(path: Path) -> Backends | None:
    """The backends of a directory; None while it has none."""
    return read_backends(path) or (Backends() if (path / CATALOG_NAME).exists() else None)


def _text(kind: Backends) -> str:
    names = {FILES: "files", POSTGRES: "PostgreSQL", SQLITE: "SQLite", KAFKA: "Kafka"}
    return f"the catalog in {names[kind.catalog]} and the topics in {names[kind.log]}"


def catalog_opener(
    path: Path, settings: BrokerSettings, giving_up: threading.Event | None = None
) -> Callable[[], Database]:
    """Opens the catalog's database, on the thread that will use it."""
    if not settings.catalog_url:
        return lambda: SqliteDatabase(path / CATALOG_NAME)
    from penstock.catalog.database.postgres import PostgresDatabase

    return lambda: PostgresDatabase(
        settings.catalog_url, settings.catalog_schema, giving_up=giving_up
    )


async def open_store(
    settings: BrokerSettings, clock: Clock, giving_up: threading.Event, owner: str, inc: int = 0
) -> PostgresStore | KafkaStore:
    """Topics as tables in the database of the catalog, or as topics of Kafka."""
    if settings.log_backend == KAFKA:
        return await _open_kafka(settings, clock, giving_up, owner, inc)
    from penstock.log.postgres.store import PostgresStore

    return await PostgresStore.start(
        settings.catalog_url, settings.catalog_schema, clock, giving_up
    )


async def _open_kafka(
    settings: BrokerSettings, clock: Clock, giving_up: threading.Event, owner: str, inc: int
) -> KafkaStore:
    from penstock.log.kafka.store import KafkaLayout, KafkaStore

    layout = KafkaLayout(settings.kafka_prefix, settings.kafka_replication, owner, inc)
    return await KafkaStore.start(kafka_address(settings), layout, clock, giving_up)


def kafka_address(settings: BrokerSettings) -> KafkaAddress:
    """Where Kafka is and how to log in; InvalidSetting if the password cannot be read."""
    from penstock.log.kafka.client import KafkaAddress

    return KafkaAddress(
        settings.kafka_bootstrap,
        settings.kafka_tls_ca,
        settings.kafka_sasl_mechanism,
        settings.kafka_sasl_user,
        _password(settings.kafka_sasl_password_file),
    )


def _password(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as failed:
        raise InvalidSetting(
            f"[kafka] sasl_password_file {file!r} cannot be read ({failed}): it must contain the "
            "password and nothing else"
        ) from failed
