"""The worker's side of publishing: one broker that stays open, and turns of publishing to it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Final

from penstock import AsyncBroker, Broker

MESSAGE_BYTES: Final = 100
POOL: Final = 4_096  # different payloads, so that nothing is compressed away

_payloads: Final = [os.urandom(MESSAGE_BYTES) for _ in range(POOL)]
_open: dict[str, Any] = {}


def topic(number: int) -> str:
    return f"bench{number}"


def open_broker(
    kind: str,
    path: str,
    topics: int = 1,
    durability: str = "fsync",
    settings: dict[str, Any] | None = None,
) -> None:
    """Open a broker of this kind and declare its topics."""
    names = [topic(number) for number in range(topics)]
    if kind == "Broker":
        _open["sync"] = broker = Broker(path, **settings or {})
        for name in names:
            broker.create_topic(name, durability=durability)
        return
    _open["runner"] = runner = asyncio.Runner()
    _open["async"] = runner.run(_open_async(path, names, durability, settings or {}))


async def _open_async(
    path: str, names: list[str], durability: str, settings: dict[str, Any]
) -> AsyncBroker:
    broker = await AsyncBroker(path, **settings).open()
    for name in names:
        await broker.create_topic(name, durability=durability)
    return broker


def close_broker() -> None:
    if "sync" in _open:
        _open.pop("sync").close()
    if "runner" in _open:
        with _open.pop("runner") as runner:
            runner.run(_open.pop("async").close())


def publish(batch: int, turn_s: float) -> float:
    """Messages per second of one caller that publishes a batch after the other."""
    messages = [_payloads[number % POOL] for number in range(batch)]
    if "sync" in _open:
        return _publish_sync(_open["sync"], messages, turn_s)
    rate: float = _open["runner"].run(_publish_async(_open["async"], messages, turn_s))
    return rate


def _publish_sync(broker: Broker, messages: list[bytes], turn_s: float) -> float:
    count = 0
    begin = time.perf_counter()
    while (taken_s := time.perf_counter() - begin) < turn_s:
        if len(messages) == 1:
            broker.publish(messages[0], topic(0))
        else:
            broker.publish_many(messages, topic(0))
        count += 1
    return count * len(messages) / taken_s


async def _publish_async(broker: AsyncBroker, messages: list[bytes], turn_s: float) -> float:
    count = 0
    begin = time.perf_counter()
    while (taken_s := time.perf_counter() - begin) < turn_s:
        if len(messages) == 1:
            await broker.publish(messages[0], topic(0))
        else:
            await broker.publish_many(messages, topic(0))
        count += 1
    return count * len(messages) / taken_s


def publish_together(publishers: int, turn_s: float) -> float:
    """Messages per second of tasks that publish single messages at the same time."""
    rate: float = _open["runner"].run(_tasks(publishers, 1, turn_s))
    return rate


def publish_around(topics: int, window: int, turn_s: float) -> float:
    """Messages per second, round robin over topics, with `window` of them in flight."""
    rate: float = _open["runner"].run(_tasks(window, topics, turn_s))
    return rate


async def _tasks(tasks: int, topics: int, turn_s: float) -> float:
    """Each task publishes one message after the other, to the next topic every time."""
    broker: AsyncBroker = _open["async"]
    end_s = time.perf_counter() + turn_s
    turn = iter(range(1 << 60))

    async def one() -> int:
        count = 0
        while time.perf_counter() < end_s:
            number = next(turn)
            await broker.publish(_payloads[number % POOL], topic(number % topics))
            count += 1
        return count

    begin = time.perf_counter()
    counts = await asyncio.gather(*(one() for _ in range(tasks)))
    return sum(counts) / (time.perf_counter() - begin)
