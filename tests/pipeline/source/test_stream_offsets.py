"""Does a stream plan every record once, from a start that stays where it was?"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock import Broker, Gap, RefusedError, TopicNotFound
from penstock.pipeline.source.offsets import Place, StreamOffset, stream_offset
from penstock.pipeline.source.plan import limited
from penstock.pipeline.source.source import SCHEMA, PenstockSource
from penstock.pipeline.source.stream import StreamReader
from tests.pipeline.source.reading import only, ranges, read_batches, travelled

ALL = ReadAllAvailable()


def stream(path: Path, **options: str) -> StreamReader:
    found = travelled(PenstockSource({"path": str(path), **options})).streamReader(SCHEMA)
    assert isinstance(found, StreamReader)
    return found


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from Spark's checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def planned(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> Any:
    return ranges(reader.partitions(stored(start), stored(end)))


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with Broker(tmp_path) as opened:
        opened.create_topic("t")
        opened.publish_many(["a"] * 10, "t")
        yield opened


def test_a_stream_begins_at_the_end_unless_told_otherwise(broker: Broker, tmp_path: Path) -> None:
    for options, first in [
        ({}, 10),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "4"}, 4),
    ]:
        reader = stream(tmp_path, topic="t", **options)
        start = reader.initialOffset()
        assert stream_offset(start).places["t"].offset == first
        end = reader.latestOffset(start, ALL)
        assert planned(reader, start, end) == ([("t", first, 10)] if first < 10 else [])


def test_a_query_that_finishes_windows_runs_one_batch_after_each_restart(
    broker: Broker, tmp_path: Path
) -> None:
    options = {"topic": "t", "startingOffsets": "earliest", "finishWindows": "true"}
    reader = stream(tmp_path, **options)
    start = reader.initialOffset()
    end = stored(reader.latestOffset(start, ALL))
    assert reader.latestOffset(end, ALL) == end
    for _ in range(2):  # restarts
        again = stream(tmp_path, **options)
        following = stored(again.latestOffset(end, ALL))
        assert following != end and planned(again, end, following) == []
        assert again.latestOffset(following, ALL) == following
        end = following
    broker.publish_many(["b"] * 5, "t")
    third = stream(tmp_path, **options)
    following = stored(third.latestOffset(end, ALL))
    assert planned(third, end, following) == [("t", 10, 15)]
    assert third.latestOffset(following, ALL) == following
    plain = stream(tmp_path, topic="t")
    assert plain.latestOffset(following, ALL) == following


def test_the_start_stays_although_spark_asks_for_it_again(broker: Broker, tmp_path: Path) -> None:
    reader = stream(tmp_path, topic="t")
    start = reader.initialOffset()
    broker.publish_many(["b"] * 5, "t")
    assert reader.initialOffset() == start
    end = reader.latestOffset(start, ALL)
    assert planned(reader, reader.initialOffset(), end) == [("t", 10, 15)]


def test_a_first_batch_that_was_planned_is_planned_the_same_after_a_crash(
    broker: Broker, tmp_path: Path
) -> None:
    """Spark stored the end of batch 0, died, and asks a new process for the start."""
    before = stream(tmp_path, topic="t")
    start = before.initialOffset()
    broker.publish_many(["b"] * 5, "t")
    end = before.latestOffset(start, ALL)
    broker.publish_many(["c"] * 5, "t")
    after = stream(tmp_path, topic="t")
    again = after.initialOffset()
    assert again != start
    assert planned(after, again, end) == planned(before, start, end) == [("t", 10, 15)]
    following = after.latestOffset(stored(end), ALL)
    assert planned(after, end, following) == [("t", 15, 20)]
    assert "$from" not in following


def test_nothing_new_is_the_same_offset(broker: Broker, tmp_path: Path) -> None:
    reader = stream(tmp_path, topic="t")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert json.dumps(reader.latestOffset(stored(end), ALL)) == json.dumps(end)
    broker.publish("b", "t")
    following = reader.latestOffset(stored(end), ALL)
    assert json.dumps(reader.latestOffset(stored(following), ALL)) == json.dumps(following)


def test_a_limit_divides_what_waits_among_the_topics(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("u")
    broker.publish_many(["a"] * 30, "u")
    reader = stream(tmp_path, topic="t,u", startingOffsets="earliest", maxOffsetsPerTrigger="8")
    assert reader.getDefaultReadLimit() == ReadMaxRows(8)
    start = reader.initialOffset()
    seen: list[tuple[str, int, int]] = []
    for _ in range(5):
        end = reader.latestOffset(start, ReadMaxRows(8))
        pieces = planned(reader, start, end)
        assert sum(last - first for _, first, last in pieces) == 8
        seen += pieces
        start = end
    for topic, count in (("t", 10), ("u", 30)):
        edges = [(first, last) for name, first, last in seen if name == topic]
        assert edges[0][0] == 0 and edges[-1][1] == count
        assert all(before[1] == after[0] for before, after in itertools.pairwise(edges))


def test_available_now_ends_at_what_was_there_when_it_began(broker: Broker, tmp_path: Path) -> None:
    reader = stream(tmp_path, topic="t", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    broker.publish_many(["late"] * 5, "t")
    end = reader.latestOffset(start, ReadMaxRows(7))
    assert planned(reader, start, end) == [("t", 0, 7)]
    last = reader.latestOffset(end, ReadMaxRows(7))
    assert planned(reader, end, last) == [("t", 7, 10)]
    assert reader.latestOffset(last, ReadMaxRows(7)) == last
    assert reader.latestOffset(last, ALL) == last


def test_available_now_from_a_start_past_its_target_gives_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    reader = stream(tmp_path, topic="t")
    reader.prepareForTriggerAvailableNow()
    broker.publish("between", "t")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert planned(reader, start, end) == []
    assert stream_offset(end).places["t"].offset == 11


def test_the_newest_offset_is_reported_whatever_the_limit(broker: Broker, tmp_path: Path) -> None:
    reader = stream(tmp_path, topic="t", startingOffsets="earliest", maxOffsetsPerTrigger="1")
    assert stream_offset(reader.reportLatestOffset()).places["t"].offset == 10
    broker.publish("x", "t")
    assert stream_offset(reader.reportLatestOffset()).places["t"].offset == 11


def test_a_topic_born_later_is_read_from_its_first_record(broker: Broker, tmp_path: Path) -> None:
    reader = stream(tmp_path, names="#", maxOffsetsPerTrigger="100")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    broker.create_topic("born")
    broker.publish_many(["a"] * 3, "born")
    following = reader.latestOffset(end, ReadMaxRows(100))
    assert planned(reader, end, following) == [("born", 0, 3)]


def test_a_topic_that_does_not_exist_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "default").mkdir()
    with pytest.raises(TopicNotFound, match="topic 't' is not declared"):
        stream(tmp_path, topic="t").initialOffset()


def test_a_deleted_topic_is_a_loss_unless_the_query_does_not_mind(
    broker: Broker, tmp_path: Path
) -> None:
    strict = stream(tmp_path, topic="t")
    easy = stream(tmp_path, topic="t", failOnDataLoss="false")
    end = strict.latestOffset(strict.initialOffset(), ALL)
    broker.delete_topic("t")
    with pytest.raises(Gap, match="all offsets from 10 on are gone: the topic was deleted"):
        strict.latestOffset(end, ALL)
    same = easy.latestOffset(end, ALL)
    assert stream_offset(same).places == stream_offset(end).places
    assert planned(easy, end, same) == []
    broker.create_topic("t")
    broker.publish_many(["new"] * 3, "t")
    following = strict.latestOffset(end, ALL)
    with pytest.raises(Gap, match="from 10 on are gone: the topic was deleted and created again"):
        strict.partitions(end, following)
    assert planned(easy, end, easy.latestOffset(end, ALL)) == [("t", 0, 3)]


def test_a_topic_that_the_query_has_left_out_since_is_said_to_be_that(
    broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("other")
    both = stream(tmp_path, topic="t,other")
    end = both.latestOffset(both.initialOffset(), ALL)
    with pytest.raises(Gap, match="contains the topic, but the query no longer reads it"):
        stream(tmp_path, topic="other").latestOffset(end, ALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "5"}, "'endingOffsets' cannot be used with a streaming read"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: '0' is not a whole number above 0"),
        ({"startingOffsets": "11"}, "offset 11 is beyond the end of topic 't'"),
    ],
)
def test_a_bad_option_of_a_stream_is_refused(
    broker: Broker, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        stream(tmp_path, topic="t", **options).initialOffset()


def test_tasks_read_what_was_planned(broker: Broker, tmp_path: Path) -> None:
    source = PenstockSource({"path": str(tmp_path), "topic": "t", "startingOffsets": "earliest"})
    reader = source.streamReader(only("offset"))
    start = reader.initialOffset()
    pieces = reader.partitions(start, reader.latestOffset(start, ALL))
    found = [
        o for b in read_batches(reader, pieces, only("offset")) for o in b["offset"].to_pylist()
    ]
    assert found == list(range(10))


places = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(Place, st.integers(0, 2**62), st.integers(1, 9), st.integers(1, 9)),
)


@given(places, st.booleans(), st.none() | places)
def test_offsets_come_back_as_they_were_stored(
    held: dict[str, Place], is_initial: bool, start: dict[str, Place] | None
) -> None:
    offset = StreamOffset(held, is_initial, start)
    assert stream_offset(stored(offset.to_json())) == offset


waits = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.integers(0, 50), st.integers(0, 99))
)


@given(waits, st.integers(1, 200))
def test_a_limit_takes_as_much_as_it_may_and_no_more(
    waiting: dict[str, tuple[int, int]], records_max: int
) -> None:
    begins = {topic: begin for topic, (begin, _) in waiting.items()}
    ends = {topic: Place(begin + count, 1, 1) for topic, (begin, count) in waiting.items()}
    found = limited(begins, ends, records_max)
    takes = {topic: found[topic].offset - begin for topic, begin in begins.items()}
    assert sum(takes.values()) == min(records_max, sum(count for _, count in waiting.values()))
    assert all(0 <= takes[topic] <= count for topic, (_, count) in waiting.items())


def test_a_topic_with_little_is_not_starved_by_one_with_much() -> None:
    ends = {"much": Place(1_000_000, 1, 1), "little": Place(1, 2, 1)}
    found = limited({"much": 0, "little": 0}, ends, 10)
    assert (found["much"].offset, found["little"].offset) == (9, 1)
