"""Does the catalog keep topics, bindings and consumers, and refuse what breaks their rules?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.catalog.catalog import BindingRow, Catalog, ConsumerRow, TopicRow
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import CatalogThread, InlineRunner
from penstock.model.clock import ManualClock
from penstock.model.errors import (
    AlreadySubscribed,
    NotSubscribed,
    RefusedError,
    TopicExists,
    TopicNotFound,
)
from penstock.model.record import DEFAULT_TENANT, TenantId, TopicId
from tests.catalog.faults import OpenDatabase


@pytest.fixture
async def catalog(database: Database) -> AsyncIterator[Catalog]:
    """A catalog of every backend."""
    yield await Catalog.open(InlineRunner(database), ManualClock())


def topic(topic_id: int, name: str = "Sensors") -> TopicRow:
    return TopicRow(DEFAULT_TENANT, TopicId(topic_id), name.casefold(), name, "{}", 1)


async def declare(catalog: Catalog, name: str) -> TopicId:
    topic_id = await catalog.reserve_topic_id()
    await catalog.insert_topic(topic(topic_id, name))
    return topic_id


async def test_a_new_catalog_is_empty_and_ids_start_at_1(catalog: Catalog) -> None:
    assert await catalog.load() == ([], [], [])
    assert [await catalog.reserve_topic_id() for _ in range(3)] == [1, 2, 3]


async def test_what_was_inserted_is_loaded(catalog: Catalog) -> None:
    first, second = topic(1, "Sensors"), topic(2, "ORDERS")
    await catalog.insert_topic(second)
    await catalog.insert_topic(first)
    await catalog.insert_binding("a/+", TopicId(2))
    await catalog.insert_consumer(TopicId(1), "billing", 3, 17)
    assert await catalog.load() == (
        [first, second],
        [BindingRow(DEFAULT_TENANT, 0, "a/+", TopicId(2))],
        [ConsumerRow(DEFAULT_TENANT, TopicId(1), "billing", 3, 17)],
    )


async def test_a_second_topic_with_the_same_key_is_refused(catalog: Catalog) -> None:
    await catalog.insert_topic(topic(1, "Sensors"))
    with pytest.raises(TopicExists, match="'SENSORS'"):
        await catalog.insert_topic(topic(2, "SENSORS"))
    topics, _, _ = await catalog.load()
    assert topics == [topic(1, "Sensors")]


async def test_altering_replaces_the_settings_only(catalog: Catalog) -> None:
    await catalog.insert_topic(topic(1, "a"))
    await catalog.insert_topic(topic(2, "b"))
    await catalog.alter_topic(TopicId(2), '{"durability":"os"}')
    topics, _, _ = await catalog.load()
    assert topics == [topic(1, "a"), replace(topic(2, "b"), settings='{"durability":"os"}')]
    with pytest.raises(TopicNotFound, match="id 9"):
        await catalog.alter_topic(TopicId(9), "{}")


async def test_deleting_a_topic_takes_its_own_bindings_and_consumers_along(
    catalog: Catalog,
) -> None:
    for topic_id, name in ((1, "a"), (2, "b")):
        await catalog.insert_topic(topic(topic_id, name))
        await catalog.insert_binding(f"{name}/#", TopicId(topic_id))
        await catalog.insert_consumer(TopicId(topic_id), "c", 1, 0)
    await catalog.delete_topic(TopicId(1))
    assert await catalog.load() == (
        [topic(2, "b")],
        [BindingRow(DEFAULT_TENANT, 1, "b/#", TopicId(2))],
        [ConsumerRow(DEFAULT_TENANT, TopicId(2), "c", 1, 0)],
    )
    with pytest.raises(TopicNotFound):
        await catalog.delete_topic(TopicId(1))


async def test_bindings_keep_the_order_in_which_they_were_made(catalog: Catalog) -> None:
    topic_id = await declare(catalog, "a")
    for filter_text in ("z/#", "m/#", "b/#"):
        await catalog.insert_binding(filter_text, topic_id)
    await catalog.delete_binding("m/#")
    await catalog.insert_binding("a/#", topic_id)
    _, bindings, _ = await catalog.load()
    assert [binding.filter for binding in bindings] == ["z/#", "b/#", "a/#"]


async def test_a_filter_is_bound_once_and_unbound_once(catalog: Catalog) -> None:
    topic_id = await declare(catalog, "a")
    await catalog.insert_binding("a/%_/A", topic_id)
    with pytest.raises(RefusedError, match="already bound"):
        await catalog.insert_binding("a/%_/A", topic_id)
    await catalog.insert_binding("a/%_/a", topic_id)  # names have letter case
    await catalog.delete_binding("a/%_/A")
    with pytest.raises(RefusedError, match="not bound"):
        await catalog.delete_binding("a/%_/A")
    with pytest.raises(TopicNotFound):
        await catalog.insert_binding("b", TopicId(77))


async def test_a_consumer_subscribes_once_per_topic_and_letter_case_counts(
    catalog: Catalog,
) -> None:
    first, second = await declare(catalog, "a"), await declare(catalog, "b")
    await catalog.insert_consumer(first, "c", 1, 5)
    with pytest.raises(AlreadySubscribed, match="'c'"):
        await catalog.insert_consumer(first, "c", 1, 9)
    await catalog.insert_consumer(first, "C", 1, 6)
    await catalog.insert_consumer(second, "c", 1, 7)
    _, _, consumers = await catalog.load()
    found = {(row.topic_id, row.consumer): row.next_offset for row in consumers}
    assert found == {(first, "c"): 5, (first, "C"): 6, (second, "c"): 7}
    with pytest.raises(TopicNotFound):
        await catalog.insert_consumer(TopicId(77), "c", 1, 0)
    with pytest.raises(TopicNotFound):
        await catalog.for_tenant(TenantId("other")).insert_consumer(first, "c", 1, 0)


async def test_unsubscribing_forgets_the_position(catalog: Catalog) -> None:
    topic_id = await declare(catalog, "a")
    await catalog.insert_consumer(topic_id, "c", 1, 5)
    await catalog.delete_consumer(topic_id, "c")
    with pytest.raises(NotSubscribed, match="'c'"):
        await catalog.delete_consumer(topic_id, "c")
    await catalog.insert_consumer(topic_id, "c", 2, 0)
    _, _, consumers = await catalog.load()
    assert consumers == [ConsumerRow(DEFAULT_TENANT, topic_id, "c", 2, 0)]


async def test_saved_positions_replace_and_never_bring_back_a_consumer(catalog: Catalog) -> None:
    topic_id = await declare(catalog, "a")
    for consumer in ("back", "forth", "gone"):
        await catalog.insert_consumer(topic_id, consumer, 1, 10)
    await catalog.delete_consumer(topic_id, "gone")
    await catalog.save_positions(
        [
            (DEFAULT_TENANT, topic_id, "back", 1, 3),
            (DEFAULT_TENANT, topic_id, "gone", 1, 20),
            (DEFAULT_TENANT, topic_id, "forth", 2, 30),
            (DEFAULT_TENANT, TopicId(77), "never", 1, 1),
        ]
    )
    await catalog.save_positions([])
    _, _, consumers = await catalog.load()
    assert sorted((row.consumer, row.epoch, row.next_offset) for row in consumers) == [
        ("back", 1, 3),
        ("forth", 2, 30),
    ]


async def test_ids_are_never_reused_after_deleting_and_opening_again(
    open_database: OpenDatabase,
) -> None:
    async def life() -> TopicId:
        catalog = await Catalog.open(await CatalogThread.start(open_database))
        topic_id = await declare(catalog, "a")
        await catalog.delete_topic(topic_id)
        await catalog.close()
        return topic_id

    assert [await life() for _ in range(4)] == [1, 2, 3, 4]


async def test_an_adopted_topic_moves_the_counter_past_its_id_and_never_back(
    catalog: Catalog,
) -> None:
    assert await catalog.peek_topic_id() == 1
    await catalog.adopt_topic(topic(7, "a"))
    assert await catalog.peek_topic_id() == 8
    await catalog.adopt_topic(topic(3, "b"))
    assert await catalog.reserve_topic_id() == 8
    with pytest.raises(TopicExists):
        await catalog.adopt_topic(topic(20, "A"))
    assert await catalog.peek_topic_id() == 9  # refused: the counter stays too
    topics, _, _ = await catalog.load()
    assert topics == [topic(3, "b"), topic(7, "a")]


async def test_concurrent_reservations_are_all_different(open_database: OpenDatabase) -> None:
    catalog = await Catalog.open(await CatalogThread.start(open_database))
    ids = await asyncio.gather(*(catalog.reserve_topic_id() for _ in range(50)))
    assert sorted(ids) == list(range(1, 51))
    await catalog.close()


async def test_of_concurrent_declarations_of_one_name_one_wins(open_database: OpenDatabase) -> None:
    catalog = await Catalog.open(await CatalogThread.start(open_database))
    results = await asyncio.gather(
        *(catalog.insert_topic(topic(n, "Same")) for n in range(1, 11)), return_exceptions=True
    )
    assert results[0] is None
    assert all(isinstance(error, TopicExists) for error in results[1:])
    await catalog.close()


async def test_opening_again_changes_nothing(open_database: OpenDatabase) -> None:
    async def life(first: bool) -> object:
        catalog = await Catalog.open(await CatalogThread.start(open_database), ManualClock())
        if first:
            topic_id = await declare(catalog, "a")
            await catalog.insert_binding("a/#", topic_id)
            await catalog.insert_consumer(topic_id, "c", 1, 2)
        snapshot = await catalog.load()
        await catalog.close()
        return snapshot

    assert await life(True) == await life(False)
