"""Does a set of offsets, kept as ranges, hold exactly what was added?"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ranges import OffsetRanges

OFFSETS = st.lists(st.integers(0, 30), max_size=40)


@given(OFFSETS, st.integers(0, 31))
def test_ranges_agree_with_a_set(offsets: list[int], first: int) -> None:
    ranges, model = OffsetRanges(), set(offsets)
    for offset in offsets:
        ranges.add(offset)
    ranges.trim(first)
    model = {offset for offset in model if offset >= first}
    assert {offset for offset in range(32) if offset in ranges} == model
    pairs = ranges.pairs()
    assert all(start < end for start, end in pairs)
    assert all(before[1] < after[0] for before, after in pairwise(pairs))
    assert OffsetRanges(pairs).pairs() == pairs and len(ranges) == len(pairs)
