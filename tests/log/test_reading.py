"""Do readers of a log see every record once, whatever happens to its files meanwhile?"""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from penstock.core.delivery.run import run_of
from penstock.log.cache import CACHE_BYTES_MAX, ChunkCache
from penstock.log.files.disk import RealDisk
from penstock.log.files.embedded import READ_BYTES_MAX, TAIL_BYTES_MAX, EmbeddedLog
from penstock.log.files.segment import Segment
from penstock.log.format.batch import decode_batch
from penstock.log.format.batch_bytes import COMPRESSION_LZ4
from penstock.log.interface import Bounds, LogSettings
from penstock.log.tail import Tail
from penstock.model.errors import Gap
from penstock.model.limits import KIB, MIB
from tests.appends import append
from tests.log.files.segments import all_batches, plain_run, write_model
from tests.log.files.stores import StoreWorld, arrived, read_all, until
from tests.log.format.batch_model import ModelLog

SMALL = LogSettings(segment_bytes=64 * KIB)


NOISE = Random(1).randbytes(512 * KIB)  # does not shrink


async def fill(log: EmbeddedLog, count: int, size: int, first: int = 0) -> None:
    for i in range(first, first + count):
        await append(log, run_of(f"n/{i % 3}", [b"%09d" % i + NOISE[: size - 9]]))


# The tail and the cache


async def test_the_tail_is_bounded_and_older_records_come_from_disk(world: StoreWorld) -> None:
    assert TAIL_BYTES_MAX == 4 * MIB
    log = await world.create()
    await fill(log, 24, 256 * KIB)  # 6 MiB, the tail holds 4
    assert await log.read(23) and log.loads == 0
    assert (await log.read(0))[0].base_offset == 0
    assert log.loads == 1
    assert [int(r.payload[:9]) for r in await read_all(log)] == list(range(24))


def test_a_tail_holds_at_most_its_bytes_and_at_least_the_newest_batch(tmp_path: Path) -> None:
    model = ModelLog()
    batches = [model.batch([plain_run("n", [bytes(400)])]) for _ in range(10)]
    size = batches[0].memory_bytes
    tail = Tail(0, 3 * size)
    for batch in batches:
        tail.append(batch)
        assert tail.first_offset == max(batch.base_offset - 2, 0)
    assert [b.base_offset for b in tail.read(7, 10**9)] == [7, 8, 9]
    assert [b.base_offset for b in tail.read(7, size + 1)] == [7, 8]
    assert [b.base_offset for b in tail.read(8, 1)] == [8]
    tail.append(model.batch([plain_run("n", [bytes(100_000)])]))
    assert tail.first_offset == 10 and [b.base_offset for b in tail.read(10, 1)] == [10]


def test_a_tail_of_small_batches_may_take_twice_its_bound() -> None:
    model = ModelLog()
    tail = Tail(0, 40_000)
    for _ in range(1_000):  # each takes several times its stored bytes
        tail.append(model.batch([plain_run("n", [b"x"])]))
        assert tail.bytes <= 80_000
    held = tail.read(tail.first_offset, 1 << 30)
    assert tail.bytes == sum(batch.memory_bytes for batch in held) > 40_000
    assert sum(batch.header.stored_length for batch in held) < 10_000


def test_a_tail_of_compressed_batches_takes_at_most_twice_its_bound() -> None:
    model = ModelLog()
    tail = Tail(0, 40_000)
    for _ in range(20):
        batch = model.batch([plain_run("n", [bytes(10_000)])])
        batch.compress()
        tail.append(batch)
        assert tail.bytes <= 80_000


def test_what_batches_say_they_take_is_about_what_they_take() -> None:
    for count in (1, 10, 1_000):  # records in a batch
        runs = [plain_run(f"plant/hall/{number}/temperature", [b"21.5"]) for number in range(count)]
        model = ModelLog()
        data = [b"".join(model.batch(runs).to_bytes()) for _ in range(5_000 // count)]
        tracemalloc.start()
        try:
            batches = [decode_batch(memoryview(bytes(bytearray(one))), 0) for one in data]
            for batch in batches:
                assert len(batch.strings) == count
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        said = sum(batch.memory_bytes for batch in batches)
        assert 0.5 * said < held < 1.6 * said


async def test_the_chunk_cache_is_bounded_and_the_oldest_use_goes_first(world: StoreWorld) -> None:
    log = await world.create(LogSettings(segment_bytes=4 * MIB))
    await fill(log, 64, 512 * KIB)  # 32 MiB
    log = await world.reopen(log)  # with an empty tail
    await append(log, run_of("n", [bytes(9)]))
    await read_all(log)
    loads = log.loads
    assert loads >= 32
    await log.read(63)
    assert log.loads == loads, "the newest chunk is still held"
    await log.read(0)
    assert log.loads == loads + 1, "the oldest one made room"
    assert world.store.cache.bytes <= CACHE_BYTES_MAX


def test_a_cache_never_holds_more_than_its_bytes(tmp_path: Path) -> None:
    segment = write_model(tmp_path, ModelLog(), [[plain_run("n", [bytes(1_000)])]] * 8)
    batches = all_batches(segment)
    size = batches[0].memory_bytes
    cache = ChunkCache(3 * size)
    for number, batch in enumerate(batches):
        cache.put(segment, number, [batch])
        assert cache.bytes <= 3 * size
    assert [n for n in range(8) if cache.get(segment, n)] == [5, 6, 7]
    assert cache.get(segment, 5)
    cache.put(segment, 0, [batches[0]])
    assert cache.get(segment, 5) and cache.get(segment, 6) is None
    cache.put(segment, 1, batches)  # larger than all of it: not kept
    assert cache.get(segment, 1) is None and cache.get(segment, 5)
    other = Segment(RealDisk(), segment.path, 0, 8)
    assert cache.get(other, 5) is None, "a chunk belongs to one life of a file"
    cache.drop(segment)
    assert cache.bytes == 0 and cache.get(segment, 5) is None


def test_a_cache_that_nobody_used_between_two_looks_is_emptied(tmp_path: Path) -> None:
    segment = write_model(tmp_path, ModelLog(), [[plain_run("n", [b"x"])]])
    cache = ChunkCache(MIB)
    cache.put(segment, 0, all_batches(segment))
    cache.release_unused()  # it was filled since
    assert cache.get(segment, 0)
    cache.release_unused()  # it was read since
    assert cache.bytes > 0
    cache.release_unused()
    assert cache.bytes == 0 and cache.get(segment, 0) is None


async def test_the_newest_chunk_is_read_again_only_after_it_grew(world: StoreWorld) -> None:
    log = await world.create(LogSettings())
    await fill(log, 3, KIB)
    log = await world.reopen(log)  # with an empty tail
    for _ in range(2):
        assert [batch.base_offset for batch in await log.read(0)] == [0, 1, 2]
    assert log.loads == 1
    await append(log, run_of("n", [b"more"]))
    for _ in range(2):
        assert [batch.base_offset for batch in await log.read(1)] == [1, 2, 3]
    assert log.loads == 2
    held = world.store.cache.bytes
    assert held == sum(batch.memory_bytes for batch in await log.read(0)), "the older one went"


async def test_a_hundred_readers_of_one_cold_chunk_load_it_once(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    await fill(log, 20, 8 * KIB)
    log = await world.reopen(log)
    gate = world.disk.hold("read", f"{0:020d}.log")
    readers = [asyncio.ensure_future(log.read(i % 5)) for i in range(100)]
    await arrived(gate)
    gate.opened.set()
    for i, batches in enumerate(await asyncio.gather(*readers)):
        assert batches[0].base_offset == i % 5
    assert log.loads == 1


async def test_a_reader_that_gives_up_does_not_take_those_along_who_share_its_load(
    world: StoreWorld,
) -> None:
    log = await world.create(SMALL)
    await fill(log, 20, 8 * KIB)
    log = await world.reopen(log)
    await log.read(0)  # the segment's index is known now
    log._loader.forget(log._segments[0])
    gate = world.disk.hold("read", f"{0:020d}.log")
    first = asyncio.ensure_future(log.read(0))
    await arrived(gate)
    others = [asyncio.ensure_future(log.read(i)) for i in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    gate.opened.set()
    found = await asyncio.gather(*others)
    assert [batches[0].base_offset for batches in found] == [0, 1, 2, 3, 4]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_load_that_fails_fails_for_all_who_share_it_and_is_tried_anew(
    world: StoreWorld,
) -> None:
    log = await world.create(SMALL)
    await fill(log, 20, 8 * KIB)
    log = await world.reopen(log)
    await log.read(0)
    log._loader.forget(log._segments[0])
    world.disk.fail("read", f"{0:020d}.log", 5, times=1)
    results = await asyncio.gather(*[log.read(0) for _ in range(4)], return_exceptions=True)
    assert [type(result) for result in results] == [OSError] * 4
    assert (await log.read(0))[0].base_offset == 0


async def test_a_load_that_began_before_a_commit_is_not_shared_by_those_who_want_what_it_brought(
    world: StoreWorld,
) -> None:
    log = await world.create()
    await append(log, run_of("n", [b"old"]))
    log = await world.reopen(log)  # with an empty tail
    gate = world.disk.hold("read", f"{0:020d}.log")
    first = asyncio.ensure_future(log.read(0))
    await arrived(gate)
    # It waits before it learned how long the segment is by now, or after: both must be right.
    await append(log, run_of("n", [b"new"]))
    await append(log, run_of("n", [bytes(5 * MIB)]))  # pushes the others out of the tail
    second = asyncio.ensure_future(log.read(1))
    await asyncio.sleep(0)
    gate.opened.set()
    assert (await first)[0].base_offset == 0
    found = await second
    assert found and found[0].records("t", 1, 2)[0].payload == b"new"


# Sealing and trimming under readers


async def test_reading_goes_on_while_a_segment_is_exchanged_for_its_sealed_form(
    world: StoreWorld,
) -> None:
    log = await world.create(SMALL)
    await fill(log, 20, 8 * KIB)
    log = await world.reopen(log)
    await log.stored_bytes()  # every segment is known in its old form
    gate = world.disk.hold("sync_dir", world.directory.name)  # the new file has the name
    sealing = asyncio.ensure_future(log.seal_closed())
    await arrived(gate)
    opened = world.disk.count("open", ".log")
    reading = asyncio.ensure_future(log.read(0))
    await until(lambda: world.disk.count("open", ".log") > opened)
    for _ in range(20):
        await asyncio.sleep(0.001)
    gate.opened.set()
    assert [b.base_offset for b in await reading][:1] == [0]
    assert await sealing == 2
    assert [int(r.payload[:9]) for r in await read_all(log)] == list(range(20))


@pytest.mark.slow
async def test_readers_see_every_record_once_while_the_log_grows_and_is_sealed(
    world: StoreWorld,
) -> None:
    log = await world.create(SMALL)
    count = 160
    is_done = False

    async def keep_house() -> None:
        while not is_done:
            await log.seal_closed()
            await asyncio.sleep(0)

    async def read(start: int) -> list[int]:
        seen: list[int] = []
        offset = start
        while offset < count:
            await log.wait_past(offset)
            for batch in await log.read(offset):
                seen += [r.offset for r in batch.records("t", offset, 2**62)]
                offset = batch.end_offset
        return seen

    async def look_back() -> None:
        while not is_done:
            for offset in range(0, log.bounds().end, 7):
                batches = await log.read(offset)
                assert batches[0].base_offset <= offset < batches[0].end_offset
                record = batches[0].records("t", offset, offset + 1)[0]
                assert int(record.payload[:9]) == offset
            await asyncio.sleep(0)

    house = asyncio.ensure_future(keep_house())
    back = asyncio.ensure_future(look_back())
    readers = [asyncio.ensure_future(read(start)) for start in (0, 0, 50, 159)]
    await fill(log, count, 4 * KIB)
    for reader, start in zip(readers, (0, 0, 50, 159), strict=True):
        assert await reader == list(range(start, count))
    is_done = True
    await house
    await back


async def test_a_record_that_was_trimmed_is_a_gap_also_when_nothing_is_left(
    world: StoreWorld,
) -> None:
    log = await world.create()
    await append(log, run_of("n", [b"old"] * 5))
    world.clock.advance(100)
    assert await log.trim(world.clock.now_us(), None) == 5
    with pytest.raises(Gap, match="first record is 5"):
        await log.read(3)
    assert await log.read(5) == []
    await append(log, run_of("n", [b"new"]))
    with pytest.raises(Gap, match="first record is 5"):
        await log.read(4)
    assert [r.payload for r in await read_all(log)] == [b"new"]


async def test_a_time_is_found_while_old_segments_go(world: StoreWorld) -> None:
    log = await world.create(LogSettings(segment_bytes=64 * KIB))
    start = world.clock.now_us()
    for i in range(60):
        await append(log, run_of("n", [b"%09d" % i + bytes(8 * KIB)]))
        world.clock.advance(1)
    log = await world.reopen(log)  # nothing of the old segments is known yet

    async def ask() -> None:
        for wanted in range(60):
            found = await log.offset_at(start + wanted * 1_000_000)
            assert found == max(wanted, log.bounds().first) or found >= wanted

    async def drop() -> None:
        for i in range(0, 60, 6):
            await log.trim(start + i * 1_000_000, None)
            await asyncio.sleep(0)

    await asyncio.gather(ask(), ask(), drop())
    first, end = log.bounds()
    assert first > 40
    for wanted in range(60):
        expected = max(wanted, first) if wanted < 60 else end
        assert await log.offset_at(start + wanted * 1_000_000) == expected


async def test_sizes_and_epochs_are_told_while_old_segments_go(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    await fill(log, 80, 8 * KIB)
    log = await world.reopen(log)
    log.epoch += 1  # as after a loss: clamp has to look at the segments
    gate = world.disk.hold("open", f"{0:020d}.log")
    asking = [asyncio.ensure_future(log.stored_bytes())]
    await arrived(gate)
    asking.append(asyncio.ensure_future(log.clamp(1, 79)))
    trimming = asyncio.ensure_future(log.trim(None, 100 * KIB))
    for _ in range(20):
        await asyncio.sleep(0.001)
    gate.opened.set()
    await trimming
    size, clamped = await asyncio.gather(*asking)
    assert size > 0 and clamped == 79
    assert log.bounds().first > 0


async def test_bounds_tell_of_a_log_that_is_empty_trimmed_or_whole(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    assert log.bounds() == Bounds(0, 0)
    await fill(log, 20, 8 * KIB)
    assert log.bounds() == Bounds(0, 20)
    await log.trim(None, 1)
    first, end = log.bounds()
    assert 0 < first < end == 20


async def test_a_large_batch_that_shrinks_is_stored_compressed_and_read_back_whole(
    world: StoreWorld,
) -> None:
    payloads = [b'{"device": "d-%04d", "temperature": %d.5}' % (i, i % 40) for i in range(5_000)]
    log = await world.create()
    await append(log, run_of("n", payloads))
    live = [record.payload for record in await read_all(log)]
    log = await world.reopen(log)  # with an empty tail
    (batch,) = await log.read(0)
    assert batch.header.compression == COMPRESSION_LZ4
    assert await log.stored_bytes() < sum(map(len, payloads))
    assert [record.payload for record in await read_all(log)] == payloads == live
    assert world.problems() == []


async def test_what_shrank_a_hundredfold_is_read_a_part_at_a_time(world: StoreWorld) -> None:
    log = await world.create()
    for _ in range(20):
        await append(log, run_of("n", [bytes(2 * MIB)]))
    log = await world.reopen(log)
    assert await log.stored_bytes() < 1 * MIB, "all of it lies in one chunk of the file"
    offset = 0
    while offset < 20:
        batches = await log.read(offset)
        assert batches[0].base_offset == offset
        assert sum(batch.memory_bytes for batch in batches[:-1]) < READ_BYTES_MAX
        offset = batches[-1].end_offset
