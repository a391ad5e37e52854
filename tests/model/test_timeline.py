"""Does the timeline know how much time has passed, however the wall clock was set meanwhile?"""

from __future__ import annotations

import random

import pytest

from penstock.model.clock import ManualClock
from penstock.model.timeline import PIECES_MAX, STEP_US_MIN, Timeline

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
JUMPS = {"+1 h": HOUR, "-1 h": -HOUR, "+10 years": 3652 * DAY, "-1 day": -DAY}

jumps = pytest.mark.parametrize("jump_us", JUMPS.values(), ids=JUMPS)


def jump(clock: ManualClock, by_us: int) -> None:
    clock.set_wall(clock.now_us() + by_us)


@jumps
def test_steady_time_does_not_notice_a_wall_clock_that_is_set(jump_us: int) -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    start_us = timeline.steady_us()
    jump(clock, jump_us)
    timeline.follow()
    clock.advance(30)
    assert timeline.steady_us() - start_us == 30 * SECOND


@pytest.mark.parametrize("seed", range(20))
def test_the_age_of_a_record_is_known_from_its_stamp_however_the_clock_was_set(seed: int) -> None:
    chance = random.Random(seed)
    clock = ManualClock()
    timeline = Timeline(clock)
    written = []
    for _ in range(200):
        clock.advance(chance.choice([0.001, 1, 60, 4000]))
        if chance.random() < 0.3:
            jump(clock, chance.choice(list(JUMPS.values())))
        timeline.follow()
        stamp_us, until_us = timeline.stamp_us(), timeline.steady_us() + 7200 * SECOND
        written.append((stamp_us, timeline.steady_us(), until_us, timeline.expires_at(until_us)))
    stamps = [one[0] for one in written]
    assert stamps == sorted(stamps), "a stamp fell"
    for stamp_us, steady_us, until_us, expires_at in written:
        assert abs(timeline.steady_at(stamp_us) - steady_us) <= 1024
        assert abs(timeline.until_us(stamp_us, expires_at) - until_us) <= 1024
        assert timeline.stamp_at(timeline.steady_at(stamp_us)) == stamp_us


def test_stamps_follow_a_clock_that_is_set_ahead_at_the_next_look() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    jump(clock, HOUR)
    assert timeline.follow()
    assert timeline.stamp_us() == clock.now_us()
    assert not timeline.follow()


def test_stamps_all_but_stand_until_a_clock_that_was_set_back_has_caught_up() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    before_us = timeline.stamp_us()
    jump(clock, -HOUR)
    assert timeline.follow()
    clock.advance(3600)
    timeline.follow()
    assert before_us < timeline.stamp_us() < before_us + 4 * SECOND
    clock.advance(4)
    assert timeline.follow()
    assert timeline.stamp_us() == clock.now_us()


def test_a_clock_that_is_slightly_off_does_not_make_the_ledger_grow() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    for step_us in (STEP_US_MIN, -2 * STEP_US_MIN):
        jump(clock, step_us)
        assert not timeline.follow()
    assert len(timeline.reading().pieces) == 1


def test_the_ledger_is_bounded() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    for _ in range(3 * PIECES_MAX):
        jump(clock, HOUR)
        timeline.follow()
    assert len(timeline.reading().pieces) == PIECES_MAX


@jumps
def test_across_a_restart_the_machine_knows_what_passed_if_it_was_not_restarted(
    jump_us: int,
) -> None:
    clock = ManualClock()
    saved = Timeline(clock, "boot-1").reading()
    jump(clock, jump_us)
    clock.advance(90)
    timeline = Timeline(clock, "boot-1")
    timeline.resume(saved)
    assert timeline.steady_us() - saved.steady_us == 90 * SECOND


@pytest.mark.parametrize(
    ("passed_us", "counted_us"),
    [(90 * SECOND, 90 * SECOND), (-HOUR, 0), (3652 * DAY, DAY), (-DAY, 0), (DAY, DAY)],
)
@pytest.mark.parametrize("boots", [("boot-1", "boot-2"), ("", "")])
def test_across_a_boot_the_wall_clock_is_trusted_with_a_day(
    passed_us: int, counted_us: int, boots: tuple[str, str]
) -> None:
    clock = ManualClock()
    clock.advance(5000)
    saved = Timeline(clock, boots[0]).reading()
    timeline = Timeline(ManualClock(saved.wall_us + passed_us), boots[1])
    timeline.resume(saved)
    assert timeline.steady_us() - saved.steady_us == counted_us


def test_stamps_do_not_fall_across_a_restart() -> None:
    clock = ManualClock()
    first = Timeline(clock, "boot-1")
    stamp_us = first.stamp_us()
    jump(clock, -DAY)
    second = Timeline(clock, "boot-2")
    second.resume(first.reading())
    second.follow()
    assert second.stamp_us() >= stamp_us
