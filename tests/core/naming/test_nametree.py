"""The tree of names against `names.matches` over all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.naming.names import check_filter, matches
from penstock.core.naming.nametree import NameTree

LEVELS = st.sampled_from(["", "a", "b", "$s", "ab"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.one_of(LEVELS, st.just("+")), min_size=0, max_size=4))
    if draw(st.booleans()) or not any(levels):
        levels.append("#")
    return check_filter("/".join(levels))


@given(steps=st.lists(st.tuples(st.booleans(), NAMES), max_size=60), filter=filters())
def test_tree_finds_exactly_the_names_that_match(
    steps: list[tuple[bool, str]], filter: str
) -> None:
    tree = NameTree()
    names: set[str] = set()
    for is_added, name in steps:
        if is_added:
            assert tree.add(name) == (name not in names)
            names.add(name)
        else:
            assert tree.remove(name) == (name in names)
            names.discard(name)
        assert len(tree) == len(names)
    found = list(tree.matching(filter))
    assert len(found) == len(set(found))
    assert set(found) == {name for name in names if matches(filter, name)}


@given(names=st.sets(NAMES, max_size=30))
def test_tree_that_lost_all_its_names_holds_nothing(names: set[str]) -> None:
    tree = NameTree()
    for name in names:
        tree.add(name)
    for name in names:
        assert tree.remove(name)
    assert not tree._root.below


@given(
    names=st.sets(NAMES, min_size=1, max_size=20),
    changes=st.lists(st.tuples(st.booleans(), NAMES), max_size=20),
    filter=filters(),
)
def test_names_that_stay_are_found_while_others_come_and_go(
    names: set[str], changes: list[tuple[bool, str]], filter: str
) -> None:
    tree = NameTree()
    for name in names:
        tree.add(name)
    found = []
    touched = {name for _, name in changes}
    left = list(changes)
    for name in tree.matching(filter):
        found.append(name)
        if left:
            is_added, other = left.pop()
            (tree.add if is_added else tree.remove)(other)
    due = {name for name in names if matches(filter, name)}
    assert due - touched <= set(found)
    assert all(matches(filter, name) for name in found)


def test_a_very_deep_name_is_no_trouble() -> None:
    tree = NameTree()
    deep = "/".join("a" * 20_000)
    tree.add(deep)
    assert list(tree.matching("a/#")) == [deep]
    assert tree.remove(deep)
