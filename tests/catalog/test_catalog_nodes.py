"""Do nodes that share a catalog find each other, find who died, and keep the dead from writing?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from penstock.catalog.cluster.heartbeat import Heartbeat
from penstock.catalog.cluster.joining import Joined, join
from penstock.catalog.cluster.nodes import NodeRow, claim_recovery, list_nodes, mark_gone
from penstock.catalog.cluster.recovering import FoundMarks, give_back
from penstock.catalog.database.postgres import PostgresDatabase
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.session.sessions import SessionCatalog
from penstock.model.clock import ManualClock
from penstock.model.errors import UnavailableError
from penstock.model.record import DEFAULT_TENANT
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

WAIT_S = 30


class Cluster:
    """A schema that nodes join."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.schema = server.new_schema()
        self._open: list[PostgresDatabase] = []

    def join(self) -> Joined:
        joined = join(self.server.url, self.schema, "1.0", ManualClock())
        self._open.append(joined.database)
        return joined

    def rows(self, joined: Joined) -> list[NodeRow]:
        with joined.database.transaction():
            return list_nodes(joined.database)

    @asynccontextmanager
    async def beating(self, joined: Joined) -> AsyncIterator[Heartbeat]:
        heartbeat = Heartbeat(self.server.url, self.schema, joined.inc)
        heartbeat.start()
        try:
            yield heartbeat
        finally:
            await heartbeat.close()

    def close(self) -> None:
        for database in self._open:
            database.close()


@pytest.fixture
def cluster(postgres: PostgresServer) -> Cluster:
    return Cluster(postgres)


async def first(listeners: list[Callable[..., None]]) -> object:
    """What one of the listeners of a heartbeat hears first."""
    heard: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    listeners.append(lambda what: heard.done() or heard.set_result(what))
    return await asyncio.wait_for(heard, WAIT_S)


def test_nodes_that_join_have_incarnations_of_their_own_and_one_cluster_id(
    cluster: Cluster,
) -> None:
    one, two = cluster.join(), cluster.join()
    assert one.inc != two.inc
    assert one.cluster_id == two.cluster_id
    assert [(row.inc, row.state) for row in cluster.rows(one)] == [
        (one.inc, "live"),
        (two.inc, "live"),
    ]
    cluster.close()


def test_a_broker_that_needs_the_catalog_for_itself_is_refused_while_a_node_lives(
    cluster: Cluster,
) -> None:
    cluster.join()
    with pytest.raises(UnavailableError, match="is in use by"):
        PostgresDatabase(cluster.server.url, cluster.schema, lock_s_max=0.2)
    cluster.close()
    PostgresDatabase(cluster.server.url, cluster.schema, lock_s_max=5).close()


def test_a_node_that_was_declared_dead_changes_nothing(cluster: Cluster) -> None:
    one, two = cluster.join(), cluster.join()
    with two.database.transaction():
        two.database.execute("update nodes set state = 'dead' where inc = $1", one.inc)
    with pytest.raises(UnavailableError, match="declared dead"), one.database.transaction():
        one.database.execute("update nodes set address = 'late'")
    assert all(row.address == "" for row in cluster.rows(two))
    cluster.close()


async def test_a_node_whose_connection_is_gone_is_declared_dead(cluster: Cluster) -> None:
    one, two = cluster.join(), cluster.join()
    one.database.close()  # as the end of its process does
    async with cluster.beating(two) as heartbeat:
        assert await first(heartbeat.listeners.died) == one.inc
    assert [row.state for row in cluster.rows(two) if row.inc == one.inc] == ["dead"]
    two.database.close()


async def test_a_node_that_stands_still_inside_a_transaction_is_declared_dead(
    cluster: Cluster,
) -> None:
    one, two = cluster.join(), cluster.join()
    with pytest.raises(UnavailableError), one.database.transaction():
        cluster.server.fetch(
            f"update {cluster.schema}.leases set expires = 1 where inc = {one.inc}"
        )
        async with cluster.beating(two) as heartbeat:
            assert await first(heartbeat.listeners.died) == one.inc
        one.database.execute("update nodes set address = 'late'")
    with pytest.raises(UnavailableError, match="declared dead"), one.database.transaction():
        pass
    cluster.close()


async def test_a_node_hears_that_another_one_declared_it_dead(cluster: Cluster) -> None:
    one, two = cluster.join(), cluster.join()
    async with cluster.beating(one) as heartbeat:
        with two.database.transaction():
            two.database.execute("update nodes set state = 'dead' where inc = $1", one.inc)
        assert "declared this one dead" in str(await first(heartbeat.listeners.ended))
    cluster.close()


async def test_nodes_whose_connections_were_cut_live_on(cluster: Cluster) -> None:
    one, two = cluster.join(), cluster.join()
    async with cluster.beating(one) as heartbeat, cluster.beating(two):
        await first(heartbeat.listeners.changed)
        cluster.server.cut_connections()
        await first(heartbeat.listeners.changed)  # it is connected again
        assert [row.state for row in cluster.rows(one)] == ["live", "live"]
        assert [row.state for row in cluster.rows(two)] == ["live", "live"]
    cluster.close()


async def test_a_node_hears_which_tables_another_one_changed(cluster: Cluster) -> None:
    one, two = cluster.join(), cluster.join()
    async with cluster.beating(one) as heartbeat:
        await first(heartbeat.listeners.changed)
        with two.database.transaction():
            two.database.execute(
                "insert into tenants (tenant, created_at) values ('new', 1)",
            )
        assert await first(heartbeat.listeners.changed) == {"tenants"}
    cluster.close()


def test_one_live_node_recovers_a_dead_one_and_another_takes_over_if_it_dies(
    cluster: Cluster,
) -> None:
    one, two, three = cluster.join(), cluster.join(), cluster.join()
    with two.database.transaction():
        two.database.execute("update nodes set state = 'dead' where inc = $1", one.inc)
        assert claim_recovery(two.database, one.inc, two.inc)
    with three.database.transaction():
        assert not claim_recovery(three.database, one.inc, three.inc)
        three.database.execute("update nodes set state = 'dead' where inc = $1", two.inc)
        assert claim_recovery(three.database, one.inc, three.inc)
        mark_gone(three.database, one.inc)
    assert [row.inc for row in cluster.rows(three)] == [two.inc, three.inc]
    cluster.close()


def test_a_node_takes_a_recovery_that_is_overdue_from_a_live_one(cluster: Cluster) -> None:
    one, two, three = cluster.join(), cluster.join(), cluster.join()
    with two.database.transaction():
        two.database.execute("update nodes set state = 'dead' where inc = $1", one.inc)
        assert claim_recovery(two.database, one.inc, two.inc)
    with three.database.transaction():
        assert claim_recovery(three.database, one.inc, three.inc, is_overdue=True)
    with two.database.transaction():
        assert not give_back(two.database, one.inc, two.inc, {}, FoundMarks(), 0)
    with three.database.transaction():
        assert give_back(three.database, one.inc, three.inc, {}, FoundMarks(), 0)
    cluster.close()


def test_a_session_that_expires_while_its_client_connects_to_another_node_stays(
    cluster: Cluster,
) -> None:
    one, two = cluster.join(), cluster.join()
    clock = ManualClock()
    with one.database.transaction():
        one.database.execute("insert into tenants (tenant, created_at) values ($1, 0)", "default")
    here = SessionCatalog(InlineRunner(one.database), clock, DEFAULT_TENANT, one.inc)
    stored, _ = asyncio.run(here.begin("client", "", 1, is_clean=True))
    asyncio.run(here.leave("client", stored.incarnation))
    clock.advance(10)
    removed: list[str] = []
    expiring = threading.Thread(target=lambda: removed.extend(asyncio.run(here.expire())))
    with two.database.transaction():
        two.database.execute(
            "update sessions set is_connected = 1, owner_inc = $1 where client_id = 'client'",
            two.inc,
        )
        expiring.start()
        wait_until(lambda: cluster.server.fetch("select 1 from pg_locks where not granted"))
    expiring.join()
    assert removed == []
    with two.database.transaction():
        assert two.database.fetch("select owner_inc from sessions") == [(two.inc,)]
    cluster.close()
