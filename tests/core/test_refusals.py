"""Of a flood of refused logins, every one is recorded or counted."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.networks import network_of_peer
from penstock.core.refusals import (
    ALL_MAX,
    ALL_MORE,
    NAMED_MAX,
    NETWORK_MAX,
    NETWORK_MORE,
    NETWORKS_MAX,
    OTHERS,
    WINDOW_S,
    Refusals,
)


@given(st.lists(st.tuples(st.sampled_from("abcdefghijklmnop"), st.integers(1, 300)), max_size=30))
def test_every_refusal_is_recorded_or_counted_once(rounds: list[tuple[str, int]]) -> None:
    refusals = Refusals()
    came: Counter[str] = Counter()
    recorded: Counter[str] = Counter()
    for network, count in rounds:
        came[network] += count
        recorded[network] += sum([refusals.admit(network, 0.0) for _ in range(count)])
    assert recorded.total() <= ALL_MAX and max(recorded.values(), default=0) <= NETWORK_MAX
    assert Counter(dict(refusals.take())) == came - recorded
    assert refusals.take() == []


def test_the_flood_of_one_network_leaves_the_others_their_records() -> None:
    refusals = Refusals()
    assert sum([refusals.admit("flood", 0.0) for _ in range(50_000)]) == NETWORK_MAX
    assert refusals.admit("other", 0.0)
    assert refusals.take() == [("flood", 50_000 - NETWORK_MAX)]


def test_a_flood_of_many_networks_is_counted_in_bounded_memory_and_few_records() -> None:
    refusals = Refusals()
    for number in range(3 * NETWORKS_MAX):
        refusals.admit(str(number), 0.0)
    left_out = refusals.take()
    assert len(left_out) <= NAMED_MAX + 1 and left_out[-1][0] == OTHERS
    assert sum(count for _, count in left_out) == 3 * NETWORKS_MAX - ALL_MAX


def test_floods_that_go_on_for_days_are_a_few_records_in_each_window() -> None:
    for networks, more in ((1, NETWORK_MORE), (500, ALL_MORE)):
        refusals = Refusals()
        recorded = [
            sum(
                [
                    refusals.admit(f"{networks} {number % networks}", window * WINDOW_S)
                    for number in range(2_000)
                ]
            )
            for window in range(1, 60)
        ]
        assert recorded[-30:] == [more] * 30


def test_a_network_that_was_quiet_is_recorded_as_at_first() -> None:
    refusals = Refusals()
    for now_s in (0.0, 3_600.0):
        assert sum([refusals.admit("a", now_s) for _ in range(200)]) == NETWORK_MAX


def test_a_network_is_found_in_an_address_with_or_without_its_port() -> None:
    assert network_of_peer("10.1.2.3:4567") == network_of_peer("10.1.2.3") == "10.1.2.3"
    assert network_of_peer("[2001:db8::5]:4567") == network_of_peer("2001:db8::6")
    assert network_of_peer("data directory") == "data directory"
