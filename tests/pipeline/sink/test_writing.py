"""Do rows become records: every kind of payload, name and header, in order, once?"""

from __future__ import annotations

import json
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from penstock import Broker, RefusedError, TooLarge, TopicNotFound, UnavailableError
from penstock.log.staging.area import AREA, STAGED_BLOB_BYTES, STAGED_RECORDS
from penstock.model.limits import PAYLOAD_BYTES_MAX
from penstock.model.record import Record
from penstock.pipeline.sink.intake import DirectoryIntake
from penstock.pipeline.sink.writing import TaskWrite
from penstock.pipeline.source.source import PenstockSource
from tests.examples import examples
from tests.pipeline.source.reading import travelled

HEADERS = pa.map_(pa.string(), pa.string())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Broker(tmp_path) as broker:
        broker.create_topic("Orders")
        broker.create_topic("other")
    return tmp_path


def write(
    data: Path, *batches: pa.RecordBatch, topic: str | None = "orders", source: str = "s"
) -> None:
    """What a task and its driver do."""
    intake = travelled(DirectoryIntake(data))
    files = TaskWrite(intake, topic, source, 0, 0).write(batches)
    assert travelled(files) == files
    assert intake.hand_over(source, 0, files, is_only=True)


def rows(payload: Any, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch([payload, *columns.values()], names=["payload", *columns])


def stored(data: Path, topic: str = "orders") -> list[Record]:
    with Broker(data) as broker:
        return broker.read(topic)


def nothing_is_staged(data: Path) -> bool:
    return not any(path.is_file() for path in (data / AREA).rglob("*"))


@pytest.mark.parametrize(
    ("payload", "values"),
    [
        (pa.array([b"\xff", b"", b"abc"], pa.binary()), [b"\xff", b"", b"abc"]),
        (pa.array(["ü", "", "abc"], pa.string()), ["ü", "", "abc"]),
        (pa.array([{"a": 1, "b": None}, {"a": 2, "b": "x"}]), [{"a": 1}, {"a": 2, "b": "x"}]),
    ],
)
def test_every_kind_of_payload_comes_back_as_it_was(
    data: Path, payload: pa.Array, values: list[Any]
) -> None:
    write(data, rows(payload))
    found = stored(data)
    assert [record.value for record in found] == values
    assert {record.name for record in found} == {"Orders"}
    assert nothing_is_staged(data)


def test_values_of_maps_and_arrays_stay_also_where_they_are_null(data: Path) -> None:
    fields = pa.struct([("a", pa.int64()), ("b", pa.map_(pa.string(), pa.int64()))])
    kind = pa.struct([("m", pa.map_(pa.string(), fields)), ("l", pa.list_(fields)), ("n", fields)])
    value = {
        "m": [("x", {"a": None, "b": [("y", None)]}), ("z", None)],
        "l": [None, {"a": 1, "b": []}, {"a": None, "b": None}],
        "n": None,
    }
    write(data, rows(pa.array([value], kind)))
    assert [record.value for record in stored(data)] == [
        {"m": {"x": {"b": {"y": None}}, "z": None}, "l": [None, {"a": 1, "b": {}}, {}]}
    ]


def test_a_string_that_is_no_text_comes_back_as_its_bytes(data: Path) -> None:
    made = pa.array([b"a", b"\xffA", "ü".encode()], pa.binary()).view(pa.string())
    write(data, rows(made))
    assert [record.value for record in stored(data)] == ["a", b"\xffA", "ü"]
    name = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(RefusedError, match="a name is not UTF-8"):
        write(data, rows(pa.array(["a"]), name=name), source="other")


def test_names_and_headers_are_taken_per_row_and_may_be_missing(data: Path) -> None:
    write(
        data,
        rows(
            pa.array(["a", "b", "c"]),
            name=pa.array(["n/1", None, "n/2"]),
            headers=pa.array([[("k", "v"), ("l", "")], None, []], HEADERS),
        ),
    )
    assert [(record.name, record.headers) for record in stored(data)] == [
        ("n/1", (("k", "v"), ("l", ""))),
        ("Orders", ()),
        ("n/2", ()),
    ]


def test_rows_choose_their_topic_in_any_letter_case(data: Path) -> None:
    write(
        data,
        rows(pa.array(["a", "b", "c"]), topic=pa.array(["orders", "Other", "ORDERS"])),
        rows(pa.array(["d"]), topic=pa.array(["other"])),
        topic=None,
    )
    assert [record.value for record in stored(data)] == ["a", "c"]
    assert [record.value for record in stored(data, "other")] == ["b", "d"]


def test_slices_of_arrow_arrays_are_written_as_their_rows(data: Path) -> None:
    whole = rows(
        pa.array([f"p{n}" for n in range(10)]), name=pa.array([f"n/{n}" for n in range(10)])
    )
    write(data, whole.slice(3, 4), whole.slice(0, 0), whole.slice(9))
    assert [(record.value, record.name) for record in stored(data)] == [
        (f"p{n}", f"n/{n}") for n in (3, 4, 5, 6, 9)
    ]


@pytest.mark.over_a_second
@examples(25)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.binary(max_size=8),
                st.none() | st.sampled_from(["a", "a/b", "ü/☃"]),
                st.none() | st.dictionaries(st.sampled_from(["k", "ü"]), st.text(max_size=3)),
            ),
            max_size=6,
        ),
        max_size=4,
    )
)
def test_any_rows_are_stored_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[Any, Any, Any]]]
) -> None:
    data = tmp_path_factory.mktemp("data")
    with Broker(data, durability="os") as broker:
        broker.create_topic("Orders")
    write(
        data,
        *(
            rows(
                pa.array([row[0] for row in batch], pa.binary()),
                name=pa.array([row[1] for row in batch], pa.string()),
                headers=pa.array(
                    [None if row[2] is None else list(row[2].items()) for row in batch], HEADERS
                ),
            )
            for batch in batches
        ),
    )
    wanted = [
        (payload, name or "Orders", tuple((headers or {}).items()))
        for batch in batches
        for payload, name, headers in batch
    ]
    assert [(r.payload, r.name, r.headers) for r in stored(data)] == wanted


def test_small_batches_are_put_together_and_large_ones_cut(data: Path) -> None:
    small = [rows(pa.array([b"x"] * 1_000)) for _ in range(STAGED_RECORDS // 1_000 + 1)]
    large = rows(pa.array([bytes(STAGED_BLOB_BYTES // 4)] * 10))
    intake = DirectoryIntake(data)
    files = TaskWrite(intake, "orders", "small", 0, 0).write(small)
    assert [file.batches for file in files] == [2]
    files = TaskWrite(intake, "orders", "large", 0, 0).write([large])
    assert [file.batches for file in files] == [3]
    assert [file.records for file in files] == [10]


def test_the_largest_payload_is_stored_and_one_byte_more_is_refused(data: Path) -> None:
    write(data, rows(pa.array([bytes(PAYLOAD_BYTES_MAX)])))
    assert [len(record.payload) for record in stored(data)] == [PAYLOAD_BYTES_MAX]
    with pytest.raises(TooLarge, match=f"message of {PAYLOAD_BYTES_MAX + 1} bytes"):
        write(data, rows(pa.array([bytes(PAYLOAD_BYTES_MAX + 1)])))
    assert nothing_is_staged(data)


def test_structs_become_json_without_what_is_null(data: Path) -> None:
    value = {
        "whole": 2**62,
        "real": 1.5,
        "text": "ü",
        "yes": True,
        "none": None,
        "list": [1, None, 3],
        "inner": {"a": None, "b": 1},
        "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3, 4, 5, 600000, UTC),
        "exact": Decimal("1.20"),
        "raw": b"\x00\xff",
    }
    write(data, rows(pa.array([value])))
    (record,) = stored(data)
    assert json.loads(record.payload) == {
        "whole": 2**62,
        "real": 1.5,
        "text": "ü",
        "yes": True,
        "list": [1, None, 3],
        "inner": {"b": 1},
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05.600000Z",
        "exact": 1.2,
        "raw": "AP8=",
    }


REFUSED = [
    ({"payload": [None]}, "a row has no payload \\(NULL\\)"),
    ({"name": ["a/+"]}, "name 'a/\\+' contains '\\+'"),
    ({"headers": [[("k", None)]]}, "header 'k': None must be text"),
    ({"headers": [[("k", "v" * 70_000)]]}, "headers of 70001 bytes"),
    ({"topic": [None]}, "a row has no topic \\(NULL\\)"),
    ({"topic": ["nowhere"]}, "topic 'nowhere' is not declared"),
    ({"payload": [{"a": float("nan")}]}, "nan is not a JSON number"),
]


@pytest.mark.parametrize(("columns", "message"), REFUSED, ids=[str(row[0])[:40] for row in REFUSED])
def test_a_row_that_cannot_be_stored_refuses_all_and_leaves_nothing(
    data: Path, columns: dict[str, Any], message: str
) -> None:
    payload = pa.array(columns.get("payload", ["x"]))
    if payload.null_count:
        payload = payload.cast(pa.string())
    good = rows(pa.array(["good"])) if pa.types.is_string(payload.type) else None
    given = {key: value for key, value in columns.items() if key != "payload"}
    arrays = {
        key: pa.array(value, HEADERS if key == "headers" else pa.string())
        for key, value in given.items()
    }
    batches = [] if good is None or "topic" in arrays else [good]
    topic = None if "topic" in arrays else "orders"
    with pytest.raises(RefusedError, match=message):
        write(data, *batches, rows(payload, **arrays), topic=topic)
    assert stored(data) == []
    assert nothing_is_staged(data)


def test_a_directory_that_is_held_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.sink.intake.LOCK_S_MAX", 0.3)
    schema = StructType([StructField("payload", StringType())])
    with Broker(data), pytest.raises(UnavailableError, match="is open in this process"):
        PenstockSource({"path": str(data), "topic": "orders"}).writer(schema, False)


def test_a_driver_waits_for_another_one_to_finish(data: Path) -> None:
    broker = Broker(data)
    closing = threading.Timer(0.5, broker.close)
    closing.start()
    write(data, rows(pa.array(["a"])))
    closing.join()
    assert [record.value for record in stored(data)] == ["a"]


def payload(kind: Any) -> StructType:
    """A struct with a field of this kind."""
    return StructType([StructField("payload", StructType([StructField("a", kind)]))])


def field(name: str, kind: Any) -> StructType:
    return StructType([StructField("payload", StringType()), StructField(name, kind)])


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (StructType([]), {}, "column 'payload' is missing"),
        (field("value", BinaryType()), {}, "column 'value' cannot be written .*mean 'payload'"),
        (
            field("offset", LongType()),
            {},
            "column 'offset' cannot be written to a topic; allowed columns are payload",
        ),
        (field("name", IntegerType()), {}, "column 'name' is int and must be string"),
        (
            field("headers", MapType(StringType(), IntegerType())),
            {},
            "column 'headers' is map<string,int> and must be map<string,string>",
        ),
        (
            StructType([StructField("payload", IntegerType())]),
            {},
            "column 'payload' is int and must be binary, string, or a struct",
        ),
        (
            payload(VariantType()),
            {},
            r"payload\.a is variant, which cannot be converted.*cast it.*to_json\(payload\)",
        ),
        (payload(ArrayType(payload(VariantType()))), {}, r"payload\.a\[\]\.payload\.a is variant"),
        (payload(MapType(StringType(), VariantType())), {}, r"payload\.a\[\] is variant"),
        (payload(YearMonthIntervalType()), {}, r"payload\.a is interval year to month"),
        (payload(CalendarIntervalType()), {}, r"payload\.a is interval"),
        (
            payload(MapType(payload(StringType()), StringType())),
            {},
            r"payload\.a is map<struct<.*>,string>, which cannot be converted to JSON",
        ),
        (field("topic", StringType()), {}, "the topic is given twice"),
        (field("name", StringType()), {"topic": None}, "no topic is given"),
        (field("name", StringType()), {"topic": "a,b"}, "topic: 'a,b' names several"),
        (field("name", StringType()), {"topic": '["a", "b"]'}, "names several"),
        (field("name", StringType()), {"topic": "nowhere"}, "topic 'nowhere' is not declared"),
        (
            field("name", StringType()),
            {"where": "offset = 1"},
            "'where' cannot be used with a write",
        ),
        (field("name", StringType()), {"idempotencyKey": ""}, "must have 1 to 255 characters"),
        (field("name", StringType()), {"overwrite": True}, "a topic only grows"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    data: Path, schema: StructType, options: dict[str, Any], message: str
) -> None:
    overwrite = options.pop("overwrite", False)
    given = {"path": str(data), "topic": "orders", **options}
    source = PenstockSource({key: value for key, value in given.items() if value is not None})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(RefusedError, match=message):
            make(schema, overwrite)


def test_an_idempotency_key_is_for_batches(data: Path) -> None:
    source = PenstockSource({"path": str(data), "topic": "orders", "idempotencyKey": "k"})
    with pytest.raises(RefusedError, match="exactly once anyway"):
        source.streamWriter(StructType([StructField("payload", StringType())]), False)


def test_a_topic_that_is_gone_by_the_time_of_writing_is_named(data: Path) -> None:
    intake = DirectoryIntake(data)
    with Broker(data) as broker:
        broker.delete_topic("orders")
    with pytest.raises(TopicNotFound, match="topic 'orders' is not declared"):
        TaskWrite(intake, "orders", "s", 0, 0).write([rows(pa.array(["a"]))])
