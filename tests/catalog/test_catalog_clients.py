"""Are known clients saved in batches, bounded in number, and never moved back in time?"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from penstock.broker.session.known_clients import Credential, KnownClients
from penstock.catalog.access.clients import ClientRow, save_clients
from penstock.catalog.catalog import Catalog
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import InlineRunner
from penstock.catalog.schema.migrations import MIGRATIONS, migrate
from penstock.catalog.session.saving import Checkpoint
from penstock.model.clock import ManualClock
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId
from tests.catalog.faults import OpenDatabase

NONE = Credential("none", "", "")


def row(client_id: str, seen: int, owner: str = "") -> ClientRow:
    return ClientRow(client_id, owner, "none", "", "", "127.0.0.1", seen, seen)


@pytest.fixture
async def catalog(database: Database) -> AsyncIterator[Catalog]:
    yield await Catalog.open(InlineRunner(database), ManualClock(5))


async def ids(catalog: Catalog) -> list[str]:
    return [one.row.client_id for one in await catalog.sessions.clients.page(1_000)]


async def test_the_last_connect_counts_and_the_first_is_kept(catalog: Catalog) -> None:
    await catalog.sessions.save(Checkpoint(arrived=[row("a", 10, "ann")], left=[("a", 20)]))
    await catalog.sessions.save(Checkpoint(arrived=[row("a", 30, "bob")], left=[("a", 25)]))
    ((found, has_session),) = await catalog.sessions.clients.find("a")
    assert (found.owner, found.first_seen, found.last_seen) == ("bob", 10, 30)
    assert not has_session


async def test_who_left_and_is_not_known_stays_unknown(catalog: Catalog) -> None:
    await catalog.sessions.save(Checkpoint(left=[("a", 20)]))
    assert await ids(catalog) == []


async def test_what_no_client_can_be_called_is_not_known_and_may_be_where_a_page_begins(
    catalog: Catalog,
) -> None:
    clients = catalog.sessions.clients
    await catalog.sessions.save(Checkpoint(arrived=[row(one, 10) for one in "abc"]))
    assert await clients.find("a\0") == []
    assert not await clients.forget("a\0")
    for after, found in (("\0", ["a", "b", "c"]), ("a\0b", ["b", "c"])):
        assert [one.row.client_id for one in await clients.page(10, after)] == found


async def test_what_ends_with_its_connection_is_no_session_of_a_client(catalog: Catalog) -> None:
    """A node has a row for every connected client."""
    await catalog.sessions.save(Checkpoint(arrived=[row("a", 10)]))
    await catalog.sessions.begin("a", "", 0, is_clean=True)
    assert not (await catalog.sessions.clients.find("a"))[0].has_session


async def test_a_client_with_a_session_is_not_forgotten(catalog: Catalog) -> None:
    clients = catalog.sessions.clients
    await catalog.sessions.save(Checkpoint(arrived=[row("a", 10)]))
    stored, _ = await catalog.sessions.begin("a", "", 60, is_clean=False)
    assert (await clients.find("a"))[0].has_session
    with pytest.raises(RefusedError, match="client 'a' has a session: delete it first"):
        await clients.forget("a")
    await catalog.sessions.remove("a", stored.incarnation)
    assert await clients.forget("a")
    assert not await clients.forget("a")


async def test_above_the_bound_those_not_seen_for_longest_are_forgotten(
    catalog: Catalog, database: Database
) -> None:
    """Against a dict, in random batches."""
    rng = random.Random(7)
    model: dict[str, int] = {}
    for at in range(40):
        batch = [row(f"c{rng.randrange(30):02}", at * 100 + turn) for turn in range(5)]
        arrived = list({one.client_id: one for one in batch}.values())
        with database.transaction():
            save_clients(database, DEFAULT_TENANT, arrived, [], clients_max=10)
        model.update((one.client_id, one.last_seen) for one in arrived)
        for client_id in sorted(model, key=lambda one: model[one])[:-10]:
            del model[client_id]
        assert await ids(catalog) == sorted(model), at


async def test_the_rows_of_a_removed_tenant_are_gone(catalog: Catalog) -> None:
    await catalog.tenants.insert(TenantId("acme"), "", "", "")
    acme = catalog.for_tenant(TenantId("acme"))
    await acme.sessions.save(Checkpoint(arrived=[row("a", 10)]))
    assert await ids(acme) == ["a"] and await ids(catalog) == []
    await catalog.tenants.delete(acme.tenant)
    assert await ids(acme) == []


async def test_a_catalog_of_the_version_before_gets_the_table(open_database: OpenDatabase) -> None:
    before = [one for one in MIGRATIONS if one.number < 16]
    runner = InlineRunner(open_database())
    await migrate(runner, before)
    await runner.close()
    catalog = await Catalog.open(InlineRunner(open_database()))
    await catalog.sessions.save(Checkpoint(arrived=[row("a", 10)]))
    assert await ids(catalog) == ["a"]
    await catalog.close()


def test_what_a_failed_checkpoint_took_is_in_the_next_one() -> None:
    clock = ManualClock(1_000_000)
    known = KnownClients(clock)
    known.arrive("a", "ann", NONE, "::1")
    first = Checkpoint()
    assert known.take_changes(first)
    clock.advance(1)
    known.arrive("a", "bob", NONE, "::2")
    known.leave("a")
    known.settle(is_saved=False)
    second = Checkpoint()
    assert known.take_changes(second)
    (one,) = second.arrived
    assert (one.owner, one.first_seen) == ("bob", first.arrived[0].first_seen)
    assert one.last_seen > one.first_seen and second.left == [("a", one.last_seen)]
    known.settle(is_saved=True)
    assert not known.take_changes(Checkpoint())


def test_while_nothing_can_be_saved_only_the_newest_changes_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.broker.session.known_clients.CHANGES_MAX", 3)
    known = KnownClients(ManualClock(1))
    for at in range(10):
        known.arrive(f"c{at}", "", NONE, "")
        known.leave(f"c{at}")
    point = Checkpoint()
    known.take_changes(point)
    assert [one.client_id for one in point.arrived] == ["c7", "c8", "c9"]
    assert [client_id for client_id, _ in point.left] == ["c7", "c8", "c9"]
