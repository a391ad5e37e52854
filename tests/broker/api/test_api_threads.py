"""One Broker, many threads."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock import Broker, UnavailableError

THREADS = 8
PATIENCE_S = 60


def run_all(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run in threads at once; fail with whatever one of them raised, or if one hangs."""
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def one(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failures:
        raise failures[0]


def test_threads_publish_and_consume_at_once_and_nothing_is_lost_or_mixed(broker: Broker) -> None:
    broker.create_topic("t", durability="os")
    seen: list[list[tuple[int, int]]] = [[] for _ in range(THREADS)]
    each = 100

    def work(number: int) -> None:
        name = f"c{number}"
        broker.subscribe(name, "t")
        for i in range(each):
            broker.publish([number, i], "t")
            seen[number] += [tuple(r.value) for r in broker.consume(name, "t", limit=50)]

    run_all(work)
    records = broker.read("t")
    assert [r.offset for r in records] == list(range(THREADS * each))
    for number in range(THREADS):
        assert [i for who, i in map(tuple, (r.value for r in records)) if who == number] == list(
            range(each)
        )
        seen[number] += [tuple(r.value) for r in broker.consume(f"c{number}", "t")]
        assert seen[number] == [tuple(r.value) for r in records]


def test_threads_that_share_a_consumer_share_its_records(broker: Broker) -> None:
    broker.create_topic("t")
    broker.publish_many(list(range(1_000)), "t")
    broker.subscribe("c", "t")
    taken: list[int] = []

    def work(number: int) -> None:
        while batch := broker.consume("c", "t", limit=7):
            taken.extend(r.value for r in batch)

    run_all(work)
    assert sorted(taken) == list(range(1_000))


def test_threads_that_create_the_same_topic_make_one(broker: Broker) -> None:
    run_all(lambda number: broker.create_topic("T" if number % 2 else "t", exist_ok=True))
    assert len(broker.topics()) == 1


@pytest.mark.over_a_second
def test_closing_while_threads_work_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for round_number in range(5):
        path = tmp_path / str(round_number)
        broker = Broker(path)
        broker.create_topic("t")
        broker.subscribe("c", "t")
        acknowledged: list[tuple[int, str]] = []
        running = threading.Semaphore(0)

        def work(
            number: int,
            broker: Broker = broker,
            acknowledged: list[tuple[int, str]] = acknowledged,
            running: threading.Semaphore = running,
        ) -> None:
            if number == 0:
                for _ in range(20):
                    running.acquire()
                broker.close()
                return
            count = 0
            try:
                while True:
                    message = f"{number} {count}"
                    acknowledged.append((broker.publish(message, "t"), message))
                    broker.consume("c", "t")
                    broker.read("t", limit=3)
                    count += 1
                    running.release()
            except UnavailableError:
                pass

        run_all(work)
        with Broker(path) as again:
            stored = {r.offset: r.value for r in again.read("t")}
        assert acknowledged and all(stored[offset] == text for offset, text in acknowledged)


@pytest.mark.over_a_second
def test_calls_that_meet_the_closing_are_answered(tmp_path: Path) -> None:
    """What is handed over in the last moment is done or refused; nothing hangs or breaks."""
    for round_number in range(4):
        path = tmp_path / str(round_number)
        broker = Broker(path)
        broker.create_topic("t")
        busy = threading.Semaphore(0)
        made: list[str] = []

        def work(
            number: int,
            broker: Broker = broker,
            busy: threading.Semaphore = busy,
            made: list[str] = made,
        ) -> None:
            if number == 0:
                for _ in range(10):
                    busy.acquire()
                broker.close()
                return
            with suppress(UnavailableError):
                for count in itertools.count():
                    name = f"{number}-{count}"
                    broker.create_topic(name)
                    made.append(name)
                    broker.subscribe(name, "t")
                    broker.bind(f"{name}/#", name)
                    broker.unbind(f"{name}/#")
                    broker.alter_topic(name, retention_age="1h")
                    broker.unsubscribe(name, "t")
                    broker.size(name)
                    busy.release()

        run_all(work)
        with Broker(path) as again:
            assert set(made) <= {one.topic for one in again.topics()}
            assert again.notes == ()


def test_streams_in_threads_see_everything_and_end_with_the_broker(broker: Broker) -> None:
    broker.create_topic("t", durability="os")
    broker.publish_many(["before"] * 10, "t")
    total = 10 + 200
    enough = threading.Semaphore(0)
    seen: list[list[int]] = [[] for _ in range(THREADS)]

    def work(number: int) -> None:
        if number == 0:
            for i in range(200):
                broker.publish(i, "t")
            for _ in range(THREADS - 1):
                enough.acquire()
            broker.close()
            return
        for record in broker.stream("t", start="earliest"):
            seen[number].append(record.offset)
            if len(seen[number]) == total:
                enough.release()

    run_all(work)
    assert all(offsets == list(range(total)) for offsets in seen[1:])


@pytest.mark.slow
def test_a_stream_dropped_in_the_middle_of_anything_hangs_nobody(broker: Broker) -> None:
    broker.create_topic("t", durability="os")
    broker.publish("x", "t")

    def work(number: int) -> None:
        for _ in range(20):
            stream = broker.stream("t", start=0)
            next(stream)
            cycle: list[object] = [stream]
            cycle.append(cycle)  # only the garbage collector ends it, on whatever thread it runs
            del stream, cycle
            broker.publish("y", "t")
            gc.collect()

    run_all(work, 3)
    assert broker.size("t") == 61
