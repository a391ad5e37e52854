"""Is what clients do not read bounded, however many they are, and does each have its part?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.mqtt.unsent import OUT_BYTES_MAX, OUT_BYTES_MIN, OUT_BYTES_ROOM, Unsent
from penstock.model.limits import MIB

BOUND = 128 * MIB


@given(st.lists(st.tuples(st.integers(0, 199), st.integers(1, 4 * MIB), st.booleans())))
def test_together_they_leave_no_more_unread_than_the_bound_and_the_least_of_each(
    steps: list[tuple[int, int, bool]],
) -> None:
    unsent = Unsent(BOUND)
    waiting = [0] * 200
    for client, size, is_read in steps:
        if is_read:
            unsent.count(-waiting[client])
            waiting[client] = 0
        elif waiting[client] + size <= unsent.most:
            unsent.count(size)
            waiting[client] += size
        assert unsent.bytes == sum(waiting) <= BOUND + len(waiting) * OUT_BYTES_MIN
        assert OUT_BYTES_MIN <= unsent.room <= min(unsent.most, OUT_BYTES_ROOM)


def test_clients_that_do_not_read_share_what_there_is() -> None:
    unsent = Unsent(BOUND)
    assert unsent.most == OUT_BYTES_MAX
    waiting = [0] * 1_000
    for _ in range(300):  # small pieces in turn, as messages come
        for client in range(len(waiting)):
            if waiting[client] + 4_096 <= unsent.most:
                unsent.count(4_096)
                waiting[client] += 4_096
    assert max(waiting) - min(waiting) <= 4_096
    assert min(waiting) > 100_000
