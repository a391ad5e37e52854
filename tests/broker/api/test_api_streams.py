"""Streams: from any position on, with no gap and no repeat, however slow the reader is."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AsyncBroker,
    Broker,
    InvalidExpression,
    InvalidFilter,
    InvalidSetting,
    TopicNotFound,
)
from penstock.broker.deliver import streams
from penstock.core.position import AtOffset

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))


@asynccontextmanager
async def opened(kind: str, path: Path, **settings: Any) -> AsyncIterator[AsyncBroker]:
    made = AsyncBroker.memory(**settings) if kind == "memory" else AsyncBroker(path, **settings)
    async with made as broker:
        await broker.create_topic("t", durability="os")
        yield broker


kinds = pytest.mark.parametrize("kind", ["memory", "files"])


def test_a_stream_begins_with_what_comes_unless_told_otherwise(broker: Broker) -> None:
    broker.create_topic("t")
    broker.publish_many([0, 1, 2], "t")
    live = broker.stream("t")
    broker.publish(3, "t")  # after the call, before the first record is asked for
    assert next(live).value == 3
    assert next(broker.stream("t", start="earliest")).value == 0
    assert next(broker.stream("t", start=2)).value == 2
    assert next(broker.stream("t", start="-1h")).value == 0


def test_a_stream_takes_names_and_where(broker: Broker) -> None:
    broker.create_topic("t")
    for n in range(6):
        broker.publish({"n": n}, "t", name=f"t/{n % 2}")
    both = broker.stream("t", start=0, names="t/1", where="payload.n > 1")
    assert [next(both).offset, next(both).offset] == [3, 5]
    broker.publish({"n": 9}, "t", name="t/1")
    assert next(both).offset == 6


def test_what_is_wrong_is_said_at_the_call_not_at_the_first_record(broker: Broker) -> None:
    with pytest.raises(TopicNotFound):
        broker.stream("t")
    broker.create_topic("t")
    with pytest.raises(InvalidFilter):
        broker.stream("t", names="a#")
    with pytest.raises(InvalidExpression):
        broker.stream("t", where="payload =")
    with pytest.raises(InvalidSetting, match="on_gap"):
        broker.stream("t", on_gap="maybe")


@kinds
async def test_a_waiting_stream_ends_when_the_broker_closes(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as broker:
        await broker.publish("x", "t")
        got_one = asyncio.Event()
        waiting = asyncio.create_task(collect(broker, got_one, start=0))
        await got_one.wait()
    assert await asyncio.wait_for(waiting, 30) == [0]


async def collect(broker: AsyncBroker, got_one: asyncio.Event, **choice: Any) -> list[int]:
    offsets = []
    async for record in broker.stream("t", **choice):
        offsets.append(record.offset)
        got_one.set()
    return offsets


@kinds
async def test_streams_end_when_their_topic_is_deleted(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as broker:
        await broker.publish_many([random.Random(0).randbytes(1_000)] * 5_000, "t")
        live = asyncio.create_task(collect(broker, asyncio.Event()))
        slow = broker.stream("t", start=0)
        assert (await anext(slow)).offset == 0  # it has most of the log still to read
        behind = broker.stream("t", start=0)
        await asyncio.sleep(0)
        await broker.delete_topic("t")
        assert await asyncio.wait_for(live, 30) == []
        rest = [record.offset async for record in slow]
        assert rest == list(range(1, len(rest) + 1))  # what it held, and no more
        with pytest.raises(TopicNotFound, match="deleted"):
            await anext(behind)
        await broker.create_topic("t")
        fresh = broker.stream("t")
        await broker.publish("new", "t")
        assert (await anext(fresh)).value == "new"


@pytest.mark.over_a_second
@kinds
@pytest.mark.parametrize("number", range(4))
async def test_streams_started_at_any_moment_see_every_record_once(
    kind: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers run all the while; tiny backlogs make slow readers fall back to the log."""
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED + number)
    monkeypatch.setattr(streams, "BACKLOG_RECORDS_MAX", chance.choice([1, 7, 50]))
    monkeypatch.setattr(streams, "BACKLOG_BYTES_MAX", chance.choice([1, 2_000, 1 << 20]))
    total = 2_000
    overflows = 0

    async def publish(broker: AsyncBroker) -> None:
        sent = 0
        while sent < total:
            count = min(chance.choice([1, 1, 5, 60]), total - sent)
            await broker.publish_many([b"x" * chance.randrange(200)] * count, "t")
            sent += count
            for _ in range(chance.choice([0, 0, 3])):
                await asyncio.sleep(0)

    async def read(broker: AsyncBroker) -> None:
        nonlocal overflows
        for _ in range(chance.randrange(300)):
            await asyncio.sleep(0)
        topic = broker.engine.topics.get("t")
        start = chance.randrange(topic.log.bounds().end + 1)
        stream = await broker.engine.stream(topic, AtOffset(start))
        is_slow = chance.random() < 0.5
        expected = start
        while expected < total:
            records = await stream.take(chance.choice([1, 10, 1_000]))
            if chance.random() < 0.1:  # there was no room for them: they come again
                stream.go_back(records)
                records = []
            for record in records:
                assert record.offset == expected
                expected += 1
            assert stream._feed.waiting <= streams.BACKLOG_RECORDS_MAX
            for _ in range(chance.randrange(20) if is_slow else 0):
                await asyncio.sleep(0)
        overflows += stream._feed.overflows
        stream.close()
        assert stream.backlog_bytes == 0

    async with opened(kind, tmp_path, segment_bytes="64 KiB") as broker:
        readers = [asyncio.create_task(read(broker)) for _ in range(15)]
        await publish(broker)
        await asyncio.wait_for(asyncio.gather(*readers), 120)
        assert broker.engine._streams == {} and broker.engine.shared.backlogs.bytes == 0
    assert overflows > 0


@kinds
async def test_a_live_stream_that_is_not_read_costs_bounded_memory_and_loses_nothing(
    kind: str, tmp_path: Path
) -> None:
    """With the real bounds: first too many records wait, then too many bytes."""
    async with opened(kind, tmp_path) as broker:
        topic = broker.engine.topics.get("t")
        stream = await broker.engine.stream(topic, AtOffset(0))
        await broker.publish("first", "t")
        assert [r.value for r in await stream.take(10)] == ["first"]
        for _ in range(30):
            await broker.publish_many([b"small"] * 500, "t")
            assert stream._feed.waiting <= streams.BACKLOG_RECORDS_MAX
        assert stream._feed.overflows == 1 and stream._feed.waiting == 0
        seen = 1
        while seen < 15_001:
            records = await stream.take(777)
            assert [r.offset for r in records] == list(range(seen, seen + len(records)))
            seen += len(records)
        for _ in range(20):
            await broker.publish(bytes(500_000), "t")
            assert stream._feed.waiting * 500_000 <= streams.BACKLOG_BYTES_MAX
        assert stream._feed.overflows == 2
        while seen < 15_021:
            records = await stream.take(3)
            assert [r.offset for r in records] == list(range(seen, seen + len(records)))
            seen += len(records)


@kinds
async def test_a_record_larger_than_the_backlog_still_comes(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as broker:
        live = broker.stream("t")
        await broker.publish("small", "t")
        assert (await anext(live)).value == "small"
        large = bytes(streams.BACKLOG_BYTES_MAX + 1)
        await broker.publish_many([large, large, "after"], "t")
        assert [(await anext(live)).value for _ in range(3)] == [large, large, "after"]


async def test_an_async_stream_that_is_left_is_forgotten() -> None:
    async with AsyncBroker.memory() as broker:
        await broker.create_topic("t")
        await broker.publish("x", "t")
        stream = broker.stream("t", start=0)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        assert broker.engine._streams == {}


def test_a_stream_that_is_left_is_forgotten() -> None:
    with Broker.memory() as broker:
        broker.create_topic("t")
        broker.publish("x", "t")
        for _ in broker.stream("t", start=0):
            break
        broker.topics()  # the stream ends before the next call is served
        assert broker._broker.engine._streams == {}


async def test_a_live_stream_hears_of_a_record_only_once_it_is_durable(tmp_path: Path) -> None:
    async with AsyncBroker(tmp_path) as broker:
        await broker.create_topic("t")
        live = broker.stream("t")
        waiting = asyncio.create_task(anext(live))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        publishing = asyncio.create_task(broker.publish("x", "t"))
        record = await waiting
        assert record.offset < broker.engine.topics.get("t").log.bounds().end
        assert await publishing == record.offset
