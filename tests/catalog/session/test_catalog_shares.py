"""Where shared subscriptions stand: is it what was stored last, whatever the broker's end?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.catalog.catalog import Catalog
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.session.saving import Checkpoint
from penstock.catalog.session.shares import ShareRow, ShareState, StoredShare
from penstock.catalog.session.stored_sessions import SubscriptionRow
from tests.catalog.faults import OpenDatabase
from tests.catalog.session.test_catalog_feeds import add_topic

KEY = "$share/g/a/#"
HELD = SubscriptionRow(KEY, 2, False, False, 0, {})
ROWS = [ShareRow(1, 3, 1), ShareRow(1, 5, 2, "c", 17, True), ShareRow(1, 9, 0)]
AWAY = ShareState(4, KEY, False, [(1, 1, 6), (2, 1, 0)], ROWS)


@pytest.fixture
async def catalog(open_database: OpenDatabase) -> AsyncIterator[Catalog]:
    """With two topics and a client `c` that holds a share."""
    opened = await Catalog.open(InlineRunner(open_database()))
    for topic_id in (1, 2):
        await add_topic(opened, topic_id)
    await opened.sessions.begin("c", "", 9, is_clean=False)
    await opened.sessions.subscribe("c", [HELD])
    yield opened
    await opened.close()


async def recovered(catalog: Catalog) -> list[StoredShare]:
    found = await catalog.sessions.shares.recover()
    return [
        replace(one, state=replace(one.state, positions=sorted(one.state.positions)))
        for one in found
    ]


async def test_a_share_is_stored_with_its_positions_and_what_is_out(catalog: Catalog) -> None:
    await catalog.sessions.subscribe("c", [], shares=[AWAY])
    assert await recovered(catalog) == [StoredShare(AWAY, {"c": 2})]


async def test_a_checkpoint_replaces_what_was_stored_of_a_share(catalog: Catalog) -> None:
    other = ShareState(5, "$share/h/a/#", False, [], [])
    await catalog.sessions.subscribe("c", [replace(HELD, filter=other.filter)])
    await catalog.sessions.subscribe("c", [], shares=[AWAY, other])
    moved = replace(AWAY, positions=[(1, 1, 8)], rows=[ShareRow(2, 1, 1)])
    await catalog.sessions.save(Checkpoint(shares=[moved]))
    assert [one.state for one in await recovered(catalog)] == [moved, other]


async def test_after_a_crash_a_live_share_without_a_position_stands_at_the_level(
    catalog: Catalog,
) -> None:
    live = replace(AWAY, is_live=True, positions=[(1, 1, 6)], rows=[])
    await catalog.sessions.save(Checkpoint({1: (1, 20), 2: (1, 30)}, shares=[live]))
    (found,) = await recovered(catalog)
    assert found.state.positions == [(1, 1, 6), (2, 1, 30)]
    await catalog.sessions.save(Checkpoint({2: (1, 40)}))
    (found,) = await recovered(catalog)  # it is not live any more
    assert found.state.positions == [(1, 1, 6), (2, 1, 30)]


async def test_qos_2_messages_are_put_beside_what_is_stored_and_released(catalog: Catalog) -> None:
    await catalog.sessions.subscribe("c", [], shares=[replace(AWAY, rows=[])])
    sent = ShareRow(1, 7, 2, "c", 3)
    nobody = ShareRow(99, 7, 2, "c", 4)  # its topic was deleted meanwhile
    await catalog.sessions.put_outstanding("c", [], [(4, sent), (4, nobody), (77, sent)])
    (found,) = await recovered(catalog)
    assert found.state.rows == [sent]
    released = replace(sent, is_released=True)
    await catalog.sessions.put_outstanding("c", [], [(4, released)])
    (found,) = await recovered(catalog)
    assert found.state.rows == [released]


async def test_what_was_out_to_a_session_that_is_gone_is_done(catalog: Catalog) -> None:
    await catalog.sessions.begin("d", "", 9, is_clean=False)
    await catalog.sessions.subscribe("d", [replace(HELD, qos=1)])
    await catalog.sessions.subscribe("c", [], shares=[AWAY])
    await catalog.sessions.forget("c")
    (found,) = await recovered(catalog)
    assert found.holders == {"d": 1}
    assert [(row.offset, row.qos, row.client_id) for row in found.state.rows] == [
        (3, 1, ""),
        (5, 0, ""),
        (9, 0, ""),
    ]


async def test_a_share_that_nobody_holds_stays_for_what_is_out_at_qos_2(catalog: Catalog) -> None:
    await catalog.sessions.subscribe("c", [], shares=[AWAY])
    await catalog.sessions.unsubscribe("c", [KEY])
    assert await recovered(catalog) == [StoredShare(AWAY, {})]
    await catalog.sessions.forget("c")
    assert await recovered(catalog) == []


async def test_a_share_goes_and_a_topic_takes_its_part_of_it_along(catalog: Catalog) -> None:
    await catalog.sessions.subscribe("c", [], shares=[AWAY])
    await catalog.delete_topic(1)
    (found,) = await recovered(catalog)
    assert (found.state.positions, found.state.rows) == ([(2, 1, 0)], [])
    await catalog.sessions.shares.remove(4)
    assert await recovered(catalog) == []
