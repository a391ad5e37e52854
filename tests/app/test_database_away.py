"""What does a broker do while its database is away, and when it is back?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock import AsyncBroker, UnavailableError
from tests.log.files.stores import until
from tests.postgres_proxy import DEAFEN, PostgresProxy
from tests.postgres_server import PostgresServer


@pytest.fixture
def settings(postgres: PostgresServer) -> dict[str, str]:
    return {"catalog_schema": postgres.new_schema(), "log_backend": "postgres"}


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[PostgresProxy]:
    with PostgresProxy(postgres.url) as opened:
        yield opened


@pytest.fixture
async def broker(
    proxy: PostgresProxy, settings: dict[str, str], tmp_path: Path
) -> AsyncIterator[AsyncBroker]:
    """One that reaches its database through the proxy, with a topic."""
    opened = AsyncBroker(tmp_path, catalog_url=proxy.url, position_save_s_max="50ms", **settings)
    async with opened:
        await opened.create_topic("orders")
        yield opened


def take_away(proxy: PostgresProxy) -> None:
    proxy.is_down = True
    proxy.cut()


async def insist(ask: Callable[[], Awaitable[object]]) -> object:
    """As a client does that is told to try again."""
    for _ in range(200):
        try:
            return await ask()
        except UnavailableError as away:
            await asyncio.sleep(away.retry_after_s)
    raise AssertionError("it never came back")


async def test_everything_is_refused_meanwhile_and_goes_on_where_it_was(
    broker: AsyncBroker, proxy: PostgresProxy
) -> None:
    await broker.publish_many(["0", "1"], "orders")
    await broker.subscribe("billing", "orders")
    assert len(await broker.consume("billing", "orders")) == 2
    take_away(proxy)
    refused: list[Callable[[], Awaitable[object]]] = [
        lambda: broker.publish("2", "orders"),
        lambda: broker.create_topic("other"),
        lambda: broker.subscribe("shipping", "orders"),
        lambda: broker.commit("billing", "orders"),
        lambda: broker.delete_topic("orders"),
    ]
    for ask in refused:
        with pytest.raises(UnavailableError, match="PostgreSQL"):
            await ask()
    assert [one.value for one in await broker.read("orders")] == ["0", "1"]  # from memory
    proxy.is_down = False
    assert await insist(lambda: broker.publish("2", "orders")) == 2
    await insist(lambda: broker.create_topic("other"))
    assert [one.value for one in await broker.consume("billing", "orders")] == ["2"]
    assert [one.topic for one in await broker.topics()] == ["orders", "other"]


async def test_positions_are_saved_by_themselves_when_it_is_back(
    postgres: PostgresServer, settings: dict[str, str], broker: AsyncBroker, proxy: PostgresProxy
) -> None:
    await broker.publish_many(["0", "1", "2"], "orders")
    await broker.subscribe("billing", "orders")
    await broker.consume("billing", "orders", limit=2)
    take_away(proxy)
    await broker.consume("billing", "orders", limit=1)  # the two before it count as handled
    saver = broker.engine.consumers._saver
    await until(lambda: saver.last_error is not None)
    proxy.is_down = False
    await until(lambda: len(saver) == 0)
    saved = f"select next_offset from {settings['catalog_schema']}.positions"
    assert await asyncio.to_thread(postgres.fetch, saved) == [(2,)]


async def test_who_reads_for_a_client_waits_until_it_is_back(
    tmp_path: Path, broker: AsyncBroker, proxy: PostgresProxy
) -> None:
    await broker.publish_many(["0", "1"], "orders")
    topic = broker.engine.topics.get("orders")
    topic.log._tail.drop_before(2)  # type: ignore[attr-defined]  # as if it were long ago
    take_away(proxy)
    reading = asyncio.ensure_future(topic.read(0))
    done, _ = await asyncio.wait([reading], timeout=0.3)
    assert not done
    proxy.is_down = False
    (batch,) = await reading
    assert batch.payloads(0, 1) == [b"0"]
    take_away(proxy)
    reading = asyncio.ensure_future(topic.read(1))  # which is not in memory yet
    await asyncio.sleep(0)
    topic.is_gone = True
    with pytest.raises(UnavailableError):
        await reading
    topic.is_gone = False
    proxy.is_down = False


async def test_a_broker_closes_although_it_is_away(
    postgres: PostgresServer,
    settings: dict[str, str],
    tmp_path: Path,
    broker: AsyncBroker,
    proxy: PostgresProxy,
) -> None:
    await broker.publish("0", "orders")
    take_away(proxy)
    await broker.close()
    proxy.is_down = False
    again = AsyncBroker(tmp_path, catalog_url=postgres.url, **settings)
    async with again:
        assert [one.value for one in await again.read("orders")] == ["0"]


async def test_a_close_with_a_publish_in_doubt_ends_and_the_next_start_knows(
    postgres: PostgresServer,
    settings: dict[str, str],
    tmp_path: Path,
    broker: AsyncBroker,
    proxy: PostgresProxy,
) -> None:
    proxy.is_down = True
    proxy.doom(DEAFEN)
    doubtful = asyncio.ensure_future(broker.publish("0", "orders"))
    await until(lambda: proxy.has_struck.is_set())
    await broker.close()
    with pytest.raises(UnavailableError, match="opening the broker again shows it"):
        await doubtful
    proxy.is_down = False
    again = AsyncBroker(tmp_path, catalog_url=postgres.url, **settings)
    async with again:
        assert [one.value for one in await again.read("orders")] == ["0"]
