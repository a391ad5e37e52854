"""Are the parts of a share dealt evenly, to one node each, with few moves?"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dealing import NOBODY, deal_parts

NODES = st.sets(st.integers(1, 9), max_size=5)


@st.composite
def dealt(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, int], set[int]]:
    """Parts with any owners, live or not, of some topics."""
    sizes = draw(st.lists(st.integers(1, 16), max_size=5))
    topics = {}
    for size in sizes:
        first = len(topics)
        topics |= {first + at: first for at in range(size)}
    owners = {part: draw(st.integers(NOBODY, 9)) for part in topics}
    return owners, topics, draw(NODES)


@given(dealt())
def test_every_part_has_one_node_that_has_members(
    given: tuple[dict[int, int], dict[int, int], set[int]],
) -> None:
    owners, topics, nodes = given
    plan = deal_parts(owners, topics, nodes)
    assert set(plan.values()) <= nodes
    assert set(plan) == (set(owners) if nodes else set())


@given(dealt())
def test_no_node_has_two_parts_more_than_another(
    given: tuple[dict[int, int], dict[int, int], set[int]],
) -> None:
    owners, topics, nodes = given
    plan = deal_parts(owners, topics, nodes)
    counts = [list(plan.values()).count(inc) for inc in nodes]
    assert not nodes or max(counts) - min(counts) <= 1


@given(dealt())
def test_no_more_parts_move_than_evenness_asks_for(
    given: tuple[dict[int, int], dict[int, int], set[int]],
) -> None:
    owners, topics, nodes = given
    plan = deal_parts(owners, topics, nodes)
    had = Counter(dict.fromkeys(nodes, 0))
    had.update(owner for owner in owners.values() if owner in nodes)
    moved = sum(owners[part] in nodes and owners[part] != inc for part, inc in plan.items())
    if nodes:
        least, uneven = divmod(len(owners), len(nodes))
        largest = [least + (at < uneven) for at in range(len(nodes))]
        ranked = sorted(had.values(), reverse=True)
        assert moved == sum(max(0, had_ - may) for had_, may in zip(ranked, largest, strict=True))


@given(dealt())
def test_what_was_dealt_stays(given: tuple[dict[int, int], dict[int, int], set[int]]) -> None:
    owners, topics, nodes = given
    plan = deal_parts(owners, topics, nodes)
    assert deal_parts(plan, topics, nodes) == plan


@given(dealt())
def test_parts_that_are_between_two_nodes_change_no_decision(
    given: tuple[dict[int, int], dict[int, int], set[int]],
) -> None:
    """Nodes act one after the other: some have released what they should, others not yet."""
    owners, topics, nodes = given
    plan = deal_parts(owners, topics, nodes)
    for part in sorted(plan):
        if owners[part] != plan[part]:
            owners = owners | {part: NOBODY}
            assert deal_parts(owners, topics, nodes) == plan


def test_a_second_node_gets_half_of_the_parts_of_every_topic() -> None:
    topics = {part: part // 16 * 16 for part in range(48)}
    plan = deal_parts(dict.fromkeys(topics, 1), topics, {1, 2})
    counts = Counter((topics[part], inc) for part, inc in plan.items())
    assert counts == {(topic, inc): 8 for topic in (0, 16, 32) for inc in (1, 2)}


def test_topics_of_one_partition_are_spread_over_the_nodes() -> None:
    topics = {part: part for part in range(4)}
    plan = deal_parts(dict.fromkeys(topics, NOBODY), topics, {5, 6})
    assert Counter(plan.values()) == {5: 2, 6: 2}
