"""Is a lone message synced on the event loop, and only while nobody else is held up by it?"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.core.delivery.run import Run, run_of
from penstock.log.files.commit import SHORT_SYNC_S, SHORT_SYNCS_MIN, SyncPace, ThreadWorkers
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.interface import Bounds
from penstock.model.clock import ManualClock
from penstock.model.errors import UnavailableError
from tests.appends import append
from tests.log.files.stores import StoreWorld, read_all


class Quiet:
    """What the loop says when it is asked whether anybody else is active."""

    def __init__(self) -> None:
        self.is_true = True

    def __call__(self) -> bool:
        return self.is_true


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[tuple[StoreWorld, EmbeddedLog, Quiet]]:
    """A log whose syncs take no time by its clock, and have been short for long enough."""
    loop = asyncio.get_running_loop()
    quiet = Quiet()
    loop.is_quiet = quiet  # type: ignore[attr-defined]
    workers = ThreadWorkers(loop, ManualClock())
    world = StoreWorld(root, workers)
    try:
        log = await world.create()
        for number in range(SHORT_SYNCS_MIN):
            await append(log, message(number))
        assert len(world.workers.rounds) == SHORT_SYNCS_MIN, "until then a thread syncs"
        yield world, log, quiet
    finally:
        await world.close()
        workers.close()


def message(number: int) -> Run:
    return run_of("n", [b"%d" % number])


async def test_a_lone_message_is_synced_without_a_thread_once_syncs_are_short(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (world, log, _):
        syncs = world.disk.count("sync", ".log")
        for number in range(10):
            assert await append(log, message(number)) == SHORT_SYNCS_MIN + number
        assert len(world.workers.rounds) == SHORT_SYNCS_MIN
        assert world.disk.count("sync", ".log") == syncs + 10
        assert world.problems() == []


async def test_a_thread_syncs_while_others_are_active(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, log, quiet):
        quiet.is_true = False
        await append(log, message(0))
        assert len(world.workers.rounds) == SHORT_SYNCS_MIN + 1


async def test_a_thread_syncs_what_two_publishers_wait_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, log, _):
        await asyncio.gather(append(log, message(0)), append(log, message(1)))
        assert len(world.workers.rounds) == SHORT_SYNCS_MIN + 1


async def test_a_thread_syncs_several_messages_of_one_publisher(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, log, _):
        await append(log, run_of("n", [b"1", b"2"]))
        assert len(world.workers.rounds) == SHORT_SYNCS_MIN + 1


async def test_a_thread_syncs_a_large_message(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, log, _):
        await append(log, run_of("n", [bytes(100_000)]))
        assert len(world.workers.rounds) == SHORT_SYNCS_MIN + 1


async def test_a_failed_sync_on_the_loop_fences_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, log, _):
        world.disk.fail("sync", ".log", errno.EIO, times=1)
        with pytest.raises(UnavailableError, match=f"fenced at {SHORT_SYNCS_MIN}"):
            await append(log, message(0))
        assert len(world.workers.rounds) == SHORT_SYNCS_MIN, "no thread was involved"
        with pytest.raises(UnavailableError, match="fenced"):
            await append(log, message(1))
        assert log.bounds() == Bounds(0, SHORT_SYNCS_MIN)


async def test_a_failed_write_on_the_loop_is_cut_back_and_the_next_one_succeeds(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (world, log, _):
        world.disk.fail("write", ".log", errno.ENOSPC, times=1)
        with pytest.raises(UnavailableError, match="the disk is full"):
            await append(log, message(0))
        assert await append(log, message(1)) == SHORT_SYNCS_MIN
        assert len(await read_all(log)) == SHORT_SYNCS_MIN + 1
        assert len(world.workers.rounds) == SHORT_SYNCS_MIN, "no thread was involved"
        assert world.problems() == []


def test_one_slow_sync_ends_it_until_enough_were_short_again() -> None:
    pace = SyncPace()
    for _ in range(SHORT_SYNCS_MIN):
        assert not pace.is_short
        pace.note(SHORT_SYNC_S)
    assert pace.is_short
    pace.note(SHORT_SYNC_S * 1.1)
    assert not pace.is_short
    for _ in range(SHORT_SYNCS_MIN - 1):
        pace.note(0.0)
    assert not pace.is_short
    pace.note(0.0)
    assert pace.is_short
