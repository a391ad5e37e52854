"""Two nodes on one topic in a real Kafka: what does a fence make void, and who acknowledges?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.core.delivery.run import run_of
from penstock.log.fencing import fence_dead, fences_in
from penstock.log.format.batch import Batch
from penstock.log.format.marks import MARK_IDEMPOTENCY_KEY, MARK_QOS2_RELEASED, Mark
from penstock.log.interface import LogSettings
from penstock.log.kafka.client import KafkaAddress
from penstock.log.kafka.log import KafkaLog
from penstock.log.kafka.store import KafkaStore
from penstock.log.waiting import append_durably
from penstock.model.errors import UnavailableError
from tests.appends import append
from tests.cluster.kafka_world import ORDERS, KafkaWorld, open_kafka, payloads
from tests.kafka_server import KafkaServer
from tests.log.files.stores import until

KEY = Mark(MARK_IDEMPOTENCY_KEY, b"key", 0)


class TwoNodes:
    """The same topic, opened by two nodes: the incarnations 1 and 2."""

    def __init__(self, world: KafkaWorld) -> None:
        self.world = world
        self.stores: list[KafkaStore] = []
        self.logs: list[KafkaLog] = []

    async def join(self) -> KafkaLog:
        """One more node."""
        layout = replace(self.world.layout, incarnation=len(self.stores) + 1)
        address = KafkaAddress(self.world.server.bootstrap)
        store = await KafkaStore.start(address, layout, self.world.clock)
        self.stores.append(store)
        opening = store.open if self.logs else self._create
        self.logs.append(await opening(ORDERS, LogSettings()))
        return self.logs[-1]

    async def _create(self, *_: object) -> KafkaLog:
        return await self.stores[0].create(ORDERS, "Orders", LogSettings())


@pytest.fixture
async def nodes(kafka: KafkaServer) -> AsyncIterator[TwoNodes]:
    async with open_kafka(kafka) as world:
        made = TwoNodes(world)
        await made.join()
        await made.join()
        yield made
        for store in made.stores:
            await store.close()


async def level(first: KafkaLog, second: KafkaLog) -> None:
    """Both have read the same."""
    await until(lambda: first.bounds() == second.bounds())


async def test_nodes_read_each_other_and_know_who_wrote_what(nodes: TwoNodes) -> None:
    first, second = nodes.logs
    heard: list[Batch] = []
    second.on_commit = lambda batch, runs: heard.append(batch)
    await append(first, run_of("n", [b"one"]))
    await append(first, run_of("n", []), [Mark(MARK_QOS2_RELEASED, b"r")])
    await level(first, second)
    await append(second, run_of("n", [b"two"]))
    await level(first, second)
    assert await payloads(first) == await payloads(second) == [b"one", b"two"]
    assert [batch.incarnation for batch in heard] == [1, 1, 2]


async def test_marked_records_beyond_a_fence_are_void_for_every_reader(nodes: TwoNodes) -> None:
    first, second = nodes.logs
    first.fence_off = lambda reason: None  # type: ignore[method-assign] # it does not notice
    await append(first, run_of("n", [b"before"]), [KEY])
    await level(first, second)
    assert await second.append_fence(1) == 1
    await append(first, run_of("n", [b"late", b"late, too"]), [KEY])
    await append(first, run_of("n", [b"without marks"]))
    await level(first, second)
    expected = [b"before", b"without marks"]
    assert await payloads(second) == expected
    third = await nodes.join()
    third.learn_fences(second.fences.as_dict())
    assert third.fences.as_dict() == {1: 1}
    assert await payloads(third) == expected  # from Kafka


async def test_a_fenced_node_acknowledges_nothing_that_comes_after_the_fence(
    nodes: TwoNodes,
) -> None:
    first, second = nodes.logs
    told: list[str] = []
    nodes.stores[0].on_dead.append(lambda: told.append("dead"))
    await append(first, run_of("n", [b"before"]), [KEY])
    fenced = asyncio.ensure_future(second.append_fence(1))
    answers = []
    while True:
        waiting = append_durably(first, [run_of("n", [b"%d" % len(answers)])], [KEY])
        try:
            answers.append(await waiting)
        except UnavailableError as refused:
            assert "declared this node dead" in str(refused)
            break
    fence = await fenced
    assert told == ["dead"]
    assert all(offset < fence for offset in answers)
    found = await payloads(second)
    assert found == [b"before", *[b"%d" % i for i in range(len(answers))]]


async def test_the_first_of_two_fences_counts(nodes: TwoNodes) -> None:
    first, second = nodes.logs
    first.fence_off = lambda reason: None  # type: ignore[method-assign] # it does not notice
    fence = await second.append_fence(1)
    await append(first, run_of("n", [b"late"]), [KEY])
    third = await nodes.join()
    await level(second, third)
    assert await third.append_fence(1) > fence  # it has seen no other; the catalog tells it
    third.learn_fences(second.fences.as_dict())
    await level(second, third)
    assert await payloads(second) == await payloads(third) == []
    assert await second.append_fence(1) == fence


async def test_who_recovers_a_dead_node_finds_the_marks_of_all_up_to_its_first_fence(
    nodes: TwoNodes,
) -> None:
    first, second = nodes.logs
    first.fence_off = lambda reason: None  # type: ignore[method-assign] # it does not notice
    saved = await append(first, run_of("n", [b"before the checkpoint"]), [KEY]) + 1
    await append(second, run_of("n", [b"of another node"]), [KEY])
    await append(first, run_of("n", [b"stored"]), [Mark(MARK_IDEMPOTENCY_KEY, b"stored", 0)])
    await append(first, run_of("n", []), [Mark(MARK_QOS2_RELEASED, b"released")])
    await level(first, second)
    fence = await second.append_fence(1)  # who wrote it dies here
    await append(first, run_of("n", [b"late"]), [Mark(MARK_IDEMPOTENCY_KEY, b"late", 0)])
    third = await nodes.join()
    for log in (third, second):
        found: list[Batch] = []
        assert await fence_dead(log, saved, 1, found.append) == fence
        marks = [(batch.incarnation, mark.key) for batch in found for mark in batch.marks()]
        assert marks[:-1] == [(2, KEY.key), (1, b"stored"), (1, b"released")]
        assert fences_in(found[-1]) == [(1, fence)]
        assert b"late" not in await payloads(log)
