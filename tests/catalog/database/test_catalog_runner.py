"""Do units of work share commits, keep their order, and fail alone?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.catalog.database.interface import Database
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.database.thread import CatalogThread, InlineRunner, Runner
from penstock.model.errors import DiskFull, UnavailableError
from tests.catalog.faults import CountingDatabase, OpenDatabase, fail_syncs_of_this_thread

Start = Callable[..., Awaitable[Runner]]


@pytest.fixture(params=["thread", "inline"])
def start(request: pytest.FixtureRequest, open_database: OpenDatabase) -> Start:
    async def start_thread(on_full: Callable[[], bool] | None = None) -> Runner:
        return await CatalogThread.start(open_database, on_full=on_full)

    async def start_inline(on_full: Callable[[], bool] | None = None) -> Runner:
        return InlineRunner(open_database(), on_full)

    return {"thread": start_thread, "inline": start_inline}[request.param]


def create(database: Database) -> None:
    database.execute("create table t (a bigint primary key)")


def insert(a: int) -> Callable[[Database], int]:
    def work(database: Database) -> int:
        database.execute("insert into t (a) values ($1)", a)
        return a

    return work


def rows(database: Database) -> list[int]:
    return [a for (a,) in database.fetch("select a from t order by a")]


class Gate:
    """A unit that holds the catalog's thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self, database: Database) -> None:
        self.entered.set()
        assert self._opened.wait(60)

    def open(self) -> None:
        self._opened.set()


async def hold(runner: Runner) -> tuple[Gate, asyncio.Task[None]]:
    gate = Gate()
    task = asyncio.create_task(runner.run(gate))
    await asyncio.to_thread(gate.entered.wait, 60)
    return gate, task


async def test_results_and_errors_go_to_whoever_asked(start: Start) -> None:
    runner = await start()
    await runner.run(create)
    results = await asyncio.gather(
        *(runner.run(insert(n // 2)) for n in range(20)), return_exceptions=True
    )
    assert results[::2] == list(range(10))
    assert all(isinstance(error, Exception) for error in results[1::2])
    assert await runner.run(rows) == list(range(10))
    await runner.close()


async def test_a_failing_unit_undoes_all_of_itself_and_nothing_of_its_neighbours(
    start: Start,
) -> None:
    def insert_two_then_fail(database: Database) -> None:
        insert(100)(database)
        insert(101)(database)
        raise KeyError("mine")

    runner = await start()
    await runner.run(create)
    works = [insert(1), insert_two_then_fail, insert(2)]
    first, error, last = await asyncio.gather(
        *(runner.run(work) for work in works), return_exceptions=True
    )
    assert (first, last) == (1, 2)
    assert isinstance(error, KeyError)
    assert await runner.run(rows) == [1, 2]
    await runner.close()


async def test_even_errors_that_futures_refuse_reach_the_caller(start: Start) -> None:
    def stop(database: Database) -> None:
        raise StopIteration

    def leave(database: Database) -> None:
        raise SystemExit(3)

    runner = await start()
    with pytest.raises(RuntimeError, match="StopIteration"):
        await runner.run(stop)
    try:
        await runner.run(leave)
    except SystemExit as error:
        assert error.code == 3
    else:
        pytest.fail("SystemExit was swallowed")
    assert await runner.run(lambda database: 1) == 1
    await runner.close()


async def test_a_closed_runner_refuses_and_closes_twice(start: Start) -> None:
    runner = await start()
    await runner.close()
    await runner.close()
    with pytest.raises(UnavailableError, match="closed"):
        await runner.run(create)


def full_until_freed(freed: list[bool]) -> Callable[[Database], str]:
    def work(database: Database) -> str:
        database.execute("insert into t (a) values (50)")
        if not freed:
            raise DiskFull("no space")
        return "stored"

    return work


async def test_what_the_full_disk_hook_freed_is_used_at_once(start: Start) -> None:
    freed: list[bool] = []

    def free_reserve() -> bool:
        freed.append(True)
        return True

    runner = await start(free_reserve)
    await runner.run(create)
    assert await runner.run(full_until_freed(freed)) == "stored"
    assert freed == [True]
    assert await runner.run(rows) == [50]
    await runner.close()


async def test_a_full_disk_is_told_when_nothing_can_be_freed(start: Start) -> None:
    asked: list[bool] = []

    def nothing_left() -> bool:
        asked.append(True)
        return False

    runner = await start(nothing_left)
    await runner.run(create)
    with pytest.raises(DiskFull):
        await runner.run(full_until_freed([]))
    assert asked == [True]
    assert await runner.run(rows) == []
    await runner.close()


async def test_on_a_full_disk_what_still_fits_is_done(open_database: OpenDatabase) -> None:
    runner = await CatalogThread.start(open_database)
    await runner.run(create)
    gate, held = await hold(runner)
    works = [insert(1), full_until_freed([]), rows, insert(2)]
    tasks = [asyncio.create_task(runner.run(work)) for work in works]
    await asyncio.sleep(0)  # each has queued its unit
    gate.open()
    await held
    first, full, seen, last = await asyncio.gather(*tasks, return_exceptions=True)
    assert (first, seen, last) == (1, [1], 2)
    assert isinstance(full, DiskFull)
    assert await runner.run(rows) == [1, 2]
    await runner.close()


async def test_a_hundred_concurrent_units_share_a_few_commits(open_database: OpenDatabase) -> None:
    counting: list[CountingDatabase] = []

    def open_counting() -> Database:
        counting.append(CountingDatabase(open_database()))
        return counting[0]

    runner = await CatalogThread.start(open_counting)
    await runner.run(create)
    before = counting[0].commits
    assert await asyncio.gather(*(runner.run(insert(n)) for n in range(100))) == list(range(100))
    assert counting[0].commits - before <= 10
    assert await runner.run(rows) == list(range(100))
    await runner.close()


async def test_no_group_is_larger_than_its_bound(open_database: OpenDatabase) -> None:
    counting: list[CountingDatabase] = []

    def open_counting() -> Database:
        counting.append(CountingDatabase(open_database()))
        return counting[0]

    runner = await CatalogThread.start(open_counting, group_units_max=5)
    await runner.run(create)
    gate, held = await hold(runner)
    before = counting[0].commits
    tasks = [asyncio.create_task(runner.run(insert(n))) for n in range(20)]
    await asyncio.sleep(0)
    gate.open()
    await held
    await asyncio.gather(*tasks)
    assert counting[0].commits - before == 5  # the held one, then four groups of five
    await runner.close()


async def test_units_run_in_the_order_in_which_they_were_asked_for(
    open_database: OpenDatabase,
) -> None:
    order: list[int] = []

    def note(n: int) -> Callable[[Database], None]:
        return lambda database: order.append(n)

    runner = await CatalogThread.start(open_database, group_units_max=7, queue_units_max=20)
    await asyncio.gather(*(runner.run(note(n)) for n in range(200)))
    await runner.close()
    assert order == list(range(200))


async def test_closing_finishes_the_bounded_queue_and_refuses_who_waits_for_room(
    open_database: OpenDatabase,
) -> None:
    runner = await CatalogThread.start(open_database, queue_units_max=3)
    await runner.run(create)
    gate, held = await hold(runner)
    tasks = [asyncio.create_task(runner.run(insert(n))) for n in range(5)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(runner.close())
    await asyncio.sleep(0)
    gate.open()
    await held
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await closing
    assert results[:2] == [0, 1]  # with the held one they fill the queue
    assert all(isinstance(error, UnavailableError) for error in results[2:])
    reopened = await CatalogThread.start(open_database)
    assert await reopened.run(rows) == [0, 1]
    await reopened.close()


async def test_a_cancelled_caller_leaves_its_unit_and_its_room_in_order(
    open_database: OpenDatabase,
) -> None:
    runner = await CatalogThread.start(open_database, queue_units_max=3)
    await runner.run(create)
    gate, held = await hold(runner)
    queued = asyncio.create_task(runner.run(insert(1)))
    neighbour = asyncio.create_task(runner.run(insert(2)))
    waiting = asyncio.create_task(runner.run(insert(3)))
    await asyncio.sleep(0)
    queued.cancel()
    waiting.cancel()
    await asyncio.gather(queued, waiting, return_exceptions=True)
    gate.open()
    await held
    assert await asyncio.wait_for(neighbour, 60) == 2
    assert await runner.run(rows) == [1, 2]  # the queued unit ran, the waiting one never began
    assert await asyncio.gather(*(runner.run(insert(n)) for n in range(10, 20)))
    await runner.close()


async def test_what_opening_raises_is_raised_by_start() -> None:
    def fail() -> Database:
        raise UnavailableError("the database is elsewhere")

    with pytest.raises(UnavailableError, match="elsewhere"):
        await CatalogThread.start(fail)


async def test_a_full_disk_while_opening_uses_the_hook(open_database: OpenDatabase) -> None:
    freed: list[bool] = []

    def open_when_freed() -> Database:
        if not freed:
            raise DiskFull("no space")
        return open_database()

    def free_reserve() -> bool:
        freed.append(True)
        return True

    with pytest.raises(DiskFull):
        await CatalogThread.start(open_when_freed)
    runner = await CatalogThread.start(open_when_freed, on_full=free_reserve)
    await runner.run(create)
    await runner.close()


async def test_a_failed_commit_fails_every_unit_of_the_group(tmp_path: Path) -> None:
    """On SQLite, whose syncs are made by the catalog's own thread."""
    runner = await CatalogThread.start(lambda: SqliteDatabase(tmp_path / "catalog.db"))
    await runner.run(create)
    gate, held = await hold(runner)
    units = [insert(1), insert(2), lambda database: fail_syncs_of_this_thread()]
    tasks = [asyncio.create_task(runner.run(work)) for work in units]
    await asyncio.sleep(0)
    gate.open()
    await held
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, UnavailableError) for error in results)
    assert await runner.run(rows) == []  # reads go on
    with pytest.raises(UnavailableError, match="disk failed"):
        await runner.run(insert(3))
    await asyncio.gather(runner.close(), return_exceptions=True)
