"""Is the estimate of stored bytes exact where it was counted, and never too small a bound?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.kafka.sizes import POINTS_MAX, Sizes

batches = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 10_000)), max_size=30)


@given(st.integers(0, 100), batches, st.integers(0, 200_000))
def test_trimming_to_a_size_keeps_at_least_that_much_and_little_more(
    first: int, appended: list[tuple[int, int]], bytes_max: int
) -> None:
    sizes = Sizes(first, first, 0)
    offset, total, largest = first, 0, 0
    for count, size in appended:
        offset += count
        total += size
        largest = max(largest, size)
        sizes.add(offset, size)
        assert sizes.before(offset) == total
    found = sizes.first_within(bytes_max)
    assert first <= found <= offset
    assert sizes.kept(found) >= min(bytes_max, total)
    if total > bytes_max:
        assert sizes.kept(found) <= bytes_max + largest


def test_a_log_that_grows_for_ever_takes_bounded_memory() -> None:
    sizes = Sizes(0, 1_000, 5_000)
    for end in range(1_001, 50_000):
        sizes.add(end, 10)
    assert len(sizes._offsets) <= POINTS_MAX + 1
    assert sizes.kept(0) == 5_000 + 48_999 * 10
    assert abs(sizes.kept(25_000) - 24_999 * 10) < 1_000
