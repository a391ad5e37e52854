"""Do batches that were encoded elsewhere get their place, once, in order, among other appends?"""

from __future__ import annotations

import asyncio
import errno

import pytest

from penstock.core.delivery.run import run_of
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import MARK_SPARK_BATCH
from penstock.log.interface import LogSettings
from penstock.log.placing import check_placeable
from penstock.model.errors import CorruptError, UnavailableError
from penstock.model.limits import KIB
from tests.appends import add, append, append_batch
from tests.log.conftest import Bench
from tests.log.files.stores import StoreWorld, arrived
from tests.log.test_contract import read_all, read_marks


def staged(
    payloads: list[bytes], name: str = "n", key: bytes = b"k", packed: bool = False
) -> Batch:
    """A batch as somebody else wrote it."""
    builder = BatchBuilder(0)
    add(builder, name, payloads, 0, 1, headers=b"")
    builder.add_mark(MARK_SPARK_BATCH, key, 0)
    batch = builder.encode(0, 0, 0)
    if packed:
        batch.compress()
    return decode_batch(memoryview(b"".join(batch.to_bytes())), 0)


async def test_what_gathers_keeps_its_place_before_a_batch_that_comes_later(bench: Bench) -> None:
    """Readers may have it already: messages of QoS 0 are forwarded before they are durable."""
    log = await bench.create()
    for number in range(3):
        log.append([run_of("a", [b"gathers %d" % number], qos=0)])
        await append_batch(log, staged([b"placed %d" % number], key=b"%d" % number))
    assert [record.payload for record in await read_all(log)] == [
        *(b"gathers 0", b"placed 0", b"gathers 1", b"placed 1", b"gathers 2", b"placed 2")
    ]


async def test_a_placed_batch_is_read_like_any_other(bench: Bench) -> None:
    log = await bench.create()
    assert await append(log, run_of("a", [b"0"])) == 0
    assert await append_batch(log, staged([b"1", b"2"], "b/c", b"key")) == 1
    assert await append(log, run_of("a", [b"3"])) == 3
    log = await bench.reopen()
    records = await read_all(log)
    assert [(r.offset, r.name, r.payload) for r in records] == [
        (0, "a", b"0"),
        (1, "b/c", b"1"),
        (2, "b/c", b"2"),
        (3, "a", b"3"),
    ]
    marks = [(at, mark.kind, mark.key) for at, mark in await read_marks(log)]
    assert marks == [(1, MARK_SPARK_BATCH, b"key")]


async def test_placed_batches_keep_their_order_and_publishers_are_not_kept_waiting(
    bench: Bench,
) -> None:
    log = await bench.create()
    placed = [append_batch(log, staged([b"s%d" % n])) for n in range(5)]
    published = [append(log, run_of("p", [b"p%d" % n])) for n in range(5)]
    offsets = await asyncio.gather(*placed)
    assert offsets == sorted(offsets)
    assert sorted([*offsets, *await asyncio.gather(*published)]) == list(range(10))
    log = await bench.reopen()
    payloads = [r.payload for r in await read_all(log)]
    assert [p for p in payloads if p[:1] == b"s"] == [b"s%d" % n for n in range(5)]
    assert [p for p in payloads if p[:1] == b"p"] == [b"p%d" % n for n in range(5)]


async def test_stamps_never_fall_across_placed_batches(bench: Bench) -> None:
    log = await bench.create()
    now = bench.clock.now_us()
    waiting = [append(log, run_of("p", [b"x"]))]
    bench.clock.advance(5)
    waiting.append(append_batch(log, staged([b"y"])))
    bench.clock.advance(5)
    waiting.append(append(log, run_of("p", [b"z"])))
    await asyncio.gather(*waiting)
    bench.clock.set_wall(now - 10**9)
    await append_batch(log, staged([b"w"]))
    await append(log, run_of("p", [b"v"]))
    stamps = [r.timestamp for r in await read_all(log)]
    assert stamps == sorted(stamps)
    assert stamps[0] >= now


async def test_those_who_watch_a_log_see_placed_batches(bench: Bench) -> None:
    log = await bench.create()
    seen: list[int] = []
    log.on_commit = lambda batch, runs: seen.append(batch.header.count)
    past = asyncio.ensure_future(log.wait_past(1))
    await append_batch(log, staged([b"a", b"b"]))
    await past
    assert seen == [2]


async def test_a_closed_log_takes_no_batch(bench: Bench) -> None:
    log = await bench.create()
    waiting = append_batch(log, staged([b"a"]))
    await asyncio.sleep(0)
    await log.close()
    assert await waiting == 0
    with pytest.raises(UnavailableError, match="closed"):
        await append_batch(log, staged([b"b"]))


async def test_what_waits_when_a_log_is_closed_is_written_first(world: StoreWorld) -> None:
    log = await world.create()
    placed = [append_batch(log, staged([b"%d" % n])) for n in range(4)]
    published = append(log, run_of("p", [b"p"]))
    await log.close()
    await asyncio.gather(*placed, published)
    assert world.problems() == []


async def test_large_placed_batches_roll_segments_and_stay_compressed(world: StoreWorld) -> None:
    log = await world.create(LogSettings(segment_bytes=64 * KIB))
    for _ in range(6):
        await append_batch(log, staged([b"x" * 1_000] * 400, packed=True))
        await append_batch(log, staged([bytes(range(256)) * 160]))
    log = await world.reopen(log)
    records = await read_all(log)
    assert len(records) == 6 * 401
    assert {len(r.payload) for r in records} == {1_000, 256 * 160}
    assert await log.seal_closed() > 1
    assert await read_all(log) == records
    assert world.problems() == []


async def test_a_failed_sync_refuses_all_that_wait_for_a_place(world: StoreWorld) -> None:
    log = await world.create()
    gate = world.disk.hold("sync", ".log")
    placed = [append_batch(log, staged([b"%d" % n])) for n in range(3)]
    await arrived(gate)
    world.disk.fail("sync", ".log", errno.EIO)
    gate.opened.set()
    answers = await asyncio.gather(*placed, return_exceptions=True)
    assert all(isinstance(answer, UnavailableError) for answer in answers)
    assert log.bounds().end == 0


async def test_a_full_disk_refuses_a_batch_and_the_next_has_its_chance(world: StoreWorld) -> None:
    log = await world.create()
    world.disk.fail("write", ".log", errno.ENOSPC, times=1)
    with pytest.raises(UnavailableError, match="the disk is full"):
        await append_batch(log, staged([b"a"]))
    assert await append_batch(log, staged([b"b"])) == 0


def test_a_batch_that_brings_times_or_no_records_is_not_placeable() -> None:
    timed = BatchBuilder(0)
    add(timed, "n", [b"a"], 1, 1)
    add(timed, "n", [b"b"], 2, 1)
    empty = BatchBuilder(0)
    empty.add_mark(MARK_SPARK_BATCH, b"k", 0)
    check_placeable(staged([b"a"]))
    for builder in (timed, empty):
        with pytest.raises(CorruptError, match="cannot be placed"):
            check_placeable(builder.encode(0, 0, 0))
