"""Do the counts of quotas agree with what nodes have, whoever changes it and however they race?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.access.quotas import Quotas
from penstock.broker.cluster.quotas import ClusterQuotas
from penstock.broker.figures.metrics import Metrics
from penstock.catalog.catalog import Catalog
from penstock.catalog.cluster.cluster import ClusterCatalog
from penstock.catalog.cluster.holdings import TENANT, held
from penstock.catalog.cluster.joining import Joined, join
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import CatalogThread
from penstock.core.quota_settings import QuotaSettings
from penstock.core.quotas import CONNECTIONS, PUBLISH_RATE, SESSIONS
from penstock.model.clock import ManualClock
from penstock.model.errors import QuotaExceeded
from penstock.model.record import DEFAULT_TENANT
from tests.postgres_server import PostgresServer

TENANT_MAX, USER_MAX = 5, 3
RATE = 1_000


class Node:
    """The catalog of one node, and the quotas that it counts there."""

    def __init__(self, catalog: Catalog, runner: CatalogThread, inc: int) -> None:
        self.catalog = catalog
        self.runner = runner
        self.inc = inc
        settings = QuotaSettings(
            tenants={CONNECTIONS: TENANT_MAX, SESSIONS: TENANT_MAX, PUBLISH_RATE: RATE},
            users={CONNECTIONS: USER_MAX, SESSIONS: USER_MAX},
        )
        self.quotas = Quotas(settings, DEFAULT_TENANT, ManualClock(), Metrics())
        self.cluster = ClusterQuotas(self.quotas, catalog.holdings)
        self.cluster.start()

    async def takes(self, user: str) -> bool:
        try:
            await self.cluster.take(CONNECTIONS, user)
        except QuotaExceeded:
            return False
        return True

    async def begins(self, client_id: str, user: str) -> bool:
        limits = self.quotas.both
        try:
            await self.catalog.sessions.begin(client_id, user, 60, is_clean=False, limits=limits)
        except QuotaExceeded:
            return False
        return True

    async def sessions(self, user: str) -> tuple[int, int]:
        def work(database: Database) -> tuple[int, int]:
            return held(database, DEFAULT_TENANT, SESSIONS, user)

        return await self.runner.run(work)

    async def run(self, sql: str, *values: int | str) -> None:
        await self.runner.run(lambda database: database.execute(sql, *values))


class Cluster:
    """Nodes on one schema."""

    def __init__(self, postgres: PostgresServer) -> None:
        self._postgres = postgres
        self._schema = postgres.new_schema()
        self.nodes: list[Node] = []

    async def join(self) -> Node:
        joined: list[Joined] = []

        def open_database() -> Database:
            joined.append(join(self._postgres.url, self._schema, "1", ManualClock()))
            return joined[0].database

        runner = await CatalogThread.start(open_database)
        catalog = await Catalog.open(runner, ManualClock(), joined[0].inc)
        node = Node(catalog, runner, joined[0].inc)
        self.nodes.append(node)
        return node

    async def close(self) -> None:
        for node in self.nodes:
            await node.cluster.close()
            await node.runner.close()


@pytest.fixture
async def cluster(postgres: PostgresServer) -> AsyncIterator[Cluster]:
    made = Cluster(postgres)
    yield made
    await made.close()


async def test_nodes_that_race_for_places_never_have_more_than_a_quota_allows(
    cluster: Cluster,
) -> None:
    nodes = [await cluster.join() for _ in range(3)]
    for turn in range(10):
        wishes = [(node, user) for node in nodes for user in ("ann", "bob", "cy") * 2]
        took = await asyncio.gather(*[node.takes(user) for node, user in wishes])
        having = [wish for wish, has in zip(wishes, took, strict=True) if has]
        assert len(having) <= TENANT_MAX, turn
        assert max(sum(user == one for _, user in having) for one in ("ann", "bob", "cy")) <= 3
        for node, user in having:
            node.cluster.give(CONNECTIONS, user)
        last = nodes[turn % 3]  # all are free again, and one node may have them all
        users = ["ann"] * 3 + ["bob"] * 2
        await _until_all([last] * 5, users)
        assert not await nodes[(turn + 1) % 3].takes("cy")
        for user in users:
            last.cluster.give(CONNECTIONS, user)


async def _until_all(nodes: list[Node], users: list[str]) -> None:
    """Until each has a place; what others gave back is known a moment later."""
    async with asyncio.timeout(30):
        for node, user in zip(nodes, users, strict=True):
            while not await node.takes(user):
                pass


async def test_sessions_are_counted_whoever_makes_changes_or_removes_them(
    cluster: Cluster,
) -> None:
    a, b = await cluster.join(), await cluster.join()
    assert [await a.begins("a1", "ann"), await b.begins("b1", "ann")] == [True, True]
    assert await b.begins("b2", "bob")
    assert await a.sessions("ann") == (3, 2) and await b.sessions("bob") == (3, 1)
    assert await a.begins("a1", "ann"), "it is there already"
    assert await a.begins("a2", "ann")
    assert not await b.begins("b3", "ann"), "a user too many"
    assert await b.begins("b4", "bob")
    assert not await a.begins("a3", "cy"), "a tenant too many"
    assert await b.sessions("cy") == (5, 0), "nothing is left of what was refused"
    await b.run("update sessions set owner = 'cy' where client_id = 'a1'")
    await a.run("delete from sessions where client_id = 'b1'")
    assert await a.sessions("ann") == (4, 1) and await a.sessions("cy") == (4, 1)
    assert await a.begins("a3", "cy")


async def test_counts_stay_when_connections_end_and_nodes_join(cluster: Cluster) -> None:
    a, b = await cluster.join(), await cluster.join()
    assert await a.begins("a1", "ann") and await a.begins("a2", "ann")
    await b.run("delete from sessions where client_id = 'a1'")  # below zero in its own rows
    await a.runner.close()
    cluster.nodes.remove(a)
    await a.cluster.close()
    c = await cluster.join()
    assert await c.sessions("ann") == await b.sessions("ann") == (1, 1)


async def test_what_a_node_had_goes_with_it(cluster: Cluster) -> None:
    a, b = await cluster.join(), await cluster.join()
    for user in ("ann", "bob", "cy", "dan", "eve"):
        assert await a.takes(user)
    assert not await b.takes("ann")
    await ClusterCatalog(a.runner).leave(a.inc)
    assert await b.takes("ann")


async def test_what_a_node_had_that_an_earlier_version_recovered_goes_when_a_node_joins(
    cluster: Cluster,
) -> None:
    a, b = await cluster.join(), await cluster.join()
    for user in ("ann", "bob", "cy", "dan", "eve"):
        assert await a.takes(user)
    await b.run("update nodes set state = 'gone' where inc = $1", a.inc)
    assert not await b.takes("ann")
    c = await cluster.join()
    assert await c.takes("ann")


async def test_sessions_that_were_there_before_anybody_counted_are_counted(
    cluster: Cluster, postgres: PostgresServer
) -> None:
    a = await cluster.join()
    await a.begins("a1", "ann")
    await a.run("drop trigger count_holdings on sessions")
    await a.run("drop trigger count_holdings on wills")
    await a.run("delete from holdings")
    await a.begins("a2", "ann")
    b = await cluster.join()
    assert await b.sessions("ann") == (2, 2)


async def test_a_node_gets_what_the_others_leave_of_a_rate_and_at_least_an_equal_part(
    cluster: Cluster,
) -> None:
    a, b = await cluster.join(), await cluster.join()

    async def pass_through(node: Node, messages: int) -> float:
        """What a node may let pass in a second, after it let pass so many in the last one."""
        bucket = node.quotas.buckets()[0][2]
        bucket.take(messages, 0)
        await node.cluster._exchange_rates()
        return bucket._rate

    assert await pass_through(a, 1_000) == RATE
    assert await pass_through(b, 600) == RATE / 2
    assert await pass_through(a, 500) == RATE / 2, "all want more than their part"
    assert await pass_through(b, 200) == RATE / 2
    assert await pass_through(a, 700) == RATE - 200
    assert await pass_through(b, 10) == RATE / 2, "hardly anything, which is not told"
    assert await pass_through(a, 700) == RATE
    assert (PUBLISH_RATE, TENANT) in a.cluster._told_rates
