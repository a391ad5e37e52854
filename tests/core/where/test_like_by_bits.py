"""Does looking at many places at once find the piece of a LIKE pattern where a regex finds it?"""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.where.like import compile_like, find_by_bits

LETTERS = "abAéŁ\U0001f600\n"


@given(
    st.text(LETTERS, max_size=60),
    st.lists(st.sampled_from([*LETTERS, None]), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(0, 10),
    st.integers(0, 60),
)
def test_it_finds_the_leftmost_place(
    text: str, letters: list[str | None], places_max: int, start: int, end: int
) -> None:
    end = min(end, len(text))
    pattern = "".join("." if one is None else re.escape(one) for one in letters)
    match = re.compile(pattern, re.DOTALL).search(text, start, end)
    expected = -1 if match is None else match.start()
    assert find_by_bits(letters, places_max)(text, start, end) == expected


def test_long_texts_are_matched_like_short_ones() -> None:
    text = "a" * 400_000 + "éb" + "a" * 1_000
    assert compile_like("%a_b%")(text)
    assert compile_like("%" + "a_" * 100 + "%é_%")(text)
    assert not compile_like("%" + "a_" * 1_000 + "bb%")(text)
    assert not compile_like("%Ł_a%")("A" * 300_000)
