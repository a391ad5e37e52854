"""Does everybody have the roles and rules they should, and does a change hold at once?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, ItemsView
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from penstock.broker.access import Access, DeclaredRole, DeclaredRule
from penstock.broker.access.identities import BRIDGE, Identity
from penstock.broker.access.renewal import SLICE
from penstock.broker.access.roles import KnownRule
from penstock.broker.figures.metrics import Metrics
from penstock.catalog.catalog import Catalog
from penstock.catalog.database.sqlite import MEMORY, SqliteDatabase
from penstock.catalog.database.thread import InlineRunner
from penstock.core.access import (
    MANAGE,
    NOTHING,
    PUBLISH,
    READ,
    Principal,
    authorise,
    decide,
    parse_rule,
)
from penstock.model.errors import InvalidName, RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId

HERE = "127.0.0.1"
ACME = TenantId("acme")


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Catalog, Access]]:
    catalog = await Catalog.open(InlineRunner(SqliteDatabase(MEMORY)))
    access = Access(catalog.credentials, Metrics(), wrong_login_s=0.0)
    await access.load()
    try:
        yield catalog, access
    finally:
        access.close()
        await catalog.close()


async def reloaded(catalog: Catalog) -> Access:
    access = Access(catalog.credentials, Metrics())
    await access.load()
    return access


def may(principal: Principal | None, action: str, name: str) -> bool:
    assert principal is not None
    return authorise(principal, action, name, "")


async def test_the_first_user_becomes_admin_and_the_others_clients() -> None:
    async with opened() as (catalog, access):
        assert (await access.add_user("alice", b"a")).roles == ("admin",)
        assert (await access.add_user("bob", b"b")).roles == ("client",)
        assert (await access.add_user("eve", b"e", ["reader"])).roles == ("reader",)
        assert may(access.principal("alice"), MANAGE, "a")
        assert may(access.principal("bob"), PUBLISH, "a")
        assert not may(access.principal("bob"), MANAGE, "a")
        assert not may(access.principal("eve"), PUBLISH, "a")
        again = await reloaded(catalog)
        assert [(row.user, row.roles) for row in again.users()] == [
            ("alice", ("admin",)),
            ("bob", ("client",)),
            ("eve", ("reader",)),
        ]
        with pytest.raises(RefusedError, match="no role 'nurse'"):
            await access.add_user("dan", b"d", ["nurse"])
        with pytest.raises(InvalidName, match="separates tenant and user"):
            await access.add_user("acme/dan", b"d")


async def test_roles_and_rules_are_stored_and_a_change_holds_for_principals_that_are_known() -> (
    None
):
    async with opened() as (catalog, access):
        await access.add_user("alice", b"a")
        await access.add_user("bob", b"b")
        bob = access.principal("bob")
        heard: list[set[Principal]] = []
        access.on_change.append(heard.append)
        await access.roles.add("sensor", [parse_rule("allow publish sensors/%u/#")])
        await access.set_roles("bob", ["sensor"])
        assert heard == [{bob}, {bob}]
        assert may(bob, PUBLISH, "sensors/bob/t") and not may(bob, PUBLISH, "a")
        (rule,) = await access.roles.add_rules([parse_rule("allow publish a")], role="sensor")
        assert may(bob, PUBLISH, "a")
        await access.roles.add_rules([parse_rule("deny publish #")], user="bob")
        assert not may(bob, PUBLISH, "a")
        assert decide(bob, PUBLISH, "a", "").source == "user bob"
        await access.roles.add_rules([parse_rule("allow read public/#")])
        assert may(bob, READ, "public/x")
        again = await reloaded(catalog)
        same = again.principal("bob")
        assert may(same, READ, "public/x") and not may(same, PUBLISH, "a")
        await access.roles.remove_rule(rule.rule_id)
        assert [str(one) for one in access.roles.get("sensor").role.rules] == [
            "allow publish sensors/%u/#"
        ]
        await access.roles.remove("sensor")
        assert access.user("bob").roles == ()
        assert (await reloaded(catalog)).user("bob").roles == ()
        with pytest.raises(RefusedError, match="no role 'sensor'"):
            access.roles.get("sensor")


async def test_the_users_of_a_tenant_go_with_their_rules_and_keys_and_nobody_else_does() -> None:
    async with opened() as (catalog, access):
        await catalog.tenants.insert(ACME, "", "", "")
        for tenant in (DEFAULT_TENANT, ACME):
            for user in ("alice", "bob"):
                await access.add_user(user, b"x", ["client"], tenant)
                rules = [parse_rule(f"deny publish {user}")]
                await access.roles.add_rules(rules, user=user, tenant=tenant)
                await access.make_key(user, tenant=tenant)
        stay = [access.principal(user) for user in ("alice", "bob")]
        gone = [access.principal(user, ACME) for user in ("alice", "bob")]
        await access.remove_users(ACME)
        assert [one.is_revoked for one in (*stay, *gone)] == [False, False, True, True]
        for one in (access, await reloaded(catalog)):
            assert [row.user for row in one.users(None)] == ["alice", "bob"]
            assert [len(one.access_keys(tenant)) for tenant in (DEFAULT_TENANT, ACME)] == [2, 0]
            assert [rule.user for rule in one.roles.rules()] == ["alice", "bob"]
            assert one.roles.rules(ACME) == []
            assert not may(one.principal("bob"), PUBLISH, "bob")
            assert may(one.principal("bob"), PUBLISH, "alice")


async def test_all_rules_are_looked_at_once_however_many_users_of_a_tenant_go() -> None:
    """The event loop stands still meanwhile: for each user, thousands would hold it for minutes."""
    looks = 0

    class Counted(dict[tuple[TenantId, int], KnownRule]):
        def items(self) -> ItemsView[tuple[TenantId, int], KnownRule]:
            nonlocal looks
            looks += 1
            return super().items()

    async with opened() as (catalog, access):
        await catalog.tenants.insert(ACME, "", "", "")
        for number in range(20):
            await catalog.credentials.insert(ACME, f"u{number}", "hash", ["client"])
            rules = [parse_rule("allow publish a")]
            await access.roles.add_rules(rules, user=f"u{number}", tenant=ACME)
        access.roles._rules = Counted(access.roles._rules)
        await access.remove_users(ACME)
        assert access.roles.rules(ACME) == [] and looks == 1


async def test_a_removed_user_may_nothing_and_who_gets_the_name_later_is_somebody_else() -> None:
    async with opened() as (catalog, access):
        await access.add_user("alice", b"a")
        await access.add_user("bob", b"b")
        await access.roles.add_rules([parse_rule("allow manage #")], user="bob")
        bob = access.principal("bob")
        await access.remove_user("bob")
        assert bob.grants is NOTHING
        assert not may(access.principal("bob"), PUBLISH, "a")
        await access.add_user("bob", b"c")
        assert access.principal("bob") is not bob
        assert bob.grants is NOTHING
        for one in (access, await reloaded(catalog)):
            assert not may(one.principal("bob"), MANAGE, "a")


async def test_built_in_and_declared_roles_are_not_changed_by_commands() -> None:
    async with opened() as (_, access):
        declared = DeclaredRole("sensor", (parse_rule("allow publish s/#"),))
        access.roles.declare([declared], [DeclaredRule(parse_rule("deny publish s/x"))])
        await access.add_user("bob", b"b", ["sensor"])
        bob = access.principal("bob")
        assert may(bob, PUBLISH, "s/a") and not may(bob, PUBLISH, "s/x")
        rule = parse_rule("allow publish #")
        for role, problem in (("sensor", "declared in the settings file"), ("admin", "built")):
            with pytest.raises(RefusedError, match=problem):
                await access.roles.add_rules([rule], role=role)
            with pytest.raises(RefusedError, match=problem):
                await access.roles.remove(role)
            with pytest.raises(RefusedError, match=problem):
                await access.roles.add(role, [rule])
        with pytest.raises(RefusedError, match="remove it there"):
            await access.roles.remove_rule(0)
        access.roles.declare([], [])
        assert not may(bob, PUBLISH, "s/a")


async def test_a_key_has_the_roles_of_its_user_or_fewer() -> None:
    async with opened() as (catalog, access):
        await access.add_user("alice", b"a")
        await access.add_user("bob", b"b")
        whole = await access.make_key("bob")
        part = await access.make_key("bob", ["reader"])
        of_admin = await access.make_key("alice", ["reader"])
        with pytest.raises(RefusedError, match="does not have the role 'admin'"):
            await access.make_key("bob", ["admin"])
        with pytest.raises(RefusedError, match="does not have the role 'operator'"):
            await access.make_key("alice", ["operator"])
        for one in (access, await reloaded(catalog)):
            assert (by_key := one.keyed(whole.encode())) is not None
            assert by_key.is_same_user(one.principal("bob"))
            for key in (part, of_admin):
                principal = one.keyed(key.encode())
                assert may(principal, READ, "a") and not may(principal, PUBLISH, "a")
        await access.add_user("eve", b"e", ["reader"])
        with pytest.raises(RefusedError, match="here reader"):
            await access.make_key("eve", ["client"])
        reading = access.keyed(part.encode())
        await access.set_roles("bob", [])
        assert not may(reading, READ, "a")


async def test_a_login_name_is_a_user_or_a_tenant_and_a_user() -> None:
    async with opened() as (catalog, access):
        await catalog.tenants.ensure(ACME)
        await access.add_user("bob", b"ours")
        first = await access.add_user("bob", b"theirs", tenant=ACME)
        assert first.roles == ("admin",)
        ours = await access.log_in("bob", b"ours", HERE)
        theirs = await access.log_in("acme/bob", b"theirs", HERE)
        assert (ours.tenant, theirs.tenant) == ("default", "acme")
        assert ours is not theirs and not ours.is_same_user(theirs)
        assert access.recall("bob", b"theirs") is None
        # A user of an earlier version is found by the whole name.
        stored = access.user("bob").password_hash
        await catalog.credentials.insert(ours.tenant, "acme/bob", stored, ["client"])
        again = await reloaded(catalog)
        old = await again.log_in("acme/bob", b"ours", HERE)
        assert (old.tenant, old.user) == ("default", "acme/bob")


@pytest.mark.parametrize("count", [200])
async def test_principals_with_the_same_roles_share_what_they_may(count: int) -> None:
    async with opened() as (catalog, access):
        await access.add_user("alice", b"a")
        rules = [parse_rule(f"allow publish site/{at}/%u/#") for at in range(10)]
        await access.roles.add("sensor", rules)
        for at in range(count):
            row = await catalog.credentials.insert(
                access.user("alice").tenant, f"u{at}", "x", ["sensor"]
            )
            access._users[row.tenant, row.user] = row
        everybody = [access.principal(f"u{at}") for at in range(count)]
        assert len({id(one.grants) for one in everybody}) == 1
        assert may(everybody[7], PUBLISH, "site/3/u7/x")
        assert not may(everybody[7], PUBLISH, "site/3/u8/x")


async def test_rules_of_a_tenant_concern_no_other_tenant() -> None:
    async with opened() as (catalog, access):
        await catalog.tenants.ensure(ACME)
        await access.add_user("bob", b"p", ["client"])
        await access.add_user("bob", b"p", ["client"], ACME)
        ours, theirs = access.principal("bob"), access.principal("bob", ACME)
        heard: list[set[Principal]] = []
        access.on_change.append(heard.append)
        changed: list[str] = []
        for tenant in (DEFAULT_TENANT, ACME):
            access.on_tenant_change[tenant].append(partial(changed.append, tenant))
        before = ours.grants
        (rule,) = await access.roles.add_rules([parse_rule("deny read x")], tenant=ACME)
        assert may(ours, READ, "x") and not may(theirs, READ, "x")
        await access.roles.remove_rule(rule.rule_id, ACME)
        await access.roles.add("nurse", [], ACME)
        await access.set_roles("bob", ["nurse"], ACME)
        await access.roles.remove("nurse", ACME)
        assert not may(theirs, READ, "x") and ours.grants is before
        assert heard == [{theirs}] * 5 and changed == [ACME] * 5
        access.roles.declare([], [DeclaredRule(parse_rule("deny read x"))])
        assert not may(ours, READ, "x")
        assert heard[5:] == [{ours, theirs}] and changed[5:] == [DEFAULT_TENANT, ACME]


async def test_a_tenant_whose_rules_change_all_the_time_does_not_hold_up_another() -> None:
    async with opened() as (catalog, access):
        await catalog.tenants.ensure(ACME)
        await access.add_user("bob", b"p", ["client"])
        tenants = (DEFAULT_TENANT, ACME)
        users = [
            access.get(Identity(tenant, f"u{number}", BRIDGE, ("client",)))
            for tenant in tenants
            for number in range(3 * SLICE)
        ]
        told: list[str] = []
        access.on_tenant_change[DEFAULT_TENANT].append(partial(told.append, DEFAULT_TENANT))
        ours = asyncio.create_task(access.roles.add_rules([parse_rule("deny read x")]))
        theirs = []
        while not ours.done() and len(theirs) < 100:
            rule = parse_rule(f"deny read x/{len(theirs)}")
            theirs.append(asyncio.create_task(access.roles.add_rules([rule], tenant=ACME)))
            await asyncio.sleep(0)
        assert ours.done() and told == [DEFAULT_TENANT]
        assert [one for one in users if one.tenant == DEFAULT_TENANT and may(one, READ, "x")] == []
        await asyncio.gather(*theirs)
        last = f"x/{len(theirs) - 1}"
        assert [one for one in users if one.tenant == ACME and may(one, READ, last)] == []


async def test_a_rule_of_one_user_concerns_no_other_user() -> None:
    async with opened() as (_, access):
        for user in ("alice", "bob"):
            await access.add_user(user, b"p", ["client"])
            await access.roles.add_rules([parse_rule(f"deny read {user}/#")], user=user)
        alice, bob = access.principal("alice"), access.principal("bob")
        before = bob.grants
        heard: list[set[Principal]] = []
        access.on_change.append(heard.append)
        (added,) = await access.roles.add_rules([parse_rule("deny read x")], user="alice")
        assert not may(alice, READ, "x") and may(bob, READ, "x")
        await access.roles.remove_rule(added.rule_id)
        assert may(alice, READ, "x")
        assert bob.grants is before
        assert heard == [{alice}, {alice}]


async def test_a_stored_rule_of_a_role_that_the_settings_declare_can_be_removed() -> None:
    async with opened() as (_, access):
        rule = parse_rule("allow publish a/#")
        await access.roles.add("nurse", [rule])
        (stored,) = access.roles.rules()
        await access.add_user("alice", b"p", ["nurse"])
        access.roles.declare([DeclaredRole("nurse", (rule,))], [])
        await access.roles.remove_rule(stored.rule_id)
        assert may(access.principal("alice"), PUBLISH, "a/b")
        access.roles.declare([], [])
        assert not may(access.principal("alice"), PUBLISH, "a/b")


@pytest.mark.parametrize("seed", range(20))
async def test_after_any_changes_everybody_may_what_they_may_after_a_restart(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    users, names, actions = ("alice", "bob", "eve"), ("a", "b", "c"), (PUBLISH, READ)

    async def change(access: Access) -> None:
        roles = access.roles
        own = [one.role.name for one in roles.all() if not one.is_built_in]
        rule = parse_rule(
            f"{chance.choice(('allow', 'deny'))} {chance.choice(actions)} {chance.choice(names)}"
        )
        what = chance.randrange(6)
        if what == 0:
            await roles.add(chance.choice(("r", "s", "t")), [rule])
        elif what == 1 and own:
            await roles.remove(chance.choice(own))
        elif what == 2 and own:
            await roles.add_rules([rule], role=chance.choice(own))
        elif what == 3:
            await roles.add_rules([rule], user=chance.choice(("", *users)))
        elif what == 4 and roles.rules():
            await roles.remove_rule(chance.choice(roles.rules()).rule_id)
        elif what == 5:
            held = chance.sample(own, chance.randint(0, len(own)))
            await access.set_roles(chance.choice(users), held)

    def answers(access: Access) -> list[bool]:
        known = [access.principal(user) for user in users]
        return [may(one, action, name) for one in known for action in actions for name in names]

    async with opened() as (catalog, access):
        for user in users:
            await access.add_user(user, b"p", ["client"])
        for _ in range(60):
            with suppress(RefusedError):  # the role or the rule exists
                await change(access)
            again = await reloaded(catalog)
            assert answers(access) == answers(again)
            assert access.roles.rules() == again.roles.rules()
            assert access.roles.all() == again.roles.all()
            again.close()
