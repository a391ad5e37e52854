"""Is AsyncBroker the same broker with the same names?"""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncBroker, Broker, NotSubscribed, TopicExists

# What only the async one has: how it is opened, and what the sync one is made from.
ONLY_ASYNC = {
    "open",
    "tenants",
    "shut",
    "engine",
    "plan_stream",
    "announce",
    "hurry",
    "serving",
    "give_up",
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_both_brokers_have_the_same_names() -> None:
    assert public(AsyncBroker) - ONLY_ASYNC == public(Broker)


@pytest.mark.parametrize(
    "name", sorted(name for name in public(Broker) if callable(getattr(Broker, name)))
)
def test_both_brokers_take_the_same_arguments(name: str) -> None:
    sync = inspect.signature(getattr(Broker, name)).parameters
    other = inspect.signature(getattr(AsyncBroker, name)).parameters
    assert list(sync.values()) == list(other.values())
    assert getattr(Broker, name).__doc__ == getattr(AsyncBroker, name).__doc__


@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_the_whole_life_of_a_consumer_awaited(kind: str, tmp_path: Path) -> None:
    made = AsyncBroker.memory() if kind == "memory" else AsyncBroker(tmp_path)
    async with made as broker:
        await broker.create_topic("t")
        with pytest.raises(TopicExists):
            await broker.create_topic("T")
        assert await broker.publish({"n": 0}, "t") == 0
        assert await broker.publish_many([{"n": 1}, "two"], "t", name="t/x") == range(1, 3)
        await broker.subscribe("c", "t")
        got = await broker.consume("c", "t", where="payload.n >= 0")
        assert [r.value for r in got] == [{"n": 0}, {"n": 1}]
        await broker.commit("c", "t", 1)
        assert await broker.seek("c", "t", "latest") == 3
        assert await broker.size("t", "c") == 0 and await broker.size("t") == 3
        assert [r.offset for r in await broker.read("t", names="t/#", start=1)] == [1, 2]
        await broker.bind("x/#", "t")
        await broker.unbind("x/#")
        await broker.alter_topic("t", retention_age="1h")
        assert [(one.topic, one.retention_age) for one in await broker.topics()] == [("t", 3_600)]
        assert [one.consumer for one in await broker.consumers("t")] == ["c"]
        await broker.unsubscribe("c", "t")
        with pytest.raises(NotSubscribed):
            await broker.consume("c", "t")
        await broker.delete_topic("t")


async def test_an_async_program_that_fails_on_a_batch_gets_it_again(tmp_path: Path) -> None:
    async def fail() -> None:
        async with AsyncBroker(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.publish("x", "t")
            await broker.subscribe("c", "t")
            await broker.consume("c", "t")
            raise RuntimeError("no")

    async def again() -> list[Any]:
        async with AsyncBroker(tmp_path) as broker:
            return [r.value for r in await broker.consume("c", "t")]

    with pytest.raises(RuntimeError, match="no"):
        await fail()
    assert await again() == ["x"]
    assert await again() == []


async def test_messages_published_together_share_a_commit(tmp_path: Path) -> None:
    async with AsyncBroker(tmp_path) as broker:
        await broker.create_topic("t")
        offsets = await asyncio.gather(*[broker.publish(i, "t") for i in range(200)])
        assert offsets == list(range(200))
        assert broker.engine.metrics.commit_records.count < 20


async def test_a_publisher_that_gives_up_disturbs_nobody(tmp_path: Path) -> None:
    async with AsyncBroker(tmp_path) as broker:
        await broker.create_topic("t")
        tasks = [asyncio.create_task(broker.publish(i, "t")) for i in range(10)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        kept = [offset for offset in done if isinstance(offset, int)]
        stored = await broker.read("t")
        assert [stored[offset].value for offset in kept] == [1, 3, 5, 7, 9]
