"""Do readers pass over offsets without a message, as a log in Kafka has them?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import Broker
from penstock.app import wiring
from penstock.log.interface import LogIdentity, LogSettings
from penstock.log.memory import MemoryJob, MemoryLog, MemoryStore

GAP = 3


class GappedLog(MemoryLog):
    """After each batch some offsets are left out."""

    def finish_commit(self, job: MemoryJob) -> None:
        job.batch.end_offset += GAP
        super().finish_commit(job)


class GappedStore(MemoryStore):
    async def create(
        self, identity: LogIdentity, declared: str, settings: LogSettings
    ) -> MemoryLog:
        log = self._logs[identity] = GappedLog(settings, self._clock, self._loop)
        await self.declare(identity, declared, settings)
        return log


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(wiring, "MemoryStore", GappedStore)
    with Broker.memory() as opened:
        opened.create_topic("orders")
        yield opened


def publish(broker: Broker, count: int) -> list[int]:
    return [broker.publish(f"{number}", "orders") for number in range(count)]


def test_reading_from_any_offset_finds_every_later_message(broker: Broker) -> None:
    offsets = publish(broker, 5)
    assert offsets == [number * (1 + GAP) for number in range(5)]
    for start in range(offsets[-1] + GAP):
        found = [record.offset for record in broker.read("orders", start=start)]
        assert found == [offset for offset in offsets if offset >= start]


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_consumer_gets_every_message_once(broker: Broker, limit: int) -> None:
    publish(broker, 5)
    broker.subscribe("billing", "orders")
    found: list[str] = []
    while records := broker.consume("billing", "orders", limit=limit):
        found += [record.value for record in records]
    assert found == ["0", "1", "2", "3", "4"]
    assert broker.consume("billing", "orders") == []


def test_a_stream_goes_from_history_to_live_messages(broker: Broker) -> None:
    publish(broker, 3)
    stream = broker.stream("orders", start="earliest")
    assert [next(stream).value for _ in range(3)] == ["0", "1", "2"]
    for number in range(3, 6):
        broker.publish(f"{number}", "orders")
        assert next(stream).value == f"{number}"
