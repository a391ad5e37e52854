"""Feeds of subscriptions with `from` or `where`: every record that passes, once and in order?

Publishers, readers with windows that fill, topics that are born, clients that come and go, and a
broker that ends without a word, in any order.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.wiring import open_memory
from penstock.broker.deliver import history as feeds
from penstock.broker.engine import Engine
from penstock.broker.session.session import OwnFeed, Subscription
from penstock.broker.settings import BrokerSettings
from penstock.core.naming.names import matches
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.core.position import EARLIEST, LATEST, AtTime, Position
from penstock.core.where import compile_where
from penstock.log.interface import LogSettings
from penstock.model.record import Record
from tests.broker.exchange_world import ExchangeWorld, after_a_crash, kept
from tests.examples import examples

NAMES = ["a", "a/x", "b/x", "c/y"]
FILTERS = ["#", "a/#", "+/x", "c/y"]
EXPRESSIONS = ["", "payload LIKE '%3'", "offset >= 4 AND NOT name = 'a'"]


class Reader:
    """A client with one feed, and what it is due."""

    def __init__(self, chance: random.Random, number: int) -> None:
        self.client_id = f"reader-{number}"
        self.is_kept = chance.random() < 0.7
        self.window = chance.choice([1, 3, 50])
        self.filter = chance.choice(FILTERS)
        self.qos = chance.randrange(3)
        self.expression = chance.choice(EXPRESSIONS)
        self.position: Position = chance.choice([EARLIEST, LATEST, AtTime(0)])
        self.offsets: dict[int, int] = {}  # where it began
        self.has_crashed = False

    def is_due(self, topic_id: int, record: Record) -> bool:
        if record.offset < self.offsets.get(topic_id, 0) or not matches(self.filter, record.name):
            return False
        return not self.expression or compile_where(self.expression).passes(record)


async def subscribe(world: ExchangeWorld, reader: Reader) -> dict[int, int]:
    """As the door does it; where the feed began."""
    session = world.clients[reader.client_id].session
    assert session is not None
    one = Subscription(session, reader.filter, reader.qos)
    where = compile_where(reader.expression) if reader.expression else None
    one.feed = OwnFeed(one, session.take_feed_id(), where)
    one.feed.lags = await world.exchange.feeds.locate(reader.filter, reader.position)
    offsets = dict(one.feed.lags)
    world.exchange.sessions.subscribe(one)
    if session.vault is not None:
        await world.store.subscribe(session, [one])
    world.exchange.retained_delivery.begin_feed(one, with_retained=False)
    return offsets


class Story:
    def __init__(self, chance: random.Random, engine: Engine) -> None:
        self.chance = chance
        self.engine = engine
        self.world = ExchangeWorld(engine)
        self.readers = [Reader(chance, number) for number in range(chance.randint(1, 4))]
        self.published = 0

    async def open(self) -> None:
        await self.world.store.open()
        await self.world.connect("writer", clean=True, is_kept=False, window=1)

    async def step(self) -> None:
        chance = self.chance
        reader = chance.choice(self.readers)
        client = self.world.client(reader.client_id)
        dice = chance.random()
        if dice < 0.4:
            self.publish()
        elif dice < 0.6:
            if client.session is None:
                await self.come(reader)
            else:
                client.take(self.world.exchange, chance.randint(1, 9))
        elif dice < 0.68 and client.session is not None and reader.is_kept:
            self.world.disconnect(reader.client_id)
            await asyncio.sleep(0)  # its end is on its way to the catalog, as it is in the door
        elif dice < 0.74:
            await self.world.store.checkpoints.save()
        elif dice < 0.77 and len(self.engine.topics.all()) < 3:
            name = chance.choice(["a", "b"])
            await self.engine.topics.create(name, LogSettings(), exist_ok=True)
        elif dice < 0.80:
            await self.crash()
        else:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)

    def publish(self) -> None:
        count = self.chance.randint(1, 5)
        payloads = [b"%d" % number for number in range(self.published, self.published + count)]
        self.published += count
        name, qos = self.chance.choice(NAMES), self.chance.randrange(3)
        self.world.publish("writer", name, payloads, qos, retain=False)

    async def come(self, reader: Reader) -> None:
        is_first = not reader.offsets
        if not is_first and not reader.is_kept:
            return
        await self.world.connect(
            reader.client_id, clean=False, is_kept=reader.is_kept, window=reader.window
        )
        if is_first:
            reader.offsets = await subscribe(self.world, reader)

    async def crash(self) -> None:
        """The broker's memory is gone; logs and catalog are as they were."""
        old = self.world
        await old.settle()
        assert old.store._timer is not None
        old.store._timer.cancel()
        self.world = ExchangeWorld(self.engine)
        self.world.clients = old.clients
        for client in old.clients.values():
            session, client.session = client.session, None
            client.inbox.clear()
            if session is not None:
                for feed in session.feeds:
                    old.exchange.feeds.stop(feed)
                session.outbox = session.vault = None
        for reader in self.readers:
            if reader.offsets:
                reader.has_crashed = True
        await self.open()

    async def end(self) -> None:
        for reader in self.readers:
            client = self.world.client(reader.client_id)
            if client.session is None:
                await self.come(reader)
        await self.world.settle()
        await self.world.store.checkpoints.save()

    async def check(self) -> None:
        stored: dict[int, list[Record]] = {}
        for topic in self.engine.topics.all():
            batches = await topic.log.read(0)
            stored[topic.id] = [
                record for batch in batches for record in batch.records(topic.declared, 0, 1 << 40)
            ]
        for reader in self.readers:
            if reader.is_kept or not reader.has_crashed:  # else its feed ended with it
                await self.check_reader(reader, stored)

    async def check_reader(self, reader: Reader, stored: dict[int, list[Record]]) -> None:
        client = self.world.client(reader.client_id)
        due = {
            record.payload: (topic_id, record)
            for topic_id, records in stored.items()
            for record in records
            if reader.is_due(topic_id, record)
        }
        received = client.received
        await self.world.drain(
            reader.client_id, lambda: len({message.payload for message in received}) >= len(due)
        )
        assert {message.payload for message in received} == set(due)
        for qos in range(3):  # order is promised within a QoS (MQTT 5 §4.6)
            firsts = list(dict.fromkeys(m.payload for m in received if m.qos == qos))
            for topic_id in stored:
                mine = [due[one][1].offset for one in firsts if due[one][0] == topic_id]
                assert mine == sorted(mine)
        for message in received:
            assert message.qos == min(reader.qos, due[message.payload][1].qos)
        exact = [m.payload for m in received if m.qos == 2 or not reader.has_crashed]
        assert len(exact) == len(set(exact))
        assert client.complaints == []


async def check_play(seed: int, patch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    patch.setattr(feeds, "SLICE_RECORDS_MAX", chance.choice([1, 3, 500]))
    patch.setattr(feeds, "NAMES_MAX", chance.choice([1, 3, 10_000]))
    opened = await open_memory(BrokerSettings())
    await opened.engine.topics.create(DEFAULT_TOPIC, LogSettings(), exist_ok=True)
    story = Story(chance, opened.engine)
    await story.open()
    for _ in range(chance.randint(10, 120)):
        await story.step()
    await story.end()
    await story.check()
    await story.world.store.close()
    await opened.close(True)


@given(seed=st.integers(0, 1 << 32))
@examples(150)
async def test_every_feed_brings_what_passes_once_and_in_order(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await check_play(seed, patch)


async def test_position_of_a_feed_that_lags_at_qos_0_is_saved(world: ExchangeWorld) -> None:
    """Nothing is out and the connection is full: is its place safe from a crash?"""
    await kept(world, "reader-0")
    await kept(world, "writer")
    reader = Reader(random.Random(0), 0)
    reader.filter, reader.qos, reader.expression = "a", 0, ""
    await subscribe(world, reader)
    world.publish("writer", "a", [b"0", b"1"], 1, False)
    await world.settle()
    await world.store.checkpoints.save()
    client = world.clients["reader-0"]
    client.has_room = False
    world.publish("writer", "a", [b"2"], 1, False)
    await world.settle()
    assert [message.payload for message in client.received] == [b"0", b"1"]
    await world.store.checkpoints.save()
    stored = await after_a_crash(world, "reader-0")
    assert stored.feeds == {1: {1: (1, 2)}}


async def test_names_that_a_feed_remembers_are_bounded(
    world: ExchangeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "NAMES_MAX", 3)
    session = await kept(world, "reader-0")
    await kept(world, "writer")
    reader = Reader(random.Random(0), 0)
    reader.filter, reader.qos, reader.expression = "a/#", 0, ""
    await subscribe(world, reader)
    for number in range(10):
        world.publish("writer", f"a/{number}", [b"x"], 1, False)
    await world.settle()
    (feed,) = session.feeds
    assert len(feed.names) <= 3
    assert len(world.clients["reader-0"].received) == 10
