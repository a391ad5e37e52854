"""Is the newest noted position always either saved or still due?"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.catalog.catalog import Catalog, Position, TopicRow
from penstock.catalog.database.sqlite import MEMORY, SqliteDatabase
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.queue.positions import DirtyPositions, PositionKey, PositionSaver
from penstock.model.errors import UnavailableError
from penstock.model.record import DEFAULT_TENANT, TopicId
from tests.examples import examples

TOPIC = TopicId(1)
FOR_EVER_S = 3_600.0


def key(consumer: str) -> PositionKey:
    return (DEFAULT_TENANT, TOPIC, consumer)


class Store:
    """Saves into a dict; can be told to fail, or to wait until it is let go."""

    def __init__(self) -> None:
        self.saved: dict[PositionKey, tuple[int, int]] = {}
        self.batches: list[int] = []
        self.failures_left = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.stored = asyncio.Event()

    async def save(self, positions: Sequence[Position]) -> None:
        self.called.set()
        await self.gate.wait()
        if self.failures_left:
            self.failures_left -= 1
            raise UnavailableError("not now", retry_after_s=0.0)
        self.batches.append(len(positions))
        for tenant, topic_id, consumer, epoch, next_offset in positions:
            self.saved[tenant, topic_id, consumer] = (epoch, next_offset)
        self.stored.set()


def saver_over(
    store: Store, saves_max: int = 1_000, save_s_max: float = FOR_EVER_S
) -> PositionSaver:
    return PositionSaver(
        store.save, asyncio.get_running_loop(), saves_max=saves_max, save_s_max=save_s_max
    )


# The decisions


def test_nothing_noted_is_never_due() -> None:
    assert DirtyPositions().due_at_s() == math.inf


def test_the_oldest_unsaved_position_decides_when_time_is_up() -> None:
    dirty = DirtyPositions(saves_max=100, save_s_max=2.0)
    assert dirty.note(key("a"), 1, 1, now_s=10.0)
    assert not dirty.note(key("b"), 1, 1, now_s=11.5)
    assert dirty.due_at_s() == 12.0


def test_reaching_the_count_is_due_at_once() -> None:
    dirty = DirtyPositions(saves_max=3, save_s_max=2.0)
    for n in range(10):
        dirty.note(key("same"), 1, n, now_s=10.0)  # one consumer counts once
    dirty.note(key("b"), 1, 1, now_s=10.0)
    assert dirty.due_at_s() == 12.0
    assert dirty.note(key("c"), 1, 1, now_s=10.0)
    assert dirty.due_at_s() == -math.inf


def test_after_a_failure_not_even_the_count_is_due_before_the_retry() -> None:
    dirty = DirtyPositions(saves_max=1, save_s_max=2.0)
    dirty.note(key("a"), 1, 1, now_s=10.0)
    dirty.take(10)
    dirty.failed(retry_at_s=15.0)
    dirty.note(key("b"), 1, 1, now_s=11.0)
    assert dirty.due_at_s() == 15.0
    assert dirty.take(10) == [(*key("a"), 1, 1), (*key("b"), 1, 1)]
    dirty.saved()
    dirty.note(key("a"), 1, 2, now_s=20.0)
    assert dirty.due_at_s() == -math.inf


def test_a_position_noted_while_an_older_one_fails_to_be_saved_is_the_one_kept() -> None:
    dirty = DirtyPositions()
    dirty.note(key("a"), 1, 1, now_s=0.0)
    dirty.note(key("b"), 1, 1, now_s=0.0)
    dirty.take(10)
    dirty.note(key("a"), 1, 2, now_s=0.0)
    dirty.failed(retry_at_s=0.0)
    assert dirty.take(10) == [(*key("a"), 1, 2), (*key("b"), 1, 1)]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.integers(0, 1), st.integers(0, 3), st.integers(0, 99)),
        st.tuples(st.just("forget"), st.integers(0, 1)),
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("saved")),
        st.tuples(st.just("failed")),
    ),
    max_size=60,
)


@examples(500)
@given(OPERATIONS)
def test_the_newest_position_of_a_live_consumer_is_saved_or_dirty(
    operations: list[tuple[str, int, int, int]],
) -> None:
    """Forgetting, failing and noting in any order, also while a batch is being saved."""
    dirty = DirtyPositions()
    newest: dict[PositionKey, tuple[int, int]] = {}
    stored: dict[PositionKey, tuple[int, int]] = {}
    batch: list[Position] = []
    for operation, *arguments in operations:
        if operation == "note":
            consumer, epoch, next_offset = arguments
            dirty.note(key(str(consumer)), epoch, next_offset, now_s=0.0)
            newest[key(str(consumer))] = (epoch, next_offset)
        elif operation == "forget":
            forgotten = key(str(arguments[0]))
            dirty.forget(forgotten)
            newest.pop(forgotten, None)
            stored.pop(forgotten, None)  # the row is deleted, and a late save finds none
            batch = [position for position in batch if position[:3] != forgotten]
        elif operation == "take" and not batch:
            batch = dirty.take(arguments[0])
        elif operation == "saved" and batch:
            dirty.saved()
            stored.update({position[:3]: position[3:] for position in batch})
            batch = []
        elif operation == "failed" and batch:
            dirty.failed(retry_at_s=0.0)
            batch = []
    if batch:
        dirty.failed(retry_at_s=0.0)
    stored.update({position[:3]: position[3:] for position in dirty.take(100)})
    assert stored == newest


# The acting part


async def test_notes_reach_the_store_by_count_without_a_flush() -> None:
    store = Store()
    saver = saver_over(store, saves_max=3)
    for consumer in ("a", "b"):
        saver.note(*key(consumer), 1, 7)
    await asyncio.sleep(0)
    assert not store.called.is_set()
    saver.note(*key("c"), 1, 7)
    await store.called.wait()
    await saver.close()
    assert store.saved == {key(consumer): (1, 7) for consumer in "abc"}
    assert store.batches == [3]


async def test_notes_reach_the_store_by_time_without_a_flush() -> None:
    store = Store()
    saver = saver_over(store, save_s_max=0.01)
    for round_number in range(3):
        store.called.clear()
        saver.note(*key("a"), 1, round_number)
        await store.called.wait()
        await saver.flush()
        assert store.saved == {key("a"): (1, round_number)}
    await saver.close()


async def test_flush_returns_when_everything_noted_before_is_saved() -> None:
    store = Store()
    saver = saver_over(store)
    saver.note(*key("a"), 1, 1)
    store.gate.clear()
    first = asyncio.create_task(saver.flush())
    await store.called.wait()
    saver.note(*key("a"), 1, 2)  # while the older one is on its way
    saver.note(*key("b"), 1, 1)
    second = asyncio.create_task(saver.flush())
    store.gate.set()
    await asyncio.gather(first, second)
    assert store.saved == {key("a"): (1, 2), key("b"): (1, 1)}
    assert len(saver) == 0


async def test_a_flush_ends_although_notes_keep_coming() -> None:
    store = Store()

    async def save_and_note(positions: Sequence[Position]) -> None:
        saver.note(*key(f"new {len(store.saved)}"), 1, 1)
        await store.save(positions)

    saver = PositionSaver(save_and_note, asyncio.get_running_loop(), save_s_max=FOR_EVER_S)
    saver.note(*key("a"), 1, 1)
    await asyncio.wait_for(saver.flush(), 60)
    assert list(store.saved) == [key("a")]


async def test_a_failed_flush_keeps_everything_and_is_tried_again_by_itself() -> None:
    store = Store()
    saver = saver_over(store, save_s_max=0.01)
    saver.note(*key("a"), 1, 1)
    saver.note(*key("b"), 1, 1)
    store.failures_left = 1
    with pytest.raises(UnavailableError):
        await saver.flush()
    assert len(saver) == 2
    assert isinstance(saver.last_error, UnavailableError)
    saver.note(*key("a"), 1, 5)
    store.called.clear()
    await store.called.wait()
    await saver.close()
    assert store.saved == {key("a"): (1, 5), key("b"): (1, 1)}
    assert saver.last_error is None


async def test_what_is_noted_during_a_save_is_saved_by_time_too() -> None:
    store = Store()
    saver = saver_over(store, save_s_max=0.01)
    saver.note(*key("a"), 1, 1)
    store.gate.clear()
    await store.called.wait()
    saver.note(*key("b"), 1, 1)
    store.called.clear()
    store.gate.set()
    await asyncio.wait_for(store.called.wait(), 60)
    await saver.close()
    assert store.saved == {key("a"): (1, 1), key("b"): (1, 1)}


async def test_a_failed_save_in_the_background_needs_no_further_note_to_be_tried_again() -> None:
    store = Store()
    saver = saver_over(store, save_s_max=0.01)
    store.failures_left = 3
    saver.note(*key("a"), 1, 1)
    await asyncio.wait_for(store.stored.wait(), 60)
    assert store.saved == {key("a"): (1, 1)}
    assert store.failures_left == 0
    await saver.close()


async def test_a_consumer_forgotten_while_its_save_fails_stays_forgotten() -> None:
    store = Store()
    saver = saver_over(store)
    saver.note(*key("a"), 1, 1)
    saver.note(*key("b"), 1, 1)
    store.gate.clear()
    store.failures_left = 1
    flush = asyncio.create_task(saver.flush())
    await store.called.wait()
    saver.forget(key("a"))
    store.gate.set()
    with pytest.raises(UnavailableError):
        await flush
    await saver.flush()
    assert store.saved == {key("b"): (1, 1)}


async def test_memory_is_one_entry_per_consumer() -> None:
    store = Store()
    saver = saver_over(store)
    for n in range(10_000):
        saver.note(*key(str(n % 10)), 1, n)
    assert len(saver) == 10
    await saver.close()
    assert store.batches == [10]
    with pytest.raises(AssertionError):
        saver.note(*key("late"), 1, 1)


@examples(40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("note"), st.integers(0, 3), st.integers(0, 99)),
            st.tuples(st.just("subscribe"), st.integers(0, 3)),
            st.tuples(st.just("unsubscribe"), st.integers(0, 3)),
            st.tuples(st.just("flush")),
        ),
        max_size=40,
    )
)
async def test_after_a_flush_the_catalog_holds_the_newest_noted_positions(
    operations: list[tuple[str, int, int]],
) -> None:
    catalog = await Catalog.open(InlineRunner(SqliteDatabase(MEMORY)))
    await catalog.insert_topic(TopicRow(DEFAULT_TENANT, TOPIC, "t", "t", "{}", 1))
    saver = PositionSaver(
        catalog.save_positions, asyncio.get_running_loop(), saves_max=3, save_s_max=FOR_EVER_S
    )
    model: dict[str, int] = {}
    for operation, *arguments in operations:
        consumer = str(arguments[0]) if arguments else ""
        if operation == "note" and consumer in model:
            saver.note(*key(consumer), 1, arguments[1])
            model[consumer] = arguments[1]
        elif operation == "subscribe" and consumer not in model:
            await catalog.insert_consumer(TOPIC, consumer, 1, 0)
            model[consumer] = 0
        elif operation == "unsubscribe" and consumer in model:
            saver.forget(key(consumer))
            await catalog.delete_consumer(TOPIC, consumer)
            del model[consumer]
        elif operation == "flush":
            await saver.flush()
            assert await positions_in(catalog) == model
    await saver.close()
    assert await positions_in(catalog) == model
    await catalog.close()


async def positions_in(catalog: Catalog) -> dict[str, int]:
    _, _, consumers = await catalog.load()
    return {row.consumer: row.next_offset for row in consumers}
