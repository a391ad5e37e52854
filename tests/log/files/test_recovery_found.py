"""Faults that the simulation found once, each as the shortest history that shows it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from penstock.core.delivery.run import Run, run_of
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.segment import segment_bases, segment_path
from penstock.log.interface import FSYNC, OS
from penstock.model.errors import Gap, UnavailableError
from tests.appends import append
from tests.log.files.machine import DIRECTORY, SMALL, Machine
from tests.sim.workers import SimWorkers

T = TypeVar("T")


def a_record(text: str) -> Run:
    return run_of("orders", [text.encode().ljust(100, b".")])


async def append_each(log: EmbeddedLog, *texts: str) -> None:
    for text in texts:
        await append(log, a_record(text))


async def texts(log: EmbeddedLog) -> list[str]:
    offset, end = log.bounds()
    found: list[str] = []
    while offset < end:
        batches = await log.read(offset)
        assert batches, f"nothing at {offset} before {end}"
        for batch in batches:
            found += [p.decode().rstrip(".") for p in batch.payloads(0, batch.header.count)]
            offset = batch.end_offset
    return found


def test_a_log_fenced_at_its_first_record_keeps_what_came_after_the_restart() -> None:
    """The new segment takes the fenced one's name: a stale `end` would cut it at the old place."""
    machine = Machine()

    async def fenced(log: EmbeddedLog) -> None:
        machine.disk.sync_fails_in = 0
        with pytest.raises(UnavailableError):
            await append(log, a_record("refused"))

    machine.live(fenced)
    machine.kill()
    machine.live(lambda log: append_each(log, "a"))
    machine.lose_power()
    assert machine.live(texts) == ["a"]


def test_a_segment_begun_by_a_killed_process_stays_after_a_power_loss() -> None:
    """The kill comes after the rename and before the sync of the directory."""
    machine = Machine()

    async def roll(log: EmbeddedLog) -> None:
        await append_each(log, "a")
        machine.disk.crash_on, machine.disk.crash_in = "sync directory", 0
        await append_each(log, "b", "c")

    machine.live(roll)
    machine.kill()
    machine.live(lambda log: append_each(log, "d"))
    machine.lose_power()
    found = machine.live(texts)
    assert found is not None and found[0] == "a" and found[-1] == "d"


def test_a_trim_whose_sync_failed_leaves_no_hole_behind() -> None:
    machine = Machine()

    async def trim(log: EmbeddedLog) -> int:
        await append_each(log, *"abcdefgh")
        machine.disk.sync_fails_in = 0
        with pytest.raises(OSError):
            await log.trim(None, 600)
        await append_each(log, *"ijklmnop")
        await log.trim(None, 600)
        return log.bounds().first

    first = machine.live(trim)
    assert first
    machine.kill()

    async def look(log: EmbeddedLog) -> list[str]:
        assert log.bounds().first == first
        return await texts(log)

    assert machine.live(look) == list("abcdefghijklmnop")[first:]


def test_records_of_level_os_that_are_lost_after_the_level_rose_begin_an_epoch() -> None:
    machine = Machine()
    loose = replace(SMALL, durability=OS, segment_bytes=100_000)

    async def publish(log: EmbeddedLog) -> int:
        await append_each(log, "a", "b")
        return log.epoch

    before = machine.live(publish, loose)
    machine.lose_power()

    async def look(log: EmbeddedLog) -> tuple[int, int, int]:
        return log.epoch, log.bounds().end, await log.clamp(1, 2)

    epoch, end, clamped = machine.live(look, replace(loose, durability=FSYNC)) or (0, 0, 0)
    assert before == 1 and epoch == 2
    assert clamped == end == 0


def test_a_level_lowered_while_open_is_remembered_through_a_power_loss() -> None:
    """`end` said "closed in order" before; that word must not come back."""
    machine = Machine()
    machine.live(lambda log: log.close())
    machine.kill()

    async def lower(log: EmbeddedLog) -> None:
        log.settings = replace(log.settings, durability=OS)
        await append_each(log, "a")

    machine.live(lower)
    machine.lose_power()

    async def epoch(log: EmbeddedLog) -> int:
        return log.epoch

    assert machine.live(epoch, replace(SMALL, durability=OS)) == 2


class SlowNews(SimWorkers):
    """Work is done at once; that it was done is known a second later, for the first to ask."""

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        result = work()
        delay_s = 1.0 if "seal" in repr(work) else 0.0
        self._loop.call_later(delay_s, lambda: future.set_result(result))
        return future


def test_a_reader_that_meets_a_segment_just_sealed_waits_and_reads_it() -> None:
    machine = Machine()
    machine.live(lambda log: append_each(log, *"abcdefgh"))
    machine.kill()

    async def read_meanwhile(log: EmbeddedLog) -> list[str]:
        await log.stored_bytes()
        sealing = asyncio.ensure_future(log.seal_closed())
        await asyncio.sleep(0.1)
        found = await texts(log)
        assert await sealing > 0
        return found

    assert machine.live(read_meanwhile, workers=SlowNews) == list("abcdefgh")
    assert sys.exc_info() == (None, None, None)  # what it met is forgotten, compiled too


def test_a_segment_stays_readable_when_its_sealing_could_not_sync_the_directory() -> None:
    machine = Machine()
    machine.live(lambda log: append_each(log, *"abcd"))
    machine.kill()

    async def seal(log: EmbeddedLog) -> list[str]:
        machine.disk.sync_fails_in = 1  # the first sync is the new file's
        assert await log.seal_closed() > 0
        assert machine.disk.failed_syncs == 1
        return await texts(log)

    assert machine.live(seal) == list("abcd")


def test_a_trimmed_offset_is_a_gap_also_when_nothing_newer_is_kept() -> None:
    machine = Machine()

    async def trim_all(log: EmbeddedLog) -> None:
        await append_each(log, *"abcd")
        machine.clock.advance(10)
        await log.trim(machine.clock.now_us(), None)
        assert log.bounds() == (4, 4)
        await append_each(log, "e")
        with pytest.raises(Gap):
            await log.read(1)

    machine.live(trim_all)


def test_a_newest_segment_that_is_gone_begins_an_epoch_behind_a_sealed_one() -> None:
    machine = Machine()

    async def publish(log: EmbeddedLog) -> None:
        await append_each(log, *"abcdef")
        await log.seal_closed()

    machine.live(publish)
    machine.kill()
    newest = segment_bases(machine.disk, DIRECTORY)[-1]
    machine.disk.remove(segment_path(DIRECTORY, newest))

    async def look(log: EmbeddedLog) -> tuple[int, int]:
        return log.epoch, log.bounds().end

    assert machine.live(look) == (2, newest)
