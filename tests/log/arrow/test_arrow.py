"""Does Arrow hold exactly what records() gives, column by column?"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.arrow.columns import SCHEMA, schema_of, to_arrow
from penstock.log.files.upkeep.seal import seal_segment
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import encode_headers
from penstock.model.limits import MIB, PAYLOAD_BYTES_MAX
from penstock.model.record import Record
from tests.appends import add, add_gapped
from tests.log.files.segments import all_batches, plain_run, write_model
from tests.log.format.batch_model import TOPIC, ModelLog, RunPlan, T, run_plans


def stored(batch: Batch) -> Batch:
    """The batch as a reader gets it."""
    return decode_batch(memoryview(b"".join(batch.to_bytes())), 0)


def as_rows(records: list[Record]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for r in records:
        first_values: dict[str, str] = {}
        for key, value in r.headers:
            first_values.setdefault(key, value)
        rows.append(
            {
                "topic": r.topic,
                "partition": r.partition,
                "offset": r.offset,
                "timestamp": r.time,
                "name": r.name,
                "headers": first_values,
                "payload": r.payload,
                "publisher": r.publisher,
            }
        )
    return rows


def found_rows(batches: list[Batch], schema: pa.Schema, start: int, end: int) -> list[object]:
    rows = []
    for arrow in to_arrow(batches, TOPIC, schema, start, end):
        arrow.validate(full=True)
        assert arrow.schema == schema
        for row in arrow.to_pylist(maps_as_pydicts="strict"):
            rows.append(row)
    return rows


@given(st.lists(st.lists(run_plans(), max_size=4), min_size=1, max_size=3), st.data())
def test_every_column_equals_the_records(plans: list[list[RunPlan]], data: st.DataObject) -> None:
    model = ModelLog()
    batches = [stored(model.batch(runs)) for runs in plans]
    wanted = as_rows(model.records)
    assert found_rows(batches, SCHEMA, 0, 2**62) == wanted
    positions = st.integers(0, model.end + 1)
    start, end = data.draw(positions), data.draw(positions)
    columns = data.draw(st.permutations(SCHEMA.names))[: data.draw(st.integers(1, 8))]
    cut = [{name: row[name] for name in columns} for row in wanted[start:end]]
    assert found_rows(batches, schema_of(columns), start, end) == cut


def test_a_batch_outside_the_range_gives_nothing() -> None:
    model = ModelLog()
    batches = [stored(model.batch([plain_run("n", [b"x"] * 4)])) for _ in range(3)]
    batches.insert(1, stored(BatchBuilder(T).encode(1, 4, 0)))  # holds no record
    bases = [
        (b.column("offset")[0].as_py(), len(b)) for b in to_arrow(batches, TOPIC, SCHEMA, 5, 9)
    ]
    assert bases == [(5, 3), (8, 1)]
    assert list(to_arrow(batches, TOPIC, SCHEMA, 4, 4)) == []
    assert list(to_arrow(batches, TOPIC, SCHEMA, 12, 99)) == []


def test_the_first_value_of_a_header_counts() -> None:
    builder = BatchBuilder(0)
    pairs = (("a", "1"), ("b", "2"), ("a", "3"), ("ü", "☃"))
    add(builder, "n", [b""], T, 1, headers=encode_headers(pairs))
    add(builder, "n", [b""], T, 1)
    (arrow,) = to_arrow([stored(builder.encode(1, 0, 0))], TOPIC, schema_of(["headers"]), 0, 2)
    rows = arrow.column("headers").to_pylist(maps_as_pydicts="strict")
    assert rows == [{"a": "1", "b": "2", "ü": "☃"}, {}]


def test_only_the_wanted_columns_are_made_in_the_wanted_order() -> None:
    batch = stored(ModelLog().batch([plain_run("n", [b"x"])]))
    schema = schema_of(["payload", "offset"])
    (arrow,) = to_arrow([batch], TOPIC, schema, 0, 1)
    assert arrow.schema.names == ["payload", "offset"]
    assert arrow.schema.field("offset").type == pa.int64() and not schema.field("offset").nullable
    with pytest.raises(KeyError):
        schema_of(["nonsense"])


def test_empty_and_largest_payloads_come_through(tmp_path: Path) -> None:
    largest = random.Random(3).randbytes(PAYLOAD_BYTES_MAX)
    model = ModelLog()
    segment = write_model(
        tmp_path,
        model,
        [
            [plain_run("n", [b"", b"x", b""])],
            [plain_run("big", [largest])],
            [plain_run("n", [b""])],
        ],
    )
    assert PAYLOAD_BYTES_MAX == 16 * MIB
    wanted = [{"payload": r.payload} for r in model.records]
    assert found_rows(all_batches(segment), schema_of(["payload"]), 0, 2**62) == wanted
    sealed = seal_segment(segment)
    assert found_rows(all_batches(sealed), schema_of(["payload"]), 0, 2**62) == wanted


def test_payloads_that_lie_side_by_side_are_not_copied() -> None:
    batch = stored(ModelLog().batch([plain_run("n", [b"abc", b"", b"defg"])]))
    (arrow,) = to_arrow([batch], TOPIC, schema_of(["payload"]), 1, 3)
    assert isinstance(batch.blob, memoryview)
    assert arrow.column("payload").buffers()[2].address == pa.py_buffer(batch.blob).address
    assert arrow.column("payload").to_pylist() == [b"", b"defg"]


def test_gapped_payloads_are_gathered() -> None:
    builder = BatchBuilder(0)
    add(builder, "n", [b"first"], T, 1)
    add_gapped(builder, "n", b"..aa...b.", [2, 7], [2, 1], T, 1)
    batch = stored(builder.encode(1, 0, 0))
    assert not batch.header.flags & fmt.CONTIGUOUS
    (arrow,) = to_arrow([batch], TOPIC, schema_of(["payload"]), 1, 3)
    assert arrow.column("payload").to_pylist() == [b"aa", b"b"]


def test_payloads_that_lie_in_another_order_or_overlap_are_gathered() -> None:
    builder = BatchBuilder(0)
    add_gapped(builder, "n", b".abcd.", [3, 1, 2], [2, 1, 2], T, 1)
    batch = stored(builder.encode(1, 0, 0))
    (arrow,) = to_arrow([batch], TOPIC, schema_of(["payload"]), 0, 3)
    assert arrow.column("payload").to_pylist() == [b"cd", b"a", b"bc"]


def test_sealed_segments_give_the_same_rows(tmp_path: Path) -> None:
    model = ModelLog()
    plans = [
        [plain_run(f"n/{i % 5}", [b"%d" % i] * 50, 1, publisher="p" if i % 2 else "")]
        for i in range(40)
    ]
    segment = write_model(tmp_path, model, plans)
    before = found_rows(all_batches(segment), SCHEMA, 100, 1_500)
    assert before == as_rows(model.records)[100:1_500]
    assert found_rows(all_batches(seal_segment(segment)), SCHEMA, 100, 1_500) == before
