"""The view of retained messages: what time takes away, and what that costs."""

from __future__ import annotations

from penstock.broker.retained import TERMS_SPARE, Retained
from penstock.catalog.retained import RetainedRow


def row(name: str, expires_at: int) -> RetainedRow:
    return RetainedRow(name, 1, 0, 0, expires_at, 0, 0, "", (), b"x")


def test_messages_expire_at_their_time_and_not_before() -> None:
    retained = Retained()
    retained.load([row("a", 10), row("b", 20), row("c", 0)])
    retained.expire(9)
    assert len(retained) == 3
    retained.expire(10)
    assert sorted(retained.matching("#")) == ["b", "c"]
    assert retained.take_changes() == ([], ["a"])
    retained.expire(1000)
    assert list(retained.matching("#")) == ["c"]
    assert retained.take_changes() == ([], ["b"])


def test_replaced_message_has_only_its_own_term() -> None:
    retained = Retained()
    retained.load([row("later", 10), row("never", 10), row("sooner", 30)])
    retained.load([row("later", 20), row("never", 0), row("sooner", 5)])
    retained.expire(10)
    assert sorted(retained.matching("#")) == ["later", "never"]
    retained.expire(50)
    assert list(retained.matching("#")) == ["never"]


def test_name_published_again_and_again_keeps_no_trace_of_old_terms() -> None:
    retained = Retained()
    for expires_at in range(1, 20 * TERMS_SPARE):
        retained.load([row("a", expires_at), row("b", 0)])
        assert len(retained._terms) <= 2 * len(retained) + TERMS_SPARE + 1
    retained.expire(20 * TERMS_SPARE)
    assert list(retained.matching("#")) == ["b"]
