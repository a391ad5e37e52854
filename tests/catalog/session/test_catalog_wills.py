"""Are wills kept as they were given, replaced whole, and never mistaken for one another?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.catalog.catalog import Catalog
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.session.saving import Checkpoint
from penstock.catalog.session.wills import NOT_DUE, HeldWill
from penstock.model.will import NO_WILL, Will
from tests.catalog.faults import OpenDatabase

FULL = Will("a/b", b"\x00\xff", 2, True, (("k", "1"), ("k", "2")), 60, 3600)


@asynccontextmanager
async def opened_catalog(open_database: OpenDatabase) -> AsyncIterator[Catalog]:
    catalog = await Catalog.open(InlineRunner(open_database()))
    yield catalog
    await catalog.close()


@pytest.fixture
async def catalog(open_database: OpenDatabase) -> AsyncIterator[Catalog]:
    async with opened_catalog(open_database) as opened:
        yield opened


async def test_a_will_comes_back_as_it_was_given(open_database: OpenDatabase) -> None:
    async with opened_catalog(open_database) as catalog:
        assert await catalog.wills.hold("c", "alice", 100, FULL) == 1
        assert await catalog.wills.hold("d", "", 0, Will("a", b"")) == 2

    async with opened_catalog(open_database) as catalog:
        assert await catalog.wills.held() == [
            HeldWill(1, "c", "alice", 3600, 100, NOT_DUE),
            HeldWill(2, "d", "", 0, 0, NOT_DUE),
        ]
        first, second = await catalog.wills.load([1, 7, 2])
        assert (first.will_id, first.client_id, first.owner, first.will) == (1, "c", "alice", FULL)
        assert second.will == Will("a", b"")


async def test_a_new_will_takes_the_place_of_the_last_one(catalog: Catalog) -> None:
    first = await catalog.wills.hold("c", "", 0, FULL)
    second = await catalog.wills.hold("c", "", 0, FULL, first)
    assert [held.will_id for held in await catalog.wills.held()] == [second]
    assert await catalog.wills.hold("c", "", 0, None, second) == NO_WILL
    assert await catalog.wills.held() == []


async def test_ids_are_never_given_out_twice(open_database: OpenDatabase) -> None:
    async with opened_catalog(open_database) as catalog:
        will_id = await catalog.wills.hold("c", "", 0, FULL)
        await catalog.wills.delete(will_id)

    async with opened_catalog(open_database) as catalog:
        assert await catalog.wills.hold("c", "", 0, FULL) == 2


async def test_when_a_will_is_due_is_remembered(catalog: Catalog) -> None:
    will_id = await catalog.wills.hold("c", "", 0, FULL)
    await catalog.wills.set_due(will_id, 1_700_000_000_000_000)
    (held,) = await catalog.wills.held()
    assert held.due_at == 1_700_000_000_000_000


async def test_a_checkpoint_takes_the_wills_along_that_are_in_the_logs(catalog: Catalog) -> None:
    ids = [await catalog.wills.hold(str(number), "", 0, FULL) for number in range(3)]
    await catalog.sessions.save(Checkpoint(wills=ids[:2]))
    assert [held.will_id for held in await catalog.wills.held()] == ids[2:]
