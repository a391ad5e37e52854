"""Do readers that share a group get every record once, and does nothing they drop get lost?"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock import AsyncBroker, InvalidSetting, NotSubscribed, Record, RefusedError
from penstock.broker.queue.dead import dead_topic
from penstock.broker.queue.leases import OPEN_MAX, Given, Groups
from penstock.broker.topic.topics import Topic
from penstock.core.position import Earliest, Latest
from penstock.model.groups import DELIVERIES
from penstock.model.limits import HEADERS_BYTES_MAX

EARLIEST = Earliest()


class GroupWorld:
    """A broker with one topic, and the group that reads it."""

    def __init__(self, broker: AsyncBroker) -> None:
        self.broker = broker

    @property
    def groups(self) -> Groups:
        return self.broker.engine.groups

    @property
    def topic(self) -> Topic:
        return self.broker.engine.topics.get("jobs")

    async def publish(self, count: int) -> None:
        await self.broker.publish_many([f"job {n}" for n in range(count)], "jobs")

    async def dead(self) -> list[Record]:
        if any(topic.topic == "jobs.dead" for topic in await self.broker.topics()):
            return await self.broker.read("jobs.dead")
        return []

    async def fetch(self, limit: int = 10, wait_s: float = 0) -> tuple[str, list[Given]]:
        return await self.groups.fetch(self.topic, "workers", limit, wait_s, EARLIEST)

    async def ack(self, receipt: str, *offsets: int) -> int:
        return await self.groups.ack(self.topic, "workers", receipt, list(offsets) or None)

    async def nack(self, receipt: str, *offsets: int, delay_s: float = 0, reason: str = "") -> int:
        return await self.groups.nack(
            self.topic, "workers", receipt, list(offsets) or None, delay_s, reason
        )


def offsets_of(given: list[Given]) -> list[int]:
    return [one.record.offset for one in given]


@pytest.fixture
async def world() -> AsyncIterator[GroupWorld]:
    async with opened_world(AsyncBroker.memory()) as opened:
        yield opened


@asynccontextmanager
async def opened_world(broker: AsyncBroker) -> AsyncIterator[GroupWorld]:
    async with broker:
        await broker.create_topic("jobs", exist_ok=True)
        yield GroupWorld(broker)


async def test_each_record_goes_to_one_reader(world: GroupWorld) -> None:
    await world.publish(20)
    first, given = await world.fetch(8)
    second, rest = await world.fetch(100)
    assert offsets_of(given) + offsets_of(rest) == list(range(20))
    assert (await world.fetch())[1] == []
    assert await world.ack(first) == 8
    assert await world.ack(second, 8, 9) == 2
    info = world.groups.describe(world.topic, "workers")
    assert info.next_offset == 20 and info.lag == 0
    assert [(one.offset, one.state) for one in info.pending] == [
        (n, "leased") for n in range(10, 20)
    ]


async def test_what_is_not_acknowledged_in_time_goes_to_another(world: GroupWorld) -> None:
    await world.broker.create_group("workers", "jobs", lease_s=0.05)
    await world.publish(3)
    lost, given = await world.fetch()
    assert [one.deliveries for one in given] == [1, 1, 1]
    again, given = await world.fetch(wait_s=30)
    assert offsets_of(given) == [0, 1, 2]
    assert [one.deliveries for one in given] == [2, 2, 2]
    with pytest.raises(RefusedError, match="does not hold 0"):
        await world.ack(lost, 0)
    assert again != lost


async def test_a_record_given_back_comes_again_at_once_or_after_its_delay(
    world: GroupWorld,
) -> None:
    await world.publish(3)
    receipt, _ = await world.fetch()
    assert await world.nack(receipt, 1) == 1
    assert await world.nack(receipt, 2, delay_s=0.05) == 1
    again, given = await world.fetch()
    assert [(one.record.offset, one.deliveries) for one in given] == [(1, 2)]
    assert await world.ack(again) == 1
    _, given = await world.fetch(wait_s=30)
    assert [(one.record.offset, one.deliveries) for one in given] == [(2, 2)]
    with pytest.raises(RefusedError, match="delay"):
        await world.nack(receipt, 0, delay_s=-1)


async def test_a_delayed_record_stops_no_other(world: GroupWorld) -> None:
    await world.publish(2)
    receipt, _ = await world.fetch(1)
    await world.nack(receipt, 0, delay_s=3_600)
    _, given = await world.fetch()
    assert offsets_of(given) == [1]


async def test_a_record_that_nobody_can_handle_is_put_aside_with_its_reason(
    world: GroupWorld,
) -> None:
    await world.broker.publish({"n": 1}, "jobs", name="jobs/a", headers={"k": "v"})
    for turn in range(1, DELIVERIES + 1):
        receipt, (given,) = await world.fetch()
        assert given.deliveries == turn
        await world.nack(receipt, 0, reason="cannot read it")
    assert (await world.fetch())[1] == []
    (dead,) = await world.broker.read("jobs.dead")
    assert dead.value == {"n": 1} and dead.name == "jobs.dead/jobs/a"
    assert dict(dead.headers) == {
        "k": "v",
        "penstock.dead.reason": "cannot read it",
        "penstock.dead.topic": "jobs",
        "penstock.dead.name": "jobs/a",
        "penstock.dead.offset": "0",
        "penstock.dead.group": "workers",
        "penstock.dead.deliveries": str(DELIVERIES),
    }
    assert world.groups.describe(world.topic, "workers").pending == []


async def test_topics_with_the_longest_names_have_dead_letter_topics_of_their_own(
    world: GroupWorld,
) -> None:
    assert dead_topic("x" * 250) == "x" * 250 + ".dead"
    names = ["x" * 255, "x" * 251, "é" * 255]
    letters = {dead_topic(name) for name in names}
    assert len(letters) == 3 and {len(name) for name in letters} == {255}
    assert dead_topic("X" * 255).casefold() == dead_topic("x" * 255)

    for name in names:
        await world.broker.create_topic(name)
        await world.broker.publish("job", name)
        topic = world.broker.engine.topics.get(name)
        for _ in range(DELIVERIES):
            receipt, (_,) = await world.groups.fetch(topic, "workers", 1, 0, EARLIEST)
            await world.groups.nack(topic, "workers", receipt, None, 0, "no")
        assert (await world.groups.fetch(topic, "workers", 1, 0, EARLIEST))[1] == []
        (dead,) = await world.broker.read(dead_topic(name))
        assert dict(dead.headers)["penstock.dead.topic"] == name


async def test_a_record_with_all_the_headers_there_may_be_is_put_aside(tmp_path: Path) -> None:
    headers = {"k": "v" * (HEADERS_BYTES_MAX - 1)}

    async with opened_world(AsyncBroker(tmp_path)) as world:
        await world.broker.publish("job", "jobs", headers=headers)
        for _ in range(DELIVERIES):
            receipt, (_,) = await world.fetch()
            await world.nack(receipt, 0, reason="r" * 2_000)
        assert (await world.fetch())[1] == []
        (dead,) = await world.broker.read("jobs.dead")
        assert dict(dead.headers)["penstock.dead.offset"] == "0"
        assert dict(dead.headers).items() >= headers.items()


async def test_a_group_waits_for_the_first_record_and_begins_where_it_was_told(
    world: GroupWorld,
) -> None:
    await world.publish(2)
    groups, topic = world.groups, world.topic
    assert (await groups.fetch(topic, "late", 10, 0, Latest()))[1] == []
    waiting = asyncio.ensure_future(groups.fetch(topic, "late", 10, 30, EARLIEST))
    await world.publish(1)
    _, given = await waiting
    assert offsets_of(given) == [2]
    with pytest.raises(NotSubscribed, match="has no group 'none'"):
        groups.describe(topic, "none")
    await groups.delete(topic, "late")
    assert [info.group for info in groups.of(topic)] == []


async def test_readers_that_never_answer_get_no_more_than_the_bound(world: GroupWorld) -> None:
    await world.publish(OPEN_MAX + 10)
    taken = []
    while given := (await world.fetch(400))[1]:
        taken += offsets_of(given)
    assert taken == list(range(OPEN_MAX))


async def test_an_acknowledgement_survives_a_crash_and_the_rest_comes_again(
    tmp_path: Path,
) -> None:
    async with opened_world(AsyncBroker(tmp_path)) as world:
        await world.publish(10)
        receipt, _ = await world.fetch(10)
        await world.ack(receipt, 0, 1, 5)
        await world.broker.shut(is_clean=False)
        world.broker = AsyncBroker(tmp_path)
        async with world.broker:
            _, given = await world.fetch(100)
            assert offsets_of(given) == [2, 3, 4, 6, 7, 8, 9]
            assert {one.deliveries for one in given} == {2}
            await world.broker.delete_topic("jobs")
            await world.broker.create_topic("jobs")
            assert world.groups.of(world.topic) == []


async def test_the_settings_of_a_group_hold_for_all_its_readers_and_survive_a_restart(
    tmp_path: Path,
) -> None:
    async with opened_world(AsyncBroker(tmp_path)) as world:
        await world.broker.create_group("workers", "jobs", lease_s=600, deliveries_max=2)
        await world.broker.alter_group("workers", "jobs", lease_s=60)
    async with opened_world(AsyncBroker(tmp_path)) as world:
        (info,) = await world.broker.groups("jobs")
        assert (info.lease_s, info.deliveries_max) == (60, 2)
        await world.publish(1)
        for _ in range(2):
            receipt, (given,) = await world.fetch()
            await world.nack(receipt)
        assert given.deliveries == 2
        assert len(await world.dead()) == 1


async def test_a_fetch_may_have_a_lease_and_a_number_of_deliveries_of_its_own(
    world: GroupWorld,
) -> None:
    await world.publish(2)
    groups, topic = world.groups, world.topic
    await groups.fetch(topic, "workers", 1, 0, EARLIEST, lease_s=0.02, deliveries_max=1)
    await world.fetch(1)
    waiting = groups.fetch(topic, "workers", 1, 0.2, EARLIEST)
    assert (await waiting)[1] == []  # one is dead, the other leased for 30 s
    assert [one.payload for one in await world.dead()] == [b"job 0"]


async def test_an_extended_lease_lasts_from_the_time_it_was_extended(world: GroupWorld) -> None:
    await world.broker.create_group("workers", "jobs", lease_s=0.1)
    await world.publish(3)
    receipt, _ = await world.fetch()
    assert await world.groups.extend(world.topic, "workers", receipt, [0, 2], 600) == (2, 600)
    _, given = await world.fetch(wait_s=30)
    assert offsets_of(given) == [1]
    assert await world.ack(receipt, 0, 2) == 2
    with pytest.raises(RefusedError, match="holds no records"):
        await world.groups.extend(world.topic, "workers", receipt, None, None)


@pytest.mark.parametrize("lease_s", [0, -1, 1e9, float("nan"), "5", True])
async def test_a_lease_outside_its_range_is_refused(world: GroupWorld, lease_s: float) -> None:
    with pytest.raises(InvalidSetting, match="seconds from 0.01 to 86400"):
        await world.broker.create_group("workers", "jobs", lease_s=lease_s)
    assert await world.broker.groups("jobs") == []


@pytest.mark.parametrize("seed", range(5))
async def test_dying_readers_lose_nothing_and_nothing_is_done_twice(
    seed: int, world: GroupWorld
) -> None:
    chance = random.Random(seed)

    await world.broker.create_group("workers", "jobs", lease_s=0.02)
    done: Counter[int] = Counter()
    total = 200

    async def reader() -> None:
        while sum(done.values()) + len(await world.dead()) < total:
            receipt, given = await world.fetch(chance.randint(1, 20), wait_s=0.05)
            if not given:
                continue
            fate = chance.random()
            some = chance.sample(offsets_of(given), chance.randint(1, len(given)))
            try:
                if fate < 0.5:
                    await world.ack(receipt, *some)
                    done.update(some)
                elif fate < 0.6:
                    await world.nack(receipt, *some, delay_s=chance.choice([0, 0.01]))
                # else it dies, and its lease runs out
            except RefusedError:
                continue

    async def writer() -> None:
        for _ in range(total // 10):
            await world.publish(10)

    await asyncio.gather(writer(), *(reader() for _ in range(5)))
    dead = [int(dict(one.headers)["penstock.dead.offset"]) for one in await world.dead()]
    assert sorted([*done, *dead]) == list(range(total))
    assert set(done.values()) == {1}
