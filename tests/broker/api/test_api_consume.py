"""Consumers: durable positions, and every kind of position one may give."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AlreadySubscribed,
    AsyncBroker,
    Broker,
    Gap,
    InvalidExpression,
    InvalidFilter,
    InvalidName,
    InvalidPosition,
    InvalidSetting,
    NotSubscribed,
    Record,
    TopicNotFound,
)
from penstock.log.files.embedded import EmbeddedLog
from tests.broker.trimmed import trim
from tests.each import each


def filled(broker: Broker, count: int = 10) -> Broker:
    broker.create_topic("t")
    broker.publish_many(list(range(count)), "t")
    return broker


def values(records: list[Record]) -> list[Any]:
    return [record.value for record in records]


def test_a_new_consumer_sees_every_message_and_then_only_new_ones(broker: Broker) -> None:
    filled(broker, 3).subscribe("c", "t")
    assert values(broker.consume("c", "t")) == [0, 1, 2]
    assert broker.consume("c", "t") == []
    broker.publish("new", "t")
    assert values(broker.consume("c", "t")) == ["new"]


def test_consumers_do_not_disturb_each_other(broker: Broker) -> None:
    filled(broker, 4)
    for name in ("c", "C"):  # letter case counts
        broker.subscribe(name, "t")
    assert values(broker.consume("c", "t", limit=3)) == [0, 1, 2]
    assert values(broker.consume("C", "t", limit=1)) == [0]
    assert values(broker.consume("c", "t")) == [3]


def test_a_consumer_and_a_topic_are_a_pair_and_no_joined_string(broker: Broker) -> None:
    for topic in ("b_c", "c"):
        broker.create_topic(topic)
        broker.publish(topic, topic)
    broker.subscribe("a", "b_c")
    with pytest.raises(NotSubscribed):
        broker.consume("a_b", "c")
    broker.subscribe("a_b", "c")
    assert values(broker.consume("a_b", "c")) == ["c"]
    assert values(broker.consume("a", "b_c")) == ["b_c"]


def test_subscribing_twice_is_refused_and_keeps_the_position(broker: Broker) -> None:
    filled(broker).subscribe("c", "t")
    broker.consume("c", "t", limit=4)
    with pytest.raises(AlreadySubscribed, match="'c' already reads topic 't'"):
        broker.subscribe("c", "T", start="latest")
    assert values(broker.consume("c", "t", limit=1)) == [4]


def test_unsubscribing_forgets_the_position(broker: Broker) -> None:
    filled(broker, 2).subscribe("c", "t")
    broker.consume("c", "t")
    broker.unsubscribe("c", "t")
    for call in (broker.consume, broker.commit, broker.unsubscribe):
        with pytest.raises(NotSubscribed, match="subscribe it first"):
            call("c", "t")
    with pytest.raises(NotSubscribed):
        broker.seek("c", "t", 0)
    with pytest.raises(NotSubscribed):
        broker.size("t", "c")
    broker.subscribe("c", "t")
    assert values(broker.consume("c", "t")) == [0, 1]


def test_consuming_needs_a_topic_and_a_subscription(broker: Broker) -> None:
    with pytest.raises(TopicNotFound):
        broker.subscribe("c", "t")
    with pytest.raises(TopicNotFound):
        broker.consume("c", "t")


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "\ud800", None])
def test_a_text_that_cannot_name_a_consumer_is_refused(broker: Broker, name: str) -> None:
    broker.create_topic("t")
    with pytest.raises(InvalidName):
        broker.subscribe(name, "t")
    with pytest.raises(InvalidName):
        broker.consume(name, "t")


def test_consumer_names_may_be_odd_and_255_characters_long(tmp_path: Path) -> None:
    odd = ["x" * 255, "ü" * 255, "a/b", "..", "a'b\"c", "%2F", " "]
    with Broker(tmp_path) as broker:
        filled(broker, 3)
        for name in odd:
            broker.subscribe(name, "t", start=2)
    with Broker(tmp_path) as broker:
        assert {one.consumer for one in broker.consumers("t")} == set(odd)
        assert all(one.next_offset == 2 and one.waiting == 1 for one in broker.consumers("t"))


# Limits and filters


def test_limit_bounds_a_batch_and_the_next_goes_on_behind_it(broker: Broker) -> None:
    filled(broker, 7).subscribe("c", "t")
    batches = [values(broker.consume("c", "t", limit=3)) for _ in range(4)]
    assert batches == [[0, 1, 2], [3, 4, 5], [6], []]


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3"])
def test_a_limit_that_is_no_count_is_refused(broker: Broker, limit: Any) -> None:
    filled(broker).subscribe("c", "t")
    with pytest.raises(InvalidSetting, match="limit"):
        broker.consume("c", "t", limit=limit)
    with pytest.raises(InvalidSetting, match="limit"):
        broker.read("t", limit=limit)


def test_without_a_limit_everything_up_to_the_end_at_the_call_comes(broker: Broker) -> None:
    broker.create_topic("t", durability="os")
    for _ in range(5):
        broker.publish_many([b"x" * 100] * 20_000, "t")
    broker.subscribe("c", "t")
    records = broker.consume("c", "t")
    assert [r.offset for r in records] == list(range(100_000))


async def test_consume_ends_at_the_end_at_its_call_although_more_arrives() -> None:
    async with AsyncBroker.memory() as broker:
        await broker.create_topic("t")
        await broker.publish_many([bytes(500_000)] * 20, "t")  # several chunks: it suspends
        await broker.subscribe("c", "t")
        late = asyncio.create_task(broker.publish("late", "t"))
        got = await broker.consume("c", "t")
        await late
        assert [r.offset for r in got] == list(range(20))
        assert [r.value for r in await broker.consume("c", "t")] == ["late"]


def test_where_hands_out_what_passes_and_moves_past_the_rest(broker: Broker) -> None:
    broker.create_topic("t")
    broker.publish_many([{"n": i} for i in range(10)], "t", headers={"h": "x"})
    broker.subscribe("c", "t")
    got = broker.consume("c", "t", where="payload.n >= 3 AND headers['h'] = 'x'", limit=2)
    assert [r.offset for r in got] == [3, 4]
    assert broker.size("t", "c") == 5
    assert broker.consume("c", "t", where="payload.n > 100") == []
    assert broker.size("t", "c") == 0


@pytest.mark.parametrize("where", ["", "payload =", "drop table", "x" * 5_000])
def test_a_bad_expression_is_refused_and_moves_nothing(broker: Broker, where: str) -> None:
    filled(broker).subscribe("c", "t")
    with pytest.raises(InvalidExpression):
        broker.consume("c", "t", where=where)
    with pytest.raises(InvalidExpression):
        broker.read("t", where=where)
    assert broker.size("t", "c") == 10


def test_read_takes_a_filter_over_names_and_keeps_no_position(broker: Broker) -> None:
    broker.create_topic("t")
    for name in ("a/1", "a/2", "b/1", "a"):
        broker.publish(name, "t", name=name)
    for _ in range(2):
        assert values(broker.read("t", names="a/+")) == ["a/1", "a/2"]
    assert values(broker.read("t", names="a/#", start=1, limit=1)) == ["a/2"]
    with pytest.raises(InvalidFilter):
        broker.read("t", names="a#")


# Positions


def test_every_kind_of_position(broker: Broker) -> None:
    filled(broker, 3)
    middle = datetime.now(UTC)
    broker.publish_many([3, 4, 5], "t")
    starts: dict[Any, int] = {
        "earliest": 0,
        "latest": 6,
        0: 0,
        "2": 2,
        6: 6,
        middle: 3,
        middle.isoformat(): 3,
        middle.isoformat().replace("+00:00", "Z"): 3,
        "-1h": 0,
        timedelta(hours=1): 0,
        datetime.now(UTC) + timedelta(days=9): 6,
        "2999-01-01T00:00:00Z": 6,
    }
    broker.subscribe("c", "t")
    for start, offset in starts.items():
        assert broker.seek("c", "t", start) == offset, start
        assert broker.size("t", "c") == 6 - offset
        assert [r.offset for r in broker.read("t", start=start)] == list(range(offset, 6)), start


@each(
    "position",
    [1.0, True, False, None, -1, "-5", "noon", "24h", "", b"0", datetime(2026, 1, 1), 11, "11"],
    ids=repr,
)
def test_what_is_no_position_is_refused_everywhere(broker: Broker, position: Any) -> None:
    if not broker.topics():
        filled(broker).subscribe("c", "t")
    for call in (
        lambda: broker.subscribe("d", "t", start=position),
        lambda: broker.seek("c", "t", position),
        lambda: broker.read("t", start=position),
        lambda: broker.stream("t", start=position),
    ):
        with pytest.raises(InvalidPosition):
            call()
    assert [one.consumer for one in broker.consumers("t")] == ["c"]


def test_an_offset_beyond_the_end_is_refused_with_the_bounds(broker: Broker) -> None:
    filled(broker, 3)
    with pytest.raises(InvalidPosition, match="offset 4 is not in topic 't'.*from 0 to 3"):
        broker.subscribe("c", "t", start=4)


def test_size_counts_records_kept_or_waiting(broker: Broker) -> None:
    filled(broker).subscribe("c", "t", start=4)
    assert (broker.size("t"), broker.size("t", "c")) == (10, 6)
    broker.consume("c", "t", limit=2)
    assert (broker.size("t"), broker.size("t", "c")) == (10, 4)
    assert [(c.consumer, c.next_offset, c.waiting) for c in broker.consumers("t")] == [("c", 6, 4)]


# What is saved when


class Crashed(Exception):
    """Stands for whatever ends a program while it works on a batch."""


def crash_after(path: Path, *batches: dict[str, Any], commit_at: Any = "no") -> None:
    """Consume, then leave the broker as a failing program does."""
    with pytest.raises(Crashed), Broker(path, position_save_s_max=3_600) as broker:
        for batch in batches:
            broker.consume("c", "t", **batch)
        if commit_at != "no":
            broker.commit("c", "t", commit_at)
        raise Crashed


def next_value(path: Path) -> Any:
    with Broker(path) as broker:
        return broker.consume("c", "t", limit=1, commit=False)[0].value


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Broker(tmp_path) as broker:
        filled(broker).subscribe("c", "t")
    return tmp_path


def test_a_program_that_fails_on_a_batch_gets_it_again(data: Path) -> None:
    crash_after(data, {"limit": 4})
    assert next_value(data) == 0


def test_coming_back_for_more_says_that_the_batch_before_is_handled(data: Path) -> None:
    crash_after(data, {"limit": 4}, {"limit": 2})
    assert next_value(data) == 4
    crash_after(data, {"limit": 2}, {"limit": 1, "commit": False})
    assert next_value(data) == 6


def test_commit_false_leaves_the_batch_to_an_explicit_commit(data: Path) -> None:
    with Broker(data) as broker:
        assert len(broker.consume("c", "t", limit=4, commit=False)) == 4
        assert values(broker.consume("c", "t", limit=1, commit=False)) == [4]  # it goes on
    assert next_value(data) == 0
    crash_after(data, {"limit": 4, "commit": False}, commit_at=None)
    assert next_value(data) == 4


def test_commit_with_an_offset_says_that_all_before_it_is_handled(data: Path) -> None:
    crash_after(data, {"limit": 8}, commit_at=3)
    assert next_value(data) == 3
    with Broker(data) as broker:
        broker.commit("c", "t", 9)
        assert values(broker.consume("c", "t")) == [9]
        for bad in (11, -1, True, 1.5):
            with pytest.raises(InvalidPosition):
                broker.commit("c", "t", bad)


def test_a_clean_close_counts_the_newest_batch_as_handled(data: Path) -> None:
    with Broker(data) as broker:
        broker.consume("c", "t", limit=4)
    assert next_value(data) == 4
    broker = Broker(data)
    broker.consume("c", "t", limit=2)
    broker.close()
    assert next_value(data) == 6


def test_seek_is_durable_at_once_and_may_go_back(data: Path) -> None:
    with pytest.raises(Crashed), Broker(data) as broker:
        broker.consume("c", "t")
        assert broker.seek("c", "t", 7) == 7
        raise Crashed
    assert next_value(data) == 7
    with Broker(data) as broker:
        broker.seek("c", "t", "earliest")
        assert values(broker.consume("c", "t", limit=2)) == [0, 1]


# Retention overtakes a consumer


@dataclass
class Overtaken:
    """A broker whose consumer `behind` stands at 0 while topic `t` holds [first, end)."""

    broker: AsyncBroker
    first: int
    end: int


@pytest.fixture
async def overtaken(tmp_path: Path) -> AsyncIterator[Overtaken]:
    first, end = await trim(tmp_path)
    async with AsyncBroker(tmp_path) as broker:
        yield Overtaken(broker, first, end)


async def test_an_overtaken_consumer_goes_on_at_the_first_record_and_the_loss_is_counted(
    overtaken: Overtaken,
) -> None:
    broker, first, end = overtaken.broker, overtaken.first, overtaken.end
    assert await broker.size("t", "behind") == end - first == await broker.size("t")
    assert [r.offset for r in await broker.consume("behind", "t")] == list(range(first, end))
    assert broker.engine.metrics.dropped["retention"] == first


async def test_an_overtaken_consumer_may_ask_for_an_error_instead(overtaken: Overtaken) -> None:
    broker, first, end = overtaken.broker, overtaken.first, overtaken.end
    for _ in range(2):
        with pytest.raises(Gap, match=f"is at offset 0.* is {first}: {first} records"):
            await broker.consume("behind", "t", on_gap="error")
    assert await broker.seek("behind", "t", "earliest") == first
    assert len(await broker.consume("behind", "t", on_gap="error")) == end - first
    with pytest.raises(InvalidSetting, match="on_gap"):
        await broker.consume("behind", "t", on_gap="panic")


async def test_an_overtaken_stream_goes_on_or_raises(overtaken: Overtaken) -> None:
    broker, first = overtaken.broker, overtaken.first
    async for record in broker.stream("t", start=0):
        assert record.offset == first
        break
    with pytest.raises(Gap, match=f"first stored record is {first}"):
        async for _ in broker.stream("t", start=0, on_gap="error"):
            raise AssertionError("the gap comes first")


async def test_positions_and_reads_below_what_is_kept_start_at_the_first_record(
    overtaken: Overtaken,
) -> None:
    broker, first = overtaken.broker, overtaken.first
    assert (await broker.read("t", start=0, limit=1))[0].offset == first
    await broker.subscribe("d", "t", start=0)
    assert (await broker.consume("d", "t", limit=1))[0].offset == first


async def trim_under_the_reader(
    path: Path, read: Callable[[AsyncBroker], Awaitable[list[Record]]]
) -> tuple[list[int], int]:
    """The offsets that `read` returns although retention takes most records meanwhile."""
    noise = random.Random(2)
    async with AsyncBroker(path, segment_bytes="64 KiB") as broker:
        await broker.create_topic("t", durability="os")
        await broker.subscribe("c", "t")
        for _ in range(100):
            await broker.publish(noise.randbytes(40_000), "t")
    async with AsyncBroker(path) as broker:  # nothing is in memory any more
        log = broker.engine.topics.get("t").log
        assert isinstance(log, EmbeddedLog)
        await log.stored_bytes()  # looks into every segment, so that trimming is quick
        reading = asyncio.create_task(read(broker))
        for _ in range(1_000_000):
            if log.loads > 3:  # the first chunks were read
                break
            await asyncio.sleep(0)
        assert await log.trim(None, 200_000) > 50
        offsets = [record.offset for record in await reading]
        rest = [record.offset for record in await broker.consume("c", "t")]
        return offsets + rest, log.bounds().first


async def test_retention_that_overtakes_a_consumer_while_it_reads_is_a_gap_like_any_other(
    tmp_path: Path,
) -> None:
    found, first = await trim_under_the_reader(tmp_path, lambda broker: broker.consume("c", "t"))
    before = [offset for offset in found if offset < first]
    assert before and before == list(range(len(before)))
    assert found[len(before) :] == list(range(first, 100))


async def test_retention_that_overtakes_a_filtered_read_leaves_what_is_kept(tmp_path: Path) -> None:
    found, first = await trim_under_the_reader(
        tmp_path / "consume", lambda broker: broker.consume("c", "t", where="offset >= 97")
    )
    assert first < 97 and found == [97, 98, 99]
    found, first = await trim_under_the_reader(
        tmp_path / "read", lambda broker: broker.read("t", where="offset >= 97")
    )
    assert found == [97, 98, 99, *range(first, 100)]
