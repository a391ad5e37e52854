"""Quotas: the bucket keeps to its rate whatever comes, and settings are read with clear errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.quota_settings import read_quotas
from penstock.core.quotas import (
    BURST_S,
    CONSUMERS,
    GATHER_S,
    KEYS,
    SESSIONS,
    TOPICS,
    Bucket,
    Limits,
    Meter,
    fair_share,
)
from penstock.model.errors import InvalidSetting, QuotaExceeded

SECOND_US = 1_000_000


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.integers(0, 5 * SECOND_US), st.integers(1, 5_000)), max_size=50),
)
def test_who_waits_as_told_never_exceeds_the_rate(rate: int, sends: list[tuple[int, int]]) -> None:
    bucket = Bucket(rate, 0)
    now_us, sent, last = 0, 0, 0
    for pause_us, count in sends:
        now_us += pause_us
        wait_s = bucket.take(count, now_us)
        sent, last = sent + count, count
        # All but the newest piece is within the burst and what the time since has added.
        assert sent - last <= rate * (BURST_S + now_us / SECOND_US) + 1e-6
        now_us += -int(-wait_s * SECOND_US // 1)
    assert sent - last <= rate * (BURST_S + now_us / SECOND_US) + 1e-6


def test_a_quiet_publisher_may_send_a_second_of_its_rate_at_once() -> None:
    bucket = Bucket(100, 0)
    assert bucket.take(100, 60 * SECOND_US) == 0
    assert bucket.take(50, 60 * SECOND_US) == pytest.approx(0.5)
    assert bucket.take(0, 60 * SECOND_US + SECOND_US // 2) == pytest.approx(0)


def test_a_clock_that_jumps_back_gives_nothing_and_takes_nothing() -> None:
    bucket = Bucket(10, 50 * SECOND_US)
    bucket.take(10, 50 * SECOND_US)
    assert bucket.take(0, 1) == 0
    assert bucket.take(10, 1) == pytest.approx(1.0)


def test_a_meter_waits_for_the_slowest_of_its_buckets() -> None:
    meter = Meter([Bucket(1_000, 0), Bucket(10, 0)], [Bucket(100, 0)])
    assert meter.take(20, 50, 0) == pytest.approx(1.0)
    assert meter.look(0) == pytest.approx(1.0)
    assert meter.take(0, 350, 0) == pytest.approx(3.0)


@given(
    st.integers(1, 100_000),
    st.lists(st.tuples(st.integers(0, SECOND_US), st.integers(1, 500)), max_size=50),
)
def test_what_a_meter_gathers_exceeds_the_rate_by_a_thousandth_at_most(
    rate: int, sends: list[tuple[int, int]]
) -> None:
    meter = Meter([Bucket(rate, 0)], [])
    now_us = sent = last = 0
    for pause_us, count in sends:
        now_us += pause_us
        sent, last = sent + count, count
        if meter.gather(count, 0):
            now_us += -int(-meter.take(0, 0, now_us) * SECOND_US // 1)
        allowed = rate * (BURST_S + GATHER_S + now_us / SECOND_US)
        assert sent - last <= allowed + 1e-6


def test_a_low_rate_is_looked_at_with_every_message() -> None:
    for meter in (
        Meter([Bucket(999, 0)], [Bucket(10**9, 0)]),
        Meter([Bucket(10**9, 0)], [Bucket(999_999, 0)]),
    ):
        meter.look(0)
        assert meter.gather(1, 1_000)


def test_a_rate_that_was_lowered_counts_from_the_next_look_on() -> None:
    bucket = Bucket(1_000_000, 0)
    meter = Meter([bucket], [])
    meter.look(0)
    bucket.set_rate(10.0)
    assert not meter.gather(1_000, 0)
    assert meter.gather(1, 0) and meter.take(0, 0, 0) > 0
    assert meter.gather(1, 0)


def test_what_was_gathered_counts_for_whoever_looks_next() -> None:
    meter = Meter([Bucket(10_000, 0)], [])
    assert meter.look(0) == 0
    assert not meter.gather(10, 0)
    assert meter.take(10_000, 0, 0) == pytest.approx(0.001)
    assert not meter.gather(10, 0)
    assert meter.look(0) == pytest.approx(0.002)


@given(
    st.none() | st.integers(0, 100),
    st.none() | st.integers(0, 100),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_a_fair_share_keeps_to_both_quotas_and_is_the_largest_that_does(
    tenant_max: int | None, user_max: int | None, held: list[int]
) -> None:
    def fits(share: int) -> bool:
        kept = [min(count, share) for count in held]
        is_user_ok = user_max is None or max(kept, default=0) <= user_max
        return is_user_ok and (tenant_max is None or sum(kept) <= tenant_max)

    share = fair_share(tenant_max, user_max, held)
    assert fits(share)
    assert share >= max(held, default=0) or not fits(share + 1)


def test_a_quota_names_its_holder_the_limit_and_the_way_out() -> None:
    limits = Limits("tenant 'acme'", {TOPICS: 2})
    limits.check(TOPICS, 1)
    limits.check(CONSUMERS, 10**9)
    with pytest.raises(QuotaExceeded, match=r"tenant 'acme' may have 2 topics and has 2: .*topics"):
        limits.check(TOPICS, 2)


def test_one_tenant_may_have_other_quotas_than_the_others() -> None:
    settings = read_quotas(
        "quotas",
        {
            "topics": 5,
            "stored_bytes": "1 KiB",
            "user": {"keys": 3},
            "tenant": {"acme": {"topics": "unlimited", "user": {"keys": 7}}},
        },
    )
    assert settings.of_tenant("default")[TOPICS] == 5
    assert settings.of_tenant("default")["stored_bytes"] == 1_024
    assert settings.of_tenant("default")[SESSIONS] > 0, "defaults stay"
    assert TOPICS not in settings.of_tenant("acme")
    assert settings.of_user("default")[KEYS] == 3
    assert settings.of_user("acme")[KEYS] == 7


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"topcis": 3}, "did you mean 'topics'"),
        ({"topics": 0}, "topics 0 is not a quota"),
        ({"topics": True}, "topics True is not a quota"),
        ({"topics": "many"}, "topics 'many' is not a quota"),
        ({"stored_bytes": "a lot"}, "stored_bytes 'a lot' is not a size"),
        ({"user": {"producer": 3}}, "setting 'producer' is unknown: did you mean .producers"),
        ({"user": 3}, "quotas.user 3 is not a table"),
        ({"tenant": {"acme": 3}}, "quotas.tenant.acme 3 is not a table"),
    ],
)
def test_a_wrong_quota_is_named(table: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSetting, match=told):
        read_quotas("quotas", table)
