"""A broker with histories in a directory, driven step by step, and what both parts hold."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from penstock.app.aio import AsyncBroker
from penstock.model.record import HistoryInfo, TopicInfo

TOPIC = "orders"
SEGMENT_BYTES = 64 * 1024  # the smallest
RECORD_BYTES = 1_024


class TieringWorld:
    """A data directory, the directory of its histories, and all payloads published so far."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data"
        self.url = str(root / "history")
        self.table = root / "history" / "default" / f"{TOPIC}-1"
        self.log = self.data / "default" / f"{TOPIC}-1"
        self.payloads: list[bytes] = []
        self._random = random.Random(7)

    @asynccontextmanager
    async def broker(self, **settings: Any) -> AsyncIterator[AsyncBroker]:
        defaults = {"upkeep_s": 3_600.0, "segment_bytes": SEGMENT_BYTES, "history_url": self.url}
        async with AsyncBroker(self.data, **defaults | settings) as broker:
            yield broker

    async def create(self, broker: AsyncBroker, **settings: Any) -> None:
        kept = {"history": True, "retention_bytes": SEGMENT_BYTES}
        await broker.create_topic(TOPIC, **kept | settings)

    async def publish(self, broker: AsyncBroker, count: int = 300) -> None:
        """Records that fill segments and do not compress."""
        payloads = [self._random.randbytes(RECORD_BYTES) for _ in range(count)]
        for at in range(0, count, 20):
            await broker.publish_many(payloads[at : at + 20], TOPIC)
        self.payloads += payloads

    def cold(self) -> list[tuple[int, bytes]]:
        """(offset, payload) of the history, as any other program reads it."""
        if not self.table.exists():
            return []
        table: pa.Table = DeltaTable(str(self.table)).to_pyarrow_table(
            columns=["offset", "payload"]
        )
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        return sorted(rows)

    async def hot(self, broker: AsyncBroker) -> list[tuple[int, bytes]]:
        """(offset, payload) of the log alone."""
        first = broker.engine.topics.get(TOPIC).log.bounds().first
        return [(one.offset, one.payload) for one in await broker.read(TOPIC, start=first)]

    async def check_all_there(self, broker: AsyncBroker) -> None:
        """Every record is in the log or in the history, and both agree where they overlap."""
        cold, hot = dict(self.cold()), dict(await self.hot(broker))
        assert cold | hot == dict(enumerate(self.payloads))
        assert all(cold[offset] == hot[offset] for offset in cold.keys() & hot.keys())
        records = await broker.read(TOPIC, start=0)
        assert [one.payload for one in records] == self.payloads


async def keep(broker: AsyncBroker) -> None:
    """One round of everything that runs in the background: seal, tier, trim."""
    await broker.engine.upkeep.look_after_all()
    await broker.engine.tiering.look_after_all()
    await broker.engine.upkeep.look_after_all()


def hot_first(broker: AsyncBroker) -> int:
    """The first offset that the log itself has."""
    return broker.engine.topics.get(TOPIC).log.hot_first


async def info(broker: AsyncBroker) -> TopicInfo:
    (found,) = await broker.topics()
    return found


async def history(broker: AsyncBroker) -> HistoryInfo:
    found = (await info(broker)).history
    assert found is not None
    return found
