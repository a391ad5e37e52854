"""Does every view of the catalog show one tenant's rows, and none of another's?"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.catalog.catalog import Catalog, TopicRow
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.queue.groups import GroupRow
from penstock.catalog.queue.keys import KeyRow
from penstock.catalog.queue.redrives import RedriveRow
from penstock.catalog.session.retained import RetainedRow
from penstock.catalog.session.saving import Checkpoint
from penstock.catalog.session.shares import ShareState
from penstock.catalog.session.stored_sessions import SubscriptionRow
from penstock.model.clock import ManualClock
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId, TopicId
from penstock.model.runs import DONE, PipelineRun
from penstock.model.will import Will
from tests.catalog.faults import OpenDatabase

ACME = TenantId("acme")


@pytest.fixture
async def default(open_database: OpenDatabase) -> AsyncIterator[Catalog]:
    """The catalog as the default tenant sees it; there is a tenant `acme`."""
    catalog = await Catalog.open(InlineRunner(open_database()), ManualClock(5))
    await catalog.tenants.insert(ACME, "Wile E.", "Coyote", "coyote@acme.example")
    yield catalog
    await catalog.close()


@pytest.fixture
def acme(default: Catalog) -> Catalog:
    """The same catalog as `acme` sees it."""
    return default.for_tenant(ACME)


async def fill(catalog: Catalog) -> TopicId:
    """One row of everything, under the same names for every tenant."""
    topic_id = await catalog.reserve_topic_id()
    await catalog.insert_topic(TopicRow(catalog.tenant, topic_id, "orders", "Orders", "{}", 1))
    await catalog.insert_binding("a/#", topic_id)
    await catalog.insert_consumer(topic_id, "billing", 1, topic_id)
    await catalog.queue.register_producer(topic_id)
    await catalog.groups.save(GroupRow(topic_id, "workers", 1, topic_id, {}, 5, 3))
    await catalog.redrives.save(RedriveRow(topic_id, topic_id, [(0, 5)], "ab", [7], 1, topic_id))
    await catalog.runs.save([PipelineRun("run", "stats", [catalog.tenant], DONE, 1, 2)])
    sessions = catalog.sessions
    await sessions.begin("client", f"owner of {catalog.tenant}", 60, is_clean=False)
    share = ShareState(1, "$share/g/a/#", True, [], [])
    await sessions.subscribe(
        "client", [SubscriptionRow("a/#", 1, False, False, 0, {})], [], [share]
    )
    await sessions.subscribe(
        "client", [SubscriptionRow("$share/g/a/#", 1, False, False, 0, {})], [], []
    )
    await catalog.wills.hold("client", "", 60, Will("gone", b"w", 0, False, (), None, 0))
    retained = RetainedRow("a/b", topic_id, topic_id, 1, 0, 1, 0, "", (), catalog.tenant.encode())
    await sessions.save(
        Checkpoint(
            levels={topic_id: (1, topic_id)},
            retained=[retained],
            keys=[KeyRow(topic_id, "key", 1, topic_id, 1, 1)],
        )
    )
    return topic_id


async def check(catalog: Catalog, topic_id: TopicId) -> None:
    """Every view has what `fill` put there for this tenant, and nothing else."""
    topics, bindings, consumers = await catalog.load()
    assert [(row.tenant, row.topic_id) for row in topics] == [(catalog.tenant, topic_id)]
    assert [row.topic_id for row in bindings] == [topic_id]
    assert [row.next_offset for row in consumers] == [topic_id]
    assert [(row.topic_id, row.producers) for row in await catalog.queue.load()] == [(topic_id, 1)]
    (group,) = await catalog.groups.load()
    assert (group.topic_id, group.lease_us, group.deliveries_max) == (topic_id, 5, 3)
    (redrive,) = await catalog.redrives.load()
    assert redrive == RedriveRow(topic_id, topic_id, [(0, 5)], "ab", [7], 1, topic_id)
    assert [run.arguments for run in await catalog.runs.load()] == [[catalog.tenant]]
    (row,) = (await catalog.session_list.find(["client"])).values()
    assert row.owner == f"owner of {catalog.tenant}"
    clients, levels, retained = await catalog.sessions.recover()
    assert list(clients) == ["client"] and levels == {topic_id: (1, topic_id)}
    assert [one.offset for one in retained] == [topic_id]
    (stored,) = [one.stored for one in (await catalog.session_list.find(["client"])).values()]
    assert stored.positions == {topic_id: (1, topic_id)}, "the level of its own topics, no other's"
    (share,) = await catalog.sessions.shares.recover()
    assert list(share.state.positions) == [(topic_id, 1, topic_id)]
    assert len(await catalog.wills.held()) == 1
    assert len(await catalog.sessions.incarnations()) == 1
    assert await catalog.sessions.keys.find(topic_id, "key") is not None


async def test_two_tenants_keep_the_same_names_apart(default: Catalog, acme: Catalog) -> None:
    own, other = await fill(default), await fill(acme)
    await check(default, own)
    await check(acme, other)
    assert await default.sessions.keys.find(other, "key") is None


async def test_recovering_one_tenant_leaves_the_sessions_of_another_connected(
    default: Catalog, acme: Catalog
) -> None:
    await fill(default)
    await fill(acme)
    await acme.sessions.recover()
    (row,) = (await default.session_list.find(["client"])).values()
    assert row.is_connected
    assert not (await default.sessions.forget_away("client"))


async def test_a_tenant_with_data_is_removed_only_with_everything_in_it(
    default: Catalog, acme: Catalog
) -> None:
    own, _ = await fill(default), await fill(acme)
    await default.credentials.insert(ACME, "road", "hash", ["client"])
    with pytest.raises(RefusedError, match=r"1 topic and 1 session and 1 user: .*--purge"):
        await default.tenants.check_empty(ACME)
    with pytest.raises(RefusedError, match="users were added to tenant 'acme' while"):
        await default.tenants.delete(ACME)
    assert await default.credentials.delete_all(ACME) == ["road"]
    await default.tenants.delete(ACME)
    assert [row.tenant for row in await default.tenants.load()] == [DEFAULT_TENANT]
    assert await acme.load() == ([], [], [])
    assert await acme.wills.held() == []
    await check(default, own)
    with pytest.raises(RefusedError, match="there is no tenant 'acme'"):
        await default.tenants.delete(ACME)


async def test_a_removed_tenant_leaves_no_row_in_any_table(tmp_path: Path) -> None:
    from penstock.catalog.database.sqlite import SqliteDatabase

    runner = InlineRunner(SqliteDatabase(tmp_path / "catalog.db"))
    catalog = await Catalog.open(runner, ManualClock(5))
    await catalog.tenants.insert(ACME, "", "", "")
    await fill(catalog.for_tenant(ACME))
    await catalog.credentials.insert(ACME, "road", "hash", ["client"])
    await catalog.credentials.keys.insert(ACME, "road", "id", "digest")
    await catalog.credentials.roles.insert_role(ACME, "sensor", ["allow publish #"])
    await catalog.credentials.delete_all(ACME)
    await catalog.tenants.delete(ACME)
    await catalog.close()
    with sqlite3.connect(tmp_path / "catalog.db") as found:
        tables = [
            name
            for (name,) in found.execute("select name from sqlite_master where type = 'table'")
            if any(row[1] == "tenant" for row in found.execute(f"pragma table_info({name})"))
        ]
        assert len(tables) > 10
        for table in tables:
            left = found.execute(f"select count(*) from {table} where tenant = 'acme'").fetchone()
            assert left == (0,), table
