"""What is in the tables of a log, whatever was appended, and what does SQL see of it?"""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from penstock.core.run import run_of
from penstock.log.appending import PENDING_BYTES_MAX
from penstock.log.broken import DamagedLog
from penstock.log.cache import CACHE_BYTES_MAX
from penstock.log.format.marks import MARK_QOS2_OPENED, MARK_QOS2_RELEASED, Mark
from penstock.log.interface import Bounds, LogSettings
from penstock.log.postgres.tables import READ_ROWS_MAX
from penstock.log.postgres.work import STATEMENT_BYTES_MAX
from penstock.model.errors import (
    CorruptError,
    Gap,
    RefusedError,
    UnavailableError,
)
from penstock.model.limits import MIB
from penstock.model.record import Record
from tests.appends import append
from tests.examples import examples
from tests.log.postgres_world import ORDERS, PostgresWorld, Run, payloads
from tests.log.stores import read_all, until

# What SQL sees


def test_a_view_with_the_topics_name_shows_its_messages(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create(declared='All "Orders"')
        await append(log, run_of("n", ["grün".encode(), b'{"a": 1}', b"", b"\xff\x00"]))
        rows = world.sql('select messageid, message from {v}."All ""Orders""" order by messageid')
        assert rows == [(0, "grün"), (1, '{"a": 1}'), (2, ""), (3, "\\xff00")]

    on_postgres(scenario)


@pytest.mark.parametrize(("name", "has_view"), [("ü" * 31 + "x", True), ("ü" * 32, False)])
def test_a_name_that_postgres_would_cut_has_a_table_and_no_view(
    on_postgres: Run, name: str, has_view: bool
) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create(declared=name)
        await append(log, run_of("n", [b"x"]))
        views = world.sql("select viewname from pg_views where schemaname = $1", world.views)
        assert views == ([(name,)] if has_view else [])
        assert world.sql("select message from {s}.topic_1") == [(b"x",)]

    on_postgres(scenario)


def test_a_topic_may_be_called_like_our_own_tables(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        for topic_id, name in enumerate(("all_topics", "logs", "topic_1"), 1):
            log = await world.create(topic_id=topic_id, declared=name)
            await append(log, run_of("n", [name.encode()]))
            assert world.sql(f'select message from {{v}}."{name}"') == [(name,)]

    on_postgres(scenario)


def test_a_view_that_somebody_else_made_refuses_the_topic_and_leaves_nothing(
    on_postgres: Run,
) -> None:
    async def scenario(world: PostgresWorld) -> None:
        world.sql('create view {v}."Orders" as select 1 as mine')
        with pytest.raises(RefusedError, match="'Orders' that is not ours"):
            await world.create()
        assert world.store.list() == [] and world.sql("select 1 from {s}.logs") == []
        await world.create(declared="Other")

    on_postgres(scenario)


def test_deleting_a_topic_takes_its_table_view_and_marks_along(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        await append(log, run_of("n", [b"x"]), [Mark(MARK_QOS2_OPENED, b"k", 0)])
        await log.close()
        await world.store.delete(ORDERS)
        await world.store.delete(ORDERS)  # again, as after a crash in between
        there = "select count(*) from pg_class where relname in ('topic_1', 'Orders')"
        there += " and relnamespace::regnamespace::text in ($1, $2)"
        assert world.sql(there, world.schema, world.views) == [(0,)]
        assert world.sql("select count(*) from {s}.marks") == [(0,)]
        with pytest.raises(DamagedLog, match="no row of topic 1 in table logs"):
            await world.store.open(ORDERS, LogSettings())

    on_postgres(scenario)


def test_a_forgotten_query_delays_a_deletion_and_never_the_writer(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        other = await world.create(topic_id=2, declared="Other")
        with psycopg.connect(world.server.url) as forgotten:
            forgotten.execute(f'select * from {world.views}."Orders"')
            await log.close()
            with pytest.raises(UnavailableError, match="lock timeout"):
                await world.store.delete(ORDERS)
            assert await append(other, run_of("n", [b"x"])) == 0
        await world.store.delete(ORDERS)

    on_postgres(scenario)


# Rounds


def test_topics_that_commit_together_share_a_transaction(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        logs = [await world.create(topic_id=i, declared=f"t{i}") for i in (1, 2, 3)]
        before = world.sql("select commits from {s}.holders where part = 'log'")[0][0]
        mark = Mark(MARK_QOS2_OPENED, b"k", 0)
        await asyncio.gather(*[append(log, run_of("n", [b"a", b"b"]), [mark]) for log in logs])
        parts = " union all ".join(f"select xmin::text from {{s}}.topic_{i}" for i in (1, 2, 3))
        found = world.sql(f"{parts} union all select xmin::text from {{s}}.marks")
        assert len(found) == 9 and len(set(found)) == 1
        assert world.sql("select commits from {s}.holders where part = 'log'") == [(before + 1,)]

    on_postgres(scenario)


text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=5)
drafts = st.builds(
    run_of,
    name=text,
    payloads=st.lists(st.binary(max_size=20), min_size=1, max_size=4),
    kind=st.integers(0, 2),
    publisher=st.sampled_from(["", "pump", "grün"]),
    headers=st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3).map(tuple),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    expires_at=st.sampled_from([0, 0, 1, 2**62]),
)


def expected(draft: Run) -> list[tuple[object, ...]]:
    shared = (draft.headers, draft.publisher, draft.qos, draft.retain, draft.expires_at, draft.kind)
    return [
        (draft.name, draft.data[start : start + length], *shared)
        for start, length in zip(draft.starts, draft.lengths, strict=True)
    ]


def fields(record: Record) -> tuple[object, ...]:
    shared = (record.headers, record.publisher, record.qos, record.retain)
    return (record.name, record.payload, *shared, record.expires_at or 0, record.kind)


@examples(25, [HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.lists(drafts, min_size=1, max_size=5), min_size=1, max_size=3))
def test_whatever_was_appended_comes_back_from_the_table(
    on_postgres: Run, rounds: list[list[Run]]
) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        for batch in rounds:
            await asyncio.gather(*[append(log, draft) for draft in batch])
            world.clock.advance(1)
        live = [fields(record) for record in await read_all(log)]
        log = await world.reopen(log)
        stored = [fields(record) for record in await read_all(log)]
        assert stored == live == [one for batch in rounds for d in batch for one in expected(d)]

    on_postgres(scenario)


def test_long_topics_are_read_in_parts_and_large_records_alone(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        count = READ_ROWS_MAX + 500
        await append(log, run_of("n", [b"%d" % i for i in range(count)]))
        await append(log, run_of("n", [bytes([i]) * (MIB * 2 // 3) for i in range(4)]))
        log = await world.reopen(log)
        first = (await log.read(0))[0]
        assert first.header.count == READ_ROWS_MAX
        last = (await log.read(count))[0]
        assert last.header.count == 2  # the second begins within the bound
        assert (await payloads(log))[count - 1 :] == [
            b"%d" % (count - 1),
            *[bytes([i]) * (MIB * 2 // 3) for i in range(4)],
        ]

    on_postgres(scenario)


def test_many_readers_of_one_place_ask_the_server_once(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        await append(log, run_of("n", [bytes([i]) * (MIB // 2) for i in range(6)]))
        log = await world.reopen(log)  # with nothing in memory
        found = await asyncio.gather(*[payloads(log) for _ in range(100)])
        found += [await payloads(log)]
        assert found == [[bytes([i]) * (MIB // 2) for i in range(6)]] * 101
        assert log.loads == 3, "two records at a time"
        cache = world.store.cache
        assert 0 < cache.bytes <= CACHE_BYTES_MAX
        await log.close()
        assert cache.bytes == 0

    on_postgres(scenario)


def test_a_round_that_is_too_large_for_one_transaction_has_several(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        each = 7 * MIB
        count = STATEMENT_BYTES_MAX // each + 2
        logs = [await world.create(topic_id=i, declared=f"t{i}") for i in range(1, count + 1)]
        waiting = [append(log, run_of("n", [bytes(each)])) for log in logs]
        assert await asyncio.gather(*waiting) == [0] * count
        parts = " union all ".join(
            f"select xmin::text from {{s}}.topic_{i + 1}" for i in range(count)
        )
        assert len(set(world.sql(parts))) == 2

    on_postgres(scenario)


def test_publishers_beyond_the_bound_wait_and_come_in_order(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        with psycopg.connect(world.server.url) as slow:
            slow.execute(f"select 1 from {world.schema}.logs for update")
            first = asyncio.ensure_future(append(log, run_of("n", [b"first"])))
            await asyncio.sleep(0)
            waiting = [
                asyncio.ensure_future(append(log, run_of("n", [b"%d" % i + bytes(MIB)])))
                for i in range(12)
            ]
            await until(lambda: log.is_congested)
            assert not first.done() and log._pending.bytes < PENDING_BYTES_MAX + 2 * MIB
        assert await first == 0
        assert await asyncio.gather(*waiting) == list(range(1, 13))

    on_postgres(scenario)


# Keeping house


def test_trimming_removes_rows_and_marks_and_forgets_no_offset(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        for i in range(5):
            await append(log, run_of("n", [b"%d" % i]), [Mark(MARK_QOS2_OPENED, b"%d" % i, 0)])
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
        assert await append(log, run_of("n", [b"5"])) == 5
        assert (await read_all(log))[0].timestamp > 10**15  # stamps never fall

    on_postgres(scenario)


def test_rows_that_a_crash_left_below_the_first_offset_go_with_the_next_trim(
    on_postgres: Run,
) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        await append(log, run_of("n", [b"0", b"1", b"2"]))
        world.sql("update {s}.logs set first_offset = 2")
        log = await world.reopen(log)
        assert log.bounds() == Bounds(2, 3)
        assert await log.trim(None, None) == 0
        assert world.sql("select messageid from {s}.topic_1") == [(2,)]

    on_postgres(scenario)


def test_a_row_that_is_missing_is_named_and_the_others_are_found(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        await append(log, run_of("n", [b"0", b"1", b"2", b"3"]))
        world.sql("delete from {s}.topic_1 where messageid in (1, 2)")
        log = await world.reopen(log)
        assert [r.payload for r in (await log.read(0))[0].records("t", 0, 4)] == [b"0"]
        with pytest.raises(CorruptError, match="topic_1 has no row 1"):
            await log.read(1)
        found = [batch.base_offset async for batch in log.batches_since(0)]
        assert found == [0, 3] and "no row 1" in log.damage[0]

    on_postgres(scenario)


@pytest.mark.parametrize(
    "damage", ["delete from {s}.topic_1 where messageid = 2", "drop table {s}.topic_1 cascade"]
)
def test_a_table_that_is_gone_or_has_lost_its_end_is_damaged_and_keeps_its_word(
    on_postgres: Run, damage: str
) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        await append(log, run_of("n", [b"0", b"1", b"2"]))
        world.sql(damage)
        with pytest.raises(DamagedLog, match="rows from 0 up to 3") as damaged:
            await world.reopen(log)
        assert (damaged.value.epoch, damaged.value.end) == (1, 3)
        await world.store.delete(ORDERS)
        assert world.store.list() == []

    on_postgres(scenario)


def test_marks_come_in_the_order_they_were_made_also_those_at_the_end(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        log = await world.create()
        await append(log, run_of("n", [b"0"]), [Mark(MARK_QOS2_OPENED, b"a", 0)])
        await append(log, run_of("n", []), [Mark(MARK_QOS2_RELEASED, b"a")])
        await append(log, run_of("n", [b"1"]), [Mark(MARK_QOS2_OPENED, b"a", 0)])
        await append(log, run_of("n", []), [Mark(MARK_QOS2_RELEASED, b"a")])
        log = await world.reopen(log)
        kinds = [mark.kind async for batch in log.batches_since(0) for mark in batch.marks()]
        assert kinds == [MARK_QOS2_OPENED, MARK_QOS2_RELEASED] * 2
        late = [mark.kind async for batch in log.batches_since(2) for mark in batch.marks()]
        assert late == [MARK_QOS2_RELEASED]

    on_postgres(scenario)


def test_tables_of_a_newer_version_are_refused(on_postgres: Run) -> None:
    async def scenario(world: PostgresWorld) -> None:
        await world.store.close()
        world.sql("update {s}.log_version set version = 1000")
        with pytest.raises(RefusedError, match="table version 1000"):
            await world.open()
        world.sql("update {s}.log_version set version = 1")
        await world.open()

    on_postgres(scenario)
