"""Do moving averages come to what a counter does in a minute, sooner over one than over fifteen?"""

from __future__ import annotations

import pytest

from penstock.core.averages import Averages


def test_a_steady_counter_is_told_by_all_averages_in_the_end() -> None:
    load = Averages()
    for turn in range(1, 2_000):
        load.update(turn * 50, 10.0)
    assert load.per_minute == pytest.approx([300.0] * 3, rel=1e-3)


def test_a_change_is_seen_over_one_minute_first_whatever_the_steps() -> None:
    coarse, fine = Averages(), Averages()
    coarse.update(600, 60.0)
    for turn in range(1, 61):
        fine.update(turn * 10, 1.0)
    assert coarse.per_minute == pytest.approx(fine.per_minute)
    assert coarse.per_minute[0] > coarse.per_minute[1] > coarse.per_minute[2] > 0
    assert coarse.per_minute[0] < 600


def test_no_time_passed_changes_nothing() -> None:
    load = Averages(5)
    load.update(100, 0.0)
    assert load.per_minute == [0.0] * 3
