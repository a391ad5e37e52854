"""The view of retained messages: what time takes away, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.deliver.retained import TERMS_SPARE, Retained
from penstock.catalog.session.retained import RetainedHead, RetainedRow
from penstock.catalog.session.saving import Checkpoint
from penstock.model.clock import ManualClock
from penstock.model.timeline import Timeline


def at_zero() -> tuple[ManualClock, Retained]:
    clock = ManualClock(0)
    return clock, Retained(Timeline(clock), nothing, lambda: None)


async def nothing(names: Sequence[str]) -> list[RetainedRow]:
    return []


def row(name: str, expires_at: int) -> RetainedHead:
    return RetainedHead(name, 1, 0, 0, expires_at, "", 1)


def forgotten(retained: Retained) -> list[str]:
    """What the next checkpoint removes; it saves nothing new."""
    point = Checkpoint()
    retained.take_changes(point)
    retained.settle(is_saved=True)
    assert point.retained == []
    return point.forgotten


def test_messages_expire_at_their_time_and_not_before() -> None:
    clock, retained = at_zero()
    retained.load([row("a", 10), row("b", 20), row("c", 0)])
    clock.advance(9 / 1e6)
    retained.expire()
    assert len(retained) == 3
    clock.advance(1 / 1e6)
    retained.expire()
    assert sorted(retained.matching("#")) == ["b", "c"]
    assert forgotten(retained) == ["a"]
    clock.advance(990 / 1e6)
    retained.expire()
    assert list(retained.matching("#")) == ["c"]
    assert forgotten(retained) == ["b"]


def test_replaced_message_has_only_its_own_term() -> None:
    clock, retained = at_zero()
    retained.load([row("later", 10), row("never", 10), row("sooner", 30)])
    retained.load([row("later", 20), row("never", 0), row("sooner", 5)])
    clock.advance(10 / 1e6)
    retained.expire()
    assert sorted(retained.matching("#")) == ["later", "never"]
    clock.advance(40 / 1e6)
    retained.expire()
    assert list(retained.matching("#")) == ["never"]


def test_name_published_again_and_again_keeps_no_trace_of_old_terms() -> None:
    clock, retained = at_zero()
    for expires_at in range(1, 20 * TERMS_SPARE):
        retained.load([row("a", expires_at), row("b", 0)])
        assert len(retained._terms) <= 2 * len(retained) + TERMS_SPARE + 1
    clock.advance(20 * TERMS_SPARE / 1e6)
    retained.expire()
    assert list(retained.matching("#")) == ["b"]


def test_messages_expire_by_steady_time_whatever_the_wall_clock_does() -> None:
    clock, retained = at_zero()
    retained.load([row("a", 60_000_000)])
    for wall_us in (10**15, 0, -(10**12)):
        clock.set_wall(wall_us)
        clock.advance(15)
        retained.expire()
        assert retained.get("a") is not None
    clock.advance(15)
    assert retained.get("a") is None
