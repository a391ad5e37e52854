"""Does the bus store what waits once and in order, also while commits fail?"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from random import Random

import pytest

from penstock.broker.bus import TOPIC, BusLoop, Subscriber
from penstock.broker.engine import Engine
from penstock.broker.settings import BrokerSettings
from penstock.broker.shared import Shared
from penstock.catalog.catalog import Catalog
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.database.thread import InlineRunner
from penstock.core.bus import BusTable, Ring
from penstock.log import appending
from penstock.log.files.store import EmbeddedStore
from penstock.model.clock import SystemClock
from penstock.model.timeline import Timeline
from tests.broker.deliver.fast_lane_world import HeldWorkers
from tests.log.files.faulty_disk import FaultyDisk
from tests.sim.fake_disk import FakeDisk


class Heard:
    """A subscriber that notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []

    def call(self, id: int, data: bytes) -> bool:
        self.calls.append(data)
        return True


async def test_messages_whose_commit_failed_are_stored_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk has no room for the first of them, and room again for those behind them."""
    monkeypatch.setattr(appending, "PENDING_BYTES_MAX", 200)
    payloads = [b"%03d" % number * 20 for number in range(10)]
    loop = asyncio.get_running_loop()
    clock = Timeline(SystemClock())
    disk = FaultyDisk(FakeDisk(Random(7)))
    store = EmbeddedStore(Path("/data"), disk, clock, loop, HeldWorkers(disk, loop))
    catalog = await Catalog.open(InlineRunner(SqliteDatabase(":memory:")), clock)
    shared = Shared(BrokerSettings(), catalog, store, clock, lambda: (1, 1))
    await shared.open()
    engine = Engine(shared)
    await engine.open()
    table: BusTable[Subscriber] = BusTable()
    ring, heard = Ring(), Heard()
    bus = BusLoop(engine, table, ring, lambda id: None)
    await bus.open()
    table.subscribe(heard, 7)
    disk.fail("write", ".log", errno.ENOSPC, times=1)
    for payload in payloads:
        ring.put(7, payload)
    bus.wake()
    await bus.close()
    batches = await engine.topics.find(TOPIC).log.read(0)
    records = [one for batch in batches for one in batch.records(TOPIC, 0, batch.end_offset)]
    assert [record.payload for record in records] == payloads == heard.calls
    await engine.close()
    await shared.close()
