"""Does a pipeline that a file declares do what the file says, once, and go on where it ended?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock import Broker
from penstock.pipeline import archive, sql
from penstock.pipeline.declared.order import part_of
from penstock.pipeline.declared.reading import read_declaration
from penstock.pipeline.declared.tables import PipelineTable
from penstock.pipeline.declared.views import Views
from penstock.pipeline.delta.rows import read_delta
from penstock.pipeline.jobs import Progress
from penstock.pipeline.source.source import SCHEMA
from tests.pipeline.declared.declaring import COPY, Declare, make_topics, publish, rows_of, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_topics(tmp_path / "data")


def at(minute: int, second: int, device: str = "a", celsius: float = 20.0) -> dict[str, Any]:
    return {"at": f"2026-01-01T10:{minute:02}:{second:02}Z", "device": device, "celsius": celsius}


WINDOWS = """
[sources.readings]
topic = "sensors"
payload = "at timestamp, device string, celsius double"
event_time = "payload.at"
watermark = "30s"

[steps.means]
sql = '''
SELECT concat('means/', payload.device) AS name,
       window.start AS since,
       avg(payload.celsius) AS mean,
       count(*) AS readings
FROM readings
GROUP BY window(event_time, '1 minute'), payload.device
'''

[sinks.out]
step = "means"
topic = "out"
"""


def test_windows_come_into_a_topic_once_they_are_complete(
    spark: SparkSession, data: Path, declare: Declare
) -> None:
    file = declare(WINDOWS)
    publish(data, at(0, 10), at(0, 50, celsius=30.0), at(0, 55, "b"), at(1, 10))
    done = sql(file, path=data, spark=spark)
    assert (done.rows, done.offsets, done.lag) == (4, {"sensors": 4}, 0)
    assert values(data) == []  # more may come for the first minute: the watermark is at 0:40
    publish(data, at(0, 59, celsius=40.0), at(1, 45))
    assert sql(file, path=data, spark=spark).rows == 2
    with Broker(data) as broker:
        found = {record.name: record.value for record in broker.read("out")}
    since = "2026-01-01T10:00:00Z"
    assert found == {
        "means/a": {"since": since, "mean": 30.0, "readings": 3},
        "means/b": {"since": since, "mean": 20.0, "readings": 1},
    }
    publish(data, at(0, 58), at(3, 0))  # too late for its minute, which does not come again
    sql(file, path=data, spark=spark)
    assert len(values(data)) == 3
    assert sql(file, path=data, spark=spark).rows == 0


def test_in_mode_update_every_change_of_a_group_is_published(
    spark: SparkSession, data: Path, declare: Declare
) -> None:
    text = WINDOWS.replace('watermark = "30s"\n', "") + 'mode = "update"\n'
    file = declare(text)
    publish(data, at(0, 10))
    sql(file, path=data, spark=spark)
    publish(data, at(0, 20), at(1, 0))
    sql(file, path=data, spark=spark)
    found = [(one["since"][14:16], one["readings"]) for one in values(data)]
    assert found[0] == ("00", 1)
    assert sorted(found[1:]) == [("00", 2), ("01", 1)]


JSON = """
[sources.readings]
topic = "sensors"
payload = "{payload}"

[steps.picked]
sql = "SELECT offset, {columns} FROM readings"

[sinks.table]
step = "picked"
table = "./table"
"""
PAYLOADS = [
    {"a": {"b": 1}, "list": ["x", "y"], "n": 1.5, "text": "ü"},
    {"a": 5, "n": "no number"},
    b'{"n": 1, "n": 2}',
    b"not JSON",
    b"\xff\xfe",
    {},
]


@pytest.mark.parametrize(
    ("payload", "columns", "wanted"),
    [
        (
            "a struct<b: int>, list array<string>, n double, text string",
            "payload.a.b AS b, payload.list[0] AS first, payload.n AS n, payload.text AS text",
            [(1, "x", 1.5, "ü"), *[(None, None, n, None) for n in (None, 2.0, None, None, None)]],
        ),
        (
            "json",
            "payload:a.b::int AS b, payload:list[0]::string AS first, "
            "try_variant_get(payload, '$.n', 'double') AS n, payload:text::string AS text",
            [(1, "x", 1.5, "ü"), *[(None, None, n, None) for n in (None, 2.0, None, None, None)]],
        ),
        (
            "text",
            "length(payload) AS b, payload LIKE 'not%' AS first, payload IS NULL AS n, '' AS text",
            [
                *((49, False, False, ""), (23, False, False, ""), (16, False, False, "")),
                *((8, True, False, ""), (None, None, True, ""), (2, False, False, "")),
            ],
        ),
    ],
    ids=["fields", "json", "text"],
)
def test_json_is_at_hand_and_what_does_not_fit_is_null(
    spark: SparkSession,
    data: Path,
    declare: Declare,
    tmp_path: Path,
    payload: str,
    columns: str,
    wanted: list[Any],
) -> None:
    publish(data, *PAYLOADS)
    sql(declare(JSON.format(payload=payload, columns=columns)), path=data, spark=spark)
    found = sorted(rows_of(tmp_path / "table"), key=lambda row: row["offset"])
    assert [tuple(row.values())[1:] for row in found] == wanted


JOINS = """
[pipeline]
name = "joins"
checkpoint = "./notes"

[steps.warm]  # stands before what it reads
sql = "SELECT * FROM named WHERE celsius > 18"

[steps.named]
sql = '''
SELECT r.offset, r.payload.celsius AS celsius, d.room, day
FROM readings r JOIN devices d ON r.payload.device = d.device
'''

[sources.readings]
topic = "sensors"
payload = "device string, celsius double"

[sources.devices]
table = "./devices"

[sinks.table]
step = "warm"
table = "./table"
partition_by = ["room", "day"]

[sinks.topic]
step = "warm"
topic = "out"
"""


def devices(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [("a", "kitchen & hall", "2026-01-01"), ("b", None, "2026-01-02")],
        "device string, room string, day string",
    ).selectExpr("device", "room", "date(day) AS day")


def test_a_table_is_joined_to_a_stream_and_two_sinks_get_the_same(
    spark: SparkSession, data: Path, declare: Declare, tmp_path: Path
) -> None:
    rows = devices(spark)
    PipelineTable(tmp_path / "devices", rows.schema, ("day",), replaces=False).add(rows, "test", 0)
    publish(data, at(0, 0), at(0, 1, "b", 19.5), at(0, 2, "c"), at(0, 3, "b", 10.0))
    sql(declare(JOINS), path=data, spark=spark)
    found = rows_of(tmp_path / "table")
    assert [(row["offset"], row["celsius"], row["room"], str(row["day"])) for row in found] == [
        (0, 20.0, "kitchen & hall", "2026-01-01"),
        (1, 19.5, None, "2026-01-02"),
    ]
    assert sorted(values(data), key=lambda row: row["offset"]) == [
        {"offset": 0, "celsius": 20.0, "room": "kitchen & hall", "day": "2026-01-01"},
        {"offset": 1, "celsius": 19.5, "day": "2026-01-02"},
    ]
    assert sorted(path.name for path in (tmp_path / "notes").iterdir()) == [
        *(".declared", ".lock", "table", "topic"),
    ]


def test_tables_of_other_formats_are_joined_too(
    spark: SparkSession, data: Path, declare: Declare, tmp_path: Path
) -> None:
    kinds = ("csv", "parquet", "json")
    text = '[sources.readings]\ntopic = "sensors"\npayload = "device string"\n'
    for kind in kinds:
        devices(spark).write.option("header", True).format(kind).save(str(tmp_path / kind))
        text += f'[sources.of_{kind}]\ntable = "./{kind}"\nformat = "{kind}"\n'
    columns = ", ".join(f"array(of_{kind}.room, string(of_{kind}.day)) AS {kind}" for kind in kinds)
    joins = " ".join(f"JOIN of_{kind} ON payload.device = of_{kind}.device" for kind in kinds)
    text += f'[steps.all]\nsql = "SELECT {columns} FROM readings {joins}"\n'
    publish(data, at(0, 0), at(0, 1, "b"), at(0, 2, "c"))
    sql(declare(text + '[sinks.table]\nstep = "all"\ntable = "./table"\n'), path=data, spark=spark)
    assert rows_of(tmp_path / "table") == [
        {kind: [room, day] for kind in kinds}
        for room, day in (("kitchen & hall", "2026-01-01"), (None, "2026-01-02"))
    ]


def test_two_streams_are_joined_within_a_time(
    spark: SparkSession, data: Path, declare: Declare
) -> None:
    publish(data, at(0, 0, "a"), at(0, 30, "b"))
    publish(data, at(0, 10, "a", 1.0), at(9, 0, "b", 2.0), topic="rooms")
    file = declare(
        """
[sources.readings]
topic = "sensors"
payload = "at timestamp, device string"
event_time = "payload.at"
watermark = "1m"

[sources.visits]
topic = "rooms"
payload = "at timestamp, device string, celsius double"
event_time = "payload.at"
watermark = "1m"

[steps.pairs]
sql = '''
SELECT r.payload.device AS name, to_json(named_struct('n', v.payload.celsius)) AS payload
FROM readings r JOIN visits v
  ON r.payload.device = v.payload.device
 AND v.event_time BETWEEN r.event_time AND r.event_time + INTERVAL 1 MINUTE
'''

[sinks.out]
step = "pairs"
topic = "out"
"""
    )
    done = sql(file, path=data, spark=spark)
    assert done.offsets == {"rooms": 2, "sensors": 2}
    with Broker(data) as broker:
        assert [(one.name, one.value) for one in broker.read("out")] == [("a", '{"n":1.0}')]


TOTALS = """
[sources.readings]
topic = "sensors"
batch_records = 2

[steps.totals]
sql = "SELECT name, count(*) AS n FROM readings GROUP BY name"

[sinks.table]
step = "totals"
table = "./table"
mode = "complete"
"""


def test_in_mode_complete_a_table_is_replaced_by_the_newest_totals(
    spark: SparkSession, data: Path, declare: Declare, tmp_path: Path
) -> None:
    publish(data, "x", "y", name="sensors/1")
    publish(data, "z", name="sensors/2")
    told: list[Progress] = []
    sql(declare(TOTALS), path=data, spark=spark, report=told.append)
    assert told[-1].batches == 2 and told[-1].rows == 3
    assert rows_of(tmp_path / "table") == [
        {"name": "sensors/1", "n": 2},
        {"name": "sensors/2", "n": 1},
    ]
    publish(data, "z", name="sensors/2")
    sql(declare(TOTALS), path=data, spark=spark)
    assert rows_of(tmp_path / "table") == [
        {"name": "sensors/1", "n": 2},
        {"name": "sensors/2", "n": 2},
    ]


def test_small_files_of_a_table_are_merged_and_empty_batches_leave_none(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.declared.tables.MERGE_EVERY", 3)
    monkeypatch.setattr("penstock.pipeline.declared.tables.SMALL_FILES_MAX", 2)
    batch = spark.range(1).selectExpr("id AS n", "'x + y' AS kind")
    table = PipelineTable(tmp_path / "table+1", batch.schema, ("kind",), replaces=False)
    added = [table.add(batch, "query", number) for number in (0, 1, 2, 2, 1)]
    assert added == [1, 1, 1, 0, 0]
    found = DeltaTable(str(tmp_path / "table+1"))
    assert len(found.file_uris()) == 1 and found.version() == 4
    assert table.add(batch.where("n > 5"), "query", 3) == 0
    assert table.add(batch, "another", 0) == 1
    rows = read_delta(spark, tmp_path / "table+1" / ".." / "table+1").collect()
    assert [(row.n, row.kind) for row in rows] == [(0, "x + y")] * 4
    assert len(list((tmp_path / "table+1").glob("rows-*"))) == 4


def test_options_of_a_source_choose_its_records(
    spark: SparkSession, data: Path, declare: Declare, tmp_path: Path
) -> None:
    publish(data, {"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}, name="sensors/1")
    publish(data, {"n": 4}, name="other")
    publish(data, {"n": 5}, topic="rooms", name="sensors/2")
    file = declare(
        COPY.replace(
            'topic = "sensors"',
            'topic = ["sensors", "ROOMS"]\nnames = "sensors/+"\nwhere = "payload.n > 1"\n'
            'batch_records = 3\nskip_lost = true\nfrom = "-1h"',
        )
    )
    done = sql(file, path=data, once=True, spark=spark)
    assert done.batches == 4  # two of each sink
    assert sorted(json.loads(value)["n"] for value in values(data)) == [2, 3, 5]


def test_columns_that_no_step_uses_are_not_read(
    spark: SparkSession, data: Path, declare: Declare, tmp_path: Path
) -> None:
    declared = read_declaration(declare(TOTALS))
    views = Views(spark.newSession(), declared, {"path": str(data)}, {}, prunes=True)
    assert views.frames["readings"].columns == ["name"]
    whole = Views(spark.newSession(), declared, {"path": str(data)}, {})
    assert whole.frames["readings"].columns == SCHEMA.names
    both = read_declaration(declare(COPY))
    parts = [part_of(both, sink) for sink in both.sinks]
    alone = [
        Views(spark.newSession(), part, {"path": str(data)}, {"path": str(data)}, prunes=True)
        for part in parts
    ]
    assert [one.frames["readings"].columns for one in alone] == [["name", "payload"], SCHEMA.names]
    file = declare(
        TOTALS.replace(
            "name, count(*) AS n FROM readings GROUP BY name", "count(*) AS n FROM readings"
        )
    )
    publish(data, "x", "y")
    sql(file, path=data, spark=spark)
    assert rows_of(tmp_path / "table") == [{"n": 2}]


def test_from_latest_is_the_end_of_the_topic_at_the_first_start(
    spark: SparkSession, data: Path, declare: Declare
) -> None:
    file = declare(COPY.replace('topic = "sensors"', 'topic = "sensors"\nfrom = "latest"'))
    publish(data, "before")
    sql(file, path=data, once=True, spark=spark)
    publish(data, "after")
    sql(file, path=data, once=True, spark=spark)
    assert values(data) == ["after"]


def test_an_archive_is_a_source(
    spark: SparkSession, data: Path, declare: Declare, tmp_path: Path
) -> None:
    publish(data, at(0, 0), at(0, 1))
    archive("sensors", tmp_path / "archive", path=data, spark=spark)
    publish(data, "x", topic="rooms")
    file = declare(
        """
[sources.old]
table = "./archive"

[sources.new]
topic = "rooms"
payload = "text"

[steps.both]
sql = "SELECT string(old.payload) || new.payload AS payload, date FROM old CROSS JOIN new"

[sinks.table]
step = "both"
table = "./table"
"""
    )
    sql(file, path=data, spark=spark)
    found = [json.loads(row["payload"][:-1])["at"][-3:] for row in rows_of(tmp_path / "table")]
    assert found == ["00Z", "01Z"]
