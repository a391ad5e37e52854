"""Does a log in tables keep its word when connections end, and show what SQL should see?"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.log.broken import DamagedLog
from penstock.log.interface import OS, Bounds, Draft, KeptLog, LogIdentity, LogSettings
from penstock.log.marks import MARK_QOS2_OPENED, MARK_QOS2_RELEASED, Mark
from penstock.log.postgres import PENDING_BYTES_MAX, PostgresLog
from penstock.log.postgres_reader import PostgresReader
from penstock.log.postgres_store import PostgresStore
from penstock.log.postgres_tables import READ_ROWS_MAX, views_schema
from penstock.log.postgres_work import STATEMENT_BYTES_MAX
from penstock.model.clock import ManualClock
from penstock.model.errors import (
    CorruptError,
    Gap,
    RefusedError,
    TopicNotFound,
    UnavailableError,
)
from penstock.model.limits import MIB
from penstock.model.record import Record
from tests.log.stores import read_all, until
from tests.postgres_proxy import ABANDON, DEAFEN, SWALLOW, PostgresProxy
from tests.postgres_server import PostgresServer

ORDERS = LogIdentity("default", 1, "orders")
LOOSE = LogSettings(durability=OS)


class World:
    """A store behind a network that fails when told to."""

    def __init__(self, server: PostgresServer, proxy: PostgresProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.schema = server.new_schema()
        self.views = views_schema(self.schema)
        self.clock = ManualClock()
        self.giving_up = threading.Event()
        self.store: PostgresStore

    async def open(self) -> PostgresStore:
        self.store = await PostgresStore.start(
            self.proxy.url, self.schema, self.clock, self.giving_up
        )
        return self.store

    async def create(
        self, settings: LogSettings | None = None, topic_id: int = 1, declared: str = "Orders"
    ) -> PostgresLog:
        identity = LogIdentity("default", topic_id, "orders")
        return await self.store.create(identity, declared, settings or LogSettings())

    async def reopen(self, log: PostgresLog) -> PostgresLog:
        """As after kill -9: nothing is closed in order."""
        await self.store.close()
        await self.open()
        return await self.store.open(LogIdentity("default", log.topic_id, "orders"), log.settings)

    def sql(self, text: str, *args: object) -> list[tuple[object, ...]]:
        return self.server.fetch(text.format(s=self.schema, v=self.views), *args)


Scenario = Callable[[World], Awaitable[None]]


@pytest.fixture
def run(postgres: PostgresServer) -> Iterator[Callable[[Scenario], None]]:
    @asynccontextmanager
    async def opened(proxy: PostgresProxy) -> AsyncIterator[World]:
        world = World(postgres, proxy)
        await world.open()
        try:
            yield world
        finally:
            world.giving_up.set()
            await world.store.close()

    def runner(scenario: Scenario) -> None:
        async def main() -> None:
            async with opened(proxy) as world:
                await asyncio.wait_for(scenario(world), 120)

        asyncio.run(main())

    with PostgresProxy(postgres.url) as proxy:
        yield runner


Run = Callable[[Scenario], None]


async def payloads(log: KeptLog) -> list[bytes]:
    return [record.payload for record in await read_all(log)]


# What SQL sees


def test_a_view_with_the_topics_name_shows_its_messages(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create(declared='All "Orders"')
        await log.append(Draft("n", ["grün".encode(), b'{"a": 1}', b"", b"\xff\x00"]))
        rows = world.sql('select messageid, message from {v}."All ""Orders""" order by messageid')
        assert rows == [(0, "grün"), (1, '{"a": 1}'), (2, ""), (3, "\\xff00")]

    run(scenario)


@pytest.mark.parametrize(("name", "has_view"), [("ü" * 31 + "x", True), ("ü" * 32, False)])
def test_a_name_that_postgres_would_cut_has_a_table_and_no_view(
    run: Run, name: str, has_view: bool
) -> None:
    async def scenario(world: World) -> None:
        log = await world.create(declared=name)
        await log.append(Draft("n", [b"x"]))
        views = world.sql("select viewname from pg_views where schemaname = $1", world.views)
        assert views == ([(name,)] if has_view else [])
        assert world.sql("select message from {s}.topic_1") == [(b"x",)]

    run(scenario)


def test_a_topic_may_be_called_like_our_own_tables(run: Run) -> None:
    async def scenario(world: World) -> None:
        for topic_id, name in enumerate(("all_topics", "logs", "topic_1"), 1):
            log = await world.create(topic_id=topic_id, declared=name)
            await log.append(Draft("n", [name.encode()]))
            assert world.sql(f'select message from {{v}}."{name}"') == [(name,)]

    run(scenario)


def test_a_view_that_somebody_else_made_refuses_the_topic_and_leaves_nothing(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.sql('create view {v}."Orders" as select 1 as mine')
        with pytest.raises(RefusedError, match="'Orders' that is not ours"):
            await world.create()
        assert world.store.list() == [] and world.sql("select 1 from {s}.logs") == []
        await world.create(declared="Other")

    run(scenario)


def test_deleting_a_topic_takes_its_table_view_and_marks_along(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        await log.append(Draft("n", [b"x"]), [Mark(MARK_QOS2_OPENED, b"k", 0)])
        await log.close()
        await world.store.delete(ORDERS)
        await world.store.delete(ORDERS)  # again, as after a crash in between
        there = "select count(*) from pg_class where relname in ('topic_1', 'Orders')"
        there += " and relnamespace::regnamespace::text in ($1, $2)"
        assert world.sql(there, world.schema, world.views) == [(0,)]
        assert world.sql("select count(*) from {s}.marks") == [(0,)]
        with pytest.raises(DamagedLog, match="no row of topic 1 in table logs"):
            await world.store.open(ORDERS, LogSettings())

    run(scenario)


def test_a_forgotten_query_delays_a_deletion_and_never_the_writer(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        other = await world.create(topic_id=2, declared="Other")
        with psycopg.connect(world.server.url) as forgotten:
            forgotten.execute(f'select * from {world.views}."Orders"')
            await log.close()
            with pytest.raises(UnavailableError, match="lock timeout"):
                await world.store.delete(ORDERS)
            assert await other.append(Draft("n", [b"x"])) == 0
        await world.store.delete(ORDERS)

    run(scenario)


# Rounds


def test_topics_that_commit_together_share_a_transaction(run: Run) -> None:
    async def scenario(world: World) -> None:
        logs = [await world.create(topic_id=i, declared=f"t{i}") for i in (1, 2, 3)]
        before = world.sql("select commits from {s}.holders where part = 'log'")[0][0]
        mark = Mark(MARK_QOS2_OPENED, b"k", 0)
        await asyncio.gather(*[log.append(Draft("n", [b"a", b"b"]), [mark]) for log in logs])
        parts = " union all ".join(f"select xmin::text from {{s}}.topic_{i}" for i in (1, 2, 3))
        found = world.sql(f"{parts} union all select xmin::text from {{s}}.marks")
        assert len(found) == 9 and len(set(found)) == 1
        assert world.sql("select commits from {s}.holders where part = 'log'") == [(before + 1,)]

    run(scenario)


text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=5)
drafts = st.builds(
    Draft,
    name=text,
    payloads=st.lists(st.binary(max_size=20), min_size=1, max_size=4),
    kind=st.integers(0, 2),
    publisher=st.sampled_from(["", "pump", "grün"]),
    headers=st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3).map(tuple),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    expires_at=st.sampled_from([0, 0, 1, 2**62]),
)


def expected(draft: Draft) -> list[tuple[object, ...]]:
    shared = (draft.headers, draft.publisher, draft.qos, draft.retain, draft.expires_at, draft.kind)
    return [(draft.name, payload, *shared) for payload in draft.payloads]


def fields(record: Record) -> tuple[object, ...]:
    shared = (record.headers, record.publisher, record.qos, record.retain)
    return (record.name, record.payload, *shared, record.expires_at or 0, record.kind)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.lists(drafts, min_size=1, max_size=5), min_size=1, max_size=3))
def test_whatever_was_appended_comes_back_from_the_table(
    run: Run, rounds: list[list[Draft]]
) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        for batch in rounds:
            await asyncio.gather(*[log.append(draft) for draft in batch])
            world.clock.advance(1)
        live = [fields(record) for record in await read_all(log)]
        log = await world.reopen(log)
        stored = [fields(record) for record in await read_all(log)]
        assert stored == live == [one for batch in rounds for d in batch for one in expected(d)]

    run(scenario)


def test_long_topics_are_read_in_parts_and_large_records_alone(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        count = READ_ROWS_MAX + 500
        await log.append(Draft("n", [b"%d" % i for i in range(count)]))
        await log.append(Draft("n", [bytes([i]) * (MIB * 2 // 3) for i in range(4)]))
        log = await world.reopen(log)
        first = (await log.read(0))[0]
        assert first.header.count == READ_ROWS_MAX
        last = (await log.read(count))[0]
        assert last.header.count == 2  # the second begins within the bound
        assert (await payloads(log))[count - 1 :] == [
            b"%d" % (count - 1),
            *[bytes([i]) * (MIB * 2 // 3) for i in range(4)],
        ]

    run(scenario)


def test_a_round_that_is_too_large_for_one_transaction_has_several(run: Run) -> None:
    async def scenario(world: World) -> None:
        each = 7 * MIB
        count = STATEMENT_BYTES_MAX // each + 2
        logs = [await world.create(topic_id=i, declared=f"t{i}") for i in range(1, count + 1)]
        waiting = [log.append(Draft("n", [bytes(each)])) for log in logs]
        assert await asyncio.gather(*waiting) == [0] * count
        parts = " union all ".join(
            f"select xmin::text from {{s}}.topic_{i + 1}" for i in range(count)
        )
        assert len(set(world.sql(parts))) == 2

    run(scenario)


def test_publishers_beyond_the_bound_wait_and_come_in_order(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        with psycopg.connect(world.server.url) as slow:
            slow.execute(f"select 1 from {world.schema}.logs for update")
            first = asyncio.ensure_future(log.append(Draft("n", [b"first"])))
            await asyncio.sleep(0)
            waiting = [
                asyncio.ensure_future(log.append(Draft("n", [b"%d" % i + bytes(MIB)])))
                for i in range(12)
            ]
            await until(lambda: log.is_congested)
            assert not first.done() and log._pending.bytes < PENDING_BYTES_MAX + 2 * MIB
        assert await first == 0
        assert await asyncio.gather(*waiting) == list(range(1, 13))

    run(scenario)


# Connections that end


def test_a_second_store_on_the_schema_is_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(UnavailableError, match=r"the log in schema .* is in use by process"):
            await PostgresStore.start(world.server.url, world.schema, world.clock)

    run(scenario)


def test_an_idle_connection_that_was_lost_is_made_anew_unnoticed(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        await log.append(Draft("n", [b"0"]))
        world.proxy.cut()
        assert await log.append(Draft("n", [b"1"])) == 1
        assert world.server.cut_connections() > 0
        assert await log.append(Draft("n", [b"2"])) == 2
        log = await world.reopen(log)
        assert await payloads(log) == [b"0", b"1", b"2"]
        world.proxy.cut()
        assert await payloads(log) == [b"0", b"1", b"2"]

    run(scenario)


@pytest.mark.parametrize("fate", [SWALLOW, DEAFEN, ABANDON])
def test_a_round_under_way_when_the_connection_ends_is_stored_exactly_once(
    run: Run, fate: str
) -> None:
    async def scenario(world: World) -> None:
        log, other = await world.create(), await world.create(topic_id=2, declared="Other")
        await log.append(Draft("n", [b"before"]))
        world.proxy.doom(fate)
        mark = Mark(MARK_QOS2_OPENED, b"k", 0)
        offsets = await asyncio.gather(
            log.append(Draft("n", [b"a", b"b"]), [mark]), other.append(Draft("n", [b"c"]))
        )
        assert offsets == [1, 0] and world.proxy.has_struck.is_set()
        assert await log.append(Draft("n", [b"after"])) == 3
        log = await world.reopen(log)
        assert await payloads(log) == [b"before", b"a", b"b", b"after"]
        assert world.sql("select count(*) from {s}.marks") == [(1,)]
        assert world.sql("select message from {s}.topic_2") == [(b"c",)]

    run(scenario)


@pytest.mark.parametrize("fate", [SWALLOW, DEAFEN])
def test_while_a_round_is_in_doubt_its_publishers_wait_and_others_are_refused(
    run: Run, fate: str
) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        await log.append(Draft("n", [b"0"]))
        world.proxy.is_down = True
        world.proxy.doom(fate)
        doubtful = asyncio.ensure_future(log.append(Draft("n", [b"1"])))
        await until(lambda: world.proxy.has_struck.is_set())
        pending = asyncio.ensure_future(log.append(Draft("n", [b"pending"])))
        await until(lambda: bool(world.store._work.trouble))
        with pytest.raises(UnavailableError, match="PostgreSQL"):
            await pending
        with pytest.raises(UnavailableError, match="PostgreSQL"):
            await log.append(Draft("n", [b"refused"]))
        assert await payloads(log) == [b"0"]  # what is known can be read
        assert not doubtful.done()
        world.proxy.is_down = False
        assert await doubtful == 1
        assert await log.append(Draft("n", [b"2"])) == 2
        assert world.sql("select message from {s}.topic_1 order by 1") == [
            (b"0",),
            (b"1",),
            (b"2",),
        ]

    run(scenario)


def test_a_close_that_gives_up_on_a_round_in_doubt_says_so_and_opening_knows(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        world.proxy.is_down = True
        world.proxy.doom(DEAFEN)
        doubtful = asyncio.ensure_future(log.append(Draft("n", [b"1"])))
        await until(lambda: bool(world.store._work.trouble))
        world.giving_up.set()
        await log.close()
        with pytest.raises(UnavailableError, match="only opening again tells"):
            await doubtful
        world.proxy.is_down = False
        world.giving_up.clear()
        log = await world.reopen(log)
        assert await payloads(log) == [b"1"]

    run(scenario)


def test_a_server_that_is_gone_refuses_and_goes_on_when_it_is_back(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        world.proxy.is_down = True
        world.proxy.cut()
        for _ in range(5):
            with pytest.raises(UnavailableError, match="PostgreSQL"):
                await log.append(Draft("n", [b"refused"]))
            with pytest.raises(UnavailableError, match="PostgreSQL"):
                await log.offset_at(0)
        world.proxy.is_down = False
        for _ in range(200):
            try:
                assert await log.append(Draft("n", [b"stored"])) == 0
                break
            except UnavailableError as still:
                await asyncio.sleep(still.retry_after_s)
        assert await payloads(log) == [b"stored"]

    run(scenario)


def test_whoever_lost_the_hold_stores_nothing_any_more(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        world.proxy.is_down = True
        world.proxy.cut()
        other = await PostgresStore.start(world.server.url, world.schema, world.clock)
        theirs = await other.open(ORDERS, LogSettings())
        assert await theirs.append(Draft("n", [b"theirs"])) == 0
        await other.close()
        world.proxy.is_down = False
        for _ in range(2):
            with pytest.raises(UnavailableError, match="held it meanwhile"):
                await log.append(Draft("n", [b"ours"]))
        assert world.sql("select message from {s}.topic_1") == [(b"theirs",)]

    run(scenario)


# Levels and epochs


async def synchronous_commit(store: PostgresStore) -> str:
    """As it is on the writer's connection right now."""
    work = store._work
    return await work._do(
        lambda: str(work._hold.connection().execute("show synchronous_commit").fetchone()[0])  # type: ignore[index]
    )


def test_commits_wait_for_the_disk_unless_every_topic_of_the_round_is_at_level_os(run: Run) -> None:
    async def scenario(world: World) -> None:
        strict = await world.create()
        loose = await world.create(LOOSE, topic_id=2, declared="Loose")
        await strict.append(Draft("n", [b"x"]))
        assert await synchronous_commit(world.store) == "on"
        await loose.append(Draft("n", [b"x"]))
        assert await synchronous_commit(world.store) == "on"  # that it is loose is synced first
        await loose.append(Draft("n", [b"x"]))
        assert await synchronous_commit(world.store) == "off"
        await asyncio.gather(*[log.append(Draft("n", [b"x"])) for log in (strict, loose)])
        assert await synchronous_commit(world.store) == "on"
        assert await loose.append(Draft("n", [b"x"])) == 3
        assert await synchronous_commit(world.store) == "off"

    run(scenario)


def test_at_level_os_an_unclean_end_begins_an_epoch_and_a_clean_one_does_not(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create(LOOSE)
        await log.append(Draft("n", [b"0", b"1", b"2"]))
        await log.append(Draft("n", [b"3"]))
        assert log.epoch == 1
        log = await world.reopen(log)
        assert log.epoch == 2 and world.store.notes == ["orders-1: epoch 2 begins at offset 4"]
        assert await log.clamp(1, 9) == 4 and await log.clamp(1, 2) == 2
        await log.append(Draft("n", [b"4"]))
        assert await log.clamp(2, 5) == 5 and await log.clamp(1, 5) == 4
        await log.close()
        log = await world.reopen(log)
        assert log.epoch == 2 and world.store.notes == []

    run(scenario)


def test_a_server_that_lost_confirmed_records_fences_their_topic_only(run: Run) -> None:
    async def scenario(world: World) -> None:
        log, other = await world.create(), await world.create(topic_id=2, declared="Other")
        await log.append(Draft("n", [b"0"]))
        await log.append(Draft("n", [b"1"]))
        await other.append(Draft("n", [b"0"]))
        world.proxy.cut()
        world.sql("delete from {s}.topic_1 where messageid = 1")
        world.sql("update {s}.logs set end_offset = 1 where topic_id = 1")
        world.sql("update {s}.holders set commits = commits - 1 where part = 'log'")
        assert await other.append(Draft("n", [b"1"])) == 1
        await until(lambda: bool(log.fence))
        with pytest.raises(UnavailableError, match=r"ends at 1 there.*up to 2 had been shown"):
            await log.append(Draft("n", [b"2"]))
        assert await other.append(Draft("n", [b"2"])) == 2
        await until(lambda: world.sql("select is_loose from {s}.logs where topic_id = 1")[0][0])
        log = await world.reopen(log)
        assert log.epoch == 2 and await log.clamp(1, 2) == 1
        assert await log.append(Draft("n", [b"new"])) == 1

    run(scenario)


def test_a_table_changed_by_hand_is_noticed_before_anything_is_stored(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        await log.append(Draft("n", [b"0", b"1"]))
        world.sql("update {s}.logs set end_offset = 1")
        with pytest.raises(UnavailableError, match="not as we left them"):
            await log.append(Draft("n", [b"2"]))
        await until(lambda: bool(log.fence))
        assert world.sql("select count(*) from {s}.topic_1") == [(2,)]

    run(scenario)


# Keeping house


def test_trimming_removes_rows_and_marks_and_forgets_no_offset(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        for i in range(5):
            await log.append(Draft("n", [b"%d" % i]), [Mark(MARK_QOS2_OPENED, b"%d" % i, 0)])
            world.clock.advance(10)
        size = await log.stored_bytes()
        assert await log.trim(world.clock.now_us() - 25_000_000, None) == 3
        assert world.sql("select min(messageid), count(*) from {s}.topic_1") == [(3, 2)]
        assert world.sql("select key from {s}.marks order by key") == [(b"3",), (b"4",)]
        assert await log.stored_bytes() == size * 2 // 5
        with pytest.raises(Gap, match="first record is 3"):
            await log.read(0)
        assert await log.trim(world.clock.now_us(), None) == 2
        log = await world.reopen(log)
        assert log.bounds() == Bounds(5, 5) and await log.stored_bytes() == 0
        world.clock.set_wall(0)
        assert await log.append(Draft("n", [b"5"])) == 5
        assert (await read_all(log))[0].timestamp > 10**15  # stamps never fall

    run(scenario)


def test_rows_that_a_crash_left_below_the_first_offset_go_with_the_next_trim(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        await log.append(Draft("n", [b"0", b"1", b"2"]))
        world.sql("update {s}.logs set first_offset = 2")
        log = await world.reopen(log)
        assert log.bounds() == Bounds(2, 3)
        assert await log.trim(None, None) == 0
        assert world.sql("select messageid from {s}.topic_1") == [(2,)]

    run(scenario)


def test_a_row_that_is_missing_is_named_and_the_others_are_found(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        await log.append(Draft("n", [b"0", b"1", b"2", b"3"]))
        world.sql("delete from {s}.topic_1 where messageid in (1, 2)")
        log = await world.reopen(log)
        assert [r.payload for r in (await log.read(0))[0].records("t", 0, 4)] == [b"0"]
        with pytest.raises(CorruptError, match="topic_1 has no row 1"):
            await log.read(1)
        found = [batch.base_offset async for batch in log.batches_since(0)]
        assert found == [0, 3] and "no row 1" in log.damage[0]

    run(scenario)


@pytest.mark.parametrize(
    "damage", ["delete from {s}.topic_1 where messageid = 2", "drop table {s}.topic_1 cascade"]
)
def test_a_table_that_is_gone_or_has_lost_its_end_is_damaged_and_keeps_its_word(
    run: Run, damage: str
) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        await log.append(Draft("n", [b"0", b"1", b"2"]))
        world.sql(damage)
        with pytest.raises(DamagedLog, match="rows from 0 up to 3") as damaged:
            await world.reopen(log)
        assert (damaged.value.epoch, damaged.value.end) == (1, 3)
        await world.store.delete(ORDERS)
        assert world.store.list() == []

    run(scenario)


def test_marks_come_in_the_order_they_were_made_also_those_at_the_end(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        await log.append(Draft("n", [b"0"]), [Mark(MARK_QOS2_OPENED, b"a", 0)])
        await log.append(Draft("n", []), [Mark(MARK_QOS2_RELEASED, b"a")])
        await log.append(Draft("n", [b"1"]), [Mark(MARK_QOS2_OPENED, b"a", 0)])
        await log.append(Draft("n", []), [Mark(MARK_QOS2_RELEASED, b"a")])
        log = await world.reopen(log)
        kinds = [mark.kind async for batch in log.batches_since(0) for mark in batch.marks()]
        assert kinds == [MARK_QOS2_OPENED, MARK_QOS2_RELEASED] * 2
        late = [mark.kind async for batch in log.batches_since(2) for mark in batch.marks()]
        assert late == [MARK_QOS2_RELEASED]

    run(scenario)


def test_tables_of_a_newer_version_are_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.store.close()
        world.sql("update {s}.log_version set version = 1000")
        with pytest.raises(RefusedError, match="table version 1000"):
            await world.open()
        world.sql("update {s}.log_version set version = 1")
        await world.open()

    run(scenario)


# Other processes

WAITING = """
import sys
from penstock.log.postgres_reader import PostgresReader
reader = PostgresReader(sys.argv[1], sys.argv[2], "ORDERS")
offset = reader.bounds().end
print("waiting", flush=True)
while offset < 3:
    assert reader.wait_past(offset, 60)
    for batch in reader.read(offset):
        for record in batch.records("orders", offset, batch.end_offset):
            print(record.offset, record.payload.decode(), flush=True)
        offset = batch.end_offset
"""


def test_readers_in_other_processes_are_woken_by_every_commit(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        command = [sys.executable, "-c", WAITING, world.server.url, world.schema]
        readers = [
            await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(2)
        ]
        for reader in readers:
            assert reader.stdout is not None
            assert await reader.stdout.readline() == b"waiting\n"
        for i in range(3):
            await log.append(Draft("n", [b"m%d" % i]))
            for reader in readers:
                assert reader.stdout is not None
                assert await reader.stdout.readline() == b"%d m%d\n" % (i, i)
        assert [await reader.wait() for reader in readers] == [0, 0]

    run(scenario)


def test_a_reader_sees_bounds_times_and_gaps_as_the_broker_does(run: Run) -> None:
    async def scenario(world: World) -> None:
        log = await world.create()
        for i in range(4):
            await log.append(Draft("n", [b"%d" % i]))
            world.clock.advance(10)
        await log.trim(world.clock.now_us() - 25_000_000, None)

        def look() -> None:
            reader = PostgresReader(world.proxy.url, world.schema, "orders")
            assert reader.bounds() == log.bounds() == Bounds(2, 4)
            assert reader.offset_at(world.clock.now_us() - 15_000_000) == 3
            assert reader.read(4) == [] and not reader.wait_past(4, 0.01)
            with pytest.raises(Gap, match="first record is 2"):
                reader.read(0)
            world.proxy.cut()
            assert [b.base_offset for b in reader.read(3)] == [3]
            reader.close()
            with pytest.raises(TopicNotFound, match="'nothing'"):
                PostgresReader(world.proxy.url, world.schema, "nothing")

        await asyncio.to_thread(look)

    run(scenario)
