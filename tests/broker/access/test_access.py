"""Who comes in, who does not, and what does it cost to find out?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from penstock import AsyncBroker
from penstock.broker.access import Access, check_exposure
from penstock.broker.access.login_lines import LOGINS_MAX, LOGINS_PER_SOURCE_MAX
from penstock.broker.exchange import Exchange
from penstock.broker.figures.metrics import Metrics
from penstock.broker.session.store import SessionStore
from penstock.catalog.catalog import Catalog
from penstock.catalog.database.sqlite import MEMORY, SqliteDatabase
from penstock.catalog.database.thread import InlineRunner
from penstock.core.access import (
    ACTIONS,
    BROKER,
    FULL,
    NOBODY,
    NOTHING,
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    Principal,
    authorise,
    check_user,
)
from penstock.core.networks import network_of
from penstock.model.certificate import Certificate
from penstock.model.errors import (
    InvalidName,
    InvalidSetting,
    NotAuthorized,
    RefusedError,
    UnavailableError,
)
from penstock.model.record import DEFAULT_TENANT

HERE = "127.0.0.1"
FOR_EVER_S = 3600.0


@asynccontextmanager
async def access_with(*users: str, wrong_login_s: float = 0.0) -> AsyncIterator[Access]:
    """Users whose password is `<name>-secret`."""
    catalog = await Catalog.open(InlineRunner(SqliteDatabase(MEMORY)))
    access = Access(catalog.credentials, Metrics(), wrong_login_s=wrong_login_s)
    await access.load()
    for user in users:
        await access.add_user(user, f"{user}-secret".encode())
    try:
        yield access
    finally:
        access.close()
        await catalog.close()


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():  # noqa: ASYNC110 - a counter tells nobody
        await asyncio.sleep(0.001)


async def is_refused(login: Awaitable[Principal]) -> bool:
    try:
        await login
    except NotAuthorized:
        return True
    return False


def may(principal: Principal, action: str, name: str) -> bool:
    return authorise(principal, action, name, "")


def refused(access: Access) -> dict[str, int]:
    return dict(access._metrics.refused)


async def test_without_users_everybody_is_anonymous_and_with_one_nobody_is() -> None:
    async with access_with() as access:
        anonymous = access.anonymous(HERE)
        assert anonymous is not None and anonymous.is_anonymous
        assert anonymous.grants.is_admin
        assert access.anonymous("192.0.2.1") is None
        await access.add_user("alice", b"secret")
        assert access.anonymous(HERE) is None
        assert anonymous.grants is NOTHING
        access.allow_anonymous = True
        stranger = access.anonymous(HERE)
        assert stranger is not None and stranger is access.anonymous("192.0.2.1")
        assert not stranger.grants.is_admin and may(stranger, PUBLISH, "a")
        access.allow_anonymous = False
        assert not may(stranger, PUBLISH, "a")
        await access.remove_user("alice")
        again = access.anonymous(HERE)
        assert again is not None and again is not anonymous  # whose connections have ended
        assert again.grants.is_admin and anonymous.is_revoked


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("alice", b"bob-secret"),
        ("alice", b""),
        ("alice", b"alice-secret "),
        ("Alice", b"alice-secret"),
        ("carol", b"carol-secret"),
        ("", b"alice-secret"),
    ],
)
async def test_what_does_not_fit_is_refused_and_counted(user: str, password: bytes) -> None:
    async with access_with("alice", "bob") as access:
        assert await is_refused(access.log_in(user, password, HERE))
        assert access.recall(user, password) is None
        assert refused(access) == {"login": 1}


async def test_a_right_password_gives_the_same_principal_each_time_and_is_remembered() -> None:
    async with access_with("alice", "bob") as access:
        assert access.recall("alice", b"alice-secret") is None
        alice = await access.log_in("alice", b"alice-secret", HERE)
        assert (alice.tenant, alice.user) == ("default", "alice")
        assert access.recall("alice", b"alice-secret") is alice
        assert access.recall("bob", b"alice-secret") is None
        assert access.recall("alice", b"bob-secret") is None
        assert await access.log_in("alice", b"alice-secret", HERE) is alice
        certified = access.certified(Certificate("alice", "", "", "00ff", "1"))
        assert certified is not None and certified.is_same_user(alice)
        assert refused(access) == {}


async def test_a_changed_or_removed_password_is_good_for_nothing_at_once() -> None:
    async with access_with("alice") as access:
        await access.log_in("alice", b"alice-secret", HERE)
        await access.set_password("alice", b"new")
        assert access.recall("alice", b"alice-secret") is None
        assert await is_refused(access.log_in("alice", b"alice-secret", HERE))
        await access.log_in("alice", b"new", HERE)
        await access.remove_user("alice")
        assert access.recall("alice", b"new") is None
        assert await is_refused(access.log_in("alice", b"new", HERE))


@asynccontextmanager
async def login_of_alice(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncio.Future[Principal]]:
    """Her password is being checked inside, and found right on the way out."""
    passwords = access._passwords
    has_begun, may_end = threading.Event(), threading.Event()
    check = passwords._verify

    def check_late(stored: str, password: bytes) -> bool:
        has_begun.set()
        return may_end.wait(FOR_EVER_S) and check(stored, password)

    monkeypatch.setattr(passwords, "_verify", check_late)
    login = asyncio.ensure_future(access.log_in("alice", b"alice-secret", HERE))
    await until(has_begun.is_set)
    yield login
    may_end.set()


async def test_a_user_removed_while_the_password_is_checked_does_not_get_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with access_with("alice") as access:
        async with login_of_alice(access, monkeypatch) as login:
            await access.remove_user("alice")
        assert await is_refused(login)
        assert not access._passwords._right, "remembered for nobody"


async def test_a_login_succeeds_if_users_are_loaded_again_while_its_password_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another node may have added a user."""
    async with access_with("alice") as access:
        async with login_of_alice(access, monkeypatch) as login:
            await access.load()
        assert (await login).user == "alice"


async def test_users_are_found_again_by_whoever_opens_the_catalog_next() -> None:
    async with access_with("bob", "alice") as access:
        again = Access(access._credentials, Metrics())
        await again.load()
        assert [row.user for row in again.users()] == ["alice", "bob"]
        assert (await again.log_in("bob", b"bob-secret", HERE)).user == "bob"
        again.close()
        hashes = {row.password_hash for row in again.users()}
        assert len(hashes) == 2 and all(one.startswith("$argon2id$") for one in hashes)


async def test_users_that_exist_are_not_added_and_others_not_changed() -> None:
    async with access_with("alice") as access:
        with pytest.raises(RefusedError, match="'alice' already exists"):
            await access.add_user("alice", b"other")
        await access.log_in("alice", b"alice-secret", HERE)
        with pytest.raises(RefusedError, match="no user 'bob'"):
            await access.set_password("bob", b"other")
        with pytest.raises(RefusedError, match="no user 'bob'"):
            await access.remove_user("bob")
        for password in (b"", b"x" * 1025):
            with pytest.raises(RefusedError, match="1 to 1024 bytes"):
                await access.add_user("bob", password)
        assert [row.user for row in access.users()] == ["alice"]


async def test_an_unknown_user_costs_as_much_as_a_wrong_password() -> None:
    async def cpu_s(access: Access, user: str) -> float:
        start = time.process_time()  # of all threads: what the machine does besides is not in it
        assert await is_refused(access.log_in(user, b"wrong", HERE))
        return time.process_time() - start

    async with access_with("alice") as access:
        await access.prepare_logins()
        pairs = [(await cpu_s(access, "alice"), await cpu_s(access, "carol")) for _ in range(9)]
        known, unknown = (min(costs) for costs in zip(*pairs, strict=True))
        assert unknown > known / 3


async def test_the_loop_goes_on_while_passwords_are_checked() -> None:
    async with access_with("alice") as access:
        login = asyncio.ensure_future(access.log_in("alice", b"alice-secret", HERE))
        turns = 0
        while not login.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 20  # one if the hash ran on the loop


async def test_more_logins_of_one_network_than_the_bound_are_turned_away() -> None:
    async with access_with("alice", wrong_login_s=FOR_EVER_S) as access:
        logins = [
            asyncio.ensure_future(access.log_in("alice", b"wrong", HERE)) for _ in range(LOGINS_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="too many"):
            await access.log_in("alice", b"alice-secret", HERE)
        assert refused(access)["login_busy"] == 1
        assert (await access.log_in("alice", b"alice-secret", "10.0.0.1")).user == "alice"
        assert refused(access)["login_busy"] == 2, "the newest of the long line gave way"
        access.close()
        await asyncio.wait(logins)


async def test_wrong_logins_of_one_network_hold_up_only_that_network() -> None:
    async with access_with("alice", wrong_login_s=FOR_EVER_S) as access:
        wrong = [
            asyncio.ensure_future(access.log_in("alice", b"wrong", HERE))
            for _ in range(LOGINS_PER_SOURCE_MAX)
        ]
        await until(lambda: refused(access).get("login") == LOGINS_PER_SOURCE_MAX)
        behind = asyncio.ensure_future(access.log_in("alice", b"alice-secret", HERE))
        assert (await access.log_in("alice", b"alice-secret", "10.0.0.1")).user == "alice"
        assert not behind.done()
        for one in wrong:
            one.cancel()  # a guesser that hangs up does not get its turn back
        await asyncio.wait(wrong)
        await asyncio.sleep(0)
        assert not behind.done()
        behind.cancel()


async def test_a_network_is_forgotten_when_its_last_login_is_done() -> None:
    async with access_with("alice") as access:
        for number in range(5):
            await access.log_in("alice", b"alice-secret", f"10.0.0.{number}")
        assert not access._lines._lines and not access._logins


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
    ],
)
def test_who_shares_a_line(one: str, other: str, is_same: bool) -> None:
    assert (network_of(one) == network_of(other)) is is_same


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "broker.example"])
async def test_an_open_address_needs_a_user_or_somebody_who_wrote_it_down(host: str) -> None:
    async with access_with() as access:
        with pytest.raises(InvalidSetting, match="would accept everybody"):
            check_exposure(access, host)
        check_exposure(access, host, takes_anybody=False)
        access.allow_anonymous = True
        check_exposure(access, host)
        access.allow_anonymous = False
        await access.add_user("alice", b"secret")
        check_exposure(access, host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
async def test_this_machine_is_always_safe_to_listen_on(host: str) -> None:
    async with access_with() as access:
        assert not access.asks_login
        check_exposure(access, host)  # refuses other addresses, as the test above shows


@pytest.mark.parametrize("user", ["", "a" * 256, "a:b", "a\n", "a\0", " a", "a\x7f"])
def test_texts_that_name_no_user(user: str) -> None:
    with pytest.raises(InvalidName, match="user name"):
        check_user(user)


@pytest.mark.parametrize("user", ["a", "a" * 255, "alice@example.com", "Ünal", "line 4", "#"])
def test_texts_that_name_a_user(user: str) -> None:
    assert check_user(user) == user


def test_an_admin_may_do_everything_except_speak_in_the_brokers_own_name() -> None:
    alice = Principal(DEFAULT_TENANT, "alice", FULL)
    for action in ACTIONS:
        assert may(alice, action, "a/b")
        assert not may(NOBODY, action, "a/b")
        assert may(BROKER, action, "$SYS/uptime")
    assert not may(alice, PUBLISH, "$SYS/uptime")
    assert not may(alice, PUBLISH, "$SYS")
    assert not may(alice, PUBLISH, "$audit")
    assert may(alice, PUBLISH, "$SYSTEM/a")
    assert may(alice, SUBSCRIBE, "$SYS/#")
    assert may(alice, RECEIVE, "$SYS/uptime")


async def test_the_decision_is_asked_once_for_each_principal_and_name() -> None:
    asked = []
    alice, bob = Principal(DEFAULT_TENANT, "alice"), Principal(DEFAULT_TENANT, "bob")

    def rule(principal: Principal, action: str, name: str, topic: str) -> bool:
        asked.append((principal, action, name))
        return principal is alice

    async with AsyncBroker.memory() as broker:
        await broker.create_topic("default")
        store = SessionStore(broker.engine, broker.engine.session_catalog)
        router = Exchange(broker.engine, store, rule).router
        for _ in range(3):
            assert router.find("a", alice).may_publish
            assert not router.find("a", bob).may_publish
            assert router.find("b", alice).may_publish
        assert asked == [(alice, PUBLISH, "a"), (bob, PUBLISH, "a"), (alice, PUBLISH, "b")]
