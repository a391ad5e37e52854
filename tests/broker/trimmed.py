"""A data directory whose oldest records retention has taken, with consumers on both sides."""

from __future__ import annotations

import random
from pathlib import Path

from penstock import AsyncBroker


async def trim(path: Path) -> tuple[int, int]:
    """The offsets [first, end) that topic `t` still holds."""
    noise = random.Random(1)  # bytes that no compression makes smaller
    async with AsyncBroker(path, segment_bytes="64 KiB", retention_bytes="64 KiB") as broker:
        await broker.create_topic("t")
        await broker.subscribe("behind", "t")
        for _ in range(8):
            await broker.publish(noise.randbytes(40_000), "t")
        await broker.subscribe("level", "t", start="latest")
        await broker.engine.upkeep.look_after_all()
        (found,) = await broker.topics()
        assert 0 < found.first_offset < found.end_offset
        return found.first_offset, found.end_offset
