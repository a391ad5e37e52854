"""Is what clients do not read bounded, however many they are, and does each have its part?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.mqtt.unsent import (
    LARGE_BYTES,
    OUT_BYTES_MAX,
    OUT_BYTES_MIN,
    OUT_BYTES_ROOM,
    Backlog,
    Unsent,
    joined,
)
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


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=60))
def test_a_large_message_counts_once_for_all_its_readers(
    steps: list[tuple[int, int, bool]],
) -> None:
    unsent = Unsent(BOUND)
    messages = [bytes([at]) * (LARGE_BYTES + at) for at in range(4)]
    readers = [Backlog(unsent) for _ in range(5)]
    model: list[list[bytes]] = [[] for _ in readers]
    for reader, message, is_sent in steps:
        if not is_sent:
            readers[reader].add(messages[message])
            model[reader].append(messages[message])
        elif model[reader]:
            readers[reader].sent(model[reader].pop(0))
        else:
            readers[reader].sent(messages[message])  # not one of those that wait
        waiting = {id(one): len(one) for each in model for one in each}
        assert unsent.bytes == sum(waiting.values())
        assert [one.large_bytes for one in readers] == [sum(map(len, each)) for each in model]
    for one in readers:
        one.close()
    assert unsent.bytes == 0


@given(st.lists(st.sampled_from([b"", b"a", b"bc", bytes(LARGE_BYTES), b"x" * (LARGE_BYTES + 7)])))
def test_large_messages_are_written_as_they_are_and_the_others_joined(out: list[bytes]) -> None:
    large = [id(one) for one in out if len(one) >= LARGE_BYTES]
    whole = b"".join(out)
    pieces = joined(out)
    assert b"".join(pieces) == whole and out == []
    assert [id(one) for one in pieces if len(one) >= LARGE_BYTES] == large
    assert len(pieces) <= 2 * len(large) + 1


def test_whoever_listens_hears_that_there_is_too_much() -> None:
    heard: list[int] = []
    unsent = Unsent(100, on_exceeded=lambda: heard.append(unsent.bytes))
    unsent.count(100)
    unsent.count(1)
    unsent.count(-1)
    assert heard == [101]
