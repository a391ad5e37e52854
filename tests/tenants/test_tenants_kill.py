"""Kill -9 under the load of several tenants: nothing is lost, and nothing changes its tenant."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from tests.doors.served import Served
from tests.postgres_server import PostgresServer
from tests.tenants.load import TENANTS, TOPIC, run_kills, verify


@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
def test_killed_under_the_load_of_three_tenants_each_has_all_of_its_own_and_nothing_else(
    request: pytest.FixtureRequest, tmp_path: Path, catalog: str
) -> None:
    env: dict[str, str] = {}
    if catalog == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        env = {"PENSTOCK_CATALOG__URL": server.url, "PENSTOCK_CATALOG__SCHEMA": server.new_schema()}
    broker = Served(tmp_path / "data", env=os.environ | env)
    clients = run_kills(broker, rounds=3)
    assert [problem for one in clients for problem in one.problems()] == []
    stored = {one.tenant: len(one.stored()) for one in clients}
    broker.stop()
    assert {tenant: verify(broker.data, tenant, env) for tenant in TENANTS} == stored
    for tenant in TENANTS:
        held = b"".join(log.read_bytes() for log in (broker.data / tenant).rglob("*.log"))
        assert f"{tenant} 0".encode() in held
        assert not any(f"{one} 0".encode() in held for one in TENANTS if one != tenant)


@pytest.mark.slow
def test_tenants_in_postgresql_have_tables_of_their_own_also_after_kills(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    schema = postgres.new_schema()
    variables = {
        "PENSTOCK_CATALOG__URL": postgres.url,
        "PENSTOCK_CATALOG__SCHEMA": schema,
        "PENSTOCK_LOG__BACKEND": "postgres",
    }
    broker = Served(tmp_path / "data", env=os.environ | variables)
    clients = run_kills(broker, rounds=2)
    assert [problem for one in clients for problem in one.problems()] == []
    broker.stop()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        ids = dict(
            connection.execute(
                f"select tenant, topic_id from {schema}.topics where declared = %s", (TOPIC,)
            ).fetchall()
        )
        assert set(ids) == set(TENANTS) and len(set(ids.values())) == len(TENANTS)
        for tenant, topic_id in ids.items():
            rows = connection.execute(f"select * from {schema}.topic_{topic_id}").fetchall()
            held = b"".join(bytes(cell) for row in rows for cell in row if isinstance(cell, bytes))
            assert f"{tenant} 0".encode() in held
            assert not any(f"{one} 0".encode() in held for one in TENANTS if one != tenant)
        views = connection.execute(
            "select table_name from information_schema.views where table_schema = %s",
            (f"{schema}_topics",),
        ).fetchall()
        assert (TOPIC,) in views, "the default tenant's"
        found = connection.execute(f"select message from {schema}_topics.{TOPIC}").fetchall()
        assert found and all(str(message).startswith("default ") for (message,) in found)
