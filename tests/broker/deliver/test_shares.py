"""Shares in the real exchange: is every message somebody's, and nobody's twice at a time?

Members join, leave, die, stall and forget their sessions at random. One session, mostly away, holds
the group from beginning to end, so whatever is published is the group's.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest

from penstock.app.wiring import open_memory
from penstock.broker.engine import Engine
from penstock.broker.session.session import Session
from penstock.broker.settings import BrokerSettings
from penstock.broker.share.registry import share_rows
from penstock.broker.share.share import Share
from penstock.catalog.session.shares import ShareRow, ShareState, StoredShare
from penstock.core.delivery.run import run_of
from penstock.core.delivery.tags import make_tag, offset_of
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.log.interface import LogSettings
from tests.broker.exchange_world import WAIT_S, Client, ExchangeWorld
from tests.broker.model_broker import Wanted

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
KEY = "$share/g/a/#"
NAMES = ["a/x", "a/y", "a", "b"]
WINDOWS = [1, 2, 5, 50]


class Crowd:
    """Members of one group, and what they must have been given in the end."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self.world = ExchangeWorld(engine)
        self._chance = chance
        self._members = [f"member-{number}" for number in range(4)]
        self._published: dict[bytes, int] = {}  # payload -> QoS
        self._departures = 0

    @property
    def share(self) -> Share:
        return self.world.store.shares._by_key[KEY]

    @property
    def online(self) -> list[str]:
        clients = self.world.clients
        return [one for one in self._members if one in clients and clients[one].session]

    async def run_and_check(self, steps: int) -> None:
        world = self.world
        await world.store.open()
        await world.connect("writer", clean=True, is_kept=False, window=10)
        await world.connect("anchor", clean=True, is_kept=True, window=3)
        await world.subscribe("anchor", KEY, Wanted(1))
        await world.settle()
        actions = [self.publish] * 10 + [self.take] * 8 + [self.join] * 4 + [self.leave] * 2
        actions += [self.unsubscribe, self.stall, self.checkpoint, self.anchor]
        for _ in range(steps):
            await self._chance.choice(actions)()
            self.check_bounds()
        await self.finish()
        await world.store.close()

    async def publish(self) -> None:
        chance = self._chance
        qos, name = chance.choice([1, 1, 2]), chance.choice(NAMES)
        payloads = []
        for _ in range(chance.choice([1, 1, 3, 12])):
            payload = b"%d" % len(self._published)
            self._published[payload] = qos if name != "b" else -1
            payloads.append(payload)
        self.world.publish("writer", name, payloads, qos, False)
        if chance.random() < 0.5:
            await self.world.settle()

    async def take(self) -> None:
        for client_id in self.online:
            self.world.clients[client_id].take(self.world.exchange, self._chance.randint(0, 6))
        await asyncio.sleep(0)

    async def join(self) -> None:
        chance = self._chance
        client_id = chance.choice(self._members)
        if client_id in self.online:
            return
        is_kept = chance.random() < 0.6
        self._departures += 1  # a session that is wiped here gives up what was out to it
        await self.world.connect(
            client_id, clean=chance.random() < 0.2, is_kept=is_kept, window=chance.choice(WINDOWS)
        )
        if chance.random() < 0.9:
            await self.world.subscribe(client_id, KEY, Wanted(chance.choice([0, 1, 1, 2])))

    async def leave(self) -> None:
        if self.online:
            self._departures += 1
            self.world.disconnect(self._chance.choice(self.online))
            await asyncio.sleep(0)

    async def unsubscribe(self) -> None:
        if self.online:
            await self.world.unsubscribe(self._chance.choice(self.online), KEY)

    async def stall(self) -> None:
        if self.online:
            client = self.world.clients[self._chance.choice(self.online)]
            client.has_room = not client.has_room

    async def checkpoint(self) -> None:
        await self.world.store.checkpoints.save()

    async def anchor(self) -> None:
        """The session that always holds the group goes, or comes back."""
        if self.world.clients["anchor"].session is None:
            await self.world.connect("anchor", clean=False, is_kept=True, window=3)
        else:
            self._departures += 1
            self.world.disconnect("anchor")

    def check_bounds(self) -> None:
        """Nothing is out to two members, and no more than the windows hold."""
        out = []
        windows = 0
        for client in self.world.clients.values():
            session = client.session
            if session is None:
                continue
            out += [session.window.tag_of(packet_id) for packet_id in session.shared]
            windows += session.window.size_max
        assert len(set(out)) == len(out)
        held = {offset_of(tag) for tag in out}
        for group in self.share.groups.values():
            assert held.isdisjoint(group.waiting())
            assert group.count <= 6 * max(WINDOWS)

    async def finish(self) -> None:
        """Everybody who is there takes everything; one who was never there takes what is left."""
        world = self.world
        await world.connect("last", clean=True, is_kept=False, window=100)
        await world.subscribe("last", KEY, Wanted(2))
        for client_id in self._members:
            if client_id not in self.online:
                await world.connect(client_id, clean=False, is_kept=True, window=50)
        if world.clients["anchor"].session is None:
            await world.connect("anchor", clean=False, is_kept=True, window=3)
        await world.settle()
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while self._take_all() or self.is_unfinished:
            assert asyncio.get_running_loop().time() < deadline, "the group waits for somebody"
            await asyncio.sleep(0.001)
            await world.settle()
        self.check_received()

    @property
    def is_unfinished(self) -> bool:
        """Is something out, or on its way?"""
        groups = self.share.groups.values()
        return self.share.is_behind or self.world.is_busy or any(one.count for one in groups)

    def _take_all(self) -> int:
        taken = 0
        for client in self.world.clients.values():
            client.has_room = True
            if client.session is not None:
                taken += len(client.inbox)
                client.take(self.world.exchange, len(client.inbox))
                self.world.exchange.sessions.resume(client.session)
        return taken

    def check_received(self) -> None:
        clients: list[Client] = list(self.world.clients.values())
        assert [one.complaints for one in clients if one.complaints] == []
        got = Counter(one.payload for client in clients for one in client.received)
        wanted = {payload for payload, qos in self._published.items() if qos > 0}
        assert set(got) <= wanted
        lost = wanted - set(got)
        assert len(lost) <= self.world.engine.metrics.dropped["session_ended"]
        assert all(self._published[payload] == 2 for payload in lost)
        assert max(got.values()) <= 1 + self._departures
        twice = {
            one.payload for client in clients for one in client.received if got[one.payload] > 1
        }
        exact = Counter(
            one.payload for client in clients for one in client.received if one.qos == 2
        )
        assert all(count == 1 for count in exact.values())
        if not self._departures:
            assert not twice


@pytest.mark.parametrize("number", range(10))
async def test_every_message_of_a_group_is_given_to_somebody(number: int) -> None:
    seed = SEED + number
    print(f"PENSTOCK_SEED={seed}")

    opened = await open_memory(BrokerSettings())
    await opened.engine.topics.create(DEFAULT_TOPIC, LogSettings(), exist_ok=True)
    await Crowd(opened.engine, random.Random(seed)).run_and_check(250)
    await opened.close(True)


@pytest.mark.parametrize(
    ("first", "second", "active"), [(True, False, 7), (False, True, 3), (False, False, 7)]
)
async def test_of_a_packet_id_that_was_used_again_one_message_is_out(
    first: bool, second: bool, active: int
) -> None:
    """After a crash: what was released is done, and is not given out again after the next one."""
    opened = await open_memory(BrokerSettings())
    engine = opened.engine
    topic = await engine.topics.create(DEFAULT_TOPIC, LogSettings(), exist_ok=True)
    await engine.publish(topic, run_of("a/x", [b"x"] * 10))
    world = ExchangeWorld(engine)
    rows = [
        ShareRow(topic.id, 3, 2, "client", 1, first),
        ShareRow(topic.id, 7, 2, "client", 1, second),
        ShareRow(topic.id, 10, 2, "client", 2, False),  # the log was cut before it
    ]
    state = ShareState(1, KEY, False, [(topic.id, topic.log.epoch, 2)], rows)
    await world.store.shares.load([StoredShare(state, {"client": 2})])
    share = world.store.shares._by_key[KEY]
    assert [offset_of(pin.tag) for pin in share.pins["client"].values()] == [active]
    assert share.groups[topic.id].ahead() == {3, 7}
    kinds = {row.offset: row.qos for row in share_rows(share)}
    assert kinds == {active: 2, 10 - active: 0}
    await opened.close(True)


@pytest.mark.parametrize(
    ("own_qos", "is_released", "winner"), [(1, True, 7), (1, False, 7), (2, True, 3), (2, False, 7)]
)
async def test_a_packet_id_of_the_session_and_of_a_share_belongs_to_who_used_it_last(
    own_qos: int, is_released: bool, winner: int
) -> None:
    opened = await open_memory(BrokerSettings())
    engine = opened.engine
    topic = await engine.topics.create(DEFAULT_TOPIC, LogSettings(), exist_ok=True)
    await engine.publish(topic, run_of("a/x", [b"x"] * 10))
    world = ExchangeWorld(engine)
    row = ShareRow(topic.id, 7, 2, "client", 1, is_released)
    state = ShareState(1, KEY, False, [(topic.id, topic.log.epoch, 0)], [row])
    await world.store.shares.load([StoredShare(state, {"client": 2})])
    session = Session("client", None, 10)
    session.window.restore(1, make_tag(topic.id, 3))
    if own_qos == 2:
        session.twice.add(1)
        session.note_released([1])
    world.exchange.sharing.restore(session)
    assert offset_of(session.window.tag_of(1)) == winner
    assert (1 in session.shared) == (winner == 7)
    assert session.twice == {1}
    assert session.is_released(1) == (is_released or winner == 3)
    await opened.close(True)


async def has_lagged(share: Share, topic_id: int) -> bool:
    for _ in range(1_000):
        if topic_id in share.lags:
            return True
        await asyncio.sleep(0)
    return False


async def test_what_comes_while_something_is_given_again_follows_by_itself() -> None:
    """A member dies and messages arrive in the same tick: does the other get all without a word?"""
    opened = await open_memory(BrokerSettings())
    engine = opened.engine
    await engine.topics.create(DEFAULT_TOPIC, LogSettings(), exist_ok=True)
    world = ExchangeWorld(engine)
    await world.store.open()
    for client_id in ("writer", "dying", "silent"):
        await world.connect(client_id, clean=True, is_kept=False, window=100)
    for client_id in ("dying", "silent"):
        await world.subscribe(client_id, KEY, Wanted(1))
    world.publish("writer", "a/x", [b"0", b"1", b"2", b"3"], 1, False)
    await world.settle()
    share = world.store.shares._by_key[KEY]
    topic_id = engine.topics.get(DEFAULT_TOPIC).id
    world.publish("writer", "a/x", [b"4"], 1, False)
    world.disconnect("dying")
    assert share.groups[topic_id].room == 0  # what came back goes first
    assert await has_lagged(share, topic_id)
    await world.settle()
    got = [one.message.payload for one in world.clients["silent"].inbox if one.message]
    assert sorted(got) == [b"0", b"1", b"2", b"3", b"4"]
    assert got[-1] == b"4"
    await world.store.close()
    await opened.close(True)
