"""Do whole columns of records find the same readers as each record on its own?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.rule import Want
from penstock.core.naming.names import matches
from penstock.core.where import compile_where
from penstock.log.arrow.columns import schema_of
from penstock.model.record import Record
from penstock.pipeline.jobs.dispatch import matching
from penstock.pipeline.jobs.dispatch.dispatching import DELIVERIES, count, deliver
from penstock.pipeline.jobs.dispatch.matching import Matcher, matcher_of
from penstock.pipeline.jobs.dispatch.readers import Filter, Reader, Readers
from tests.core.delivery.delivery_model import ME, Model, model

TOPICS = {"a": 1, "b": 3}  # partition 1 of a has the id 2
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_US = int(NOW.timestamp() * 1e6)
COLUMNS = (
    *(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "name",
        "publisher",
        "qos",
        "expires_at",
        "headers",
    ),
    "payload",
)

LEVEL = st.sampled_from(["a", "b", "", "$x"])
NAMES = st.one_of(
    st.sampled_from(["a/b", "a", "$x/b"]),
    st.lists(LEVEL, min_size=1, max_size=3).map("/".join).filter(bool),
)
FILTERS = st.one_of(
    st.sampled_from(["#", "a/#", "+/b", "a/b", "a/+", "$x/#"]),  # several match the same name
    st.lists(st.sampled_from(["a", "b", "+", "$x"]), min_size=1, max_size=3).map("/".join),
    st.lists(st.sampled_from(["a", "+", "$x"]), max_size=2).map(lambda le: "/".join([*le, "#"])),
)
OFFSET = st.integers(0, 9)
SINCE = st.dictionaries(st.sampled_from([1, 2, 3]), OFFSET)
WHERE = st.sampled_from(["", "payload.n > 4", "name LIKE 'a%'", "headers['k'] = 'v'"])


@st.composite
def readers(draw: st.DrawFn) -> Readers:
    made: list[Reader] = []
    filters: list[Filter] = []
    for number in range(draw(st.integers(1, 5))):
        feed_id = draw(st.integers(0, 1))
        positions = draw(st.one_of(st.none(), SINCE))
        where = draw(WHERE) if feed_id else ""
        out = draw(st.frozensets(st.tuples(st.sampled_from([1, 2, 3]), OFFSET), max_size=3))
        made.append(Reader(f"c{number % 3}", feed_id, where, positions, out))
        for text in draw(st.lists(FILTERS, min_size=1, max_size=3, unique=True)):
            since = draw(SINCE)
            filters.append(
                Filter(text, number, draw(st.integers(0, 2)), draw(st.booleans()), since)
            )
    return Readers("key", made, filters, TOPICS)


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows = []
    for at in range(draw(st.integers(0, 12))):
        topic, partition = draw(st.sampled_from([("a", 0), ("a", 1), ("b", 0)]))
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "offset": at,
                "timestamp": NOW,
                "name": draw(NAMES),
                "publisher": draw(st.sampled_from(["c0", "c1", ""])),
                "qos": draw(st.integers(0, 2)),
                "expires_at": draw(st.sampled_from([None, NOW, NOW + timedelta(days=1)])),
                "headers": draw(st.sampled_from([[], [("k", "v")]])),
                "payload": b'{"n": %d}' % at,
            }
        )
    return rows


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema_of(COLUMNS))


def one_by_one(readers: Readers, row: dict[str, Any], number: int) -> Model:
    """What a reader gets of a record, decided for it alone."""
    reader = readers.readers[number]
    topic_id = readers.topics[row["topic"]] + row["partition"]
    if reader.positions is not None and row["offset"] < reader.positions.get(topic_id, 1 << 40):
        return Model()
    if (topic_id, row["offset"]) in reader.out:
        return Model()
    if reader.where:
        record = Record(
            row["topic"], row["partition"], row["offset"], NOW_US, row["name"], row["payload"],
            tuple(row["headers"]), row["publisher"],
        )  # fmt: skip
        if not compile_where(reader.where).passes(record):
            return Model()
    wants = [
        Want(one.qos, one.since.get(topic_id, 0), one.no_local)
        for one in readers.filters
        if one.reader == number and matches(one.filter, row["name"])
    ]
    publisher = ME if row["publisher"] == reader.client_id else row["publisher"]
    is_feed = reader.feed_id != 0  # it always reads the log
    return model(wants, row["offset"], row["qos"], publisher, is_feed)


def wanted(
    readers: Readers, rows: list[dict[str, Any]], *, is_away: bool = False
) -> list[tuple[int, int, int]]:
    """(row, reader, QoS): what readers get that are there, or that come back."""
    found = []
    for at, row in enumerate(rows):
        for number in range(len(readers.readers)):
            decided = one_by_one(readers, row, number)
            got = decided.from_log if is_away else decided.live
            if got is not None:
                found.append((at, number, got.qos))
    return found


@given(readers(), records())
def test_every_record_finds_the_readers_it_finds_alone(
    readers: Readers, rows: list[dict[str, Any]]
) -> None:
    found = []
    for pairs in Matcher(readers).pairs(batch_of(rows)):
        columns = (pairs.rows.tolist(), pairs.readers.tolist(), pairs.qos.tolist())
        found += list(zip(*columns, strict=True))
    assert sorted(found) == wanted(readers, rows)


@given(readers(), records())
def test_what_waits_is_what_is_kept_for_those_away(
    readers: Readers, rows: list[dict[str, Any]]
) -> None:
    matching._newest.clear()
    expected: dict[tuple[int, str], int] = {}
    for at, number, _ in wanted(readers, rows, is_away=True):
        row = rows[at]
        if row["expires_at"] is None or row["expires_at"] > NOW:
            key = (number, row["topic"])
            expected[key] = expected.get(key, 0) + 1
    found = {}
    for batch in count(readers, NOW_US, [batch_of(rows)]):
        for one in batch.to_pylist():
            found[one["reader"], one["topic"]] = one["waiting"]
    assert found == expected


def test_a_delivery_says_who_gets_which_record_at_which_qos() -> None:
    readers = Readers(
        "deliver",
        [Reader("c0"), Reader("c0", 3), Reader("c1")],
        [
            Filter("a/#", 0, 1, False, {}),
            Filter("a/b", 1, 2, False, {}),
            Filter("+/b", 2, 0, False, {1: 5}),
        ],
        TOPICS,
    )
    rows = [
        {
            "topic": "a",
            "partition": 0,
            "offset": at,
            "timestamp": NOW,
            "name": "a/b",
            "publisher": "",
            "qos": 2,
        }
        for at in (4, 5)
    ]
    schema = schema_of(["topic", "partition", "offset", "timestamp", "name", "publisher", "qos"])
    (found,) = deliver(readers, [pa.RecordBatch.from_pylist(rows, schema=schema)])
    assert found.schema.equals(pa.schema([DELIVERIES.field(name) for name in found.schema.names]))
    got = [(one["client_id"], one["offset"], one["qos"], one["feed"]) for one in found.to_pylist()]
    assert sorted(got) == [
        ("c0", 4, 1, 0), ("c0", 4, 2, 3), ("c0", 5, 1, 0), ("c0", 5, 2, 3), ("c1", 5, 0, 0),
    ]  # fmt: skip


def test_many_readers_of_one_record_are_worked_out_a_bounded_number_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "PAIRS_MAX", 10)
    readers = Readers(
        "many",
        [Reader(f"c{number}") for number in range(7)],
        [Filter("#", number, 1, False, {}) for number in range(7)],
        TOPICS,
    )
    rows = [
        {"topic": "b", "partition": 0, "offset": at, "name": "n", "publisher": "", "qos": 1}
        for at in range(20)
    ]
    schema = schema_of(["topic", "partition", "offset", "name", "publisher", "qos"])
    parts = list(Matcher(readers).pairs(pa.RecordBatch.from_pylist(rows, schema=schema)))
    assert max(len(part.rows) for part in parts) <= 10
    assert sum(len(part.rows) for part in parts) == 140


def test_a_task_remembers_a_bounded_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "NAMES_MAX", 3)
    matcher = Matcher(Readers("names", [Reader("c")], [Filter("#", 0, 1, False, {})], TOPICS))
    rows = [
        {"topic": "a", "partition": 0, "offset": at, "name": f"n/{at}", "publisher": "", "qos": 1}
        for at in range(10)
    ]
    schema = schema_of(["topic", "partition", "offset", "name", "publisher", "qos"])
    (part,) = matcher.pairs(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert len(part.rows) == 10
    assert len(matcher._known) <= 3


def test_filters_are_put_into_a_trie_once_for_all_tasks_of_a_process() -> None:
    one = Readers("one", [Reader("c")], [Filter("#", 0, 1, False, {})], TOPICS)
    other = Readers("other", [Reader("c")], [Filter("#", 0, 1, False, {})], TOPICS)
    assert matcher_of(one) is matcher_of(one)
    assert matcher_of(one) is not matcher_of(other)
