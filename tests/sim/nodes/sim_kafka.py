"""A Kafka in memory: partitions of real record batches, numbered producers, waiting fetches."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.log.kafka.client import (
    BACKOFF_S,
    EARLIEST,
    OUT_OF_ORDER_SEQUENCE,
    REQUEST_S_MAX,
    Fetched,
    Stored,
)
from penstock.log.kafka.records.record_batch import RecordBatch
from penstock.log.kafka.requests import Partition
from tests.sim.nodes.clockwork import Clockwork, Network

_BASE: Final = struct.Struct(">q")
_EPOCH_AT: Final = 12
_EPOCH: Final = struct.Struct(">i")


class SimPartition:
    """What is stored, and who waits for more."""

    def __init__(self) -> None:
        self.end = 0
        self.batches: list[tuple[int, bytes]] = []  # one past the last offset of each
        self._next: dict[int, int] = {}  # by producer: the sequence of its next record
        self._stored: dict[tuple[int, int], int] = {}  # producer, sequence -> offset
        self.waiting: list[Callable[[], None]] = []

    def append(self, data: bytes) -> Stored:
        batch = RecordBatch(data, 0, len(data))
        key = (batch.producer_id, batch.base_sequence)
        if key in self._stored:  # it was sent again
            return Stored(0, self._stored[key], "")
        if batch.base_sequence != self._next.get(batch.producer_id, 0):
            return Stored(OUT_OF_ORDER_SEQUENCE, -1, "")
        base = self._stored[key] = self.end
        self._next[batch.producer_id] = batch.base_sequence + batch.count
        placed = _BASE.pack(base) + data[8:_EPOCH_AT] + _EPOCH.pack(0) + data[_EPOCH_AT + 4 :]
        self.end = base + batch.count
        self.batches.append((self.end, placed))
        waiting, self.waiting = self.waiting, []
        for wake in waiting:
            wake()
        return Stored(0, base, "")

    def read(self, offset: int) -> Fetched:
        data = b"".join([data for end, data in self.batches if end > offset][:20])
        return Fetched(0, self.end, 0, [], data)


class SimKafka:
    """The server."""

    def __init__(self, clockwork: Clockwork) -> None:
        self.clockwork = clockwork
        self.partitions: dict[Partition, SimPartition] = {}
        self.producers = 0

    def new_producer(self) -> tuple[int, int]:
        self.producers += 1
        return self.producers, 0

    def fetch(
        self, places: dict[Partition, int], wait_ms: int, answer: Callable[[Any], None]
    ) -> None:
        """Answer when a partition has something at its place, or after a while."""
        is_answered = False

        def look(*, is_last: bool = False) -> None:
            nonlocal is_answered
            if is_answered:
                return
            found = {one: self.partitions[one].read(offset) for one, offset in places.items()}
            if is_last or any(one.data for one in found.values()):
                is_answered = True
                answer(found)
            else:
                for one in places:
                    self.partitions[one].waiting.append(look)

        look()
        if not is_answered:
            self.clockwork.after(wait_ms / 1_000, lambda: look(is_last=True))


class SimKafkaClient:
    """Has the methods of `KafkaClient` that a log needs."""

    bootstrap = "the simulated Kafka"

    def __init__(self, kafka: SimKafka, network: Network) -> None:
        self._kafka = kafka
        self._network = network

    def leader(self, partition: Partition) -> int:
        return 0

    async def refresh(self) -> None:
        await asyncio.sleep(BACKOFF_S)

    async def close(self) -> None:
        pass

    async def produce(
        self, node: int, batches: Iterable[tuple[Partition, bytes]]
    ) -> dict[Partition, Stored]:
        sent = list(batches)

        def serve(answer: Callable[[Any], None]) -> None:
            answer({one: self._kafka.partitions[one].append(data) for one, data in sent})

        return await self._ask(serve)  # type: ignore[no-any-return]

    async def fetch(
        self, node: int, places: dict[Partition, int], wait_ms: int, group: str
    ) -> dict[Partition, Fetched]:
        return await self._ask(  # type: ignore[no-any-return]
            lambda answer: self._kafka.fetch(places, wait_ms, answer)
        )

    async def producer(self) -> tuple[int, int]:
        return await self._ask(  # type: ignore[no-any-return]
            lambda answer: answer(self._kafka.new_producer())
        )

    async def offset(self, partition: Partition, time_ms: int) -> tuple[int, int]:
        stored = self._kafka.partitions[partition]
        return await self._ask(  # type: ignore[no-any-return]
            lambda answer: answer((0 if time_ms == EARLIEST else stored.end, 0))
        )

    async def _ask(self, serve: Callable[[Callable[[Any], None]], None]) -> Any:
        """TimeoutError if no answer comes: what was sent may still arrive there."""
        async with asyncio.timeout(REQUEST_S_MAX):
            return await self._network.ask(serve)
