"""Is every record read once, and is what is gone said, whatever happens to the topic meanwhile?"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncBroker, Broker, Gap
from penstock.log.files.disk import RealDisk
from penstock.log.files.endfile import read_end
from penstock.model.limits import PAYLOAD_BYTES_MAX
from tests.pipeline.source.reading import (
    offsets,
    only,
    payloads,
    ranges,
    read_batches,
    reader_of,
    rows,
    travelled,
)

pytestmark = pytest.mark.over_a_second  # a log is filled for each

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
SMALL: dict[str, Any] = {"segment_bytes": "64 KiB"}


async def fill(broker: AsyncBroker, count: int, topic: str = "t") -> None:
    noise = random.Random(3)  # bytes that no compression makes smaller
    for _ in range(count):
        await broker.publish(noise.randbytes(5_000), topic)


async def trim(broker: AsyncBroker, keep: str) -> int:
    """Let retention take records; the first offset that is left."""
    await broker.alter_topic("t", retention_bytes=keep)
    await broker.engine.upkeep.look_after_all()
    return (await broker.topics())[0].first_offset


def read_planned(reader: Any, pieces: Any) -> list[int]:
    found = []
    for batch in read_batches(reader, pieces, only("offset")):
        found += batch.column("offset").to_pylist()
    return found


async def test_a_plan_holds_while_the_topic_grows_rolls_and_is_sealed(tmp_path: Path) -> None:
    async with AsyncBroker(tmp_path, **SMALL) as broker:
        await broker.create_topic("t")
        await fill(broker, 50)
        reader = reader_of(tmp_path, only("offset"), topic="t", minPartitions="4")
        pieces = reader.partitions()
        assert len(ranges(pieces)) == 4
        await fill(broker, 50)
        await broker.engine.upkeep.look_after_all()  # seals
        assert read_planned(reader, pieces) == list(range(50))
        assert offsets(tmp_path, topic="t") == list(range(100))


async def test_a_segment_that_is_sealed_between_two_batches_of_a_task_is_looked_up_again(
    tmp_path: Path,
) -> None:
    async with AsyncBroker(tmp_path, **SMALL) as broker:
        await broker.create_topic("t")
        for _ in range(8):
            await broker.publish_many([bytes(2)] * 10_000, "t")
        reader = travelled(reader_of(tmp_path, only("offset"), topic="t"))
        (piece,) = reader.partitions()
        found = reader.read(piece)
        rows_read = next(found).num_rows
        assert rows_read < 80_000
        await broker.engine.upkeep.look_after_all()
        assert rows_read + sum(batch.num_rows for batch in found) == 80_000


async def test_records_that_retention_takes_before_they_are_read_are_a_loss_that_is_named(
    tmp_path: Path,
) -> None:
    async with AsyncBroker(tmp_path, **SMALL) as broker:
        await broker.create_topic("t")
        await fill(broker, 60)
        strict = reader_of(tmp_path, only("offset"), topic="t")
        easy = reader_of(tmp_path, only("offset"), topic="t", failOnDataLoss="false")
        plans = strict.partitions(), easy.partitions()
        first = await trim(broker, "100 KiB")
        assert first > 0
        text = f"topic 't': offsets 0 to {first - 1} are gone: retention.*failOnDataLoss to false"
        with pytest.raises(Gap, match=text):
            read_planned(strict, plans[0])
        assert read_planned(easy, plans[1]) == list(range(first, 60))


async def test_an_offset_that_retention_took_is_a_loss_and_earliest_is_none(tmp_path: Path) -> None:
    async with AsyncBroker(tmp_path, **SMALL) as broker:
        await broker.create_topic("t")
        await fill(broker, 60)
        first = await trim(broker, "100 KiB")
        kept = list(range(first, 60))
        assert offsets(tmp_path, topic="t") == kept
        with pytest.raises(Gap, match=f"offsets 0 to {first - 1} are gone"):
            offsets(tmp_path, topic="t", startingOffsets="0")
        with pytest.raises(Gap, match="offsets 0 to 0 are gone"):
            offsets(tmp_path, topic="t", startingOffsets="0", endingOffsets="1")
        loose = {"topic": "t", "failOnDataLoss": "false"}
        assert offsets(tmp_path, startingOffsets="0", **loose) == kept
        assert offsets(tmp_path, startingOffsets="0", endingOffsets="1", **loose) == []


def test_a_topic_deleted_before_it_is_read_is_a_loss(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish_many(["a", "b"], "t")
        strict = reader_of(tmp_path, only("offset"), topic="t")
        easy = reader_of(tmp_path, only("offset"), topic="t", failOnDataLoss="false")
        plans = strict.partitions(), easy.partitions()
        broker.delete_topic("t")
        broker.create_topic("t")
        broker.publish_many(["c", "d"], "t")
        with pytest.raises(Gap, match="offsets 0 to 1 are gone: the topic was deleted"):
            read_planned(strict, plans[0])
        assert read_planned(easy, plans[1]) == []
        assert payloads(tmp_path, topic="t") == [b"c", b"d"]


def test_offsets_of_a_topic_that_was_made_anew_are_a_loss(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish_many(["a", "b"], "t")
        broker.delete_topic("t")
        broker.create_topic("t")
        broker.publish_many(["c", "d", "e"], "t")
    start = '{"t":{"0":1,"id":1,"epoch":1}}'
    with pytest.raises(Gap, match="the topic was deleted and created again"):
        payloads(tmp_path, topic="t", startingOffsets=start)
    found = payloads(tmp_path, topic="t", startingOffsets=start, failOnDataLoss="false")
    assert found == [b"c", b"d", b"e"]


def test_a_log_that_lost_records_is_noticed_by_offsets_of_its_earlier_life(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t", durability="os")
        broker.publish_many(["a"] * 10, "t")
        shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy", "lock"))
        broker.publish_many(["b"] * 10, "t")
    copy = tmp_path / "copy"
    with Broker(copy) as broker:  # it was never closed in order: a new life begins at 10
        broker.publish_many(["c"] * 5, "t")
        (log,) = (copy / "default").iterdir()
        end = read_end(RealDisk(), log)
        assert end is not None and end.epoch == 2
        start = '{"t":{"0":18,"epoch":1}}'
        with pytest.raises(Gap, match="offsets 10 to 17 are gone: the log lost them"):
            payloads(copy, topic="t", startingOffsets=start)
        found = payloads(copy, topic="t", startingOffsets=start, failOnDataLoss="false")
        assert found == [b"c"] * 5


def test_records_of_no_bytes_and_of_16_mib_come_whole(tmp_path: Path) -> None:
    large = random.Random(5).randbytes(PAYLOAD_BYTES_MAX)
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish_many([b"", large, b"", b"x", large[:-1]], "t")
        assert payloads(tmp_path, topic="t") == [b"", large, b"", b"x", large[:-1]]


def test_headers_give_the_first_value_of_a_key(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish("a", "t", headers=[("k", "1"), ("k", "2"), ("ü", "☃")])
        broker.publish("b", "t")
        found = [row["headers"] for row in rows(tmp_path, only("headers"), topic="t")]
        assert found == [{"k": "1", "ü": "☃"}, {}]


def test_small_batches_arrive_put_together(tmp_path: Path) -> None:
    with Broker(tmp_path, durability="os") as broker:
        broker.create_topic("t")
        for number in range(300):
            broker.publish(str(number), "t", name=f"n/{number % 7}")
        reader = reader_of(tmp_path, topic="t")
        batches = list(read_batches(reader, reader.partitions()))
        assert [batch.num_rows for batch in batches] == [300]
        assert batches[0].column("payload").to_pylist() == [b"%d" % n for n in range(300)]


@pytest.mark.slow
async def test_a_reader_beside_a_broker_that_writes_seals_and_trims_reads_a_dense_range(
    tmp_path: Path,
) -> None:
    """Many queries, each at a random moment of the topic's life."""
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    settings = {**SMALL, "retention_bytes": "300 KiB", "upkeep_s": 3_600}  # by hand, below
    async with AsyncBroker(tmp_path, **settings) as broker:
        await broker.create_topic("t")
        for _ in range(40):
            await fill(broker, chance.randrange(1, 30))
            if chance.random() < 0.5:
                await broker.engine.upkeep.look_after_all()
            (info,) = await broker.topics()
            found = await asyncio.to_thread(
                offsets, tmp_path, topic="t", minPartitions=str(chance.randrange(1, 5))
            )
            assert found == list(range(info.first_offset, info.end_offset))
