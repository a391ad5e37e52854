"""What is in the tables of a log, whatever was appended, and what does SQL see of it?"""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from penstock.core.delivery.run import Run, run_of
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
from tests.log.files.stores import read_all, until
from tests.log.postgres.postgres_world import ORDERS, PostgresWorld, open_tables, payloads
from tests.postgres_proxy import PostgresProxy
from tests.postgres_server import PostgresServer

# What SQL sees


async def test_a_view_with_the_topics_name_shows_its_messages(tables: PostgresWorld) -> None:
    log = await tables.create(declared='All "Orders"')
    await append(log, run_of("n", ["grün".encode(), b'{"a": 1}', b"", b"\xff\x00"]))
    rows = tables.sql('select messageid, message from {v}."All ""Orders""" order by messageid')
    assert rows == [(0, "grün"), (1, '{"a": 1}'), (2, ""), (3, "\\xff00")]


@pytest.mark.parametrize(("name", "has_view"), [("ü" * 31 + "x", True), ("ü" * 32, False)])
async def test_a_name_that_postgres_would_cut_has_a_table_and_no_view(
    tables: PostgresWorld, name: str, has_view: bool
) -> None:
    log = await tables.create(declared=name)
    await append(log, run_of("n", [b"x"]))
    views = tables.sql("select viewname from pg_views where schemaname = $1", tables.views)
    assert views == ([(name,)] if has_view else [])
    assert tables.sql("select message from {s}.topic_1") == [(b"x",)]


async def test_a_topic_may_be_called_like_our_own_tables(tables: PostgresWorld) -> None:
    for topic_id, name in enumerate(("all_topics", "logs", "topic_1"), 1):
        log = await tables.create(topic_id=topic_id, declared=name)
        await append(log, run_of("n", [name.encode()]))
        assert tables.sql(f'select message from {{v}}."{name}"') == [(name,)]


async def test_a_view_that_somebody_else_made_refuses_the_topic_and_leaves_nothing(
    tables: PostgresWorld,
) -> None:
    tables.sql('create view {v}."Orders" as select 1 as mine')
    with pytest.raises(RefusedError, match="'Orders' that Penstock did not create"):
        await tables.create()
    assert tables.store.list() == [] and tables.sql("select 1 from {s}.logs") == []
    await tables.create(declared="Other")


async def test_deleting_a_topic_takes_its_table_view_and_marks_along(tables: PostgresWorld) -> None:
    log = await tables.create()
    await append(log, run_of("n", [b"x"]), [Mark(MARK_QOS2_OPENED, b"k", 0)])
    await log.close()
    await tables.store.delete(ORDERS)
    await tables.store.delete(ORDERS)  # again, as after a crash in between
    there = "select count(*) from pg_class where relname in ('topic_1', 'Orders')"
    there += " and relnamespace::regnamespace::text in ($1, $2)"
    assert tables.sql(there, tables.schema, tables.views) == [(0,)]
    assert tables.sql("select count(*) from {s}.marks") == [(0,)]
    with pytest.raises(DamagedLog, match="no row of topic 1 in table logs"):
        await tables.store.open(ORDERS, LogSettings())


@pytest.mark.slow
async def test_a_forgotten_query_delays_a_deletion_and_never_the_writer(
    tables: PostgresWorld,
) -> None:
    log = await tables.create()
    other = await tables.create(topic_id=2, declared="Other")
    with psycopg.connect(tables.server.url) as forgotten:
        forgotten.execute(f'select * from {tables.views}."Orders"')
        await log.close()
        with pytest.raises(UnavailableError, match="lock timeout"):
            await tables.store.delete(ORDERS)
        assert await append(other, run_of("n", [b"x"])) == 0
    await tables.store.delete(ORDERS)


# Rounds


async def test_topics_that_commit_together_share_a_transaction(tables: PostgresWorld) -> None:
    logs = [await tables.create(topic_id=i, declared=f"t{i}") for i in (1, 2, 3)]
    before = tables.sql("select commits from {s}.holders where part = 'log'")[0][0]
    mark = Mark(MARK_QOS2_OPENED, b"k", 0)
    await asyncio.gather(*[append(log, run_of("n", [b"a", b"b"]), [mark]) for log in logs])
    parts = " union all ".join(f"select xmin::text from {{s}}.topic_{i}" for i in (1, 2, 3))
    found = tables.sql(f"{parts} union all select xmin::text from {{s}}.marks")
    assert len(found) == 9 and len(set(found)) == 1
    assert tables.sql("select commits from {s}.holders where part = 'log'") == [(before + 1,)]


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


@pytest.mark.slow
@examples(25, [HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.lists(drafts, min_size=1, max_size=5), min_size=1, max_size=3))
async def test_whatever_was_appended_comes_back_from_the_table(
    postgres: PostgresServer, proxy: PostgresProxy, rounds: list[list[Run]]
) -> None:
    async with open_tables(postgres, proxy) as world:
        log = await world.create()
        for batch in rounds:
            await asyncio.gather(*[append(log, draft) for draft in batch])
            world.clock.advance(1)
        live = [fields(record) for record in await read_all(log)]
        log = await world.reopen(log)
        stored = [fields(record) for record in await read_all(log)]
        assert stored == live == [one for batch in rounds for d in batch for one in expected(d)]


async def test_long_topics_are_read_in_parts_and_large_records_alone(tables: PostgresWorld) -> None:
    log = await tables.create()
    count = READ_ROWS_MAX + 500
    await append(log, run_of("n", [b"%d" % i for i in range(count)]))
    await append(log, run_of("n", [bytes([i]) * (MIB * 2 // 3) for i in range(4)]))
    log = await tables.reopen(log)
    first = (await log.read(0))[0]
    assert first.header.count == READ_ROWS_MAX
    last = (await log.read(count))[0]
    assert last.header.count == 2  # the second begins within the bound
    assert (await payloads(log))[count - 1 :] == [
        b"%d" % (count - 1),
        *[bytes([i]) * (MIB * 2 // 3) for i in range(4)],
    ]


async def test_many_readers_of_one_place_ask_the_server_once(tables: PostgresWorld) -> None:
    log = await tables.create()
    await append(log, run_of("n", [bytes([i]) * (MIB // 2) for i in range(6)]))
    log = await tables.reopen(log)  # with nothing in memory
    found = await asyncio.gather(*[payloads(log) for _ in range(100)])
    found += [await payloads(log)]
    assert found == [[bytes([i]) * (MIB // 2) for i in range(6)]] * 101
    assert log.loads == 3, "two records at a time"
    cache = tables.store.cache
    assert 0 < cache.bytes <= CACHE_BYTES_MAX
    await log.close()
    assert cache.bytes == 0


async def test_a_round_that_is_too_large_for_one_transaction_has_several(
    tables: PostgresWorld,
) -> None:
    each = 7 * MIB
    count = STATEMENT_BYTES_MAX // each + 2
    logs = [await tables.create(topic_id=i, declared=f"t{i}") for i in range(1, count + 1)]
    waiting = [append(log, run_of("n", [bytes(each)])) for log in logs]
    assert await asyncio.gather(*waiting) == [0] * count
    parts = " union all ".join(f"select xmin::text from {{s}}.topic_{i + 1}" for i in range(count))
    assert len(set(tables.sql(parts))) == 2


async def test_publishers_beyond_the_bound_wait_and_come_in_order(tables: PostgresWorld) -> None:
    log = await tables.create()
    with psycopg.connect(tables.server.url) as slow:
        slow.execute(f"select 1 from {tables.schema}.logs for update")
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


# Keeping house


async def test_trimming_removes_rows_and_marks_and_forgets_no_offset(tables: PostgresWorld) -> None:
    log = await tables.create()
    for i in range(5):
        await append(log, run_of("n", [b"%d" % i]), [Mark(MARK_QOS2_OPENED, b"%d" % i, 0)])
        tables.clock.advance(10)
    size = await log.stored_bytes()
    assert await log.trim(tables.clock.now_us() - 25_000_000, None) == 3
    assert tables.sql("select min(messageid), count(*) from {s}.topic_1") == [(3, 2)]
    assert tables.sql("select key from {s}.marks order by key") == [(b"3",), (b"4",)]
    assert await log.stored_bytes() == size * 2 // 5
    with pytest.raises(Gap, match="first record is 3"):
        await log.read(0)
    assert await log.trim(tables.clock.now_us(), None) == 2
    log = await tables.reopen(log)
    assert log.bounds() == Bounds(5, 5) and await log.stored_bytes() == 0
    tables.clock.set_wall(0)
    assert await append(log, run_of("n", [b"5"])) == 5
    assert (await read_all(log))[0].timestamp > 10**15  # stamps never fall


async def test_rows_that_a_crash_left_below_the_first_offset_go_with_the_next_trim(
    tables: PostgresWorld,
) -> None:
    log = await tables.create()
    await append(log, run_of("n", [b"0", b"1", b"2"]))
    tables.sql("update {s}.logs set first_offset = 2")
    log = await tables.reopen(log)
    assert log.bounds() == Bounds(2, 3)
    assert await log.trim(None, None) == 0
    assert tables.sql("select messageid from {s}.topic_1") == [(2,)]


async def test_a_row_that_is_missing_is_named_and_the_others_are_found(
    tables: PostgresWorld,
) -> None:
    log = await tables.create()
    await append(log, run_of("n", [b"0", b"1", b"2", b"3"]))
    tables.sql("delete from {s}.topic_1 where messageid in (1, 2)")
    log = await tables.reopen(log)
    assert [r.payload for r in (await log.read(0))[0].records("t", 0, 4)] == [b"0"]
    with pytest.raises(CorruptError, match="topic_1 lacks row 1"):
        await log.read(1)
    found = [batch.base_offset async for batch in log.batches_since(0)]
    assert found == [0, 3] and "lacks row 1" in log.damage[0]


@pytest.mark.parametrize(
    "damage", ["delete from {s}.topic_1 where messageid = 2", "drop table {s}.topic_1 cascade"]
)
async def test_a_table_that_is_gone_or_has_lost_its_end_is_damaged_and_keeps_its_word(
    tables: PostgresWorld, damage: str
) -> None:
    log = await tables.create()
    await append(log, run_of("n", [b"0", b"1", b"2"]))
    tables.sql(damage)
    with pytest.raises(DamagedLog, match="rows from 0 to 3") as damaged:
        await tables.reopen(log)
    assert (damaged.value.epoch, damaged.value.end) == (1, 3)
    await tables.store.delete(ORDERS)
    assert tables.store.list() == []


async def test_marks_come_in_the_order_they_were_made_also_those_at_the_end(
    tables: PostgresWorld,
) -> None:
    log = await tables.create()
    await append(log, run_of("n", [b"0"]), [Mark(MARK_QOS2_OPENED, b"a", 0)])
    await append(log, run_of("n", []), [Mark(MARK_QOS2_RELEASED, b"a")])
    await append(log, run_of("n", [b"1"]), [Mark(MARK_QOS2_OPENED, b"a", 0)])
    await append(log, run_of("n", []), [Mark(MARK_QOS2_RELEASED, b"a")])
    log = await tables.reopen(log)
    kinds = [mark.kind async for batch in log.batches_since(0) for mark in batch.marks()]
    assert kinds == [MARK_QOS2_OPENED, MARK_QOS2_RELEASED] * 2
    late = [mark.kind async for batch in log.batches_since(2) for mark in batch.marks()]
    assert late == [MARK_QOS2_RELEASED]


async def test_tables_of_a_newer_version_are_refused(tables: PostgresWorld) -> None:
    await tables.store.close()
    tables.sql("update {s}.log_version set version = 1000")
    with pytest.raises(RefusedError, match="table version 1000"):
        await tables.open()
    tables.sql("update {s}.log_version set version = 1")
    await tables.open()
