"""Is a catalog always at exactly one version, and is every released version still read?"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.catalog.catalog import BindingRow, Catalog, ConsumerRow, TopicRow
from penstock.catalog.database.interface import Database
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.schema.migrations import MIGRATIONS, Migration, migrate
from penstock.catalog.session.sessions import SessionCatalog
from penstock.catalog.session.stored_sessions import OutstandingRow
from penstock.model.clock import ManualClock
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT, TopicId
from tests.catalog.faults import OpenDatabase

GOLDEN = Path(__file__).parent / "golden"

FIRST = Migration(1, ("create table a (n bigint)", "insert into a (n) values (1)"))
SECOND = Migration(2, ("create table b (n bigint)", "insert into b (n) select n from a"))


async def run_migrations(database: Database, *migrations: Migration) -> None:
    await migrate(InlineRunner(database), migrations)


def fetch(database: Database, sql: str) -> list[tuple[int]]:
    with database.transaction():
        return database.fetch(sql)


async def test_migrations_run_once_each_and_in_order(open_database: OpenDatabase) -> None:
    database = open_database()
    await run_migrations(database, FIRST)
    await run_migrations(database, FIRST, SECOND)
    await run_migrations(database, FIRST, SECOND)
    database.close()
    database = open_database()
    await run_migrations(database, FIRST, SECOND)
    assert fetch(database, "select n from a") == [(1,)]
    assert fetch(database, "select n from b") == [(1,)]
    assert fetch(database, "select version from schema_version order by version") == [(1,), (2,)]
    database.close()


async def test_a_newer_catalog_is_refused_and_left_as_it_is(open_database: OpenDatabase) -> None:
    database = open_database()
    await run_migrations(database, FIRST, SECOND)
    with pytest.raises(RefusedError, match=r"version 2 .* up to 1: run the newer"):
        await run_migrations(database, FIRST)
    assert fetch(database, "select max(version) from schema_version") == [(2,)]
    database.close()


async def test_a_migration_that_fails_leaves_nothing_behind(open_database: OpenDatabase) -> None:
    database = open_database()
    await run_migrations(database, FIRST)
    broken = Migration(2, ("create table b (n bigint)", "insert into nowhere (n) values (1)"))
    with pytest.raises(Exception, match="nowhere"):
        await run_migrations(database, FIRST, broken)
    assert fetch(database, "select version from schema_version") == [(1,)]
    await run_migrations(database, FIRST, SECOND)  # `create table b` would fail on a leftover
    assert fetch(database, "select n from b") == [(1,)]
    database.close()


def die_in_the_middle(path: Path) -> None:
    """A process that is killed while it runs the first migration."""
    program = (
        "import asyncio, os, signal, sys\n"
        "from penstock.catalog.schema.migrations import MIGRATIONS, migrate\n"
        "from penstock.catalog.database.sqlite import SqliteDatabase\n"
        "from penstock.catalog.database.thread import InlineRunner\n"
        "class DiesInTheMiddle(SqliteDatabase):\n"
        "    def execute(self, sql, *args):\n"
        "        if 'create table bindings' in sql:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().execute(sql, *args)\n"
        "asyncio.run(migrate(InlineRunner(DiesInTheMiddle(sys.argv[1]))))\n"
    )
    child = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert child.returncode == -signal.SIGKILL


async def test_a_migration_cut_short_by_a_kill_is_not_visible(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    die_in_the_middle(path)
    database = SqliteDatabase(path)
    assert fetch(database, "select name from sqlite_master where name = 'topics'") == []
    await run_migrations(database, *MIGRATIONS)
    assert fetch(database, "select max(version) from schema_version") == [(MIGRATIONS[-1].number,)]
    database.close()


def test_numbers_are_consecutive_from_one() -> None:
    assert [migration.number for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


async def test_a_catalog_of_version_1_opens_with_everything_in_it(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    connection = sqlite3.connect(path)
    connection.executescript((GOLDEN / "v1.sql").read_text())
    connection.close()
    catalog = await Catalog.open(InlineRunner(SqliteDatabase(path)))
    topics, bindings, consumers = await catalog.load()
    assert topics == [
        TopicRow(
            DEFAULT_TENANT,
            TopicId(2),
            "sensors",
            "Sensors",
            '{"durability":"fsync"}',
            1_700_000_000_000_000,
        )
    ]
    assert bindings == [BindingRow(DEFAULT_TENANT, 0, "plant/+/temp", TopicId(2))]
    assert consumers == [ConsumerRow(DEFAULT_TENANT, TopicId(2), "billing", 1, 42)]
    assert await catalog.reserve_topic_id() == 3
    await catalog.close()


async def test_what_was_out_before_feeds_had_ids_is_out_without_one(
    open_database: OpenDatabase,
) -> None:
    database = open_database()
    by_number = {migration.number: migration for migration in MIGRATIONS}
    await run_migrations(database, *(by_number[number] for number in range(1, 5)))
    with database.transaction():
        for statement in (
            "insert into tenants (tenant, created_at) values ('default', 0)",
            "insert into topics (topic_id, tenant, key, declared, settings, created_at)"
            " values (1, 'default', 't', 't', '{}', 0)",
            "insert into sessions (tenant, client_id, owner, incarnation, expiry_s, is_connected,"
            " disconnected_at) values ('default', 'c', '', 1, 9, 0, 0)",
            "insert into outstanding (tenant, client_id, topic_id, message_offset, packet_id, qos,"
            " is_released) values ('default', 'c', 1, 7, 3, 2, 1)",
            "insert into subscriptions (tenant, client_id, filter, qos, options, identifier, since)"
            " values ('default', 'c', 'a/#', 1, 0, 0, '{}')",
        ):
            database.execute(statement)
    await run_migrations(database, *MIGRATIONS)
    catalog = SessionCatalog(InlineRunner(database), ManualClock(1), DEFAULT_TENANT)
    stored, is_present = await catalog.begin("c", "", 9, is_clean=False)
    assert is_present
    assert stored.outstanding == [OutstandingRow(1, 7, 3, 2, True, 0)]
    assert [(row.filter, row.feed_id, row.expression) for row in stored.subscriptions] == [
        ("a/#", 0, "")
    ]
    database.close()


async def test_the_oldest_user_of_an_earlier_version_becomes_admin(
    open_database: OpenDatabase,
) -> None:
    database = open_database()
    roles = next(one for one in MIGRATIONS if any("user_roles" in sql for sql in one.statements))
    await run_migrations(database, *MIGRATIONS[: roles.number - 1])
    with database.transaction():
        for tenant in ("default", "acme"):
            database.execute("insert into tenants (tenant, created_at) values ($1, 1)", tenant)
        for tenant, user, created_at in (
            ("default", "later", 20),
            ("default", "first", 10),
            ("default", "also", 20),
            ("acme", "b", 5),
            ("acme", "a", 5),
        ):
            database.execute(
                "insert into credentials"
                " (tenant, user_name, password_hash, created_at, changed_at)"
                " values ($1, $2, 'x', $3, 1)",
                tenant,
                user,
                created_at,
            )
    database.close()
    catalog = await Catalog.open(InlineRunner(open_database()))
    found = {(row.tenant, row.user): row.roles for row in await catalog.credentials.load()}
    assert found == {
        ("default", "first"): ("admin",),
        ("default", "later"): ("client",),
        ("default", "also"): ("client",),
        ("acme", "a"): ("admin",),
        ("acme", "b"): ("client",),
    }
    await catalog.close()
