"""The worker's side of opening: directories of a given size, and turns of opening them."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from penstock import AsyncBroker, Broker

PAYLOAD_BYTES: Final = 100
BEHIND: Final = 1_000  # records of a batch in the segments behind the newest one
POOL: Final = [os.urandom(PAYLOAD_BYTES) for _ in range(100_000)]


def build(directory: str, size: int, newest: int, batch: int) -> None:
    """A closed directory with `size` bytes of payload, `newest` of them in the newest segment."""
    asyncio.run(_build(directory, size, newest, batch))


async def _build(directory: str, size: int, newest: int, batch: int) -> None:
    async with AsyncBroker(directory, durability="os") as broker:
        await broker.create_topic("bench")
        log = broker.engine.topics.get("bench").log
        behind = size - newest
        if behind > 0:
            await _publish(broker, behind, BEHIND)
            await broker.alter_topic("bench", segment_age=0.001)
            await broker.publish(b"begins a segment", "bench")
            await broker.alter_topic("bench", segment_age="1d")
            await log.seal_closed()
        await _publish(broker, newest, batch)


async def _publish(broker: AsyncBroker, size: int, batch: int) -> None:
    for first in range(0, size // PAYLOAD_BYTES, batch):
        at = first % (len(POOL) - batch)
        await broker.publish_many(POOL[at : at + batch], "bench")


def open_ms(directory: str) -> float:
    """Milliseconds until the broker is ready."""
    begin = time.perf_counter()
    broker = Broker(directory)
    taken_s = time.perf_counter() - begin
    broker.close()
    return taken_s * 1_000
