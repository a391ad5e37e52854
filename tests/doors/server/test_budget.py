"""Do shares of a budget always add up to what the budget counts?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.budget import Budget, Share


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["take", "give", "move", "close"]), st.integers(0, 9)
        )
    )
)
def test_a_budget_counts_what_its_shares_hold(steps: list[tuple[int, str, int]]) -> None:
    strangers, known = Budget(12), Budget(40)
    shares = [Share(strangers) for _ in range(4)]
    model = [[0, strangers] for _ in shares]
    for at, step, size in steps:
        share, row = shares[at], model[at]
        held, budget = row
        if step == "take":
            used = sum(other[0] for other in model if other[1] is budget)
            fits = used + size <= budget.bytes_max
            assert share.take(size) is fits
            row[0] = held + size * fits
        elif step == "give":
            row[0] = held - min(size, held)
            share.give_back(min(size, held))
        elif step == "move":
            share.move(known)
            row[1] = known
        else:
            share.close()
            row[0] = 0
        for one in (strangers, known):
            assert one.bytes == sum(held for held, budget in model if budget is one)
        assert [share.bytes for share in shares] == [held for held, _ in model]
