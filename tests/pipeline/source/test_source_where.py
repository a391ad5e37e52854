"""Do filter expressions and name filters mean on a Spark task what they mean in the broker?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock import Broker
from penstock.core.naming.names import matches
from penstock.core.where import compile_where
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import encode_headers
from penstock.model.record import Record
from penstock.pipeline.source.scan import kept_records
from tests.appends import add
from tests.core.where.test_where import CASES, record_of, title
from tests.each import each
from tests.pipeline.source.reading import offsets

names = st.sampled_from(["a", "a/b", "a/c", "a/b/c", "b", "$SYS/x", "b/b"])
filters = st.sampled_from(["#", "a", "a/#", "+/b", "+", "a/+/c", "$SYS/#", "nobody"])


def stored(records: list[Record]) -> Batch:
    """A batch that holds the records, as a task reads it."""
    builder = BatchBuilder(records[0].timestamp)
    for one in records:
        headers = encode_headers(one.headers)
        add(builder, one.name, [one.payload], one.timestamp, 0, one.publisher, 0, headers)
    batch = builder.encode(1, records[0].offset, 0)
    return decode_batch(memoryview(b"".join(batch.to_bytes())), 0)


@each("case", CASES, ids=title)
def test_a_task_keeps_what_the_table_of_expressions_says(case: dict[str, Any]) -> None:
    record = record_of(case["record"])
    keep = kept_records(stored([record]), record.topic, None, compile_where(case["expression"]))
    assert keep is not None
    assert keep.tolist() == [case["expected"] is True]


@given(st.lists(st.tuples(names, st.integers(0, 9)), min_size=1, max_size=20), filters)
def test_a_task_keeps_exactly_the_records_both_filters_want(
    published: list[tuple[str, int]], filter_text: str
) -> None:
    records = [
        Record("t", 0, offset, 1_700_000_000_000_000, name, json.dumps({"n": number}).encode())
        for offset, (name, number) in enumerate(published)
    ]
    where = compile_where("payload.n > 4")
    for chosen in (None, where):
        keep = kept_records(stored(records), "t", lambda name: matches(filter_text, name), chosen)
        assert keep is not None
        assert keep.tolist() == [
            matches(filter_text, one.name) and (chosen is None or chosen.passes(one))
            for one in records
        ]


def test_a_task_and_a_consumer_agree_on_a_whole_topic(tmp_path: Path) -> None:
    expression = "name LIKE 'n/%' AND (payload.v >= 50 OR payload.tag IN ('x', 'y'))"
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        for number in range(200):
            tag = "xyz"[number % 3] if number % 2 else None
            broker.publish({"v": number, "tag": tag}, "t", name=f"{'nm'[number % 2]}/{number}")
        chosen = [record.offset for record in broker.read("t", where=expression)]
        assert 0 < len(chosen) < 200
        assert offsets(tmp_path, topic="t", where=expression) == chosen


CHILD = """
import sys
from pathlib import Path
from pyspark_penstock import DefaultSource
from penstock.pipeline.source.source import SCHEMA
reader = DefaultSource({"path": sys.argv[1], "topic": "t", "where": "offset > 0"}).reader(SCHEMA)
print(sum(b.num_rows for piece in reader.partitions() for b in reader.read(piece)))
print(*sorted(m for m in sys.modules if m.startswith("penstock")))
"""


def test_planning_and_reading_load_nothing_of_the_server(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish_many(["a", "b"], "t")
    answer = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=True
    )
    count, loaded = answer.stdout.splitlines()
    assert count == "1"
    rooms = {module.split(".")[1] for module in loaded.split() if "." in module}
    assert rooms == {"core", "log", "model", "pipeline"}
