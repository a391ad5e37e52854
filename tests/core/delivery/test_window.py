"""The window against a dict: no id twice, none out of range, nothing forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.window import PACKET_ID_MAX, Window

STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "release", "unknown"]), st.integers(0, 40)), max_size=80
)


@given(size=st.integers(1, 30), steps=STEPS, start=st.integers(1, PACKET_ID_MAX))
def test_window_gives_out_free_ids_and_remembers_their_tags(
    size: int, steps: list[tuple[str, int]], start: int
) -> None:
    window = Window(size)
    window._next_id = start
    out: dict[int, int] = {}
    next_tag = 1000
    for step, number in steps:
        if step == "take":
            count = min(number, window.room)
            ids = window.take(next_tag, count)
            assert len(set(ids)) == count and not out.keys() & set(ids)
            assert all(1 <= packet_id <= PACKET_ID_MAX for packet_id in ids)
            out |= {packet_id: next_tag + at for at, packet_id in enumerate(ids)}
            next_tag += count
        elif step == "release" and out:
            packet_id = list(out)[number % len(out)]
            assert window.release(packet_id) == out.pop(packet_id)
        else:
            unknown = next(one for one in range(1, 100) if one not in out)
            assert window.release(unknown) == window.tag_of(unknown) == -1
        assert window.items() == list(out.items())  # in the order of sending
        assert (window.count, window.room) == (len(out), size - len(out))
        assert all(window.tag_of(packet_id) == tag for packet_id, tag in out.items())


@given(restored=st.sets(st.integers(1, 50), max_size=20), size=st.integers(1, 30))
def test_ids_that_were_out_before_are_not_given_out_again(restored: set[int], size: int) -> None:
    window = Window(size)
    for packet_id in restored:
        window.restore(packet_id, packet_id + 5000)
    assert window.room == size - len(restored)  # may be below zero: the window was larger once
    if window.room > 0:
        assert not restored & set(window.take(0, window.room))


def test_the_largest_window_uses_every_id_there_is() -> None:
    window = Window(PACKET_ID_MAX)
    assert sorted(window.take(0, PACKET_ID_MAX)) == list(range(1, PACKET_ID_MAX + 1))
    assert window.room == 0
    window.release(17)
    assert window.take(0, 1) == [17]
    with pytest.raises(AssertionError):
        window.take(0, 1)
