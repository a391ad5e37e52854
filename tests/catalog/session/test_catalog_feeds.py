"""Where the feeds of a session stand: is it what was stored last, whatever the broker's end?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.catalog.catalog import Catalog, TopicRow
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.session.saving import Checkpoint, Ending
from penstock.catalog.session.sessions import SessionCatalog
from penstock.catalog.session.stored_sessions import (
    OutstandingRow,
    StoredSession,
    SubscriptionRow,
)
from penstock.core.delivery.tags import RETAINED_FEED
from penstock.model.record import DEFAULT_TENANT, TopicId
from tests.catalog.faults import OpenDatabase

FEED = SubscriptionRow("a/#", 1, False, False, 0, {}, 1, "payload.t > 3")
OTHER = SubscriptionRow("b/#", 1, False, False, 0, {}, 2, "")


@pytest.fixture
async def catalog(open_database: OpenDatabase) -> AsyncIterator[Catalog]:
    opened = await Catalog.open(InlineRunner(open_database()))
    for topic_id in (1, 2):
        await add_topic(opened, topic_id)
    await opened.sessions.begin("c", "", 9, is_clean=False)
    await opened.sessions.subscribe("c", [FEED, OTHER], [(1, 1, 1, 4), (2, 1, 1, 8)])
    yield opened
    await opened.close()


async def add_topic(catalog: Catalog, topic_id: int) -> None:
    name = f"t{topic_id}"
    await catalog.insert_topic(TopicRow(DEFAULT_TENANT, TopicId(topic_id), name, name, "{}", 0))


async def loaded(sessions: SessionCatalog) -> StoredSession:
    stored, is_present = await sessions.begin("c", "", 9, is_clean=False)
    assert is_present
    return stored


async def test_a_feed_is_stored_with_its_expression_and_its_beginning(catalog: Catalog) -> None:
    stored = await loaded(catalog.sessions)
    assert sorted(stored.subscriptions, key=lambda row: row.filter) == [FEED, OTHER]
    assert stored.feeds[1][1] == (1, 4)
    assert stored.feeds[2][1] == (1, 8)
    assert stored.feed_id_last == 2


async def test_after_a_crash_a_feed_without_a_row_stands_at_the_level(catalog: Catalog) -> None:
    levels = {1: (1, 20), 2: (1, 30)}
    behind = [(1, 1, 1, 15)]  # feed 1 lags in topic 1; feed 2 nowhere
    await catalog.sessions.save(Checkpoint(levels, ["c"], feeds=[("c", [1, 2], behind)]))
    await catalog.sessions.recover()
    stored = await loaded(catalog.sessions)
    assert stored.feeds == {1: {1: (1, 15), 2: (1, 30)}, 2: {1: (1, 20), 2: (1, 30)}}


async def test_a_checkpoint_leaves_feeds_it_does_not_speak_of_alone(catalog: Catalog) -> None:
    await catalog.sessions.save(Checkpoint({}, ["c"], feeds=[("c", [2], [(2, 2, 1, 9)])]))
    stored = await loaded(catalog.sessions)
    assert stored.feeds[1][1] == (1, 4)
    assert stored.feeds[2][2] == (1, 9)


async def test_topics_born_while_the_client_was_away_are_read_from_0(catalog: Catalog) -> None:
    stored = await loaded(catalog.sessions)
    rows = [(1, 1, 1, 5), (1, 2, 1, 6)]
    incarnation = stored.incarnation
    positions = [(1, 1, 7), (2, 1, 7)]
    await catalog.sessions.end(Ending("c", incarnation, 9, 0, positions, [], [], [1], rows))
    await add_topic(catalog, 3)
    await loaded(catalog.sessions)
    await catalog.sessions.save(Checkpoint({3: (1, 100)}))
    await catalog.sessions.recover()  # a crash before the session was described
    stored = await loaded(catalog.sessions)
    assert stored.feeds[1] == {1: (1, 5), 2: (1, 6), 3: (0, 0)}
    assert stored.positions == {1: (1, 7), 2: (1, 7), 3: (0, 0)}


async def test_the_position_of_a_feed_goes_with_its_subscription(catalog: Catalog) -> None:
    plain = SubscriptionRow("a/#", 1, False, False, 0, {1: 4})
    await catalog.sessions.subscribe("c", [plain])
    assert set((await loaded(catalog.sessions)).feeds) == {2}
    await catalog.sessions.unsubscribe("c", ["b/#"])
    stored = await loaded(catalog.sessions)
    assert stored.feeds == {}
    assert stored.subscriptions == [plain]


async def test_one_record_can_be_out_for_several_feeds(catalog: Catalog) -> None:
    rows = [OutstandingRow(1, 5, 7 + feed_id, 2, False, feed_id) for feed_id in range(3)]
    await catalog.sessions.put_outstanding("c", rows)
    assert (await loaded(catalog.sessions)).outstanding == rows


def test_what_was_sent_because_it_was_retained_takes_no_feed_id() -> None:
    out = [
        OutstandingRow(1, 5, 7, 1, False, RETAINED_FEED),
        OutstandingRow(1, 6, 8, 1, False, RETAINED_FEED | 3),
    ]
    assert StoredSession("c", 1, 0, [], {}, out, []).feed_id_last == 3
