"""A whole catalog, from the SQLite file of a closed data directory into a schema of PostgreSQL.

Tables and columns are those that SQLite lists, so a new table is moved as soon as it exists.
Everything is written in one transaction: a schema has all of the catalog, or nothing of it.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.catalog.database.interface import Row
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.outside import CATALOG_NAME, closed_address
from penstock.catalog.schema.migrations import MIGRATIONS, bring_up
from penstock.model.errors import RefusedError, UnavailableError
from penstock.model.limits import FILE_MODE
from penstock.model.record import DEFAULT_TENANT, TenantId

if TYPE_CHECKING:
    from penstock.catalog.database.postgres import PostgresDatabase
    from penstock.postgres.connection import Connection

PAGE_ROWS: Final = 2_000
MIGRATION: Final = "migration"  # the row of `cluster` that says which data directory it was
VERSIONS: Final = "schema_version"
HOLDINGS: Final = "holdings"
# Tables that are not moved: the target has its own version, and counts by itself what is stored.
NOT_MOVED: Final = (VERSIONS, HOLDINGS)
# What a broker that was started once, and used for nothing, leaves in these is no data.
HOUSEKEEPING: Final = {
    *(*NOT_MOVED, "holders", "tenants", "counters", "clock_reading", "cluster", "nodes", "leases"),
    *("node_levels", "fences", "share_parts", "share_members", "view_levels"),
}

Change = Callable[[dict[str, Any]], bool]  # of one row, by column; False: it is not moved
Tell = Callable[[int], None]  # of rows that were moved


class CatalogCopy:
    """A catalog that nobody else has open, with the tables of this version."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.tables = _in_order(connection)  # what others refer to comes first
        ((made_at,),) = self._fetch(
            f"select created_at from tenants where tenant = '{DEFAULT_TENANT}'"
        )
        self.origin = int(made_at)  # which data directory it is: when it was made
        self.tenants: list[TenantId] = [
            row[0] for row in self._fetch("select tenant from tenants order by tenant")
        ]
        self.topics: list[tuple[str, int, str, str]] = self._fetch(
            "select tenant, topic_id, declared, settings from topics order by topic_id"
        )

    def _fetch(self, sql: str) -> list[Row]:
        return self._connection.execute(sql).fetchall()

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self._fetch(f'pragma table_info("{table}")')]

    def count(self, table: str) -> int:
        return int(self._fetch(f'select count(*) from "{table}"')[0][0])

    def pages(self, table: str) -> Iterator[list[Row]]:
        cursor = self._connection.execute(f"select {_listed(self.columns(table))} from {table}")
        while page := cursor.fetchmany(PAGE_ROWS):
            yield page


@contextmanager
def copy_catalog(data: Path) -> Iterator[CatalogCopy]:
    """The catalog of a closed data directory; an older one is upgraded, but not in its place."""
    address = closed_address(data / CATALOG_NAME)
    with tempfile.TemporaryDirectory(prefix="penstock-migrate-") as scratch:
        file = Path(scratch, CATALOG_NAME)
        file.touch(FILE_MODE)
        try:
            with (
                closing(sqlite3.connect(address, uri=True)) as connection,
                closing(sqlite3.connect(file)) as copy,
            ):
                connection.backup(copy)
        except sqlite3.Error as failed:
            raise UnavailableError(f"catalog {data / CATALOG_NAME} cannot be read: {failed}") from (
                failed
            )
        database = SqliteDatabase(file)
        try:
            with database.transaction():
                bring_up(MIGRATIONS, database)
        finally:
            database.close()
        with closing(sqlite3.connect(file)) as upgraded:
            yield CatalogCopy(upgraded)


def _in_order(connection: sqlite3.Connection) -> list[str]:
    sql = "select name from sqlite_master where type = 'table' and name not glob 'sqlite_*'"
    names = [row[0] for row in connection.execute(sql)]
    needs = {
        name: {row[2] for row in connection.execute(f'pragma foreign_key_list("{name}")')} - {name}
        for name in sorted(names)
        if name not in NOT_MOVED
    }
    return list(TopologicalSorter(needs).static_order())


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


# The target


@dataclass(frozen=True, slots=True)
class Found:
    """What is in a schema."""

    migration: str = ""  # which data directory was moved into it
    rows: tuple[str, ...] = ()  # of tables that have some: `3 rows of topics`


def look_at(connection: Connection, schema: str) -> Found:
    """What a schema holds, which may not exist; nothing is changed."""
    fetch = connection.execute
    listed = fetch("select tablename from pg_tables where schemaname = $1", (schema,))
    tables = {row[0] for row in listed.fetchall()}
    if VERSIONS not in tables:
        others = sorted(tables - HOUSEKEEPING)
        return Found(rows=tuple(f"table {name}" for name in others))
    found = []
    for table in sorted(tables - HOUSEKEEPING):
        ((count,),) = fetch(f'select count(*) from "{table}"'.encode()).fetchall()
        if count:
            found.append(f"{count} rows of {table}")
    sql = "select count(*) from tenants where tenant <> $1"
    ((tenants,),) = fetch(sql, (DEFAULT_TENANT,)).fetchall()
    if tenants:
        found.append(f"{tenants} rows of tenants")
    migration = ""
    if "cluster" in tables:
        sql = "select value from cluster where name = $1"
        migration = "".join(row[0] for row in fetch(sql, (MIGRATION,)).fetchall())
    return Found(migration, tuple(found))


@dataclass(frozen=True, slots=True)
class Moved:
    """What a table holds, in any order."""

    rows: int
    digest: int


def move(
    copy: CatalogCopy,
    database: PostgresDatabase,
    changes: Mapping[str, Change],
    cluster: Mapping[str, str],
    tell: Tell,
) -> dict[str, Moved]:
    """Replace all of the catalog in one transaction; what each table should hold now.

    `changes` are made to the rows of a table on the way; `cluster` are rows of that table.
    """
    moved: dict[str, Moved] = {}
    with database.transaction():
        bring_up(MIGRATIONS, database)
        for table in reversed(copy.tables):
            database.execute(f"delete from {table}")
        for table in copy.tables:
            moved[table] = _move_table(copy, database, table, changes.get(table), tell)
        rows = list(cluster.items())
        database.execute_many("insert into cluster (name, value) values ($1, $2)", rows)
        assert not moved["cluster"].rows, "a catalog in SQLite has no nodes"
        moved["cluster"] = _counted(Moved(0, 0), rows)
    return moved


def _move_table(
    copy: CatalogCopy, database: PostgresDatabase, table: str, change: Change | None, tell: Tell
) -> Moved:
    import psycopg

    columns = copy.columns(table)
    places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    sql = f"insert into {table} ({_listed(columns)}) values ({places})"
    total = Moved(0, 0)
    for page in copy.pages(table):
        rows = page if change is None else _changed(columns, page, change)
        try:
            database.execute_many(sql, rows)
        except psycopg.DataError as failed:
            raise RefusedError(
                f"PostgreSQL cannot store a row of the table {table}: {failed}"
            ) from failed
        total = _counted(total, rows)
        tell(len(rows))
    return total


def _changed(columns: list[str], rows: list[Row], change: Change) -> list[Row]:
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    return [tuple(row.values()) for row in named if change(row)]


def check(copy: CatalogCopy, database: PostgresDatabase, moved: Mapping[str, Moved]) -> list[str]:
    """Read everything again; which tables do not hold what was moved into them."""
    problems = []
    with database.transaction():
        for table, expected in moved.items():
            columns = _listed(copy.columns(table))
            database.execute(f"declare moved cursor for select {columns} from {table}")
            found = Moved(0, 0)
            while page := database.fetch(f"fetch {PAGE_ROWS} from moved"):
                found = _counted(found, page)
            database.execute("close moved")
            if found != expected:
                problems.append(
                    f"table {table} has {found.rows} rows in PostgreSQL and {expected.rows} in the "
                    "data directory, or their content differs"
                )
    return problems


def _counted(total: Moved, rows: Iterable[Row]) -> Moved:
    """With these rows; sums do not depend on the order."""
    count, digest = total.rows, total.digest
    for row in rows:
        hashed = blake2b(repr(tuple(row)).encode(), digest_size=16).digest()
        digest += int.from_bytes(hashed, "big")
        count += 1
    return Moved(count, digest % 2**128)
