"""Does a data directory stay with the backends it began with, and say so?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Broker, InvalidSetting, RefusedError, UnavailableError
from penstock.broker.settings import mask_password
from penstock.log.files.directory import STORAGE_NAME
from tests.postgres_server import PostgresServer


def penstock(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", *arguments]
    return subprocess.run(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_topics_consumers_and_positions_live_in_the_schema(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    schema = postgres.new_schema()
    for life in range(2):
        with Broker(tmp_path, catalog_url=postgres.url, catalog_schema=schema) as broker:
            broker.create_topic("Orders", exist_ok=True)
            if life == 0:
                broker.subscribe("billing", "orders")
            broker.publish(f"message {life}", "orders")
            assert [r.value for r in broker.consume("billing", "orders")] == [f"message {life}"]
    assert postgres.fetch(f"select declared from {schema}.topics") == [("Orders",)]
    assert postgres.fetch(f"select consumer, next_offset from {schema}.positions") == [
        ("billing", 2)
    ]
    assert not list(tmp_path.glob("catalog.db*"))


def test_a_directory_is_refused_with_other_backends_than_it_began_with(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    there = {"catalog_url": postgres.url, "catalog_schema": postgres.new_schema()}
    Broker(tmp_path / "postgres", **there).close()
    with pytest.raises(RefusedError, match="the catalog in PostgreSQL .* the catalog in SQLite"):
        Broker(tmp_path / "postgres")
    Broker(tmp_path / "sqlite").close()
    with pytest.raises(RefusedError, match="the catalog in SQLite .* the catalog in PostgreSQL"):
        Broker(tmp_path / "sqlite", **there)
    with pytest.raises(RefusedError, match="the topics in files, .* the topics in PostgreSQL"):
        Broker(tmp_path / "postgres", log_backend="postgres", **there)
    Broker(tmp_path / "postgres", **there).close()
    Broker(tmp_path / "sqlite").close()
    text = (tmp_path / "postgres" / STORAGE_NAME).read_text()
    assert postgres.url not in text  # nor a password that may be in it


def test_topics_as_tables_work_as_those_in_files(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = postgres.new_schema()
    there = {"catalog_url": postgres.url, "catalog_schema": schema, "log_backend": "postgres"}
    with Broker(tmp_path, **there) as broker:
        broker.create_topic("Orders", retention_age="1h")
        broker.create_topic("gone")
        assert broker.publish({"n": 0}, "orders", headers={"k": "v"}) == 0
        assert broker.publish_many(["one", b"two"], "orders", name="orders/x") == range(1, 3)
        broker.subscribe("billing", "orders")
        found = broker.consume("billing", "orders", where="headers['k'] = 'v'")
        assert [record.value for record in found] == [{"n": 0}]
        broker.delete_topic("gone")
    with Broker(tmp_path, **there) as broker:
        broker.publish("three", "orders")
        assert [r.value for r in broker.read("orders", start=1)] == ["one", b"two", "three"]
        assert [r.value for r in broker.consume("billing", "orders")] == ["three"]
        (found_topic,) = broker.topics()
        assert (found_topic.topic, found_topic.end_offset, found_topic.epoch) == ("Orders", 4, 1)
        assert found_topic.bytes > 0
        stream = broker.stream("orders", start=3)
        assert next(stream).value == "three"
        broker.publish("four", "orders")
        assert next(stream).value == "four"
    rows = postgres.fetch(f'select messageid, message from {schema}_topics."Orders"')
    assert sorted(rows) == [(0, '{"n":0}'), (1, "one"), (2, "two"), (3, "three"), (4, "four")]
    assert not (tmp_path / "default").exists()


def test_erasing_records_of_a_topic_in_postgresql_is_refused_and_changes_nothing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    there = {"catalog_url": postgres.url, "catalog_schema": postgres.new_schema()}
    for _ in range(2):  # no order is left for the next start
        with Broker(tmp_path, log_backend="postgres", **there) as broker:
            broker.create_topic("orders", exist_ok=True)
            broker.publish("kept", "orders", retain=True)
            before = broker.read("orders")
            for dry_run in (True, False):
                with pytest.raises(RefusedError, match="stored in files: delete them where"):
                    broker.erase("#", "orders", dry_run=dry_run)
            assert broker.read("orders") == before


def test_tables_left_by_a_crash_while_a_topic_was_made_are_removed_at_the_next_start(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    schema = postgres.new_schema()
    there = {"catalog_url": postgres.url, "catalog_schema": schema, "log_backend": "postgres"}
    with Broker(tmp_path, **there) as broker:
        broker.create_topic("kept")
        broker.create_topic("orphan")
    postgres.fetch(f"delete from {schema}.topics where key = 'orphan'")
    with Broker(tmp_path, **there) as broker:
        assert [one.topic for one in broker.topics()] == ["kept"]
    assert postgres.fetch(f"select declared from {schema}.logs") == [("kept",)]
    postgres.fetch(f"drop table {schema}.topic_1 cascade")
    with Broker(tmp_path, **there) as broker, pytest.raises(UnavailableError, match="topic_1"):
        broker.publish("x", "kept")


def test_what_only_files_have_is_answered_clearly_for_tables(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    where = {
        "PENSTOCK_AT": str(data),
        "PENSTOCK_CATALOG__URL": postgres.url,
        "PENSTOCK_CATALOG__SCHEMA": postgres.new_schema(),
        "PENSTOCK_LOG__BACKEND": "postgres",
    }
    assert penstock("topic", "create", "orders", **where).returncode == 0
    assert penstock("publish", "orders", "hello", **where).returncode == 0
    for command in (("log", "verify"), ("log", "dump", "orders")):
        answer = penstock(*command, **where)
        assert answer.returncode == 1 and "are tables in PostgreSQL" in answer.stderr
    assert penstock("log", "export", str(tmp_path / "out"), "--lines", **where).returncode == 0
    assert (tmp_path / "out" / "orders" / "messages.log").read_text() == "hello\n"


def test_an_address_that_did_not_work_binds_a_new_directory_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        Broker(tmp_path, catalog_url="postgresql://127.0.0.1:1/nothing")
    Broker(tmp_path).close()


def test_a_broker_that_could_not_open_leaves_the_catalog_to_others(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    schema = postgres.new_schema()
    Broker(tmp_path, catalog_url=postgres.url, catalog_schema=schema).close()
    postgres.fetch(f"insert into {schema}.schema_version (version) values (1000)")
    for _ in range(2):
        with pytest.raises(RefusedError, match="schema version 1000"):
            Broker(tmp_path, catalog_url=postgres.url, catalog_schema=schema)
    postgres.fetch(f"delete from {schema}.schema_version where version = 1000")
    Broker(tmp_path, catalog_url=postgres.url, catalog_schema=schema).close()


def test_two_directories_cannot_share_a_catalog(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = postgres.new_schema()
    with (
        Broker(tmp_path / "a", catalog_url=postgres.url, catalog_schema=schema),
        pytest.raises(UnavailableError, match=f"in use by process {os.getpid()} "),
    ):
        Broker(tmp_path / "b", catalog_url=postgres.url, catalog_schema=schema)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("catalog_url", "mysql://u:secret@h/d", r"mysql://u:\*\*\*@h/d.*postgresql://USER@HOST"),
        ("catalog_url", 5, "is not the URL of a PostgreSQL database"),
        ("catalog_schema", "Penstock", "is not a valid schema name"),
        ("catalog_schema", "pg_mine", "is not a valid schema name"),
        ("catalog_schema", "x" * 51, "up to 50"),
        ("log_backend", "postgres", "give its URL too"),
        ("log_backend", "zip", "use 'files', 'postgres' or 'kafka'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(key: str, value: object, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        Broker("nowhere", **{key: value})


def test_memory_and_a_database_contradict_each_other() -> None:
    with pytest.raises(InvalidSetting, match="a broker in memory stores nothing"):
        Broker.memory(catalog_url="postgresql://127.0.0.1/x")


def test_without_the_package_the_setting_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from penstock.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, "serve", "--check"],
        env=os.environ | {"PENSTOCK_CATALOG__URL": "postgresql://127.0.0.1/x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 1
    assert "pip install 'penstock[postgres]'" in child.stderr


def test_check_shows_the_database_and_hides_its_password() -> None:
    url = "postgresql://alice:secret@db.example/orders"
    answer = penstock("serve", "--check", PENSTOCK_CATALOG__URL=url)
    assert 'url = "postgresql://alice:***@db.example/orders"' in answer.stdout
    as_json = json.loads(penstock("serve", "--check", "--json", PENSTOCK_CATALOG__URL=url).stdout)
    assert as_json["settings"]["catalog.url"] == "postgresql://alice:***@db.example/orders"
    assert as_json["settings"]["catalog.schema"] == "penstock"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://a:b:c@d/e?password=x&y=z", "postgresql://a:***@d/e?password=***&y=z"),
        ("postgresql://h/e?sslpassword=x", "postgresql://h/e?sslpassword=***"),
        ("host=db password=secret user=alice", "host=db password=*** user=alice"),
        ("password = 'se\\'cret word' host=db", "password = *** host=db"),
        ("password='never closed", "password=***"),
        ("host=db PASSWORD=a\\ b", "host=db PASSWORD=***"),
    ],
)
def test_the_password_of_a_database_is_never_shown(url: str, shown: str) -> None:
    assert mask_password(url) == shown


def test_commands_on_a_directory_take_the_database_from_the_environment(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    where = {
        "PENSTOCK_AT": str(tmp_path / "data"),
        "PENSTOCK_CATALOG__URL": postgres.url,
        "PENSTOCK_CATALOG__SCHEMA": postgres.new_schema(),
    }
    assert penstock("topic", "create", "orders", **where).returncode == 0
    assert penstock("user", "list", **where).stdout.startswith("no users yet")
    answer = penstock("topic", "list", PENSTOCK_AT=where["PENSTOCK_AT"])
    assert answer.returncode == 1 and "was created with the catalog in PostgreSQL" in answer.stderr
    answer = penstock("user", "list", PENSTOCK_AT=where["PENSTOCK_AT"])
    assert answer.returncode == 1 and "was created with the catalog in PostgreSQL" in answer.stderr
