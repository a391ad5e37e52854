"""Do Spark's source, sink and jobs see one tenant, and nothing of another under the same names?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock import Broker
from penstock.app.server import Server
from penstock.cli.main import main
from penstock.model.record import DEFAULT_TENANT
from penstock.pipeline import archive, dispatch, register, replay, sql, stats, table
from tests.doors.hosted import Hosted
from tests.pipeline.declared.declaring import Declare
from tests.pipeline.source.reading import address
from tests.tenants.test_tenants_apart import Asker, Client, add_tenants, login

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TENANTS = ("default", "acme", "globex")
COPY = """
[sources.orders]
topic = "orders"

[steps.all]
sql = "SELECT payload FROM orders"

[sinks.out]
step = "all"
topic = "out"
"""


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    """Three tenants with the same topics, and the operator `ann` of the default one."""
    with Hosted(tmp_path / "data") as broker:
        add_tenants(broker)
        for tenant in TENANTS:
            with Asker(broker, tenant) as asker:
                for topic in ("orders", "out"):
                    asker.get("PUT", f"/v1/topics/{topic}", {})
                asker.get("POST", "/v1/topics/orders/records", {"payload": f"of {tenant}"})
                asker.get("PUT", "/v1/topics/orders/consumers/only-" + tenant, {})
            client = Client(broker, tenant, f"client of {tenant}")
            client.subscribe("orders/#", qos=1)
            client.close()

        async def make_operator(server: Server) -> None:
            access = server.broker.engine.access
            await access.set_roles("ann", ["operator"], DEFAULT_TENANT)

        broker.run(make_operator)
        yield broker


def places(hosted: Hosted, data: Path, tenant: str) -> list[dict[str, str]]:
    """The ways to say that a tenant is meant."""
    user, password = login("default")
    operator = {"url": address(hosted), "user": user, "password": password.decode()}
    user, password = login(tenant)
    own = {"url": address(hosted), "user": user, "password": password.decode()}
    return [{"path": str(data), "tenant": tenant}, operator | {"tenant": tenant}, own]


def read(spark: SparkSession, place: dict[str, str], topic: str = "orders") -> list[str]:
    rows = spark.read.format("penstock").options(**place).option("topic", topic).load()
    return sorted(bytes(row.payload).decode() for row in rows.collect())


def write(spark: SparkSession, place: dict[str, str], payload: str, topic: str = "out") -> None:
    rows = spark.createDataFrame([(payload,)], "payload string")
    rows.write.format("penstock").options(**place).option("topic", topic).mode("append").save()


def test_source_and_sink_are_of_one_tenant(
    spark: SparkSession, hosted: Hosted, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for tenant in TENANTS:
        by_path, by_operator, own = places(hosted, data, tenant)
        for place in (by_path, by_operator, own):
            assert read(spark, place) == [f"of {tenant}"], place
        write(spark, by_operator, f"operator for {tenant}")
        write(spark, own, f"from {tenant}")
    for tenant in TENANTS:
        (by_path, *_) = places(hosted, data, tenant)
        assert read(spark, by_path, "out") == [f"from {tenant}", f"operator for {tenant}"]
    _, _, acme = places(hosted, data, "acme")
    with pytest.raises(Exception, match="only an operator may ask for another tenant"):
        read(spark, acme | {"tenant": "globex"})
    with pytest.raises(Exception, match="no topics of tenant 'nobody'"):
        read(spark, {"path": str(data), "tenant": "nobody"})
    with pytest.raises(Exception, match="tenant"):
        read(spark, {"path": str(data), "tenant": "../x"})


def test_tables_are_of_one_tenant(spark: SparkSession, hosted: Hosted, tmp_path: Path) -> None:
    for tenant in TENANTS:
        for place in places(hosted, tmp_path / "data", tenant):
            (row,) = table(spark, "orders", **place).collect()
            assert bytes(row.payload).decode() == f"of {tenant}", place
            assert register(spark, "orders", **place, where="offset >= 0") == ["penstock.`orders`"]
            (row,) = spark.sql("SELECT payload FROM penstock.orders").collect()
            assert bytes(row.payload).decode() == f"of {tenant}", place


def test_a_directory_that_no_broker_has_open_is_written_for_one_tenant(
    spark: SparkSession, hosted: Hosted, tmp_path: Path
) -> None:
    hosted.__exit__(None, None, None)
    data = tmp_path / "data"
    write(spark, {"path": str(data), "tenant": "acme"}, "by path")
    for tenant in TENANTS:
        with Broker(data, tenant=tenant) as broker:
            found = [record.payload for record in broker.read("out")]
            assert found == ([b"by path"] if tenant == "acme" else [])


def test_jobs_are_of_one_tenant(
    spark: SparkSession, hosted: Hosted, tmp_path: Path, declare: Declare
) -> None:
    data = tmp_path / "data"
    for number, place in enumerate(places(hosted, data, "acme")):
        to = tmp_path / f"of {number}"
        archive("orders", to / "archive", **place, spark=spark)
        rows = DeltaTable(to / "archive").to_pyarrow_table()
        assert rows.column("payload").to_pylist() == [b"of acme"]
        stats("orders", to / "stats", **place, start="earliest", chart=False, spark=spark)
        lags = DeltaTable(to / "stats" / "lag").to_pyarrow_table()
        assert lags.column("consumer").to_pylist() == ["only-acme"]
        assert list(dispatch(**place, spark=spark).waiting) == ["client of acme"]
    _, operator, _ = places(hosted, data, "acme")
    replay(
        *("orders", "out"),
        checkpoint=tmp_path / "replayed",
        path=data,
        speed=None,
        spark=spark,
        **operator,
    )
    sql(declare(COPY), once=True, spark=spark, **operator)
    for tenant in TENANTS:
        (by_path, *_) = places(hosted, data, tenant)
        assert read(spark, by_path, "out") == (["of acme"] * 2 if tenant == "acme" else [])


def test_the_command_takes_a_tenant_and_records_the_run_there(
    spark: SparkSession, hosted: Hosted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, table = str(tmp_path / "data"), str(tmp_path / "table")
    job = ("pipeline", "run", "archive", "orders", "--to", table, "--at", data)
    assert main([*job, "--tenant", "globex"]) == 0
    rows = DeltaTable(table).to_pyarrow_table()
    assert rows.column("payload").to_pylist() == [b"of globex"]
    capsys.readouterr()
    hosted.__exit__(None, None, None)
    for tenant, count in (("globex", 1), ("acme", 0)):
        assert main(["pipeline", "list", "--at", data, "--tenant", tenant, "--json"]) == 0
        listed: list[Any] = json.loads(capsys.readouterr().out)
        assert len(listed) == count
