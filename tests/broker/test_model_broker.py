"""Do the trie, the route cache, windows, catching up and sessions together do what a list would?

Random traffic goes to the real exchange and to the model; each reader must have been handed the
same messages, in the order of each topic, however slowly it acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.app.wiring import open_directory, open_memory
from penstock.broker.engine import Engine
from penstock.broker.settings import BrokerSettings
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.log.interface import LogSettings
from tests.broker.exchange_world import ExchangeWorld
from tests.broker.model_broker import Message, ModelBroker, Wanted

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))

NAMES = ["a", "a/b", "a/b/c", "b/b", "b", "t", "t/x", "t/x/y", "$s/a", "a//b", "/"]
FILTERS = ["a", "a/b", "#", "+", "a/#", "+/b", "+/+", "t/#", "t/+/y", "$s/#", "a/+/b", "b", "/"]


class Comparison:
    """One run of both brokers."""

    def __init__(self, engine: Engine, chance: random.Random, *, keeps_qos0: bool) -> None:
        self.model = ModelBroker(keeps_qos0=keeps_qos0)
        self.world = ExchangeWorld(engine, keeps_qos0=keeps_qos0)
        self._chance = chance
        self._number = 0
        self._clients = [f"client-{n}" for n in range(4)]

    @property
    def online(self) -> list[str]:
        return [c for c in self._clients if c in self.model.sessions and self._session(c)]

    def _session(self, client_id: str) -> bool:
        return self.model.sessions[client_id].is_online

    async def run(self, steps: int) -> None:
        await self.world.store.open()
        actions = [self.publish] * 12 + [self.take] * 6 + [self.subscribe] * 3
        actions += [self.connect] * 3 + [self.disconnect] * 2
        actions += [self.unsubscribe, self.stall, self.weaken]
        for _ in range(steps):
            await self._chance.choice(actions)()
        for client_id in self._clients:
            if client_id in self.model.sessions and not self._session(client_id):
                await self._connect(client_id, clean=False, is_kept=True)
            if client_id in self.model.sessions:
                await self.check(client_id)
        await self.world.store.close()

    async def connect(self) -> None:
        client_id = self._chance.choice(self._clients)
        if client_id in self.online:
            await self.check(client_id)  # so that what QoS 0 is on its way is known
        clean = self._chance.random() < 0.3
        await self._connect(client_id, clean=clean, is_kept=self._chance.random() < 0.7)

    async def _connect(self, client_id: str, *, clean: bool, is_kept: bool) -> None:
        await self.world.settle()
        model = self.model
        if client_id in self.online:
            model.disconnect(client_id)
        window = self._chance.choice([1, 2, 5, 100])
        is_present = model.connect(client_id, clean=clean, is_kept=is_kept)
        if not is_present and client_id in self.world.clients:
            self.world.clients[client_id].received.clear()
        found = await self.world.connect(client_id, clean=clean, is_kept=is_kept, window=window)
        assert found == is_present

    async def disconnect(self) -> None:
        if not self.online:
            return
        client_id = self._chance.choice(self.online)
        await self.world.settle()
        self.world.disconnect(client_id)
        self.model.disconnect(client_id)
        if client_id not in self.model.sessions:
            self.world.clients[client_id].received.clear()

    async def subscribe(self) -> None:
        if not self.online:
            return
        client_id = self._chance.choice(self.online)
        await self.check(client_id)
        chance = self._chance
        filter = chance.choice(FILTERS)
        wanted = Wanted(
            chance.randrange(3),
            chance.random() < 0.3,
            chance.random() < 0.3,
            chance.choice([0, 0, 1, 2]),
        )
        self.model.subscribe(client_id, filter, wanted)
        await self.world.subscribe(client_id, filter, wanted)
        await self.check(client_id)  # a name replaced during the scan comes only once

    async def weaken(self) -> None:
        """Replace a subscription by one of QoS 0, whatever waits: nothing of it is lost."""
        client_id = self._chance.choice(self.online or [""])
        known = self.model.sessions[client_id].subscriptions if client_id else {}
        if not known:
            return
        filter = self._chance.choice(sorted(known))
        wanted = replace(known[filter], qos=0)
        await self.world.settle()
        self.model.subscribe(client_id, filter, wanted)
        await self.world.subscribe(client_id, filter, wanted)
        await self.check(client_id, is_weakened=True)

    async def unsubscribe(self) -> None:
        if not self.online:
            return
        client_id = self._chance.choice(self.online)
        await self.check(client_id)
        filter = self._chance.choice(FILTERS)
        was_there = self.model.unsubscribe(client_id, filter)
        assert await self.world.unsubscribe(client_id, filter) == was_there

    async def publish(self) -> None:
        if not self.online:
            return
        chance = self._chance
        client_id = chance.choice(self.online)
        name = chance.choice(NAMES)
        qos, retain = chance.randrange(3), chance.random() < 0.2
        payloads = []
        for _ in range(chance.choice([1, 1, 2, 7])):
            self._number += 1
            payloads.append(b"" if retain and chance.random() < 0.3 else b"%d" % self._number)
        for payload in payloads:
            self.model.publish(client_id, name, payload, qos, retain)
        self.world.publish(client_id, name, payloads, qos, retain)
        if chance.random() < 0.5:
            await self.world.settle()

    async def take(self) -> None:
        if self.online:
            client = self.world.clients[self._chance.choice(self.online)]
            client.take(self.world.exchange, self._chance.randint(1, 5))
        if self._chance.random() < 0.3:
            await asyncio.sleep(0)

    async def stall(self) -> None:
        """A connection whose buffer is full for a while: messages above QoS 0 wait in the log."""
        if self.online:
            client = self.world.clients[self._chance.choice(self.online)]
            client.has_room = not client.has_room

    async def check(self, client_id: str, *, is_weakened: bool = False) -> None:
        """The client takes everything; then it has what the model says, and nothing else.

        Not at the same QoS, if it got weaker while some waited; what QoS 0 is may overtake then.
        """
        client = self.world.clients[client_id]
        session = self.model.sessions[client_id]
        due, due_retained = session.due, session.due_retained
        client.has_room = True
        if client.session is not None:
            self.world.exchange.sessions.resume(client.session)
        await self.world.drain(
            client_id, lambda: len(client.received) >= len(due) + len(due_retained)
        )
        received = client.received
        assert client.complaints == []
        if is_weakened:
            wanted = [replace(one, qos=0) for one in due + due_retained]
            assert Counter(replace(one, qos=0) for one in received) == Counter(wanted)
        else:
            assert Counter(received) == Counter(due + due_retained)
            unordered = Counter(due_retained)
            assert self._in_order(received, unordered) == self._in_order(due, Counter())
        received.clear()
        due.clear()
        due_retained.clear()

    def _in_order(
        self, messages: list[Message], left_out: Counter[Message]
    ) -> dict[tuple[str, bool], list[Message]]:
        """What must keep its order: each topic, above QoS 0 and at QoS 0 on its own."""
        place = self.world.engine.topics.placement.place
        ordered: dict[tuple[str, bool], list[Message]] = defaultdict(list)
        for message in messages:
            if left_out[message]:
                left_out[message] -= 1
            else:
                ordered[place(message.name), message.qos > 0].append(message)
        return ordered


async def check_against_model(
    engine: Engine, seed: int, steps: int, *, keeps_qos0: bool = False
) -> None:
    for topic in (DEFAULT_TOPIC, "t"):
        await engine.topics.create(topic, LogSettings(), exist_ok=True)
    await Comparison(engine, random.Random(seed), keeps_qos0=keeps_qos0).run(steps)


KEEPS_QOS0 = pytest.mark.parametrize("keeps_qos0", [False, True])


@KEEPS_QOS0
@pytest.mark.parametrize("number", range(8))
async def test_exchange_agrees_with_the_model_in_memory(number: int, keeps_qos0: bool) -> None:
    seed = SEED + number
    print(f"PENSTOCK_SEED={seed}")

    opened = await open_memory(BrokerSettings())
    await check_against_model(opened.engine, seed, 400, keeps_qos0=keeps_qos0)
    await opened.close(True)


@pytest.mark.over_a_second
@KEEPS_QOS0
async def test_exchange_agrees_with_the_model_on_files(tmp_path: Path, keeps_qos0: bool) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    opened = await open_directory(tmp_path, BrokerSettings())
    await check_against_model(opened.engine, SEED, 250, keeps_qos0=keeps_qos0)
    await opened.close(True)


@pytest.mark.slow
async def test_exchange_agrees_with_the_model_for_long() -> None:
    for seed in range(SEED, SEED + 15):
        print(f"PENSTOCK_SEED={seed}")
        opened = await open_memory(BrokerSettings())
        await check_against_model(opened.engine, seed, 3_000, keeps_qos0=seed % 2 == 1)
        await opened.close(True)
