"""Does the catalog in PostgreSQL keep its word when connections end, and keep others out?"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import psycopg
import pytest

from penstock.catalog.database.group import run_group
from penstock.catalog.database.postgres import PostgresDatabase
from penstock.model.errors import UnavailableError
from penstock.postgres.connection import RETRY_S_MIN, shown_url
from tests.postgres_proxy import ABANDON, DEAFEN, SWALLOW, PostgresProxy
from tests.postgres_server import PostgresServer


@pytest.fixture
def schema(postgres: PostgresServer) -> str:
    return postgres.new_schema()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[PostgresProxy]:
    with PostgresProxy(postgres.url) as proxy:
        yield proxy


@pytest.fixture
def database(proxy: PostgresProxy, schema: str) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(proxy.url, schema)
    with database.transaction():
        database.execute("create table t (a bigint primary key)")
    yield database
    database.close()


def insert(database: PostgresDatabase, *values: int) -> None:
    with database.transaction():
        for a in values:
            database.execute("insert into t (a) values ($1)", a)


def rows(database: PostgresDatabase) -> list[int]:
    with database.transaction():
        return [a for (a,) in database.fetch("select a from t order by a")]


def is_commit(request: bytes) -> bool:
    return b"commit\0" in request


def test_a_second_broker_on_a_schema_is_refused_and_told_who_holds_it(
    postgres: PostgresServer, schema: str
) -> None:
    first = PostgresDatabase(postgres.url, schema)
    with pytest.raises(UnavailableError) as refused:
        PostgresDatabase(postgres.url, schema, lock_s_max=0.1)
    assert f"process {os.getpid()} on " in str(refused.value)
    assert schema in str(refused.value) and "another schema" in str(refused.value)
    PostgresDatabase(postgres.url, postgres.new_schema()).close()  # another schema is another
    first.close()
    PostgresDatabase(postgres.url, schema).close()


def test_the_hold_of_a_killed_process_ends_with_it(postgres: PostgresServer, schema: str) -> None:
    program = (
        "import sys; from penstock.catalog.database.postgres import PostgresDatabase\n"
        "database = PostgresDatabase(sys.argv[1], sys.argv[2])\n"
        "print('holding', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, postgres.url, schema],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == b"holding\n"
    with pytest.raises(UnavailableError, match=f"process {child.pid} on "):
        PostgresDatabase(postgres.url, schema, lock_s_max=0.1)
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    PostgresDatabase(postgres.url, schema).close()


def test_an_idle_connection_that_was_lost_is_made_anew_unnoticed(
    database: PostgresDatabase, proxy: PostgresProxy, postgres: PostgresServer
) -> None:
    insert(database, 1)
    proxy.cut()
    insert(database, 2)
    assert postgres.cut_connections() > 0
    insert(database, 3)
    assert rows(database) == [1, 2, 3]


def test_a_connection_lost_inside_a_transaction_refuses_all_of_it(
    database: PostgresDatabase, proxy: PostgresProxy
) -> None:
    with pytest.raises(UnavailableError, match="nothing was changed"), database.transaction():
        database.execute("insert into t (a) values (1)")
        proxy.cut()
        database.execute("insert into t (a) values (2)")
    assert rows(database) == []
    insert(database, 3)
    assert rows(database) == [3]


def test_every_unit_of_a_group_hears_of_a_connection_lost_under_one_of_them(
    database: PostgresDatabase, proxy: PostgresProxy
) -> None:
    def lose(db: object) -> None:
        proxy.cut()
        database.execute("insert into t (a) values (2)")

    works = [
        lambda db: database.execute("insert into t (a) values (1)"),
        lose,
        lambda db: database.execute("insert into t (a) values (3)"),
    ]
    outcomes = run_group(database, works)
    assert all(isinstance(outcome.error, UnavailableError) for outcome in outcomes)
    assert rows(database) == []


@pytest.mark.parametrize("fate", [DEAFEN, ABANDON])
def test_a_commit_that_happened_although_its_answer_was_lost_counts(
    database: PostgresDatabase, proxy: PostgresProxy, fate: str
) -> None:
    proxy.doom(fate, is_commit)
    insert(database, 1)
    assert proxy.has_struck.is_set()
    assert rows(database) == [1]
    insert(database, 2)
    assert rows(database) == [1, 2]


def test_a_commit_that_never_arrived_is_refused(
    database: PostgresDatabase, proxy: PostgresProxy
) -> None:
    proxy.doom(SWALLOW, is_commit)
    with pytest.raises(UnavailableError, match="nothing was changed"):
        insert(database, 1)
    assert rows(database) == []
    insert(database, 2)
    assert rows(database) == [2]


@pytest.mark.parametrize("fate", [DEAFEN, SWALLOW])
def test_a_commit_in_doubt_waits_until_the_server_can_be_asked(
    database: PostgresDatabase, proxy: PostgresProxy, fate: str
) -> None:
    told: list[str] = []

    def try_to_insert() -> None:
        try:
            insert(database, 1)
            told.append("stored")
        except UnavailableError:
            told.append("refused")

    proxy.doom(fate, is_commit)
    proxy.is_down = True
    thread = threading.Thread(target=try_to_insert)
    thread.start()
    assert proxy.has_struck.wait(60)
    thread.join(5 * RETRY_S_MIN)
    assert told == []
    proxy.is_down = False
    thread.join(60)
    assert told == ["stored" if fate == DEAFEN else "refused"]
    assert rows(database) == ([1] if fate == DEAFEN else [])


def test_giving_up_ends_the_wait_and_says_that_the_outcome_is_not_known(
    proxy: PostgresProxy, schema: str
) -> None:
    giving_up = threading.Event()
    giving_up.set()
    database = PostgresDatabase(proxy.url, schema, giving_up=giving_up)
    proxy.doom(DEAFEN, is_commit)
    proxy.is_down = True
    with (
        pytest.raises(UnavailableError, match="unknown whether the last change was stored"),
        database.transaction(),
    ):
        database.execute("create table t (a bigint)")
    database.close()


def test_a_server_that_is_gone_refuses_at_once_between_attempts(
    database: PostgresDatabase, proxy: PostgresProxy
) -> None:
    proxy.is_down = True
    proxy.cut()
    for _ in range(20):
        with pytest.raises(UnavailableError, match="PostgreSQL") as refused:
            rows(database)
        assert refused.value.retry_after_s <= 5.0
    proxy.is_down = False
    for _ in range(1_000):
        try:
            insert(database, 1)
            break
        except UnavailableError as still:
            threading.Event().wait(still.retry_after_s)
    assert rows(database) == [1]


def test_whoever_lost_the_hold_to_another_changes_nothing_any_more(
    database: PostgresDatabase, proxy: PostgresProxy, postgres: PostgresServer, schema: str
) -> None:
    proxy.is_down = True
    proxy.cut()
    other = PostgresDatabase(postgres.url, schema)
    insert(other, 7)
    other.close()
    proxy.is_down = False
    for _ in range(3):
        with pytest.raises(UnavailableError, match=r"used it meanwhile.*restarted"):
            insert(database, 8)
        threading.Event().wait(RETRY_S_MIN)
    assert postgres.fetch(f"select a from {schema}.t") == [(7,)]


def test_a_transaction_that_lost_the_hold_while_it_ran_stores_nothing(
    database: PostgresDatabase, postgres: PostgresServer, schema: str
) -> None:
    with (
        pytest.raises(UnavailableError, match="no longer belongs to this broker"),
        database.transaction(),
    ):
        database.execute("insert into t (a) values (1)")
        postgres.fetch(f"update {schema}.holders set token = 'somebody else'")
    assert postgres.fetch(f"select a from {schema}.t") == []


def test_a_server_that_forgot_commits_fences_the_catalog(
    database: PostgresDatabase, proxy: PostgresProxy, postgres: PostgresServer, schema: str
) -> None:
    insert(database, 1)
    proxy.cut()
    postgres.fetch(f"update {schema}.holders set commits = 0")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="is in an earlier state than before"):
            insert(database, 2)


def test_reading_counts_nothing(
    database: PostgresDatabase, postgres: PostgresServer, schema: str
) -> None:
    ask = f"select commits from {schema}.holders"
    before = postgres.fetch(ask)
    rows(database)
    assert postgres.fetch(ask) == before
    insert(database, 1)
    assert postgres.fetch(ask) == [(before[0][0] + 1,)]


def test_commits_are_synced_although_the_server_would_not(
    postgres: PostgresServer, schema: str
) -> None:
    postgres.fetch("alter database postgres set synchronous_commit = off")
    try:
        database = PostgresDatabase(postgres.url, schema)
        with database.transaction():
            assert database.fetch("show synchronous_commit") == [("on",)]
        database.close()
    finally:
        postgres.fetch("alter database postgres reset synchronous_commit")


def test_a_user_who_may_not_create_schemas_may_use_one_that_is_there(
    postgres: PostgresServer, schema: str
) -> None:
    user = f"{schema}_user"
    postgres.fetch(f"create role {user} login")
    url = postgres.url.replace("postgres:@", f"{user}@")
    with pytest.raises(UnavailableError, match=r"permission denied.*allowed to create it"):
        PostgresDatabase(url, schema)
    postgres.fetch(f"create schema {schema} authorization {user}")
    database = PostgresDatabase(url, schema)
    with database.transaction():
        database.execute("create table t (a bigint)")
    database.close()
    postgres.fetch(f"drop schema {schema} cascade")
    postgres.fetch(f"drop role {user}")


def test_an_address_where_nothing_listens_is_unavailable_and_shows_no_password() -> None:
    url = "postgresql://alice:secret@127.0.0.1:1/orders"
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1/orders cannot be reached") as error:
        PostgresDatabase(url, "penstock")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://alice:secret@db.example:5433/orders", "db.example:5433/orders"),
        ("postgresql://alice:secret@/orders?host=/run/pg", "/run/pg/orders"),
        ("postgresql:///orders", "localhost/orders"),
    ],
)
def test_an_address_is_shown_without_user_and_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_failed_statement_outside_a_nested_transaction_is_our_own_mistake(
    database: PostgresDatabase,
) -> None:
    with pytest.raises(AssertionError, match="outside a nested"), database.transaction():
        with pytest.raises(psycopg.Error):
            database.execute("insert into nowhere (a) values (1)")
        database.execute("insert into t (a) values (1)")
    assert rows(database) == []
