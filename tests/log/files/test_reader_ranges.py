"""Does a reader find only what it wants, cut ranges where batches begin, and notice a lost life?"""

from __future__ import annotations

import random

import pytest

from penstock.core.delivery.run import run_of
from penstock.core.naming.names import matches
from penstock.log.files.disk import RealDisk
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import Segment
from penstock.log.files.upkeep.seal import SEALED_RECORDS
from penstock.log.interface import OS, LogSettings
from penstock.model.errors import Gap
from penstock.model.limits import KIB, MIB
from tests.appends import append
from tests.log.files.stores import IDENTITY, StoreWorld

SMALL = LogSettings(segment_bytes=64 * KIB)


async def fill(world: StoreWorld, log: EmbeddedLog, count: int, size: int = 4 * KIB) -> None:
    """Records of names that come in stretches, so that some segments lack some of them."""
    noise = random.Random(7)
    for _ in range(count):
        end = log.bounds().end
        await append(log, run_of(f"n/{end // 40}", [noise.randbytes(size)]))
        world.clock.advance(1)


def offsets(reader: FileReader, start: int, end: int, filter_text: str) -> list[int]:
    """What a reader of one filter sees, each record once."""
    found = []
    for batch in reader.batches(start, end, lambda name: matches(filter_text, name)):
        for record in batch.records("orders", start, end):
            if matches(filter_text, record.name):
                found.append(record.offset)
    return found


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_wanted_names_are_found_in_any_range(world: StoreWorld, is_sealed: bool) -> None:
    log = await world.create(SMALL)
    await fill(world, log, 150)
    if is_sealed:
        assert await log.seal_closed() > 3
    reader = FileReader(RealDisk(), world.directory)
    for start, end in [(0, 150), (0, 1), (39, 41), (41, 79), (100, 150), (149, 150), (7, 7)]:
        for filter_text in ("#", "n/0", "n/1", "n/3", "x", "n/+"):
            every = [o for o in range(start, end) if matches(filter_text, f"n/{o // 40}")]
            assert offsets(reader, start, end, filter_text) == every, (start, end, filter_text)


async def test_sealed_batches_without_a_wanted_name_are_not_read(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await world.create(LogSettings(segment_bytes=4 * MIB))
    for name in ("a", "b", "a"):
        await append(log, run_of(name, [b"x" * 20] * SEALED_RECORDS))
    await append(log, run_of("c", [bytes(4 * MIB)]))  # too much for the segment: it is closed
    assert await log.seal_closed() == 1
    read: list[int] = []
    whole = Segment.read_span

    def noted(self: Segment, start: int, end: int) -> object:
        read.append(end - start)
        return whole(self, start, end)

    monkeypatch.setattr(Segment, "read_span", noted)
    reader = FileReader(RealDisk(), world.directory)
    n = SEALED_RECORDS
    assert offsets(reader, 0, 3 * n, "b") == list(range(n, 2 * n))
    assert len(read) == 1
    assert offsets(reader, 0, 3 * n, "nobody") == []
    assert len(read) == 1


async def test_cuts_lie_inside_the_range_ascend_and_give_the_pieces_asked_for(
    world: StoreWorld,
) -> None:
    log = await world.create(SMALL)
    await fill(world, log, 100)
    await log.seal_closed()
    reader = FileReader(RealDisk(), world.directory)
    for start, end in [(0, 100), (13, 14), (3, 97)]:
        for count in (1, 2, 3, 7, 20):
            cuts = reader.cuts(start, end, count)
            assert cuts == sorted(set(cuts))
            assert all(start < cut < end for cut in cuts)
            assert len(cuts) == min(count, end - start) - 1


async def test_a_cut_takes_the_beginning_of_a_batch_that_is_near(world: StoreWorld) -> None:
    log = await world.create(LogSettings(segment_bytes=8 * MIB))
    noise = random.Random(7)
    for _ in range(8):  # ~2 MB: a chunk each
        await append(log, run_of("n", [noise.randbytes(1_000) for _ in range(2_000)]))
    reader = FileReader(RealDisk(), world.directory)
    assert [cut % 2_000 for cut in reader.cuts(0, 16_000, 4)] == [0, 0, 0]
    assert [cut % 2_000 for cut in reader.cuts(50, 15_950, 3)] == [0, 0]


async def test_stored_bytes_grow_with_the_range_and_cover_the_files(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    await fill(world, log, 60)
    reader = FileReader(RealDisk(), world.directory)
    total = await log.stored_bytes()
    assert total * 0.9 < reader.stored_bytes(0, 60) <= total * 1.1
    assert reader.stored_bytes(5, 5) == 0
    half = reader.stored_bytes(0, 30)
    assert total * 0.4 < half < total * 0.6


async def test_a_position_of_a_lost_life_is_moved_back_to_where_the_next_began(
    world: StoreWorld,
) -> None:
    log = await world.create(LogSettings(durability=OS))
    await fill(world, log, 10)
    reader = FileReader(RealDisk(), world.directory)
    assert reader.epoch() == 1
    assert reader.clamp(1, 10) == 10
    assert reader.clamp(1, 50) == 10
    again = await world.store.open(IDENTITY, log.settings)  # as after a power loss
    for _ in range(5):
        await append(again, run_of("n", [b"x"]))
    assert reader.epoch() == 2
    assert reader.clamp(1, 10) == 10
    assert reader.clamp(1, 12) == 10
    assert reader.clamp(2, 12) == 12
    await again.close()


async def test_a_range_that_retention_took_is_a_gap(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    await fill(world, log, 100)
    await log.seal_closed()
    await log.trim(None, 100 * KIB)
    reader = FileReader(RealDisk(), world.directory)
    first = reader.bounds().first
    assert first > 0
    for wants in (None, lambda name: True):
        with pytest.raises(Gap, match=f"the first record is {first}"):
            list(reader.batches(0, 100, wants))
