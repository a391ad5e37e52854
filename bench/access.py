"""What do ten thousand users with ten rules each cost: memory, logins, decisions, changes of rules?

Run `python -m bench access`. Memory and logins are those of a broker process that is met over MQTT;
decisions and changes are measured inside a process that has the data directory open. Everything is
measured with one user, too. The users are written straight into the catalog, with one hash for all
passwords: hashing ten thousand would take minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.engines import Engine, run_once
from bench.measure import Figure, Row, alternate, engine_figures
from bench.mqtt.servers import Server, start_penstock
from bench.mqtt.wire import allow_many_sockets, connect
from bench.run import Bench
from penstock import AsyncBroker
from penstock.broker.access import KEY_PREFIX, KEY_USER, key_id_of
from penstock.catalog.catalog import Catalog
from penstock.catalog.database.interface import Database
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.database.thread import InlineRunner
from penstock.core.access import CLIENT, PUBLISH, authorise, parse_rule

USERS: Final = 10_000
RULES: Final = 10
LOGINS: Final = 500  # of one turn
DECISIONS: Final = 20_000  # of one turn
PASSWORD: Final = b"a password of the benchmarks"
MANY: Final = "many"
ONE: Final = "one"
COUNTS: Final = {ONE: 1, MANY: USERS}


def user_of(number: int) -> str:
    return f"user-{number}"


def key_of(number: int) -> str:
    return f"{KEY_PREFIX}bench-{number}"


def rules_of(number: int) -> list[str]:
    """Ten rules of one user, about names that the other users may not use."""
    lines = [f"allow publish plant/{number}/line/{line}/#" for line in range(RULES - 3)]
    return [
        *lines,
        f"allow subscribe,receive commands/{number}/#",
        f"deny receive commands/{number}/secret/#",
        f"allow read,manage topic:orders-{number}",
    ]


def put_users(directory: str, count: int) -> None:
    """Users, each with a password, a key and rules of their own, in a data directory."""
    data = Path(directory)

    async def main() -> None:
        async with AsyncBroker(data) as broker:
            await broker.create_topic("default", exist_ok=True)
            row = await broker.engine.access.add_user(user_of(0), PASSWORD, [CLIENT])
        runner = InlineRunner(SqliteDatabase(data / "catalog.db"))
        catalog = await Catalog.open(runner)
        await runner.run(partial(_insert, count=count, password_hash=row.password_hash))
        await catalog.close()

    asyncio.run(main())


def _insert(database: Database, *, count: int, password_hash: str) -> None:
    database.execute_many(
        "insert into credentials (tenant, user_name, password_hash, created_at, changed_at)"
        " values ('default', $1, $2, 0, 0)",
        [(user_of(number), password_hash) for number in range(1, count)],
    )
    database.execute_many(
        "insert into user_roles (tenant, user_name, role) values ('default', $1, $2)",
        [(user_of(number), CLIENT) for number in range(1, count)],
    )
    keys = [(user_of(number), key_of(number)) for number in range(count)]
    database.execute_many(
        "insert into access_keys (tenant, key_id, user_name, digest, created_at, roles)"
        " values ('default', $1, $2, $3, 0, '')",
        [(key_id_of(key), user, hashlib.sha256(key.encode()).hexdigest()) for user, key in keys],
    )
    rules = [(user_of(number), rule) for number in range(count) for rule in rules_of(number)]
    database.execute_many(
        "insert into rules (tenant, rule_id, subject_kind, subject, rule, created_at)"
        " values ('default', $1, 'user', $2, $3, 0)",
        [(at, user, rule) for at, (user, rule) in enumerate(rules, 1)],
    )
    database.execute(
        "update tenants set next_rule_id = $1 where tenant = 'default'", len(rules) + 1
    )


# A broker process


def _log_in(server: Server, user: str, password: bytes) -> None:
    server.user, server.password = user, password
    connect(server).close()


def _logins_us(server: Server, users: list[tuple[str, bytes]]) -> float:
    """The time of one login, from the connection to its CONNACK."""
    begin_s = time.perf_counter()
    for user, password in users:
        _log_in(server, user, password)
    return (time.perf_counter() - begin_s) / len(users) * 1e6


class _Broker:
    """A process with users, and where its turns of logins are."""

    def __init__(self, engine: Engine, directory: Path, count: int) -> None:
        run_once(engine, f"{__name__}:put_users", str(directory), count)
        begin_s = time.perf_counter()
        self.server = start_penstock(engine, directory)
        self.server.wait_ready()
        self.ready_ms = (time.perf_counter() - begin_s) * 1e3
        self.server.wait_quiet()
        self.loaded_bytes = self.server.resident_bytes()
        self._count = count
        self._at = 0

    def _numbers(self, count: int) -> list[int]:
        found = [number % self._count for number in range(self._at, self._at + count)]
        self._at += count
        return found

    def key_turn(self) -> float:
        """Logins with keys; of users who have not been here before, until all have been."""
        users = [(KEY_USER, key_of(number).encode()) for number in self._numbers(LOGINS)]
        return _logins_us(self.server, users)

    def password_turn(self) -> float:
        """Logins with a password that was found right before."""
        users = [(user_of(number), PASSWORD) for number in self._numbers(LOGINS)]
        return _logins_us(self.server, users)

    def see_all(self) -> None:
        """Let every user log in once."""
        _logins_us(self.server, [(KEY_USER, key_of(at).encode()) for at in range(self._count)])


def _process_rows(bench: Bench, engine: Engine) -> Iterator[Row]:
    with bench.scratch() as directory, ExitStack() as stack:
        brokers = {}
        for name, count in COUNTS.items():
            brokers[name] = _Broker(engine, directory / name, count)
            stack.callback(brokers[name].server.stop)
        many, one = brokers[MANY], brokers[ONE]
        yield _row(engine, "start until ready", "ms", [many.ready_ms], [one.ready_ms])
        grown = (many.loaded_bytes - one.loaded_bytes) / USERS
        yield _row(engine, "memory of a user with its key and rules, after start", "B", [grown])
        first = alternate({name: one.key_turn for name, one in brokers.items()}, bench.rounds)
        yield _row(engine, "first login of a user, with a key", "µs", first[MANY], first[ONE])
        for broker in brokers.values():
            broker.see_all()
        again = alternate({name: one.key_turn for name, one in brokers.items()}, bench.rounds)
        yield _row(engine, "later login of a user, with a key", "µs", again[MANY], again[ONE])
        hashed: dict[str, list[float]] = {}
        for name, broker in brokers.items():
            hashed[name] = [_logins_us(broker.server, [(user_of(0), PASSWORD)]) / 1e3]
        yield _row(engine, "login with a password that is hashed", "ms", hashed[MANY], hashed[ONE])
        known = alternate({name: one.password_turn for name, one in brokers.items()}, bench.rounds)
        yield _row(
            engine, "login with a password that is remembered", "µs", known[MANY], known[ONE]
        )
        grown = (many.server.resident_bytes() - one.server.resident_bytes()) / USERS
        yield _row(engine, "memory of a user after all have logged in", "B", [grown])


# Inside a process


def inside(directory: str, rounds: int) -> dict[str, list[float]]:
    """Decisions and changes while every user is known; all times are in µs."""
    return asyncio.run(_inside(Path(directory), rounds))


async def _inside(data: Path, rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    async with AsyncBroker(data) as broker:
        access = broker.engine.access
        users = [row.user for row in access.users()]
        principals = [access.principal(user) for user in users]
        asked = [
            (principal, f"plant/{principal.user.removeprefix('user-')}/line/3/temp")
            for principal in principals
        ]
        asked *= DECISIONS // len(asked)
        for number in range(rounds):
            begin_s = time.perf_counter()
            for principal, name in asked:
                assert authorise(principal, PUBLISH, name, "default")
            past_us = (time.perf_counter() - begin_s) * 1e6
            taken.setdefault("decision", []).append(past_us / len(asked))
            rule = parse_rule(f"deny publish plant/0/closed/{number}")
            changes: dict[str, Callable[[], Awaitable[Any]]] = {
                "rule of a user": lambda rule=rule: access.roles.add_rules([rule], user=users[0]),
                "rule of everybody": lambda rule=rule: access.roles.add_rules([rule]),
                "roles of a user": lambda at=number: access.set_roles(
                    users[0], [CLIENT] if at % 2 else []
                ),
            }
            for what, change in changes.items():
                whole_us, held_us = await _timed(change)
                taken.setdefault(what, []).append(whole_us)
                taken.setdefault(f"{what}, held", []).append(held_us)
    return taken


async def _timed(change: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """How long a change takes, and for how long it holds up the event loop at once."""
    held_s = 0.0
    is_over = False

    async def tick() -> None:
        nonlocal held_s
        before_s = time.perf_counter()
        while not is_over:
            await asyncio.sleep(0)
            now_s = time.perf_counter()
            held_s = max(held_s, now_s - before_s)
            before_s = now_s

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    begin_s = time.perf_counter()
    await change()
    whole_s = time.perf_counter() - begin_s
    is_over = True
    await ticking
    return whole_s * 1e6, held_s * 1e6


def _inside_rows(bench: Bench, engine: Engine) -> Iterator[Row]:
    taken: dict[str, dict[str, list[float]]] = {}
    with bench.scratch() as directory:
        for name, count in COUNTS.items():
            data = str(directory / name)
            run_once(engine, f"{__name__}:put_users", data, count)
            taken[name] = run_once(engine, f"{__name__}:inside", data, bench.rounds)
    many, one = taken[MANY], taken[ONE]
    text = "decision about a name, without a route"
    yield _row(engine, text, "µs", many["decision"], one["decision"])
    for what in ("rule of a user", "rule of everybody", "roles of a user"):
        for key, text in ((what, "durable"), (f"{what}, held", "event loop held up")):
            yield _row(engine, f"change: {what}, {text}", "µs", many[key], one[key])


def _row(
    engine: Engine,
    scenario: str,
    unit: str,
    values: list[float],
    references: list[float] | None = None,
) -> Row:
    if references is None:
        return Row(scenario, unit, {engine.name: Figure.of(values)})
    figures = engine_figures([engine.name], {engine.name: values}, references)
    return Row(scenario, unit, figures, ("one user", median(references)))


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """All rows, or those of the part called `only`; beside each figure is that of one user."""
    allow_many_sockets()
    for name, part in (("process", _process_rows), ("inside", _inside_rows)):
        if only in name:
            for engine in bench.fastest:
                yield from part(bench, engine)
