"""One damaged segment: are the others trimmed and sealed, read and counted as if it were whole?"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.delivery.run import run_of
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.segment import HEADER_BYTES, segment_bases, segment_path
from penstock.log.files.upkeep.seal import SEALING
from penstock.log.interface import LogSettings
from penstock.model.errors import CorruptError
from penstock.model.limits import KIB
from tests.appends import append
from tests.log.files.stores import StoreWorld

SMALL = LogSettings(segment_bytes=64 * KIB, retention_age_s=None)
Harm = Callable[[Path], None]


def cut(path: Path) -> None:
    """Half of it is gone."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero_the_header(path: Path) -> None:
    path.write_bytes(bytes(HEADER_BYTES) + path.read_bytes()[HEADER_BYTES:])


def change_a_payload(path: Path) -> None:
    """Its headers are whole: only reading the records finds it."""
    data = bytearray(path.read_bytes())
    data[len(data) - 100] ^= 1
    path.write_bytes(data)


HARMS = pytest.mark.parametrize("harm", [cut, zero_the_header, change_a_payload])
UNREADABLE = pytest.mark.parametrize("harm", [cut, zero_the_header])


async def fill(world: StoreWorld, log: EmbeddedLog, segments: int) -> list[int]:
    """Closed segments of a few records, a minute between each; their base offsets."""
    while len(segment_bases(world.disk, world.directory)) <= segments:
        await append(log, run_of("orders", [b"x" * 20 * KIB]))
        world.clock.advance(60)
    return segment_bases(world.disk, world.directory)


async def harmed(world: StoreWorld, harm: Harm, at: int, *, is_sealed: bool = False) -> EmbeddedLog:
    """A log opened anew with one of its five closed segments damaged."""
    log = await world.create(SMALL)
    bases = await fill(world, log, 5)
    if is_sealed:
        await log.seal_closed()
    await log.close()
    harm(segment_path(world.directory, bases[at]))
    return await world.reopen(log)


@HARMS
async def test_the_others_are_sealed(world: StoreWorld, harm: Harm) -> None:
    log = await harmed(world, harm, 2)
    assert await log.seal_closed() == 4
    assert await log.seal_closed() == 0
    (text,) = log.damage
    assert str(log._segments[2].path) in text


@HARMS
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_retention_takes_what_is_due_the_damaged_one_too(
    world: StoreWorld, harm: Harm, is_sealed: bool
) -> None:
    log = await harmed(world, harm, 1, is_sealed=is_sealed)
    bases = [segment.base_offset for segment in log._segments]
    start_us = log._segments[0].body.header.created_at
    assert await log.trim(start_us + 1, None) == 0
    # Up to the beginning of the third: the second goes, as it would if it were whole.
    third = log._segments[2].body
    assert await log.trim(third.header.created_at + 1, None) == bases[2]
    assert log.bounds().first == bases[2]
    assert log.damage == []
    assert segment_bases(world.disk, world.directory) == bases[2:]
    assert await append(log, run_of("orders", [b"on"])) == log.bounds().end - 1


@HARMS
async def test_retention_by_bytes_counts_the_damaged_one(world: StoreWorld, harm: Harm) -> None:
    log = await harmed(world, harm, 3)
    assert await log.stored_bytes() > 4 * 64 * KIB
    await log.trim(None, 100 * KIB)
    assert log.bounds().first >= log._segments[0].base_offset > 0
    assert await log.stored_bytes() < 300 * KIB


@UNREADABLE
async def test_a_time_is_found_on_both_sides_of_the_damage(world: StoreWorld, harm: Harm) -> None:
    log = await harmed(world, harm, 2)
    bases = [segment.base_offset for segment in log._segments]
    times = [log._segments[at].body.header.created_at for at in (0, 1, 3, 4)]
    for base, created_at in zip([bases[at] for at in (0, 1, 3, 4)], times, strict=True):
        assert base <= await log.offset_at(created_at) <= base + 1
    with pytest.raises(CorruptError):
        await log.offset_at(log._segments[1].body.last_timestamp + 1)


@HARMS
async def test_whoever_follows_the_log_is_given_the_rest(world: StoreWorld, harm: Harm) -> None:
    log = await harmed(world, harm, 2)
    missing = range(log._segments[2].base_offset, log._segments[2].end_offset)
    seen = [
        record.offset
        async for batch in log.batches_since(0)
        for record in batch.records("", 0, 1 << 40)
    ]
    assert set(range(log.bounds().end)) - set(seen) == set(missing)
    assert seen == sorted(set(seen))
    assert len(log.damage) == 1


@UNREADABLE
async def test_a_position_of_an_older_epoch_finds_its_place_past_the_damage(
    world: StoreWorld, harm: Harm
) -> None:
    log = await world.create(SMALL)
    bases = await fill(world, log, 3)
    await log.close()
    newest = segment_path(world.directory, bases[-1])
    newest.write_bytes(newest.read_bytes()[: HEADER_BYTES + 10])  # visible records are lost
    log = await world.reopen(log)
    assert log.epoch == 2
    await fill(world, log, 5)
    await log.close()
    harm(segment_path(world.directory, bases[1]))
    log = await world.reopen(log)
    assert await log.clamp(1, log.bounds().end) == bases[-1]


async def test_a_missing_segment_stops_neither_sealing_nor_retention(world: StoreWorld) -> None:
    """The one before it seems to be too short, and is left alone, too."""
    log = await harmed(world, Path.unlink, 2)
    assert await log.seal_closed() == 3
    assert len(log.damage) == 1
    bases = [segment.base_offset for segment in log._segments]
    assert await log.trim(log._segments[2].body.header.created_at + 1, None) == bases[2]
    assert log.damage == []
    assert await append(log, run_of("orders", [b"on"])) == log.bounds().end - 1


async def test_a_segment_that_vanishes_while_the_log_is_open_is_damage(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    bases = await fill(world, log, 5)
    segment_path(world.directory, bases[2]).unlink()
    assert await log.seal_closed() == 4
    assert len(log.damage) == 1
    assert await log.trim(None, 1) == bases[-1]
    assert log.damage == []


async def test_a_sector_that_cannot_be_read_is_damage_and_a_full_disk_is_not(
    world: StoreWorld,
) -> None:
    log = await world.create(SMALL)
    bases = await fill(world, log, 3)
    world.disk.fail("write", SEALING, errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="No space"):
        await log.seal_closed()
    assert log.damage == []
    world.disk.fail("read", segment_path(world.directory, bases[1]).name, errno.EIO)
    assert await log.seal_closed() == 2
    assert len(log.damage) == 1
