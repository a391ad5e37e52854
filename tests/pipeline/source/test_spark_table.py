"""Is a topic one table in Spark, with its history and its newest records, each once?"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Broker, RefusedError, TopicNotFound
from penstock.core.naming.names import matches
from penstock.core.where import compile_where
from penstock.model.record import Record
from penstock.pipeline import read_delta, register, stats, table
from penstock.pipeline.connecting import origin_of
from penstock.pipeline.source.options import Connection
from penstock.pipeline.source.plan import place_at
from penstock.pipeline.source.source import SCHEMA
from penstock.pipeline.tables import reading
from tests.doors.hosted import Hosted
from tests.history.world import TOPIC, TieringWorld, history, hot_first, keep
from tests.pipeline.source.tiering import fill, records, tier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 400
ALICE, BOB = f"{TOPIC}/alice", f"{TOPIC}/bob"


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A data directory whose topic has records in both parts, some of them twice; the records."""
    data = tmp_path_factory.mktemp("tiered") / "data"
    fill(data, "t", COUNT)
    published = records(data, "t")
    tier(data, 100)
    tier(data, 200)
    tier(data, 300, is_trimmed=False)
    return data, published


def told(rows: DataFrame) -> list[tuple[Any, ...]]:
    found = rows.orderBy("offset").selectExpr(
        "topic", "partition", "offset", "unix_micros(timestamp)", "name", "headers", "payload",
        "publisher",
    )  # fmt: skip
    return [(*row[:6], bytes(row[6]), row[7]) for row in found.collect()]


def expected(published: list[Record]) -> list[tuple[Any, ...]]:
    return [
        (one.topic, 0, one.offset, one.timestamp, one.name, dict(reversed(one.headers)),
         one.payload, one.publisher)
        for one in published
    ]  # fmt: skip


@pytest.mark.parametrize("tail_max", [COUNT, 0])
def test_a_table_has_every_record_once(
    spark: SparkSession,
    tiered: tuple[Path, list[Record]],
    monkeypatch: pytest.MonkeyPatch,
    tail_max: int,
) -> None:
    """Also when the newest records are read by tasks instead of being put into a file."""
    monkeypatch.setattr(reading, "TAIL_RECORDS_MAX", tail_max)
    data, published = tiered
    found = table(spark, "T", path=data)
    assert [(one.name, one.dataType) for one in found.schema] == [
        (one.name, one.dataType) for one in SCHEMA
    ]
    assert told(found) == expected(published)
    two = found.select("timestamp", "name")
    plan = two._jdf.queryExecution().executedPlan().toString()
    assert plan.count("FileScan parquet") == 1
    assert "payload" not in plan.split("ReadSchema")[1].splitlines()[0]
    assert plan.count("BatchScan") == (0 if tail_max else 1)
    late = found.where("offset >= 350").agg({"offset": "min"}).collect()[0][0]
    assert (two.count(), late) == (COUNT, 350)


@pytest.mark.parametrize(
    ("names", "where"),
    [
        ("t/a/#", None),
        ("t/+/3", None),
        ("nobody", None),
        (None, "payload.n > 100"),
        ("t/+/1", "headers['k'] = 'ü'"),
        (None, "offset BETWEEN 190 AND 310 AND payload IS NOT NULL"),
    ],
)
def test_names_and_where_mean_the_same_on_both_parts(
    spark: SparkSession,
    tiered: tuple[Path, list[Record]],
    names: str | None,
    where: str | None,
) -> None:
    data, published = tiered
    passes = compile_where(where or "offset >= 0").passes
    chosen = [one for one in published if matches(names or "#", one.name) and passes(one)]
    assert told(table(spark, "t", path=data, names=names, where=where)) == expected(chosen)


def test_a_table_is_one_snapshot_and_the_next_one_has_what_came_since(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    fill(data, "t", 200)
    before = table(spark, "t", path=data)  # without a history
    assert before.count() == 200
    tier(data, 100)
    at_first = table(spark, "t", path=data)
    fill(data, "t", 50, seed=2)
    tier(data, 150)
    assert (before.count(), at_first.count()) == (200, 200)
    assert told(table(spark, "t", path=data)) == expected(
        [*records_of(at_first, data), *records(data, "t")[-50:]]
    )


def records_of(rows: DataFrame, data: Path) -> list[Record]:
    """Rows as records."""
    return [
        Record(t, p, o, stamp, name, payload, tuple(headers.items()), publisher)
        for t, p, o, stamp, name, headers, payload, publisher in told(rows)
    ]


def test_a_history_that_has_grown_past_the_end_that_was_read_adds_nothing(
    spark: SparkSession, tiered: tuple[Path, list[Record]]
) -> None:
    data, published = tiered
    connection = Connection(data)
    (state,) = origin_of(connection).states(("t",))
    for start, end in [(0, 250), (50, 120), (120, 299), (299, 301), (310, 400)]:
        places = [{"t": place_at(state, offset)} for offset in (start, end)]
        found = reading.read_past(spark, connection, *places, SCHEMA)
        assert told(found) == expected(published[start:end])


def test_sql_finds_topics_by_their_names(
    spark: SparkSession, tiered: tuple[Path, list[Record]]
) -> None:
    data, published = tiered
    assert register(spark, path=data) == ["penstock.`t`"]
    (found,) = spark.sql(
        "SELECT count(*), max(offset) FROM penstock.t WHERE name LIKE 't/a%'"
    ).collect()
    chosen = [one.offset for one in published if one.name.startswith("t/a")]
    assert tuple(found) == (len(chosen), max(chosen))
    assert register(spark, "t", path=data, names="t/b/#") == ["penstock.`t`"]
    (count,) = spark.sql("SELECT count(*) FROM penstock.t").collect()[0]
    assert count == len([one for one in published if one.name.startswith("t/b")])
    with pytest.raises(TopicNotFound, match="did you mean 't'"):
        register(spark, ["tt"], path=data)


def test_a_spark_that_keeps_shared_views_elsewhere_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.tables.names.NAMESPACE", "other")
    with pytest.raises(RefusedError, match="spark.sql.globalTempDatabase other"):
        register(spark, path=tmp_path)


@pytest.mark.slow
def test_a_table_may_be_at_an_address(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data) as broker:
        broker.create_topic("t")
        broker.publish_many(["a", "b", "c"], "t")
    published = records(data, "t")
    with Hosted(data) as broker:
        url = f"http://127.0.0.1:{broker.ports['http']}"
        assert told(table(spark, "t", url=url)) == expected(published)
        assert table(spark, "t", url=url, where="offset > 0").count() == 2


def test_reports_count_what_only_the_history_has(
    spark: SparkSession, tiered: tuple[Path, list[Record]], tmp_path: Path
) -> None:
    data, _ = tiered
    done = stats("t", tmp_path / "stats", path=data, start="earliest", chart=False, spark=spark)
    assert done.rows == COUNT
    (total,) = (
        read_delta(spark, tmp_path / "stats" / "minutes").agg({"messages": "sum"}).collect()[0]
    )
    assert total == COUNT


async def erase_alice(world: TieringWorld) -> list[Record]:
    """Records of two people in both parts, those of one erased: as any reader sees them."""
    chance = random.Random(7)
    async with world.broker() as broker:
        await world.create(broker)
        for number in range(30):
            name = (ALICE, BOB)[number % 2]
            payloads = [chance.randbytes(1_000) for _ in range(20)]
            await broker.publish_many(payloads, TOPIC, name=name, headers={"of": name})
            if number == 25:
                await keep(broker)
        assert 0 < hot_first(broker) <= (await history(broker)).end_offset < 500
        erased = await broker.erase(ALICE, TOPIC)
        assert min(erased.log_records, erased.history_records) > 0
        return await broker.read(TOPIC, start=0)


def test_erased_records_are_empty_rows_of_a_table_in_both_parts(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = TieringWorld(tmp_path)
    after = asyncio.run(erase_alice(world))
    found = told(table(spark, TOPIC, path=world.data))
    assert found == expected(after)
    of_alice = [row[5:] for row in found if row[4] == ALICE]
    assert of_alice == [({}, b"", "")] * 300
    assert all(row[5] == {"of": BOB} and row[6] for row in found if row[4] == BOB)
