"""Does a log in Kafka count messages and not offsets?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.format.batch import Batch
from penstock.log.format.builder import Columns, assemble
from penstock.log.kafka.counts import LOOK_BACK_MAX, Counts

gapped = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 3)).filter(lambda one: sum(one) > 0), max_size=30
)


def shown(plans: list[tuple[int, int]], first: int) -> list[Batch]:
    """Batches of so many messages with so many offsets without one behind them."""
    batches = []
    for count, gap in plans:
        columns = Columns()
        columns.starts = bytes(4)
        batch = assemble(columns, b"", 1, first, 0)
        batch.header.count = count
        first += count + gap
        batch.end_offset = first
        batches.append(batch)
    return batches


def messages(batches: list[Batch]) -> list[int]:
    """The offsets that hold one."""
    return [at for one in batches for at in range(one.base_offset, one.header.end_offset)]


async def one_by_one(batches: list[Batch], first: int) -> AsyncIterator[Batch]:
    for batch in batches:
        if batch.end_offset > first:
            yield batch


@given(st.integers(0, 100), gapped, st.data())
def test_what_was_shown_is_counted_from_any_offset_to_any_other(
    first: int, plans: list[tuple[int, int]], data: st.DataObject
) -> None:
    counts = Counts(first, first)
    batches = shown(plans, first)
    for batch in batches:
        counts.add(batch)
    end = batches[-1].end_offset if batches else first
    start = data.draw(st.integers(first, end))
    last = data.draw(st.integers(start, end))
    held = [at for at in messages(batches) if start <= at < last]
    assert counts.between(start, last) == len(held)


@given(st.integers(0, 100), gapped, gapped, st.data())
def test_what_was_there_before_is_an_upper_bound_until_somebody_looked(
    first: int, older: list[tuple[int, int]], newer: list[tuple[int, int]], data: st.DataObject
) -> None:
    before = shown(older, first)
    opened = before[-1].end_offset if before else first
    after = shown(newer, opened)
    counts = Counts(first, opened)
    for batch in after:
        counts.add(batch)
    end = after[-1].end_offset if after else opened
    start = data.draw(st.integers(first, end))
    held = [at for at in messages(before + after) if at >= start]
    assert counts.between(start, end) >= len(held)
    assert counts.between(max(start, opened), end) == len([at for at in held if at >= opened])
    asyncio.run(counts.look_back(first, one_by_one(before + after, first)))
    assert counts.between(start, end) == len(held)


def test_looking_back_is_bounded() -> None:
    counts = Counts(0, 10 * LOOK_BACK_MAX)
    assert counts.look_back_from(0) == 9 * LOOK_BACK_MAX


def test_a_gap_after_every_message_takes_bounded_memory_and_stays_about_right() -> None:
    counts = Counts(0, 0)
    for batch in shown([(1, 1)] * 20_000, 0):
        counts.add(batch)
    assert counts.between(0, 40_000) == 20_000
    assert abs(counts.between(10_000, 40_000) - 15_000) < 50
