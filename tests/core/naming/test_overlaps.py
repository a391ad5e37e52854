"""Is the number of filters that a name can match never larger than `Overlaps` says?"""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.naming.names import matches
from penstock.core.naming.overlaps import OVERLAPS_MAX, Overlaps, has_wildcard

LEVELS = st.sampled_from(["a", "b", "+"])
FILTERS = st.builds(
    lambda levels, with_hash: "/".join([*levels, "#"] if with_hash else levels),
    st.lists(LEVELS, min_size=1, max_size=4),
    st.booleans(),
)
NAMES = ["/".join(levels) for size in range(1, 6) for levels in product("abc", repeat=size)]


@given(st.lists(st.tuples(st.booleans(), FILTERS), max_size=30))
def test_no_name_matches_more_filters_than_is_said(steps: list[tuple[bool, str]]) -> None:
    overlaps = Overlaps()
    inside: list[str] = []
    for is_added, filter in steps:
        if is_added:
            assert overlaps.add(filter)
            inside.append(filter)
        elif filter in inside:
            overlaps.remove(filter)
            inside.remove(filter)
        wild = [one for one in inside if has_wildcard(one)]
        most = max(sum(matches(one, name) for one in wild) for name in NAMES)
        assert most <= overlaps.most <= len(wild)
    fresh = Overlaps()
    for one in inside:
        fresh.add(one)
    assert fresh.most == overlaps.most, "what was removed leaves nothing behind"


def test_filters_that_do_not_overlap_are_as_many_as_you_like() -> None:
    overlaps = Overlaps()
    assert overlaps.add("#")
    for number in range(10_000):
        assert overlaps.add(f"devices/{number}/+/state")
    assert overlaps.most == 2


def test_one_filter_too_many_is_not_taken_and_changes_nothing() -> None:
    overlaps = Overlaps()
    filters = ["/".join("+" if bits >> at & 1 else "a" for at in range(8)) for bits in range(1, 99)]
    taken = [one for one in filters if overlaps.add(one)]
    assert len(taken) == overlaps.most == OVERLAPS_MAX
    overlaps.remove(taken[0])
    assert overlaps.add(filters[-1])
    assert not overlaps.add("#")


def test_filters_that_share_their_first_levels_count_although_they_end_apart() -> None:
    """Else one name would lead to thousands of places before it is clear that it matches none."""
    overlaps = Overlaps()
    ways = ["/".join("+" if bits >> at & 1 else "a" for at in range(8)) for bits in range(256)]
    taken = [way for at, way in enumerate(ways) if overlaps.add(f"{way}/{at}")]
    assert len(taken) <= OVERLAPS_MAX + 1  # the first one has no wildcard
