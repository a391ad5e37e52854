"""Are the clocks there again after a restart, as they were saved last?"""

from __future__ import annotations

from penstock.broker.upkeep.timekeeping import SAVE_S, Timekeeping
from penstock.catalog.clock import ClockCatalog
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.schema.migrations import migrate
from penstock.model.clock import ManualClock
from penstock.model.timeline import Timeline
from tests.catalog.faults import OpenDatabase

HOUR_US = 3600 * 1_000_000


async def test_time_and_ledger_go_on_after_a_restart(open_database: OpenDatabase) -> None:
    database = open_database()
    await migrate(InlineRunner(database))
    catalog = ClockCatalog(InlineRunner(database))
    assert await catalog.load() is None
    clock = ManualClock()
    first = Timeline(clock, "boot-1")
    keeping = Timekeeping(first, catalog)
    await keeping.open()
    stamp_us, steady_us = first.stamp_us(), first.steady_us()
    clock.set_wall(clock.now_us() - HOUR_US)
    await keeping.look()
    clock.advance(600)
    await keeping.close()
    clock.set_wall(clock.now_us() + 5 * HOUR_US)
    clock.advance(60)
    second = Timeline(clock, "boot-1")
    await Timekeeping(second, catalog).open()
    assert second.steady_us() == steady_us + 660 * 1_000_000
    assert second.steady_at(stamp_us) == steady_us
    assert second.stamp_us() == clock.now_us()
    database.close()


async def test_clocks_are_saved_when_the_wall_clock_was_set_and_now_and_then(
    open_database: OpenDatabase,
) -> None:
    database = open_database()
    await migrate(InlineRunner(database))
    catalog = ClockCatalog(InlineRunner(database))
    clock = ManualClock()
    timeline = Timeline(clock, "boot-1")
    keeping = Timekeeping(timeline, catalog)
    await keeping.open()
    begun = await catalog.load()
    clock.advance(SAVE_S / 2)
    await keeping.look()
    assert await catalog.load() == begun
    clock.set_wall(clock.now_us() + HOUR_US)
    await keeping.look()
    assert await catalog.load() == timeline.reading() != begun
    clock.advance(SAVE_S)
    await keeping.look()
    assert await catalog.load() == timeline.reading()
    await keeping.close()
    database.close()
