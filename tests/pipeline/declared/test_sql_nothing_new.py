"""Does a pipeline that has written everything end before Spark is started?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Broker
from penstock.pipeline import sql
from penstock.pipeline.declared.checkpoint import RESTARTS
from tests.pipeline.declared.declaring import COPY, Declare, make_topics, publish, values
from tests.pipeline.declared.test_spark_sql import WINDOWS, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Started(Exception):
    """Spark was asked for."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_topics(tmp_path / "data")


def without_spark(monkeypatch: pytest.MonkeyPatch, file: Path, data: Path) -> int | None:
    """The rows that the pipeline wrote; None if it needs Spark for that."""

    def start(*given: Any, **named: Any) -> None:
        raise Started

    with monkeypatch.context() as patched:
        patched.setattr("penstock.pipeline.spark.session", start)
        patched.setattr("penstock.pipeline.jobs._active_session", lambda: None)
        try:
            return sql(file, path=data, once=True).rows
        except Started:
            return None


NOTHING_NEW = """
import sys
from penstock.pipeline import sql
print(sql(sys.argv[1], path=sys.argv[2], once=True).words())
print([name for name in ("pyarrow", "deltalake", "pandas", "pyspark") if name in sys.modules])
"""


def test_spark_is_started_only_if_there_is_something_to_do(
    spark: SparkSession, data: Path, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = declare(COPY)
    publish(data, "a", "b")
    assert without_spark(monkeypatch, file, data) is None, "it has never run"
    assert sql(file, path=data, once=True, spark=spark).rows == 2
    assert without_spark(monkeypatch, file, data) == 0
    command = [sys.executable, "-c", NOTHING_NEW, str(file), str(data)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    says, imported = ended.stdout.splitlines()
    assert says == "0 rows · 0/s · offset sensors 2 · lag 0 · 0 batches"
    assert imported == "[]"
    file.write_text(COPY.replace("SELECT payload", "SELECT paylod"))
    assert without_spark(monkeypatch, file, data) is None, "Spark says what is wrong with the file"
    file.write_text(COPY)
    publish(data, "c")
    assert without_spark(monkeypatch, file, data) is None
    assert sql(file, path=data, once=True, spark=spark).rows == 1
    (commit,) = (file.parent / "flow.checkpoint" / "table" / "commits").glob("1")
    kept = commit.read_bytes()
    commit.unlink()
    assert without_spark(monkeypatch, file, data) is None, "a micro-batch is not done"
    commit.write_bytes(kept)
    assert without_spark(monkeypatch, file, data) == 0
    with Broker(data) as broker:
        broker.delete_topic("sensors")
        broker.create_topic("sensors")
        broker.publish_many([b"x"] * 3, "sensors")
    assert without_spark(monkeypatch, file, data) is None, "that is another topic"
    assert values(data) == ["a", "b", "c"]


def test_windows_that_became_complete_are_written_first(
    spark: SparkSession, data: Path, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = declare(WINDOWS)
    publish(data, at(0, 10), at(5, 0))
    sql(file, path=data, spark=spark)
    for _ in range(RESTARTS):
        assert without_spark(monkeypatch, file, data) is None
        sql(file, path=data, spark=spark)
    assert without_spark(monkeypatch, file, data) == 0
    assert len(values(data)) == 1
