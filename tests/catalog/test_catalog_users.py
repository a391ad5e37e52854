"""Does a broker keep its last user, and a tenant get one first admin, whichever nodes race?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import psycopg
import pytest

from penstock.catalog.access.credentials import Credentials
from penstock.catalog.catalog import Catalog
from penstock.catalog.cluster.joining import Joined, join
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import CatalogThread, InlineRunner
from penstock.model.clock import ManualClock
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId
from tests.catalog.faults import OpenDatabase
from tests.postgres_server import PostgresServer
from tests.waiting import WAIT_S

ACME = TenantId("acme")
LAST = "somebody has to stay"
CLIENT, ADMIN = ("client",), ("admin",)


class Nodes:
    """The catalogs of two nodes on one schema."""

    def __init__(self, postgres: PostgresServer) -> None:
        self.postgres = postgres
        self.schema = postgres.new_schema()
        self.catalogs: list[Catalog] = []

    async def join(self) -> Catalog:
        joined: list[Joined] = []

        def open_database() -> Database:
            joined.append(join(self.postgres.url, self.schema, "1", ManualClock()))
            return joined[0].database

        runner = await CatalogThread.start(open_database)
        self.catalogs.append(await Catalog.open(runner, ManualClock(), joined[0].inc))
        return self.catalogs[-1]

    @property
    def users(self) -> list[Credentials]:
        return [one.credentials for one in self.catalogs]

    async def race(self, *works: Coroutine[Any, Any, Any]) -> list[Any]:
        """Run these at once: none is committed before each has come to its end, or has to wait."""
        with psycopg.connect(self.postgres.url) as holder:
            holder.execute(f"lock table {self.schema}.holders in share mode")  # counts commits
            running = [asyncio.ensure_future(work) for work in works]
            until_s = time.monotonic() + WAIT_S
            while self._waiting() < len(works):
                assert time.monotonic() < until_s
                await asyncio.sleep(0.01)
        return await asyncio.gather(*running, return_exceptions=True)

    def _waiting(self) -> int:
        """How many of our sessions wait for a lock."""
        ((count,),) = self.postgres.fetch(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            " and application_name = 'penstock'"
        )
        return int(count)


@pytest.fixture
async def nodes(postgres: PostgresServer) -> AsyncIterator[Nodes]:
    nodes = Nodes(postgres)
    for _ in range(2):
        await nodes.join()
    yield nodes
    for one in nodes.catalogs:
        await one.close()


async def names(users: Credentials) -> list[str]:
    return [f"{row.tenant}/{row.user}" for row in await users.load()]


async def test_of_the_last_two_users_one_stays_if_two_nodes_remove_them_at_once(
    nodes: Nodes,
) -> None:
    one, two = nodes.users
    for user in ("alice", "bob"):
        await one.insert(DEFAULT_TENANT, user, "hash", ADMIN)
    ended = await nodes.race(
        one.delete(DEFAULT_TENANT, "alice", last_stays=LAST),
        two.delete(DEFAULT_TENANT, "bob", last_stays=LAST),
    )
    (refusal,) = [end for end in ended if end is not None]
    assert isinstance(refusal, RefusedError) and str(refusal) == LAST
    left = "default/bob" if ended[1] is refusal else "default/alice"
    assert await names(one) == await names(two) == [left]


async def test_the_last_user_stays_if_another_node_removes_the_tenant_of_the_others(
    nodes: Nodes,
) -> None:
    one, two = nodes.users
    await nodes.catalogs[0].tenants.insert(ACME, "", "", "")
    await one.insert(DEFAULT_TENANT, "alice", "hash", ADMIN)
    for user in ("ann", "ben"):
        await one.insert(ACME, user, "hash", ADMIN)
    ended = await nodes.race(
        one.delete(DEFAULT_TENANT, "alice", last_stays=LAST),
        two.delete_all(ACME, last_stays=LAST),
    )
    assert [str(end) for end in ended].count(LAST) == 1
    left = ["acme/ann", "acme/ben"] if isinstance(ended[1], RefusedError) else ["default/alice"]
    assert await names(one) == await names(two) == left


async def test_of_users_whom_two_nodes_add_at_once_the_first_alone_becomes_admin(
    nodes: Nodes,
) -> None:
    one, two = nodes.users
    added = await nodes.race(
        one.insert(DEFAULT_TENANT, "alice", "hash", CLIENT, ADMIN),
        two.insert(DEFAULT_TENANT, "bob", "hash", CLIENT, ADMIN),
    )
    assert sorted(row.roles for row in added) == [ADMIN, CLIENT]
    assert await one.load() == await two.load() == sorted(added, key=lambda row: str(row.user))


async def test_what_keeps_the_last_user_is_undone_as_a_whole(
    open_database: OpenDatabase,
) -> None:
    catalog = await Catalog.open(InlineRunner(open_database()), ManualClock(5))
    users = catalog.credentials
    await catalog.tenants.insert(ACME, "", "", "")
    for user in ("ann", "ben"):
        await users.insert(ACME, user, "hash", ADMIN)
    await users.roles.insert_rules(ACME, ("user", "ann"), ["deny read hr/#"])
    before = await users.load(), await users.roles.load()
    with pytest.raises(RefusedError, match=LAST):
        await users.delete_all(ACME, last_stays=LAST)
    assert (await users.load(), await users.roles.load()) == before
    await users.delete(ACME, "ann", last_stays=LAST)
    with pytest.raises(RefusedError, match=LAST):
        await users.delete(ACME, "ben", last_stays=LAST)
    with pytest.raises(RefusedError, match="no user 'eve'"):
        await users.delete(ACME, "eve", last_stays=LAST)
    assert await names(users) == ["acme/ben"]
    await users.delete(ACME, "ben")  # as a command on a directory that no broker has open
    assert await names(users) == []
    await catalog.close()
