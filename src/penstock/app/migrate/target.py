"""Kafka, PostgreSQL and the data directory that a settings file names, open for one migration.

No broker opens them meanwhile, nor after a crash: the index of topics in Kafka says that a
migration has not finished, and the schema of PostgreSQL is empty until the last step.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from penstock.app.private import keep_private
from penstock.app.storage import backends, check_backends, kafka_address, keep_backends
from penstock.broker.settings import BrokerSettings, mask_password
from penstock.catalog.cluster.nodes import CLUSTER_ID
from penstock.catalog.database.postgres import PostgresDatabase
from penstock.catalog.moving import MIGRATION, Found, look_at
from penstock.log.files.directory import (
    KAFKA,
    POSTGRES,
    Backends,
    DataDirectory,
    check_restored,
    read_backends,
)
from penstock.log.kafka.store import KafkaLayout, KafkaStore, Migration
from penstock.model.clock import SystemClock
from penstock.model.errors import RefusedError
from penstock.postgres.connection import connect


@dataclass(frozen=True, slots=True)
class TargetPlace:
    """Where a data directory is moved to."""

    settings: BrokerSettings
    data: Path  # of the first broker there

    @property
    def shown(self) -> str:
        settings = self.settings
        return (
            f"Kafka at {settings.kafka_bootstrap}, prefix {settings.kafka_prefix}, replication "
            f"{settings.kafka_replication}; PostgreSQL at {mask_password(settings.catalog_url)}, "
            f"schema {settings.catalog_schema}; data directory {self.data}"
        )


@dataclass(frozen=True, slots=True)
class Target:
    """A target that is open."""

    place: TargetPlace
    store: KafkaStore
    database: PostgresDatabase
    origin: int  # of the data directory

    @property
    def cluster(self) -> dict[str, str]:
        """What the catalog says of itself, once it is there."""
        return {CLUSTER_ID: _owner(self.origin), MIGRATION: str(self.origin)}

    async def finish(self) -> None:
        """A broker may be started with the same settings."""
        owner = _owner(self.origin)
        keep_backends(self.place.data, Backends(POSTGRES, KAFKA), owner)
        await self.store.end_migration()


def _owner(origin: int) -> str:
    """Under which name the topics are claimed: the same in every attempt."""
    return hashlib.sha256(f"penstock migrate {origin}".encode()).hexdigest()[:32]


def check_place(place: TargetPlace, source: Path) -> None:
    """Refuse settings that a data directory cannot be moved to."""
    if backends(place.settings) != Backends(POSTGRES, KAFKA):
        raise RefusedError(
            "the settings to migrate to must have the topics in Kafka and the catalog in "
            'PostgreSQL: set [log] backend = "kafka", [kafka] bootstrap and [catalog] url'
        )
    if place.data.resolve() == source.resolve():
        raise RefusedError(
            f"the settings to migrate to have the data directory {str(place.data)!r}, which is the "
            "one to migrate and stays as it is: set [server] data to another directory"
        )
    check_restored(place.data)
    check_backends(place.data, Backends(POSTGRES, KAFKA))


async def look(place: TargetPlace, origin: int) -> bool:
    """Whether an earlier attempt is continued; RefusedError if there is other data."""
    settings = place.settings
    _check_owner(place, origin)
    found = _look_at_schema(settings)
    layout = _layout(settings, origin, found)
    migration, topics = await KafkaStore.look(kafka_address(settings), layout, SystemClock())
    is_continued = migration == str(origin)
    if not is_continued:
        _check_empty(found, settings, origin)
        if topics or migration:
            raise RefusedError(
                f"Kafka already has topics that begin with '{settings.kafka_prefix}.'"
                + (f", such as {topics[0]!r}" if topics else "")
                + ": choose another [kafka] prefix to migrate to"
            )
    return is_continued


@asynccontextmanager
async def open_target(place: TargetPlace, origin: int) -> AsyncIterator[Target]:
    """Lock everything; RefusedError if there is other data than that of an earlier attempt."""
    settings = place.settings
    await look(place, origin)  # before anything is made
    with ExitStack() as parts:
        directory = DataDirectory(place.data)
        directory.take()
        parts.callback(directory.release)
        unless_begun = parts.enter_context(ExitStack())
        unless_begun.callback(directory.give_up)
        keep_private(place.data)
        database = PostgresDatabase(settings.catalog_url, settings.catalog_schema)
        parts.callback(database.close)
        found = _look_at_schema(settings)  # nobody else changes it from here on
        layout = _layout(settings, origin, found)
        address, giving_up = kafka_address(settings), threading.Event()
        store = await KafkaStore.start(address, layout, SystemClock(), giving_up)
        try:
            unless_begun.pop_all()
            yield Target(place, store, database, origin)
        finally:
            giving_up.set()
            await store.close()


def _layout(settings: BrokerSettings, origin: int, found: Found) -> KafkaLayout:
    migration = Migration(str(origin), may_begin=not found.rows)
    return KafkaLayout(
        settings.kafka_prefix, settings.kafka_replication, _owner(origin), migration=migration
    )


def _look_at_schema(settings: BrokerSettings) -> Found:
    with closing(connect(settings.catalog_url, settings.catalog_schema)) as connection:
        return look_at(connection, settings.catalog_schema)


def _check_empty(found: Found, settings: BrokerSettings, origin: int) -> None:
    where = f"schema {settings.catalog_schema!r} of {mask_password(settings.catalog_url)}"
    if found.migration == str(origin):
        raise RefusedError(
            f"this data directory was migrated to {where} before: start the broker there, or "
            "choose another [catalog] schema and [kafka] prefix to migrate it again"
        )
    if found.rows:
        raise RefusedError(
            f"{where} already has data ({', '.join(found.rows[:3])}): choose another [catalog] "
            "schema to migrate to"
        )


def _check_owner(place: TargetPlace, origin: int) -> None:
    known = read_backends(place.data)
    if known is not None and known.owner and known.owner != _owner(origin):
        raise RefusedError(
            f"{place.data} is the data directory of another broker on Kafka: set [server] data to "
            "a new directory"
        )
