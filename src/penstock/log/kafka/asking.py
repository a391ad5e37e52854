"""Questions to Kafka that outlast brokers that move or restart."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.log.interface import Bounds
from penstock.log.kafka.client import (
    EARLIEST,
    LATEST,
    OFFSET_OUT_OF_RANGE,
    READING,
    TROUBLES,
    AnsweredError,
    Fetched,
    KafkaClient,
    is_passing,
    refusal,
)
from penstock.log.kafka.requests import Partition
from penstock.log.kafka.work import KafkaWork

READ_S_MAX: Final = 20.0
NO_LEADER: Final = 5


async def fetch_patiently(client: KafkaClient, partition: Partition, offset: int) -> Fetched:
    """What Kafka has from `offset` on; its only error is that there is no such offset."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + READ_S_MAX
    while True:
        failed: Exception = AnsweredError(NO_LEADER)
        node = client.leader(partition)
        if node >= 0:
            try:
                found = await client.fetch(node, {partition: offset}, 100, READING)
                fetched = found[partition]
                if fetched.error in (0, OFFSET_OUT_OF_RANGE):
                    return fetched
                failed = AnsweredError(fetched.error)
            except TROUBLES as trouble:
                failed = trouble
        if not is_passing(failed):
            raise refusal(failed)
        if loop.time() >= deadline_s:
            raise client.unavailable(failed)
        await client.refresh()


async def open_state(work: KafkaWork, partition: Partition) -> tuple[Bounds, int, int]:
    """The bounds of a partition, the epoch of its leader, and what it takes."""
    client = work.client
    first, _ = await client.offset(partition, EARLIEST)
    end, leader_epoch = await client.offset(partition, LATEST)
    return Bounds(first, end), leader_epoch + 1, await client.stored_bytes(partition)
