"""Does a group over several partitions give every record to one reader, and find each again?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import msgspec
import pytest

from penstock import AsyncBroker, InvalidSetting, Record, RefusedError
from penstock.app.runs import CALLER
from penstock.broker.queue.handout import Given
from penstock.broker.queue.kept_group import OPEN_MAX
from penstock.broker.queue.leases import Groups
from penstock.broker.topic.topics import Topic
from penstock.core.position import Earliest
from penstock.log.memory import MemoryStore
from penstock.model.errors import InvalidPosition
from penstock.model.groups import Pending

EARLIEST = Earliest()
COUNT = 3
NAMES = [f"n/{number}" for number in range(9)]


class PartsWorld:
    """A broker in memory with one topic of several partitions."""

    def __init__(self, broker: AsyncBroker) -> None:
        self.broker = broker

    @property
    def groups(self) -> Groups:
        return self.broker.engine.groups

    @property
    def topic(self) -> Topic:
        return self.broker.engine.topics.get("jobs")

    async def publish(self, each: int = 2) -> list[str]:
        sent = [f"{name} {number}" for number in range(each) for name in NAMES]
        for text in sent:
            await self.broker.publish(text, "jobs", name=text.split()[0])
        return sent

    async def fetch(self, limit: int = 100) -> tuple[str, list[Given]]:
        return await self.groups.fetch(self.topic, "workers", limit, 0, EARLIEST)

    async def dead(self) -> list[Record]:
        return await self.broker.read("jobs.dead")

    async def bury(self, reason: str = "no boxes") -> int:
        """Nobody can handle what there is; how many records that were."""
        await self.groups.alter(self.topic, "workers", None, 1)
        receipt, _ = await self.fetch()
        return await self.groups.nack(self.topic, "workers", receipt, None, 0, reason)


@pytest.fixture
async def world() -> AsyncIterator[PartsWorld]:
    async with AsyncBroker.memory() as broker:
        store = cast(MemoryStore, broker.engine.shared.store)
        store.partitions_max = COUNT
        await broker.create_topic("jobs", partitions=COUNT)
        yield PartsWorld(broker)


def texts(given: list[Given]) -> list[str]:
    return [one.record.payload.decode() for one in given]


def places(given: list[Given]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in given:
        found.setdefault(str(one.record.partition), []).append(one.record.offset)
    return found


async def test_readers_get_every_record_of_all_partitions_once(world: PartsWorld) -> None:
    sent = await world.publish()
    given: list[Given] = []
    for _ in range(4):
        given += (await world.fetch(5))[1]
    assert sorted(texts(given)) == sorted(sent)
    assert {one.record.partition for one in given} == set(range(COUNT))
    for name in NAMES:
        assert [text for text in texts(given) if text.split()[0] == name] == [
            f"{name} 0",
            f"{name} 1",
        ]


async def test_no_partition_waits_for_a_busy_one(world: PartsWorld) -> None:
    await world.publish(10)
    first = [(await world.fetch(1))[1][0].record.partition for _ in range(COUNT)]
    assert sorted(first) == list(range(COUNT))


async def test_answers_name_partitions_and_offsets(world: PartsWorld) -> None:
    await world.publish(1)
    receipt, given = await world.fetch()
    own = places(given)
    some = {number: offsets[:1] for number, offsets in own.items()}
    assert await world.groups.ack(world.topic, "workers", receipt, some) == COUNT
    with pytest.raises(RefusedError, match=f"does not hold {some['1'][0]} of partition 1"):
        await world.groups.ack(world.topic, "workers", receipt, {"1": some["1"]})
    with pytest.raises(InvalidSetting, match="it has 3 partitions; give the offsets of each"):
        await world.groups.ack(world.topic, "workers", receipt, [0])
    with pytest.raises(InvalidPosition, match="has no partition 7"):
        await world.groups.nack(world.topic, "workers", receipt, {"7": [0]}, 0, "")
    with pytest.raises(InvalidSetting, match="offsets {} names no record"):
        await world.groups.ack(world.topic, "workers", receipt, {})
    left = len(NAMES) - COUNT
    assert await world.groups.extend(world.topic, "workers", receipt, None, 90) == (left, 90)
    assert await world.groups.nack(world.topic, "workers", receipt, None, 0, "") == left
    again = (await world.fetch())[1]
    assert [one.deliveries for one in again] == [2] * left


async def test_a_group_is_described_with_its_partitions(world: PartsWorld) -> None:
    await world.publish(1)
    _, given = await world.fetch(4)
    info = world.groups.describe(world.topic, "workers")
    assert isinstance(info.next_offset, dict) and sum(info.next_offset.values()) == 4
    assert info.lag == len(NAMES) - 4
    assert {(one.partition, one.offset) for one in info.pending} == {
        (one.record.partition, one.record.offset) for one in given
    }


def test_a_pending_record_of_the_only_partition_is_shown_as_before() -> None:
    shown = msgspec.json.encode(Pending(7, 1, "waiting", 0))
    assert shown == b'{"offset":7,"deliveries":1,"state":"waiting","expires_at":0}'


async def test_what_is_open_is_bounded_over_all_partitions(world: PartsWorld) -> None:
    for name in NAMES:
        await world.broker.publish_many(["x"] * 200, "jobs", name=name)
    receipt, given = await world.fetch(OPEN_MAX)
    assert len(given) == OPEN_MAX
    assert (await world.fetch())[1] == []
    number, offsets = next(iter(places(given).items()))
    await world.groups.ack(world.topic, "workers", receipt, {number: offsets[:5]})
    assert len((await world.fetch())[1]) == 5


async def test_settings_and_removal_hold_for_all_partitions(world: PartsWorld) -> None:
    await world.broker.create_group("workers", "jobs", start="latest", lease_s=7)
    rows = await world.broker.engine.groups._catalog.load()
    assert [row.lease_us for row in rows] == [7_000_000] * COUNT
    assert (await world.broker.groups("jobs"))[0].next_offset == {"0": 0, "1": 0, "2": 0}
    with pytest.raises(InvalidPosition, match="it has 3 partitions"):
        await world.broker.create_group("others", "jobs", start=0)
    await world.broker.remove_group("workers", "jobs")
    assert await world.broker.engine.groups._catalog.load() == []


async def test_a_group_goes_on_in_every_partition_after_a_restart(world: PartsWorld) -> None:
    await world.publish(1)
    receipt, given = await world.fetch(5)
    done = {number: offsets[:1] for number, offsets in places(given).items()}
    await world.groups.ack(world.topic, "workers", receipt, done)
    engine = world.broker.engine
    after = Groups(
        engine.topics,
        engine.groups._catalog,
        engine.clock,
        engine.metrics,
        engine.publish,
        quotas=engine.quotas,
        watch=lambda: None,
    )
    await after.load({topic.id: topic.log for topic in engine.topics.all()})
    _, again = await after.fetch(world.topic, "workers", 100, 0, EARLIEST)
    acked = {(int(number), offset) for number, offsets in done.items() for offset in offsets}
    seen = {(one.record.partition, one.record.offset) for one in again}
    assert seen.isdisjoint(acked) and len(seen) + len(acked) == len(NAMES)


async def test_dead_letters_say_their_partition_and_each_goes_back_once(world: PartsWorld) -> None:
    await world.publish(1)
    await world.fetch(1)  # makes the group
    await world.broker.alter_group("workers", "jobs", lease_s=0.01)
    buried = await world.bury()
    dead = await world.dead()
    assert len(dead) >= buried
    for record in dead:
        headers = dict(record.headers)
        name = headers["penstock.dead.name"]
        part = world.topic.part_of(name)
        assert headers["penstock.dead.partition"] == str(part.partition)
    assert {record.partition for record in dead} == set(range(COUNT))
    before = await world.broker.size("jobs")
    assert await world.broker.redrive("workers", "jobs", dry_run=True) == len(dead)
    assert await world.broker.redrive("workers", "jobs", limit=4) == 4
    assert await world.broker.redrive("workers", "jobs") == len(dead) - 4
    assert await world.broker.redrive("workers", "jobs") == 0
    assert await world.broker.size("jobs") == before + len(dead)
    back = (await world.broker.read("jobs"))[-1]
    assert not any(key.startswith("penstock.dead.") for key, _ in back.headers)


async def test_a_redrive_goes_on_where_it_ended_in_every_partition(world: PartsWorld) -> None:
    await world.publish(1)
    await world.fetch(1)
    await world.groups.nack(
        world.topic, "workers", (await world.fetch(1))[0], None, 0, "so that it waits"
    )
    await world.bury()
    redrives, everybody = world.broker.engine.redrives, CALLER
    first = await redrives.redrive(world.topic, "workers", everybody, limit=2, is_dry_run=True)
    assert isinstance(first.next_offset, dict) and not first.is_complete
    rest = await redrives.redrive(
        world.topic, "workers", everybody, start=first.next_offset, is_dry_run=True
    )
    assert rest.is_complete and first.records + rest.records == len(await world.dead())
    with pytest.raises(InvalidPosition, match="it has 3 partitions"):
        await redrives.redrive(world.topic, "workers", everybody, start=3)
