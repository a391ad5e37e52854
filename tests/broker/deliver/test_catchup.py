"""Catching up: does every reader get what it wants from where it lags, once and in order?

Readers join at random moments and offsets, with windows that fill, subscriptions of different age,
and a log whose reads take their time.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.deliver.catchup import SessionCatchUp
from penstock.broker.deliver.routes import Router
from penstock.broker.figures.metrics import Metrics
from penstock.broker.session.session import Session, Subscription
from penstock.broker.topic.topics import Topic, Topics
from penstock.catalog.catalog import TopicRow
from penstock.core.delivery.run import Encoding, Run, run_of
from penstock.core.naming.names import matches
from penstock.core.naming.placement import Placement
from penstock.log.format.batch import Batch
from penstock.log.interface import LogSettings
from penstock.log.memory import MemoryLog
from penstock.model.clock import SystemClock
from penstock.model.errors import CorruptError
from penstock.model.record import DEFAULT_TENANT, TopicId
from penstock.model.timeline import Timeline
from tests.appends import append
from tests.broker.exchange_world import Client
from tests.core.delivery.delivery_model import ME, model
from tests.examples import examples

NAMES = ["a", "a/b", "b", "c"]
FILTERS = ["a", "#", "+/b", "c", "b"]
TOPIC_ID = 1


class SlowLog(MemoryLog):
    """A memory log whose reads suspend a few times."""

    chance = random.Random(0)

    async def read(self, offset: int) -> list[Batch]:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        batches = await super().read(offset)
        return batches[: self.chance.randint(1, 3)]


class OneTopic:
    """As much of `Topics` as a router asks for."""

    def __init__(self, log: MemoryLog) -> None:
        row = TopicRow(DEFAULT_TENANT, TopicId(TOPIC_ID), "only", "only", "{}", 0)
        self.only = Topic(row, log)
        self.placement = Placement()
        self.automatic_max = 0

    def of_name(self, name: str) -> Topic:
        return self.only


class Stored(NamedTuple):
    """A record, as far as it matters who gets it."""

    name: str
    qos: int
    payload: bytes
    publisher: str


async def filled(chance: random.Random) -> tuple[SlowLog, list[Stored]]:
    """A log of many small batches, and its records by offset."""
    log = SlowLog(LogSettings(), SystemClock(), asyncio.get_running_loop())
    log.chance = chance
    records: list[Stored] = []
    for _ in range(chance.randint(1, 25)):
        for _ in range(chance.randint(1, 3)):
            name, qos = chance.choice(NAMES), chance.randrange(3)
            payloads = [b"%d" % (len(records) + n) for n in range(chance.randint(1, 4))]
            publisher = chance.choice(["", "reader-0", "reader-1"])
            records += [Stored(name, qos, payload, publisher) for payload in payloads]
            pending = append(log, run_of(name, payloads, publisher=publisher, qos=qos))
        await pending
    return log, records


class NoVault:
    """What a session that outlives its connection writes down; nothing, here."""

    def send(
        self, session: Session, tag: int, run: Run, ids: list[int], encoding: Encoding
    ) -> None:
        assert session.outbox is not None
        session.outbox.send(run, 0, ids, encoding, False)

    def release(self, session: Session, packet_ids: list[int]) -> None:
        raise AssertionError("readers acknowledge at once")

    def touch(self, session: Session) -> None:
        """It is saved nowhere."""


class Reading:
    """A reader and what it is due."""

    def __init__(self, chance: random.Random, number: int, end: int) -> None:
        self.client = Client(f"reader-{number}")
        self.client.window = chance.choice([1, 3, 1000])
        self.session = Session(self.client.client_id, self.client, self.client.window)
        self.client.session = self.session
        for filter in chance.sample(FILTERS, chance.randint(1, 3)):
            one = Subscription(self.session, filter, chance.randrange(3), chance.random() < 0.3)
            one.retain_as_published = chance.random() < 0.3
            one.identifier = chance.choice([0, 0, 1, 2])
            one.since = {TOPIC_ID: chance.choice([0, chance.randint(0, end)])}
            if one.qos == 0 and chance.random() < 0.5:
                one.owed = {TOPIC_ID: chance.randint(0, end)}
            self.session.subscriptions[filter] = one
        if chance.random() < 0.5:  # it outlives its connection
            self.session.vault = NoVault()
        self.start = chance.randint(0, end)

    def due(self, records: list[Stored], *, keeps_qos0: bool) -> list[tuple[bytes, int, object]]:
        found = []
        keeps_qos0 = keeps_qos0 and self.session.vault is not None
        for offset in range(self.start, len(records)):
            name, qos, payload, publisher = records[offset]
            mine = self.session.subscriptions.values()
            wants = [one.want(TOPIC_ID) for one in mine if matches(one.filter, name)]
            publisher = ME if publisher == self.client.client_id else publisher
            got = model(wants, offset, qos, publisher, keeps_qos0).from_log
            if got is not None:
                found.append((payload, got.qos, got.identifiers))
        return found


async def check_catch_up(seed: int) -> None:
    chance = random.Random(seed)
    log, records = await filled(chance)
    topic = OneTopic(log)
    keeps_qos0 = chance.random() < 0.3
    router = Router(
        cast(Topics, topic), lambda principal, action, name, topic: True, keeps_qos0=keeps_qos0
    )
    metrics = Metrics()
    troubles: list[str] = []
    clock = Timeline(SystemClock())
    catchup = SessionCatchUp(topic.only, router, metrics, clock, troubles.append, keeps_qos0)
    readings = [Reading(chance, number, len(records)) for number in range(chance.randint(1, 6))]
    for one in readings:
        for subscription in one.session.subscriptions.values():
            router.add(subscription)
    waiting = list(readings)
    deadline = asyncio.get_running_loop().time() + 20
    while waiting or any(one.session.lags or one.client.inbox for one in readings):
        if waiting and chance.random() < 0.3:
            one = waiting.pop()
            one.session.lags[TOPIC_ID] = one.start
        for one in readings:
            if one.client.inbox and chance.random() < 0.5:
                answer(one.client, chance.randint(1, 9))
            if one.session.lags and one.session.has_room:
                catchup.catchup.join(one.session)
        await asyncio.sleep(0)
        assert asyncio.get_running_loop().time() < deadline, "a reader is stuck"
    for one in readings:
        received = [(got.payload, got.qos, got.identifiers) for got in one.client.received]
        assert sorted(received) == sorted(one.due(records, keeps_qos0=keeps_qos0))
        for is_acknowledged in (True, False):  # the client reads the others sooner
            order = [int(payload) for payload, qos, _ in received if (qos > 0) == is_acknowledged]
            assert order == sorted(order)
        assert one.client.complaints == []
    assert troubles == []


def answer(client: Client, count: int) -> None:
    session = client.session
    assert session is not None
    for _ in range(min(count, len(client.inbox))):
        sent = client.inbox.popleft()
        if sent.message is not None:
            client.received.append(sent.message)
        client.in_flight.discard(sent.packet_id)
        session.acknowledge([sent.packet_id])


@given(seed=st.integers(0, 1 << 32))
@examples(120)
async def test_every_reader_gets_its_records_once_and_in_order(seed: int) -> None:
    await check_catch_up(seed)


async def test_trouble_with_the_log_is_told_and_the_readers_keep_their_place() -> None:
    log, _ = await filled(random.Random(1))

    async def broken(offset: int) -> list[Batch]:
        raise CorruptError("no intact batch header")

    log.read = broken  # type: ignore[method-assign]
    topic = OneTopic(log)
    router = Router(cast(Topics, topic), lambda principal, action, name, topic: True)
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    catchup = SessionCatchUp(
        topic.only, router, Metrics(), Timeline(SystemClock()), told.set_result
    )
    one = Reading(random.Random(2), 1, 0)
    one.session.lags[TOPIC_ID] = 0
    catchup.catchup.join(one.session)
    assert "no intact batch header" in await told
    assert one.session.lags == {TOPIC_ID: 0}


async def test_records_that_retention_took_are_counted() -> None:
    log, records = await filled(random.Random(3))
    topic = OneTopic(log)
    router = Router(cast(Topics, topic), lambda principal, action, name, topic: True)
    metrics = Metrics()
    catchup = SessionCatchUp(topic.only, router, metrics, Timeline(SystemClock()), pytest.fail)
    await log.trim(None, 1)
    first = log.bounds().first
    assert 0 < first <= len(records)
    one = Reading(random.Random(4), 1, 0)
    one.client.window = 1000
    one.session = Session("reader-1", one.client, 1000)
    one.session.lags[TOPIC_ID] = 0
    catchup.catchup.join(one.session)
    await asyncio.wait_for(catchup.catchup.wait_done(), 20)
    assert not one.session.lags
    assert metrics.dropped["retention"] == first
