"""Does a log in tables keep its word when connections end, and whoever else reads it?"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from penstock.core.delivery.run import run_of
from penstock.log.format.marks import MARK_QOS2_OPENED, Mark
from penstock.log.interface import Bounds, LogSettings
from penstock.log.postgres.reader import PostgresReader
from penstock.log.postgres.store import PostgresStore
from penstock.model.errors import (
    Gap,
    TopicNotFound,
    UnavailableError,
)
from tests.appends import append
from tests.log.files.stores import until
from tests.log.postgres.postgres_world import LOOSE, ORDERS, PostgresWorld, payloads
from tests.postgres_proxy import ABANDON, DEAFEN, SWALLOW

# Connections that end


@pytest.mark.slow
async def test_a_second_store_on_the_schema_is_refused(tables: PostgresWorld) -> None:
    with pytest.raises(UnavailableError, match=r"the log in schema .* is in use by process"):
        await PostgresStore.start(tables.server.url, tables.schema, tables.clock)


async def test_an_idle_connection_that_was_lost_is_made_anew_unnoticed(
    tables: PostgresWorld,
) -> None:
    log = await tables.create()
    await append(log, run_of("n", [b"0"]))
    tables.proxy.cut()
    assert await append(log, run_of("n", [b"1"])) == 1
    assert tables.server.cut_connections() > 0
    assert await append(log, run_of("n", [b"2"])) == 2
    log = await tables.reopen(log)
    assert await payloads(log) == [b"0", b"1", b"2"]
    tables.proxy.cut()
    assert await payloads(log) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("fate", [SWALLOW, DEAFEN, ABANDON])
async def test_a_round_under_way_when_the_connection_ends_is_stored_exactly_once(
    tables: PostgresWorld, fate: str
) -> None:
    log, other = await tables.create(), await tables.create(topic_id=2, declared="Other")
    await append(log, run_of("n", [b"before"]))
    tables.proxy.doom(fate)
    mark = Mark(MARK_QOS2_OPENED, b"k", 0)
    offsets = await asyncio.gather(
        append(log, run_of("n", [b"a", b"b"]), [mark]), append(other, run_of("n", [b"c"]))
    )
    assert offsets == [1, 0] and tables.proxy.has_struck.is_set()
    assert await append(log, run_of("n", [b"after"])) == 3
    log = await tables.reopen(log)
    assert await payloads(log) == [b"before", b"a", b"b", b"after"]
    assert tables.sql("select count(*) from {s}.marks") == [(1,)]
    assert tables.sql("select message from {s}.topic_2") == [(b"c",)]


@pytest.mark.parametrize("fate", [SWALLOW, DEAFEN])
async def test_while_a_round_is_in_doubt_its_publishers_wait_and_others_are_refused(
    tables: PostgresWorld, fate: str
) -> None:
    log = await tables.create()
    await append(log, run_of("n", [b"0"]))
    tables.proxy.is_down = True
    tables.proxy.doom(fate)
    doubtful = asyncio.ensure_future(append(log, run_of("n", [b"1"])))
    await until(lambda: tables.proxy.has_struck.is_set())
    pending = asyncio.ensure_future(append(log, run_of("n", [b"pending"])))
    await until(lambda: bool(tables.store._work.trouble))
    with pytest.raises(UnavailableError, match="PostgreSQL"):
        await pending
    with pytest.raises(UnavailableError, match="PostgreSQL"):
        await append(log, run_of("n", [b"refused"]))
    assert await payloads(log) == [b"0"]  # what is known can be read
    assert not doubtful.done()
    tables.proxy.is_down = False
    assert await doubtful == 1
    assert await append(log, run_of("n", [b"2"])) == 2
    assert tables.sql("select message from {s}.topic_1 order by 1") == [
        (b"0",),
        (b"1",),
        (b"2",),
    ]


async def test_a_close_that_gives_up_on_a_round_in_doubt_says_so_and_opening_knows(
    tables: PostgresWorld,
) -> None:
    log = await tables.create()
    tables.proxy.is_down = True
    tables.proxy.doom(DEAFEN)
    doubtful = asyncio.ensure_future(append(log, run_of("n", [b"1"])))
    await until(lambda: bool(tables.store._work.trouble))
    tables.giving_up.set()
    await log.close()
    with pytest.raises(UnavailableError, match="unknown whether the last change was stored"):
        await doubtful
    tables.proxy.is_down = False
    tables.giving_up.clear()
    log = await tables.reopen(log)
    assert await payloads(log) == [b"1"]


async def test_a_server_that_is_gone_refuses_and_goes_on_when_it_is_back(
    tables: PostgresWorld,
) -> None:
    log = await tables.create()
    tables.proxy.is_down = True
    tables.proxy.cut()
    for _ in range(5):
        with pytest.raises(UnavailableError, match="PostgreSQL"):
            await append(log, run_of("n", [b"refused"]))
        with pytest.raises(UnavailableError, match="PostgreSQL"):
            await log.offset_at(0)
    tables.proxy.is_down = False
    for _ in range(200):
        try:
            assert await append(log, run_of("n", [b"stored"])) == 0
            break
        except UnavailableError as still:
            await asyncio.sleep(still.retry_after_s)
    assert await payloads(log) == [b"stored"]


async def test_whoever_lost_the_hold_stores_nothing_any_more(tables: PostgresWorld) -> None:
    log = await tables.create()
    tables.proxy.is_down = True
    tables.proxy.cut()
    other = await PostgresStore.start(tables.server.url, tables.schema, tables.clock)
    theirs = await other.open(ORDERS, LogSettings())
    assert await append(theirs, run_of("n", [b"theirs"])) == 0
    await other.close()
    tables.proxy.is_down = False
    for _ in range(2):
        with pytest.raises(UnavailableError, match="used it meanwhile"):
            await append(log, run_of("n", [b"ours"]))
    assert tables.sql("select message from {s}.topic_1") == [(b"theirs",)]


# Levels and epochs


async def synchronous_commit(store: PostgresStore) -> str:
    """As it is on the writer's connection right now."""
    work = store._work
    return await work._do(
        lambda: str(work._hold.connection().execute("show synchronous_commit").fetchone()[0])  # type: ignore[index]
    )


async def test_commits_wait_for_the_disk_unless_every_topic_of_the_round_is_at_level_os(
    tables: PostgresWorld,
) -> None:
    strict = await tables.create()
    loose = await tables.create(LOOSE, topic_id=2, declared="Loose")
    await append(strict, run_of("n", [b"x"]))
    assert await synchronous_commit(tables.store) == "on"
    await append(loose, run_of("n", [b"x"]))
    assert await synchronous_commit(tables.store) == "on"  # that it is loose is synced first
    await append(loose, run_of("n", [b"x"]))
    assert await synchronous_commit(tables.store) == "off"
    await asyncio.gather(*[append(log, run_of("n", [b"x"])) for log in (strict, loose)])
    assert await synchronous_commit(tables.store) == "on"
    assert await append(loose, run_of("n", [b"x"])) == 3
    assert await synchronous_commit(tables.store) == "off"


async def test_at_level_os_an_unclean_end_begins_an_epoch_and_a_clean_one_does_not(
    tables: PostgresWorld,
) -> None:
    log = await tables.create(LOOSE)
    await append(log, run_of("n", [b"0", b"1", b"2"]))
    await append(log, run_of("n", [b"3"]))
    assert log.epoch == 1
    log = await tables.reopen(log)
    assert log.epoch == 2 and tables.store.notes == ["orders-1: epoch 2 begins at offset 4"]
    assert await log.clamp(1, 9) == 4 and await log.clamp(1, 2) == 2
    await append(log, run_of("n", [b"4"]))
    assert await log.clamp(2, 5) == 5 and await log.clamp(1, 5) == 4
    await log.close()
    log = await tables.reopen(log)
    assert log.epoch == 2 and tables.store.notes == []


async def test_a_server_that_lost_confirmed_records_fences_their_topic_only(
    tables: PostgresWorld,
) -> None:
    log, other = await tables.create(), await tables.create(topic_id=2, declared="Other")
    await append(log, run_of("n", [b"0"]))
    await append(log, run_of("n", [b"1"]))
    await append(other, run_of("n", [b"0"]))
    tables.proxy.cut()
    tables.sql("delete from {s}.topic_1 where messageid = 1")
    tables.sql("update {s}.logs set end_offset = 1 where topic_id = 1")
    tables.sql("update {s}.holders set commits = commits - 1 where part = 'log'")
    assert await append(other, run_of("n", [b"1"])) == 1
    await until(lambda: bool(log.fence))
    with pytest.raises(UnavailableError, match=r"ends at offset 1 there.*before offset 2"):
        await append(log, run_of("n", [b"2"]))
    assert await append(other, run_of("n", [b"2"])) == 2
    await until(lambda: tables.sql("select is_loose from {s}.logs where topic_id = 1")[0][0])
    log = await tables.reopen(log)
    assert log.epoch == 2 and await log.clamp(1, 2) == 1
    assert await append(log, run_of("n", [b"new"])) == 1


async def test_a_table_changed_by_hand_is_noticed_before_anything_is_stored(
    tables: PostgresWorld,
) -> None:
    log = await tables.create()
    await append(log, run_of("n", [b"0", b"1"]))
    tables.sql("update {s}.logs set end_offset = 1")
    with pytest.raises(UnavailableError, match="changed by somebody else"):
        await append(log, run_of("n", [b"2"]))
    await until(lambda: bool(log.fence))
    assert tables.sql("select count(*) from {s}.topic_1") == [(2,)]


# Other processes

WAITING = """
import sys
from penstock.log.postgres.reader import PostgresReader
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


async def test_readers_in_other_processes_are_woken_by_every_commit(tables: PostgresWorld) -> None:
    log = await tables.create()
    command = [sys.executable, "-c", WAITING, tables.server.url, tables.schema]
    readers = [
        await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert await reader.stdout.readline() == b"waiting\n"
    for i in range(3):
        await append(log, run_of("n", [b"m%d" % i]))
        for reader in readers:
            assert reader.stdout is not None
            assert await reader.stdout.readline() == b"%d m%d\n" % (i, i)
    assert [await reader.wait() for reader in readers] == [0, 0]


async def test_a_reader_sees_bounds_times_and_gaps_as_the_broker_does(
    tables: PostgresWorld,
) -> None:
    log = await tables.create()
    for i in range(4):
        await append(log, run_of("n", [b"%d" % i]))
        tables.clock.advance(10)
    await log.trim(tables.clock.now_us() - 25_000_000, None)

    def look() -> None:
        reader = PostgresReader(tables.proxy.url, tables.schema, "orders")
        assert reader.bounds() == log.bounds() == Bounds(2, 4)
        assert reader.offset_at(tables.clock.now_us() - 15_000_000) == 3
        assert reader.read(4) == [] and not reader.wait_past(4, 0.01)
        with pytest.raises(Gap, match="first record is 2"):
            reader.read(0)
        tables.proxy.cut()
        assert [b.base_offset for b in reader.read(3)] == [3]
        reader.close()
        with pytest.raises(TopicNotFound, match="'nothing'"):
            PostgresReader(tables.proxy.url, tables.schema, "nothing")

    await asyncio.to_thread(look)
