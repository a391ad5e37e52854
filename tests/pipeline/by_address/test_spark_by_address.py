"""Do jobs find their topics where only a broker's address is known, and somebody who may log in?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock import connect
from penstock.catalog.reports import read_reports
from penstock.cli.main import main
from penstock.client.sync import Client
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire, kept
from tests.pipeline.source.reading import address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = """
[sources.orders]
topic = "orders"

[steps.counts]
sql = "SELECT name, count(*) AS n FROM orders GROUP BY name"

[sinks.out]
step = "counts"
topic = "out"
mode = "update"
"""


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    add_users(tmp_path / "data", alice="w@nder")
    with Hosted(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def client(hosted: Hosted) -> Iterator[Client]:
    with connect(address(hosted), user="alice", password="w@nder") as opened:
        for topic in ("orders", "out"):
            opened.create_topic(topic)
        opened.publish_many(["x"] * 7, "orders", name="orders/1")
        yield opened


@pytest.fixture
def at(hosted: Hosted) -> str:
    return address(hosted).replace("://", "://alice:w%40nder@")


def rows_of(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return rows


def test_an_archive_is_filled_from_an_address_and_no_run_is_kept_here(
    spark: SparkSession, client: Client, at: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = ["pipeline", "run", "archive", "orders", "--to", str(tmp_path / "table")]
    assert main([*run, "--at", at, "--json"]) == 0
    out = capfd.readouterr().out
    assert json.loads(out)["rows"] == 7 and "w%40nder" not in out
    assert sorted(row["offset"] for row in rows_of(tmp_path / "table")) == list(range(7))
    assert read_reports(tmp_path / "data") == []
    assert main([*run, "--at", at.replace("alice:w%40nder@", "")]) == 1
    assert "or a key (`penstock user key`) with --key-file" in capfd.readouterr().err


def test_statistics_of_a_running_broker_have_the_places_of_its_readers(
    spark: SparkSession, client: Client, at: str, tmp_path: Path
) -> None:
    client.subscribe("reader", "orders")
    client.consume("reader", "orders", limit=3)
    client.join_group("packers", "orders").fetch(limit=2)
    to = tmp_path / "stats"
    assert main(["pipeline", "run", "stats", "--to", str(to), "--no-chart", "--at", at]) == 0
    counted = [(row["topic"], row["name"], row["messages"]) for row in rows_of(to / "minutes")]
    assert {one[:2] for one in counted} == {("orders", "orders/1")}
    assert sum(messages for _, _, messages in counted) == 7
    found = {(row["kind"], row["consumer"]): row for row in rows_of(to / "lag")}
    assert found["consumer", "reader"]["lag"] == 4
    assert found["group", "packers"]["topic"] == "orders"
    assert len(found) == 2


def test_what_waits_for_sessions_is_asked_of_a_broker_that_wants_a_login(
    spark: SparkSession,
    client: Client,
    hosted: Hosted,
    at: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Wire(hosted.port, "away", MQTT_5) as wire:
        wire.send(Connect("away", False, username="alice", password=b"w@nder", properties=kept()))
        assert wire.expect(Connack).reason == 0
        wire.subscribe("orders/#", qos=1)
        wire.disconnect()
    hosted.wait_idle()
    client.publish("y", "orders", name="orders/2")
    capfd.readouterr()
    assert main(["pipeline", "run", "dispatch", "--to", str(tmp_path / "out"), "--at", at]) == 0
    (waiting,) = rows_of(tmp_path / "out" / "waiting")
    assert waiting == {"client_id": "away", "topic": "orders", "waiting": 1}
    refused = at.replace("alice:w%40nder@", "")
    assert main(["pipeline", "run", "dispatch", "--at", refused]) == 1
    assert "or a key (`penstock user key`) with --key-file" in capfd.readouterr().err


def test_a_declared_pipeline_is_checked_and_run_with_a_key(
    spark: SparkSession,
    client: Client,
    hosted: Hosted,
    at: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["user", "key", "alice", "--at", at]) == 0
    (tmp_path / "key").write_text(capfd.readouterr().out)
    (tmp_path / "flow.toml").write_text(COUNTS)
    where = ["--at", address(hosted), "--key-file", str(tmp_path / "key")]
    assert main(["pipeline", "check", str(tmp_path / "flow.toml"), *where]) == 0
    assert "flow is valid: 1 sink" in capfd.readouterr().out
    assert main(["pipeline", "run", "sql", str(tmp_path / "flow.toml"), *where]) == 0
    assert [record.value for record in client.read("out")] == [{"n": 7}]
