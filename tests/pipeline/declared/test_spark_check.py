"""Does a check say what every step gives, or in which line what is wrong, and start nothing?

Each file of tests/data/pipelines/spark stands beside what is said about it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock import Broker
from penstock.cli.main import main
from penstock.pipeline import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = sorted((Path(__file__).parents[2] / "data" / "pipelines" / "spark").glob("*.toml"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("check") / "data"
    with Broker(path) as broker:
        broker.create_topic("sensors")
        broker.create_topic("alarms")
    return path


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_spark_finds_is_said_with_the_line_of_the_file(
    spark: SparkSession,
    data: Path,
    tmp_path: Path,
    file: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / file.name
    shutil.copy(file, copy)
    code = main(["pipeline", "check", str(copy), "--at", str(data)])
    said = capfd.readouterr()
    text = (said.out + said.err).replace(str(data), "DATA").replace(str(tmp_path), "HERE")
    assert text == file.with_suffix(".txt").read_text()
    assert code == (0 if file.stem.startswith("fine") else 1)
    # Nothing was run, and nothing is left.
    assert spark.streams.active == []
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert [table.name for table in spark.catalog.listTables()] == []


def test_a_check_in_json_and_in_python_gives_the_columns(
    spark: SparkSession, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = next(file for file in FILES if file.stem == "fine")
    parts = check(fine, path=data, spark=spark)
    assert [(part.kind, part.name) for part in parts] == [
        ("source", "readings"),
        ("step", "by_minute"),
        ("sink", "means"),
    ]
    assert parts[1].columns == (("minute", "timestamp"), ("device", "string"), ("mean", "double"))
    assert main(["pipeline", "check", str(fine), "--at", str(data), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown[1] == {
        "kind": "step",
        "name": "by_minute",
        "columns": [["minute", "timestamp"], ["device", "string"], ["mean", "double"]],
    }


def test_a_table_that_has_other_columns_is_refused(
    spark: SparkSession, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = pa.schema([("minute", pa.timestamp("us", tz="UTC"))])
    DeltaTable.create(str(tmp_path / "means"), columns)
    file = tmp_path / "flow.toml"
    text = next(file for file in FILES if file.stem == "fine").read_text()
    file.write_text(text.replace('topic = "alarms"', 'table = "./means"'))
    assert main(["pipeline", "check", str(file), "--at", str(data)]) == 1
    assert capsys.readouterr().err.splitlines()[0] == (
        f"penstock: flow.toml:15: table '{tmp_path / 'means'}' has the columns minute timestamp, "
        "but the step returns minute timestamp, device string, mean double: change the step, or "
        "use another table"
    )


PARQUET_HEAD = b"PAR1 and then nothing that makes sense "


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("d.csv", b"a,b\n1,2\n", "'HERE/d.csv' is not a Parquet file: set format = \"csv\""),
        ("d/x.json", b"{}\n", "'HERE/d/x.json' is not a Parquet file: set format = \"json\""),
        ("d/x", b"", '\'HERE/d/x\' is not a Parquet file: set format = "csv" or "json"'),
        ("d.parquet", PARQUET_HEAD, "'HERE/d.parquet' is not a Parquet file: set format = "),
        ("d.parquet", PARQUET_HEAD + b"PAR1", "'HERE/d.parquet' cannot be read as parquet: "),
    ],
)
def test_a_table_that_is_not_of_its_format_is_refused_in_its_line(
    spark: SparkSession,
    data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    said: str,
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    (tmp_path / "_SUCCESS").write_bytes(b"")
    file = tmp_path / "flow.toml"
    file.write_text(
        f'[sources.d]\ntable = "./{name.partition("/")[0]}"\n'
        '[sources.s]\ntopic = "sensors"\n'
        '[steps.u]\nsql = "SELECT s.payload FROM s CROSS JOIN d"\n'
        '[sinks.t]\nstep = "u"\ntopic = "alarms"\n'
    )
    for command in (["check"], ["run", "sql"]):
        assert main(["pipeline", *command, str(file), "--at", str(data)]) == 1
        told = capfd.readouterr().err.replace(str(tmp_path), "HERE")
        assert f"flow.toml:2: {said}" in told
        assert "Traceback" not in told
