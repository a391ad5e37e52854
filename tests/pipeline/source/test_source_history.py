"""Does the source go on into a topic's history, with the same records and the same filters?"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from penstock import Broker
from penstock.core.naming.names import matches
from penstock.core.where import compile_where
from penstock.log.arrow.columns import KINDS, schema_of
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs
from penstock.log.history import files
from penstock.log.history.manifest import create_manifest
from penstock.log.history.orders import TableFacts
from penstock.log.history.place import read_root
from penstock.log.history.storage import storage_of
from penstock.model.errors import Gap, RefusedError
from penstock.model.record import Record
from penstock.pipeline.source.history import Histories
from penstock.pipeline.source.origin import Wanted
from penstock.pipeline.source.source import EXTRA, SCHEMA
from penstock.pipeline.source.stream import StreamReader
from tests.pipeline.source.reading import offsets, only, ranges, read_batches, reader_of, rows
from tests.pipeline.source.tiering import fill, records, tier

pytestmark = pytest.mark.over_a_second  # a log is filled for each

COUNT = 400
ALL = StructType([*SCHEMA, *EXTRA])
FILTERS: list[dict[str, str]] = [
    {},
    {"names": "t/a/#"},
    {"names": "t/+/3"},
    {"names": "nobody"},
    {"where": "payload.n > 100"},
    {"where": "headers['k'] = 'ü' AND name LIKE 't/b%'"},
    {"names": "t/+/1", "where": "payload IS NOT NULL"},
]


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record], int]:
    """A data directory, all records that were published, and the first that is left in the log."""
    data = tmp_path_factory.mktemp("tiered") / "data"
    fill(data, "t", COUNT)
    published = records(data, "t")
    tier(data, 100)
    first = tier(data, 300)
    assert 100 < first <= 300
    return data, published, first


def row_of(record: Record) -> dict[str, Any]:
    """A record as the source gives it, with all columns."""
    headers = dict(reversed(record.headers))
    return {
        "topic": record.topic, "partition": 0, "offset": record.offset, "timestamp": record.time,
        "name": record.name, "headers": headers, "payload": record.payload,
        "publisher": record.publisher, "qos": record.qos, "retain": record.retain,
        "expires_at": None, "kind": KINDS[record.kind].as_py(),
        "header_pairs": [{"key": key, "value": value} for key, value in record.headers],
    }  # fmt: skip


def wanted(published: list[Record], chosen: dict[str, str]) -> list[Record]:
    where = compile_where(chosen.get("where", "offset >= 0"))
    names = chosen.get("names", "#")
    return [one for one in published if matches(names, one.name) and where.passes(one)]


@pytest.mark.parametrize("chosen", FILTERS)
@pytest.mark.parametrize("columns", [ALL, SCHEMA, only("offset"), only("topic", "partition")])
def test_records_of_both_parts_come_once_and_filters_mean_the_same(
    tiered: tuple[Path, list[Record], int], chosen: dict[str, str], columns: StructType
) -> None:
    data, published, _ = tiered
    found = rows(data, columns, topic="t", minPartitions="7", **chosen)
    expected = [row_of(one) for one in wanted(published, chosen)]
    assert found == [{name: one[name] for name in columns.names} for one in expected]


@pytest.mark.parametrize(("start", "end"), [(0, 50), (90, 110), (99, 300), (250, 400), (0, 400)])
def test_a_range_may_lie_on_both_sides_of_every_border(
    tiered: tuple[Path, list[Record], int], start: int, end: int
) -> None:
    data, _, first = tiered
    for where in (start, end, first):
        asked = {"startingOffsets": str(min(start, where)), "endingOffsets": str(end)}
        assert offsets(data, topic="t", **asked) == list(range(min(start, where), end))


def test_one_name_of_many_is_found_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "GROUP_ROWS", 4_096)
    rare = [3, 4_000, 4_095, 4_096, 5_000, 9_001]
    with Broker(tmp_path / "data", upkeep_s=3_600) as broker:
        broker.create_topic("t")
        runs = pairwise([-1, *rare, 10_000])
        for before, at in runs:
            many = [b"many %d" % number for number in range(before + 1, at)]
            if many:
                broker.publish_many(many, "t", name="t/many")
            if at < 10_000:
                broker.publish(b"rare %d" % at, "t", name="t/rare", headers={"at": str(at)})
        broker.publish_many([b"tail"] * 10, "t", name="t/many")
    tier(tmp_path / "data", 10_000, is_trimmed=False)
    (identity,) = find_logs(RealDisk(), tmp_path / "data")
    history = Histories(tmp_path / "data").find(identity)
    assert history is not None
    columns = schema_of(["topic", "offset", "timestamp", "name", "payload", "headers"])
    for start, end in ((0, 10_000), (4, 5_000), (4_096, 4_097), (5_001, 9_001)):
        chosen = Wanted(columns, names="t/rare")
        found = [
            row for batch in history.rows("t", start, end, chosen) for row in batch.to_pylist()
        ]
        assert [(row["offset"], row["name"], row["payload"], row["headers"]) for row in found] == [
            (at, "t/rare", b"rare %d" % at, [("at", str(at))]) for at in rare if start <= at < end
        ]
        assert {row["topic"] for row in found} <= {"t"}
    only_offsets = Wanted(schema_of(["offset"]), names="t/rare")
    batches = history.rows("t", 0, 10_000, only_offsets)
    assert [at for batch in batches for at in batch.column("offset").to_pylist()] == rare


def test_times_are_found_in_both_parts(tiered: tuple[Path, list[Record], int]) -> None:
    data, published, first = tiered
    for number in (0, 1, 99, 100, 250, first - 1, first, first + 1, 399):
        stamp = published[number].timestamp
        expected = next(one.offset for one in published if one.timestamp >= stamp)
        found = offsets(data, topic="t", startingTimestamp=published[number].time.isoformat())
        assert found == list(range(expected, COUNT))


def test_records_that_are_trimmed_between_planning_and_reading_come_from_the_history(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    fill(data, "t", COUNT)
    tier(data, 300, is_trimmed=False)
    reader = reader_of(data, only("offset"), topic="t", minPartitions="3")
    pieces = reader.partitions()
    assert tier(data, 350) > 100
    found = [
        row["offset"]
        for batch in read_batches(reader, pieces, only("offset"))
        for row in batch.to_pylist()
    ]
    assert found == list(range(COUNT))


def test_records_in_neither_part_are_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, "t", COUNT)
    tier(data, 300)
    reader = reader_of(data, only("offset"), topic="t")
    pieces = reader.partitions()
    dropped = [*(tmp_path / "history").rglob("*.json"), *data.rglob("history.json")]
    for file in dropped:
        file.unlink()
    with pytest.raises(Gap, match="offsets 0 to [0-9]+ are gone"):
        list(read_batches(reader, pieces, only("offset")))


def test_a_table_that_is_missing_or_of_another_log_is_refused(tmp_path: Path) -> None:
    """Else a query would have fewer records, or those of somebody else, without a word."""
    data = tmp_path / "data"
    fill(data, "t", COUNT)
    tier(data, 300)
    (tmp_path / "history").rename(tmp_path / "elsewhere")
    with pytest.raises(RefusedError, match="is missing; it held the records up to offset 300"):
        offsets(data, topic="t")
    (identity,) = find_logs(RealDisk(), data)
    root = read_root(data)
    assert root is not None
    facts = TableFacts("t", identity.topic_id, "another life")
    create_manifest(storage_of(root.place(identity)), facts)
    with pytest.raises(RefusedError, match="is the history of another topic"):
        offsets(data, topic="t")
    with pytest.raises(RefusedError, match="is the history of another topic"):
        Histories(data).find(identity)


def test_whoever_needs_nothing_of_a_history_does_not_look_at_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, "t", COUNT)
    tier(data, 300, is_trimmed=False)
    (tmp_path / "history").rename(tmp_path / "elsewhere")
    assert offsets(data, topic="t") == list(range(COUNT))


def test_a_stream_starts_in_the_history_and_goes_on_in_the_log(
    tiered: tuple[Path, list[Record], int],
) -> None:
    data, _, first = tiered
    from penstock.pipeline.source.source import PenstockSource

    options = {"path": str(data), "topic": "t", "startingOffsets": "earliest"}
    stream = PenstockSource({**options, "maxOffsetsPerTrigger": "170"}).streamReader(only("offset"))
    assert isinstance(stream, StreamReader)
    start = stream.initialOffset()
    found: list[int] = []
    while True:
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        if end == start:
            break
        pieces = stream.partitions(start, end)
        for batch in read_batches(stream, pieces, only("offset")):
            found += batch.column(0).to_pylist()
        start = end
    assert found == list(range(COUNT))
    assert ranges(pieces)[-1][2] > first


def test_a_topic_that_grows_keeps_its_history(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, "t", 200)
    tier(data, 150)
    fill(data, "t", 100, seed=2)
    assert offsets(data, topic="t") == list(range(300))
    with Broker(data) as broker:
        assert broker.topics()[0].end_offset == 300
