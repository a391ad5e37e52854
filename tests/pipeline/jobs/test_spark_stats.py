"""Do the numbers of `stats` agree with the records, and is there a picture of them?"""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock import Broker, InvalidPosition, TopicNotFound
from penstock.cli.main import main
from penstock.pipeline import archive, dispatch, replay, sql, stats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PNG = b"\x89PNG\r\n\x1a\n"


def rows_of(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Broker(tmp_path / "data") as broker:
        for topic in ("orders", "alarms", "empty"):
            broker.create_topic(topic)
        for number in range(60):
            broker.publish(b"x" * number, "orders", name=f"orders/{number % 3}")
        broker.publish_many(["a"] * 5, "alarms")
        broker.subscribe("reader", "orders")
        broker.consume("reader", "orders", limit=20)
        broker.commit("reader", "orders")
        broker.subscribe("idle", "alarms")
    return tmp_path / "data"


def test_every_record_is_counted_under_its_topic_name_and_minute(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    done = stats(to=tmp_path / "stats", path=data, spark=spark)
    assert (done.rows, done.offsets) == (65, {"orders": 60, "alarms": 5, "empty": 0})
    with Broker(data) as broker:
        records = [record for topic in ("orders", "alarms") for record in broker.read(topic)]
    messages: Counter[tuple[str, str, datetime]] = Counter()
    size: Counter[tuple[str, str, datetime]] = Counter()
    for record in records:
        key = (record.topic, record.name, record.time.replace(second=0, microsecond=0))
        messages[key] += 1
        size[key] += len(record.payload)
    found = {
        (row["topic"], row["name"], row["minute"]): row
        for row in rows_of(tmp_path / "stats/minutes")
    }
    assert {key: row["messages"] for key, row in found.items()} == messages
    assert {key: row["bytes"] for key, row in found.items()} == size


def test_topics_of_any_name_are_counted_archived_matched_and_replayed(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, names = tmp_path / "data", ["a,b", " x ", "[q"]
    with Broker(data) as broker:
        for name in names:
            broker.create_topic(name)
            broker.publish(name, name)
    ends = dict.fromkeys(names, 1)
    assert stats(to=tmp_path / "stats", path=data, chart=False, spark=spark).offsets == ends
    assert archive(names, tmp_path / "table", path=data, spark=spark).offsets == ends
    found = dispatch(path=data, to=tmp_path / "dispatch", spark=spark)
    assert found.progress.offsets == ends
    replay("a,b", " x ", checkpoint=tmp_path / "c", path=data, speed=None, spark=spark)
    file = tmp_path / "flow.toml"
    file.write_text(
        '[sources.s]\ntopic = ["a,b", " x "]\npayload = "text"\n'
        '[sinks.t]\nstep = "u"\ntopic = "a,b"\n[steps.u]\nsql = "SELECT payload FROM s"\n'
    )
    sql(file, path=data, spark=spark)
    with Broker(data) as broker:
        assert [one.value for one in broker.read(" x ")] == [" x ", "a,b"]
        assert sorted(one.value for one in broker.read("a,b")) == [" x ", "a,b", "a,b", "a,b"]


def test_pauses_are_the_time_between_two_messages_of_a_name(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    stats("orders", tmp_path / "stats", path=data, chart=False, spark=spark)
    with Broker(data) as broker:
        times = [one.timestamp for one in broker.read("orders") if one.name == "orders/1"]
    pauses = [(later - earlier) / 1e3 for earlier, later in itertools.pairwise(times)]
    rows = [row for row in rows_of(tmp_path / "stats/minutes") if row["name"] == "orders/1"]
    assert max(row["pause_ms_max"] for row in rows) == pytest.approx(max(pauses))
    for row in rows:
        assert min(pauses) <= row["pause_ms_p50"] <= row["pause_ms_p95"] <= row["pause_ms_p99"]
    assert not (tmp_path / "stats" / "stats.png").exists()


def test_every_reader_is_there_with_how_far_it_is_behind(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    stats(to=tmp_path / "stats", path=data, spark=spark)
    rows = {row["consumer"]: row for row in rows_of(tmp_path / "stats" / "lag")}
    assert rows == {
        "reader": {
            "kind": "consumer", "consumer": "reader", "topic": "orders", "position": 20,
            "end": 60, "lag": 40,
        },
        "idle": {
            "kind": "consumer", "consumer": "idle", "topic": "alarms", "position": 0, "end": 5,
            "lag": 5,
        },
    }  # fmt: skip


def test_a_second_run_replaces_what_the_first_one_found(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        stats(to=tmp_path / "stats", path=data, spark=spark)
    assert sum(row["messages"] for row in rows_of(tmp_path / "stats" / "minutes")) == 65
    stats("orders", tmp_path / "stats", path=data, start=50, spark=spark)
    assert sum(row["messages"] for row in rows_of(tmp_path / "stats" / "minutes")) == 10


def test_nothing_in_the_range_is_an_empty_table_and_a_picture(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    stats("empty", tmp_path / "stats", path=data, start="earliest", spark=spark)
    assert rows_of(tmp_path / "stats" / "minutes") == []
    assert (tmp_path / "stats" / "stats.png").read_bytes().startswith(PNG)


def test_the_command_leaves_tables_and_a_picture(
    spark: SparkSession, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "stats")
    main(["pipeline", "run", "stats", "--to", to, "--from", "-1h", "--at", str(data)])
    assert "65 rows" in capsys.readouterr().out
    assert (tmp_path / "stats" / "stats.png").read_bytes().startswith(PNG)


def test_a_range_that_cannot_be_meant_is_refused(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        InvalidPosition, match="offset 3 belongs to one topic, but the job reads 3 topics"
    ):
        stats(to=tmp_path / "stats", path=data, start=3, spark=spark)
    with pytest.raises(TopicNotFound):
        stats("nothing", tmp_path / "stats", path=data, spark=spark)
