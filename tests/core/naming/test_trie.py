"""Does the trie find exactly what naive matching finds, and give back what it took?"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import product
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.naming.names import check_filter, check_name, matches
from penstock.core.naming.trie import FilterTrie
from penstock.model.limits import NAME_LEVELS_MAX

# Few different levels, so that filters meet: share ways, end inside each other, part late.
LEVELS = st.sampled_from(["a", "b", "", "$s", "ab"])
NAMES = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
FILTERS = (
    st.tuples(
        st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=5).map("/".join),
        st.sampled_from(["", "/#"]),
    )
    .map("".join)
    .filter(bool)
    | st.just("#")
    | NAMES
)
PAIRS = st.tuples(FILTERS, st.integers(0, 3))


def trie_of(pairs: list[tuple[str, int]]) -> FilterTrie[int]:
    trie: FilterTrie[int] = FilterTrie()
    for filter, value in pairs:
        trie.add(filter, value)
    return trie


def naive(pairs: set[tuple[str, int]], name: str) -> Counter[int]:
    return Counter(value for filter, value in pairs if matches(filter, name))


@given(st.lists(PAIRS, max_size=40), st.lists(NAMES, min_size=1, max_size=10))
def test_trie_finds_what_naive_matching_finds(
    pairs: list[tuple[str, int]], names: list[str]
) -> None:
    trie = trie_of(pairs)
    assert len(trie) == len(set(pairs))
    for name in names:
        assert Counter(trie.match(name)) == naive(set(pairs), name)


@given(
    st.lists(st.tuples(st.booleans(), PAIRS), max_size=60),
    st.lists(NAMES, min_size=1, max_size=5),
)
def test_trie_follows_a_set_through_adding_and_removing_and_ends_empty(
    steps: list[tuple[bool, tuple[str, int]]], names: list[str]
) -> None:
    trie: FilterTrie[int] = FilterTrie()
    model: dict[tuple[str, int], None] = {}
    for is_add, (filter, value) in steps:
        present = (filter, value) in model
        if is_add:
            assert trie.add(filter, value) is not present
            model[filter, value] = None
        else:
            assert trie.remove(filter, value) is present
            model.pop((filter, value), None)
        assert len(trie) == len(model)
        # The same shape as if what was removed had never been there.
        assert trie.node_count == trie_of(list(model)).node_count
    for name in names:
        assert Counter(trie.match(name)) == naive(set(model), name)
    for filter, value in model:
        assert trie.remove(filter, value)
    assert len(trie) == 0
    assert trie.is_empty
    assert trie.node_count == 1
    assert trie.match("a") == []


@given(st.lists(PAIRS, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_shape_and_answers_do_not_depend_on_the_order_of_adding(
    pairs: list[tuple[str, int]], random: Any
) -> None:
    shuffled = pairs.copy()
    random.shuffle(shuffled)
    one, other = trie_of(pairs), trie_of(shuffled)
    assert one.node_count == other.node_count
    for filter, _ in pairs:
        name = filter.replace("+", "a").replace("#", "b")
        assert Counter(one.match(name)) == Counter(other.match(name))


def test_every_short_filter_against_every_short_name() -> None:
    filters = [
        "/".join(levels)
        for count in range(1, 4)
        for levels in product(["a", "", "+", "#"], repeat=count)
        if "#" not in levels[:-1] and levels != ("",)
    ]
    names = [
        "/".join(levels)
        for count in range(1, 5)
        for levels in product(["a", "", "$a"], repeat=count)
        if levels != ("",)
    ]
    trie: FilterTrie[str] = FilterTrie()
    for filter in filters:
        trie.add(check_filter(filter), filter)
    for name in names:
        expected = sorted(filter for filter in filters if matches(filter, check_name(name)))
        assert sorted(trie.match(name)) == expected
    for filter in filters:  # each alone: it is then one text, not a chain of nodes
        lone: FilterTrie[str] = FilterTrie()
        lone.add(filter, filter)
        for name in names:
            assert lone.match(name) == ([filter] if matches(filter, name) else [])


def test_value_under_several_matching_filters_comes_once_for_each() -> None:
    trie: FilterTrie[str] = FilterTrie()
    for filter in ("a/b", "a/+", "a/#", "#"):
        assert trie.add(filter, "x")
    assert trie.match("a/b") == ["x"] * 4


def test_values_of_one_filter_come_in_the_order_of_adding() -> None:
    trie: FilterTrie[str] = FilterTrie()
    for filter in ("a/b", "a/+/c", "a/+", "+/#"):
        for value in ("z", "m", "a", "k"):
            assert trie.add(filter, value)
        assert not trie.add(filter, "m")
        assert trie.remove(filter, "m")
        assert not trie.remove(filter, "m")
    assert trie.match("a/b") == ["z", "a", "k"] * 3
    assert len(trie) == 12


def test_any_hashable_may_be_a_value() -> None:
    trie: FilterTrie[Any] = FilterTrie()
    values: list[Any] = [None, False, "", (), frozenset(), object()]
    for filter in ("a", "+", "#", "+/#", "a/#", "+/b/+"):
        for value in values:
            assert trie.add(filter, value)
            assert not trie.add(filter, value)
    assert Counter(trie.match("a")) == Counter(values * 5)
    for filter in ("a", "+", "#", "+/#", "a/#", "+/b/+"):
        for value in values:
            assert trie.remove(filter, value)
    assert trie.is_empty


def test_unknown_pairs_are_not_removed_and_change_nothing() -> None:
    trie = trie_of([("a/b", 1), ("a/+/c", 1), ("a/+/d", 1), ("x/+/y/#", 1)])
    nodes = trie.node_count
    for filter in ("a", "a/b/c", "a/+", "a/#", "a/+/e", "a/+/c/+", "x/+", "x/+/y", "x/+/#", "#"):
        assert not trie.remove(filter, 1)
    for filter in ("a/b", "a/+/c", "x/+/y/#"):
        assert not trie.remove(filter, 2)
    assert len(trie) == 4
    assert trie.node_count == nodes


def test_names_that_begin_with_a_dollar_are_hidden_from_leading_wildcards_only() -> None:
    trie: FilterTrie[str] = FilterTrie()
    for filter in ("#", "+", "+/b", "+/+", "+/#", "$a/#", "$a/+", "$a/b", "$a"):
        trie.add(filter, filter)
    assert sorted(trie.match("$a/b")) == ["$a/#", "$a/+", "$a/b"]
    assert sorted(trie.match("$a")) == ["$a", "$a/#"]
    assert sorted(trie.match("a/$b")) == ["#", "+/#", "+/+"]


def test_filters_that_share_no_way_have_no_nodes_and_wildcards_share_one() -> None:
    many = [(f"site/{number}/temp", number) for number in range(1_000)]
    assert trie_of(many).node_count == 1
    many = [(f"+/{number}/temp", number) for number in range(1_000)]
    assert trie_of(many).node_count == 2
    many = [(f"site/{number}/+/#", number) for number in range(1_000)]
    assert trie_of(many).node_count == 2


def test_deepest_name_and_filters_are_matched_and_removed() -> None:
    levels = [str(number) for number in range(NAME_LEVELS_MAX)]
    name = check_name("/".join(levels))
    filters = [check_filter("/".join([*levels[:depth], "#"])) for depth in range(NAME_LEVELS_MAX)]
    filters += [check_filter("/".join(["+"] * NAME_LEVELS_MAX)), name]
    filters += ["/".join(["+"] * depth + levels[depth:]) for depth in range(1, NAME_LEVELS_MAX)]
    trie: FilterTrie[int] = FilterTrie()
    for value, filter in enumerate(filters):
        assert trie.add(filter, value)
    assert sorted(trie.match(name)) == list(range(len(filters)))
    assert len(trie.match(name.rpartition("/")[0])) == NAME_LEVELS_MAX
    for value, filter in enumerate(filters):
        assert trie.remove(filter, value)
    assert trie.is_empty


def test_depth_is_no_matter_of_recursion() -> None:
    levels = ["a"] * 10_000
    trie: FilterTrie[str] = FilterTrie()
    for filter in ("/".join([*levels, "#"]), "/".join(["+"] * 10_000), "/".join(levels)):
        assert trie.add(filter, filter[-1])
    assert sorted(trie.match("/".join(levels))) == ["#", "+", "a"]
    assert trie.match("/".join(levels[:-1])) == []


def steps_of_match(trie: FilterTrie[int], name: str) -> tuple[int, list[int]]:
    """What a match executes, in lines of the trie's source; a compiled trie shows none."""
    steps = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if "trie" not in frame.f_code.co_filename:
            return None
        steps += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        found = trie.match(name)
    finally:
        sys.settrace(before)
    return steps, found


LINES_PER_NODE_MAX = 40  # the body of the walk's loop and what it calls for one node
LINES_PER_LEVEL_MAX = 12  # of a filter that goes on alone


@pytest.mark.parametrize("depth", [4, 8, 12])
def test_branching_plus_costs_no_more_than_the_nodes_there_are(depth: int) -> None:
    """All ways of `+` and `a` fork at every level: a name meets each node once, not each way."""
    trie: FilterTrie[int] = FilterTrie()
    for value, levels in enumerate(product("+a", repeat=depth)):
        trie.add("/".join([*levels, "z", "#"]), value)
    missed, none = steps_of_match(trie, "/".join(["a"] * (depth + 1)))
    assert none == []
    found_all, found = steps_of_match(trie, "/".join(["a"] * depth + ["z"]))
    assert len(found) == 2**depth
    bound = LINES_PER_NODE_MAX * trie.node_count + LINES_PER_LEVEL_MAX * (2**depth + depth)
    assert max(missed, found_all) <= bound


def test_deep_chains_of_plus_cost_their_nodes_and_do_not_explode() -> None:
    """128 levels of `+` with one literal at each place: 2^128 ways to read them, few nodes."""
    trie: FilterTrie[int] = FilterTrie()
    for place in range(NAME_LEVELS_MAX):
        levels = ["+"] * NAME_LEVELS_MAX
        levels[place] = "a"
        trie.add("/".join(levels), place)
        trie.add("/".join([*levels[: place + 1], "#"]), place)
    name = "/".join(["a"] * NAME_LEVELS_MAX)
    steps, found = steps_of_match(trie, name)
    assert Counter(found) == Counter(dict.fromkeys(range(NAME_LEVELS_MAX), 2))
    tail_levels = NAME_LEVELS_MAX * NAME_LEVELS_MAX
    bound = LINES_PER_NODE_MAX * trie.node_count
    assert steps <= bound + LINES_PER_LEVEL_MAX * tail_levels
    missed, _ = steps_of_match(trie, "/".join(["b"] * NAME_LEVELS_MAX))
    assert missed <= bound
