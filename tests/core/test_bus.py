"""Does the bus reach exactly the processes an id means, and does its ring refuse when full?"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.bus import PEEK_BYTES_MAX, RING_MAX, BusTable, Ring, join_id, split_id
from penstock.model.errors import AlreadySubscribed, NotSubscribed, RefusedError, TooLarge

IDS = st.integers(0, 0xFFFF)
FEW_IDS = st.builds(join_id, st.integers(0, 3), st.integers(0, 3))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["subscribe", "unsubscribe", "drop"]), st.sampled_from("abc"), FEW_IDS
    )
)


@given(IDS)
def test_an_id_is_its_group_in_the_high_byte_and_its_topic_in_the_low(id: int) -> None:
    group, topic = split_id(id)
    assert (group, topic) == (id // 256, id % 256)
    assert join_id(group, topic) == id


@pytest.mark.parametrize("id", [-1, 65_536, 1.0, "7", None, True])
def test_what_is_no_bus_id_is_named_and_refused(id: object) -> None:
    with pytest.raises(RefusedError, match="is not a bus id"):
        split_id(id)  # type: ignore[arg-type]


@given(STEPS, FEW_IDS)
def test_a_message_reaches_those_of_its_topic_and_group_in_the_order_they_came(
    steps: list[tuple[str, str, int]], id: int
) -> None:
    table: BusTable[str] = BusTable()
    model: list[tuple[str, int, int]] = []  # process, topic, group
    for act, process, at in steps:
        group, topic = split_id(at)
        has = any(row[:2] == (process, topic) for row in model)
        if act == "drop":
            table.drop(process)
            model = [row for row in model if row[0] != process]
        elif act == "subscribe" and has:
            with pytest.raises(AlreadySubscribed):
                table.subscribe(process, at)
        elif act == "subscribe":
            table.subscribe(process, at)
            model.append((process, topic, group))
        elif has:
            table.unsubscribe(process, at)
            model = [row for row in model if row[:2] != (process, topic)]
        else:
            with pytest.raises(NotSubscribed):
                table.unsubscribe(process, at)
    group, topic = split_id(id)
    wanted = [p for p, t, g in model if t == topic and group in (0, g)]
    assert table.reached_by(id) == wanted


def test_one_process_too_many_is_refused_until_another_has_gone() -> None:
    table: BusTable[int] = BusTable(processes_max=2)
    table.subscribe(1, 7)
    table.subscribe(2, 7)
    table.subscribe(2, 8)
    with pytest.raises(RefusedError, match="processes_max"):
        table.subscribe(3, 9)
    table.unsubscribe(2, 8)
    with pytest.raises(RefusedError):
        table.subscribe(3, 9)
    table.unsubscribe(2, 7)
    table.subscribe(3, 9)
    assert table.reached_by(9) == [3]


@given(st.lists(st.one_of(st.integers(0, 5), st.binary(max_size=3)), max_size=60))
def test_a_ring_keeps_order_and_never_holds_more_than_its_bound(steps: list[int | bytes]) -> None:
    ring = Ring(count_max=4)
    model: deque[tuple[int, bytes]] = deque()
    for step in steps:
        if isinstance(step, bytes):
            if len(model) == 4:
                with pytest.raises(RefusedError, match="nothing was published"):
                    ring.put(7, step)
            else:
                ring.put(7, step)
                model.append((7, step))
        else:
            count = min(step, len(model))
            ring.drop_first(count)
            for _ in range(count):
                model.popleft()
        assert ring.peek() == list(model)
        assert len(ring) == len(model)


def test_the_ring_of_the_seed_holds_256() -> None:
    ring = Ring()
    for number in range(RING_MAX):
        ring.put(number, b"")
    assert RING_MAX == 256
    with pytest.raises(RefusedError):
        ring.put(0, b"")


def test_what_no_topic_takes_is_refused_before_it_waits() -> None:
    ring = Ring(payload_bytes_max=5)
    ring.put(7, b"12345")
    with pytest.raises(TooLarge, match="at most 5"):
        ring.put(7, b"123456")
    assert ring.peek() == [(7, b"12345")]


def test_what_is_stored_next_is_bounded_in_bytes_and_is_one_message_at_least() -> None:
    ring = Ring()
    large, small = b"x" * (PEEK_BYTES_MAX + 1), b"y" * (PEEK_BYTES_MAX // 2)
    for data in (large, small, small, b"z"):
        ring.put(7, data)
    taken = []
    while waiting := ring.peek():
        taken.append([data for _, data in waiting])
        ring.drop_first(len(waiting))
    assert taken == [[large], [small, small], [b"z"]]
