"""A store of logs in a real Kafka, under a prefix of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.log.interface import KeptLog, LogIdentity, LogSettings
from penstock.log.kafka.client import KafkaAddress
from penstock.log.kafka.log import KafkaLog
from penstock.log.kafka.store import KafkaLayout, KafkaStore
from penstock.model.clock import ManualClock
from tests.kafka_server import KafkaServer
from tests.log.files.stores import read_all

ORDERS = LogIdentity("default", 1, "orders")


class KafkaWorld:
    """A store, the server it is on, and what its topic is called there."""

    def __init__(self, server: KafkaServer, replication: int) -> None:
        self.server = server
        self.clock = ManualClock()
        self.layout = KafkaLayout(server.new_prefix(), replication, "world")
        self.topic = f"{self.layout.prefix}.default.orders-1"
        self.store: KafkaStore

    async def open(self) -> KafkaStore:
        address = KafkaAddress(self.server.bootstrap)
        self.store = await KafkaStore.start(address, self.layout, self.clock)
        return self.store

    async def create(self, settings: LogSettings | None = None) -> KafkaLog:
        return await self.store.create(ORDERS, "Orders", settings or LogSettings())

    async def reopen(self, log: KafkaLog) -> KafkaLog:
        """As after kill -9: nothing is closed in order."""
        await self.store.close()
        await self.open()
        return await self.store.open(ORDERS, log.settings)


@asynccontextmanager
async def open_kafka(server: KafkaServer, replication: int = 1) -> AsyncIterator[KafkaWorld]:
    world = KafkaWorld(server, replication)
    await world.open()
    try:
        yield world
    finally:
        await world.store.close()


async def payloads(log: KeptLog) -> list[bytes]:
    return [record.payload for record in await read_all(log)]
