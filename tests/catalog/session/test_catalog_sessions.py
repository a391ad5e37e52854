"""Does the catalog give sessions, retained messages and users back as they were?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.catalog.catalog import Catalog, TopicRow
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.queue.keys import KeyRow
from penstock.catalog.session.retained import RetainedRow, head_of
from penstock.catalog.session.saving import Checkpoint, Ending
from penstock.catalog.session.sessions import NEVER_EXPIRES
from penstock.catalog.session.stored_sessions import OutstandingRow, SubscriptionRow
from penstock.model.clock import ManualClock
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT
from tests.catalog.faults import OpenDatabase


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def catalog(open_database: OpenDatabase, clock: ManualClock) -> AsyncIterator[Catalog]:
    opened = await Catalog.open(InlineRunner(open_database()), clock)
    await add_topic(opened, "orders")
    yield opened
    await opened.close()


async def add_topic(catalog: Catalog, name: str) -> int:
    topic_id = await catalog.reserve_topic_id()
    await catalog.insert_topic(TopicRow(DEFAULT_TENANT, topic_id, name, name, "{}", 1))
    return topic_id


def retained(name: str, offset: int, payload: bytes = b"\0\xff") -> RetainedRow:
    headers = (("k", "v"), ("k", "ü"))
    return RetainedRow(name, 1, offset, 10, 0, 1, 2, "pump", headers, payload)


async def test_what_no_client_can_be_called_has_no_session(catalog: Catalog) -> None:
    await catalog.sessions.begin("c", "alice", 60, is_clean=False)
    assert list(await catalog.session_list.find(["c\0", "c", "\0"])) == ["c"]


async def test_a_session_comes_back_with_all_it_had(catalog: Catalog, clock: ManualClock) -> None:
    sessions = catalog.sessions
    stored, was_there = await sessions.begin("c", "alice", 60, is_clean=False)
    assert not was_there and stored.subscriptions == []
    subscription = SubscriptionRow("a/#", 2, True, False, 7, {1: 5, 9: 2**40})
    await sessions.subscribe("c", [subscription, SubscriptionRow("b", 0, False, True, 0, {})])
    await sessions.subscribe("c", [SubscriptionRow("b", 1, False, False, 0, {1: 1})])
    await sessions.unsubscribe("c", ["nothing"])
    out = [OutstandingRow(1, 4, 11, 2, True), OutstandingRow(1, 3, 10, 1, False)]
    feeds = [(4, 1, 1, 2), (4, 999, 1, 0)]  # a topic that is gone is left out
    positions = [(1, 1, 3)]
    await sessions.end(
        Ending("c", stored.incarnation, 60, 0, positions, out, [(1, 77)], [4], feeds)
    )
    again, was_there = await sessions.begin("c", "alice", 120, is_clean=False)
    assert was_there and again.incarnation == stored.incarnation and again.expiry_s == 120
    by_filter = {one.filter: one for one in again.subscriptions}
    assert by_filter["a/#"] == subscription
    assert by_filter["b"] == SubscriptionRow("b", 1, False, False, 0, {1: 1})
    assert again.positions == {1: (1, 3)}
    assert again.outstanding == sorted(out, key=lambda row: row.offset)
    assert again.opened == [(1, 77)]
    assert again.feeds == {4: {1: (1, 2)}}


async def test_a_clean_start_forgets_everything_and_is_another_incarnation(
    catalog: Catalog, clock: ManualClock
) -> None:
    sessions = catalog.sessions
    old, _ = await sessions.begin("c", "", 60, is_clean=False)
    await sessions.subscribe("c", [SubscriptionRow("a", 1, False, False, 0, {})])
    new, was_there = await sessions.begin("c", "", 60, is_clean=True)
    assert not was_there and new.subscriptions == [] and new.incarnation > old.incarnation
    late = Ending("c", old.incarnation, 60, 0, [(1, 1, 9)], [], [], [], [])  # of the older one
    await sessions.end(late)
    positions = (await sessions.begin("c", "", 60, is_clean=False))[0].positions
    assert positions == {1: (0, 0)}, "what the older one left does not count"
    assert await sessions.incarnations() == {new.incarnation: "c"}


async def test_a_checkpoint_saves_how_a_session_ended_before_its_own_changes(
    catalog: Catalog, clock: ManualClock
) -> None:
    sessions = catalog.sessions
    stored, _ = await sessions.begin("c", "", 60, is_clean=False)
    ending = Ending("c", stored.incarnation, 60, 0, [(1, 1, 3)], [], [(1, 7)], [], [])
    await sessions.save(Checkpoint(levels={1: (1, 50)}, endings=[ending], opened=[("c", 1, 8)]))
    await sessions.recover()
    again, _ = await sessions.begin("c", "", 60, is_clean=False)
    assert again.positions == {1: (1, 3)}, "not the level: it was behind"
    assert again.opened == [(1, 7), (1, 8)]


async def test_after_a_crash_connected_sessions_stand_at_the_level_or_behind_it(
    catalog: Catalog, clock: ManualClock
) -> None:
    sessions = catalog.sessions
    for client in ("level", "behind"):
        await sessions.begin(client, "bob", 60, is_clean=False)
    await sessions.save(
        Checkpoint(
            levels={1: (1, 50), 999: (1, 1)},  # a topic that is gone is left out
            busy=["behind"],
            behind=[("behind", 1, 1, 20)],
            outstanding=[("behind", OutstandingRow(1, 20, 5, 2, False))],
            opened=[("level", 1, 8), ("level", 1, 9)],
        )
    )
    await sessions.save(Checkpoint(levels={1: (1, 60)}, released=[("level", 1, 8)]))
    owners, levels, rows = await sessions.recover()
    assert owners == {"level": "bob", "behind": "bob"}
    assert levels == {1: (1, 60)} and rows == []
    level, _ = await sessions.begin("level", "bob", 60, is_clean=False)
    assert level.positions == {1: (1, 60)} and level.opened == [(1, 9)]
    behind, _ = await sessions.begin("behind", "bob", 60, is_clean=False)
    assert behind.positions == {1: (1, 20)}
    assert behind.outstanding == [OutstandingRow(1, 20, 5, 2, False)]


async def test_outstanding_messages_are_replaced_and_not_kept_for_nobody(
    catalog: Catalog, clock: ManualClock
) -> None:
    sessions = catalog.sessions
    await sessions.begin("c", "", 60, is_clean=False)
    await sessions.put_outstanding("c", [OutstandingRow(1, 4, 11, 2, False)])
    await sessions.put_outstanding("c", [OutstandingRow(1, 4, 11, 2, True)])
    await sessions.put_outstanding("nobody", [OutstandingRow(1, 4, 11, 2, True)])
    stored, _ = await sessions.begin("c", "", 60, is_clean=False)
    assert stored.outstanding == [OutstandingRow(1, 4, 11, 2, True)]
    await catalog.delete_topic(1)  # type: ignore[arg-type]
    assert (await sessions.begin("c", "", 60, is_clean=False))[0].outstanding == []


async def test_sessions_expire_after_their_time_unless_connected_or_for_ever(
    catalog: Catalog, clock: ManualClock
) -> None:
    sessions = catalog.sessions
    for client, expiry_s in (("short", 10), ("long", 100), ("ever", NEVER_EXPIRES)):
        stored, _ = await sessions.begin(client, "", expiry_s, is_clean=False)
        await sessions.leave(client, stored.incarnation)
    here, _ = await sessions.begin("here", "", 10, is_clean=False)
    clock.advance(50)
    assert await sessions.expire() == ["short"]
    clock.advance(10**9)
    assert await sessions.expire() == ["long"]
    await sessions.remove("here", here.incarnation)
    await sessions.forget("ever")
    assert await sessions.incarnations() == {}


async def test_retained_messages_are_replaced_forgotten_and_given_back_byte_by_byte(
    catalog: Catalog, clock: ManualClock
) -> None:
    sessions = catalog.sessions
    first = [retained("a", 1), retained("b", 2), retained("c", 3, b"")]
    await sessions.save(Checkpoint(retained=first))
    newer = retained("a", 7, bytes(range(256)))
    await sessions.save(Checkpoint(retained=[newer], forgotten=["b"]))
    _, _, heads = await sessions.recover()
    assert sorted(heads, key=lambda head: head.name) == [head_of(newer), head_of(first[2])]
    assert await sessions.fetch_retained(["c", "b", "a"]) == [first[2], newer]


async def test_users_are_added_once_changed_and_removed(
    catalog: Catalog, clock: ManualClock
) -> None:
    users = catalog.credentials
    added = await users.insert(DEFAULT_TENANT, "alice", "hash", ("client",))
    with pytest.raises(RefusedError, match="already exists"):
        await users.insert(DEFAULT_TENANT, "alice", "other", ("client",))
    await users.insert(DEFAULT_TENANT, "Alice", "hash", ())
    clock.advance(5)
    changed = await users.update(DEFAULT_TENANT, "alice", "new")
    assert changed.created_at == added.created_at < changed.changed_at
    with pytest.raises(RefusedError, match="no user"):
        await users.update(DEFAULT_TENANT, "bob", "new")
    await users.delete(DEFAULT_TENANT, "Alice")
    assert await users.load() == [changed]


async def test_the_oldest_idempotency_keys_of_a_user_beyond_a_share_are_forgotten(
    catalog: Catalog,
) -> None:
    topic_id = await add_topic(catalog, "t")
    rows = [KeyRow(topic_id, f"alice\nkey-{n}", 1, n, 1, 200 + n) for n in range(10)]
    older = [KeyRow(topic_id, f"bob\nkey-{n}", 1, n, 1, 100 + n) for n in range(3)]
    await catalog.sessions.save(Checkpoint(keys=rows + older))
    keys = catalog.sessions.keys
    told: list[list[int]] = []
    assert await keys.trim(lambda held: told.append(sorted(held)) or 10) == 0
    assert await keys.trim(lambda held: 4) == 6
    found = [await keys.find(topic_id, row.key) for row in older + rows]
    assert found == older + [None] * 6 + rows[6:]
    assert told == [[3, 10]]
