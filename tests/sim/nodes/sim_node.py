"""One process of a cluster: the real log, heartbeat and recovery, with sessions made small.

A session here is what a client may send twice: packet ids of QoS 2 that are open. It is claimed,
saved and released through the real catalog, and checkpoints are written as a node does.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

from penstock.broker.cluster.claiming import Claiming
from penstock.broker.cluster.following import learn_earlier_fences
from penstock.broker.cluster.node import SESSION, Node
from penstock.broker.cluster.recovery import Recovery
from penstock.catalog.cluster.cluster import ClusterCatalog
from penstock.catalog.session.saving import Checkpoint, Ending
from penstock.catalog.session.sessions import SessionCatalog, SessionElsewhere
from penstock.core.delivery.run import joined_run
from penstock.log.cache import ChunkCache
from penstock.log.format.marks import MARK_QOS2_OPENED, MARK_QOS2_RELEASED, NO_RECORD, Mark
from penstock.log.interface import Bounds, LogIdentity, LogSettings
from penstock.log.kafka.client import LATEST
from penstock.log.kafka.log import KafkaLog
from penstock.log.kafka.requests import Partition
from penstock.log.kafka.work import KafkaWork
from penstock.model.clock import ManualClock
from penstock.model.errors import PenstockError
from penstock.model.record import DEFAULT_TENANT
from tests.appends import Told
from tests.sim.nodes.clockwork import Clockwork, Network
from tests.sim.nodes.sim_kafka import SimKafka, SimKafkaClient
from tests.sim.nodes.sim_postgres import SCHEMA, SimHeartbeat, SimPostgres, SimRunner

LEASE_S: Final = 3.0
EXPIRY_S: Final = 1_000_000
_KEY: Final = struct.Struct(">QH")

Answer = Callable[[str], None]  # what a client hears


@dataclass
class SimSession:
    """Of a client that this node owns."""

    client_id: str
    incarnation: int
    link: Link
    opened: set[tuple[int, int]]  # topic id, packet id
    storing: int = 0
    is_leaving: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class Link:
    """A connection of a client, as both sides see it."""

    def __init__(self, hear: Answer) -> None:
        self.is_open = True
        self.hear = hear

    def close(self) -> None:
        if self.is_open:
            self.hear("closed")
            self.is_open = False


class SimNode:
    """Made dead; `start` is run by its own loop."""

    def __init__(
        self,
        clockwork: Clockwork,
        servers: tuple[SimKafka, SimPostgres],
        topics: dict[int, Partition],
        seed: int,
    ) -> None:
        self.rng = Random(seed)
        self.loop = clockwork.new_loop()
        self.inc = 0
        self.is_serving = False
        self.to_kafka = Network(clockwork, self.loop, self.rng)
        self.to_postgres = Network(clockwork, self.loop, self.rng)
        self.logs: dict[int, KafkaLog] = {}
        self.seen: dict[int, list[tuple[int, bytes]]] = {}  # what its tail showed: offset, payload
        self.first_seen: dict[int, int] = {}  # from where on
        self.sessions: dict[str, SimSession] = {}
        self._turns: dict[str, asyncio.Lock] = {}  # of what changes the session of a client
        self.why_ended = ""
        self._clockwork = clockwork
        self._kafka, self._postgres = servers
        self._topics = topics
        self._released: list[tuple[str, int, int]] = []  # since the last checkpoint
        self._clock = ManualClock()

    async def start(self) -> None:
        postgres = self._postgres
        self.inc = await self.to_postgres.ask(lambda answer: answer(postgres.join()))
        runner = SimRunner(postgres, self.to_postgres, self.inc)
        heartbeat = SimHeartbeat(postgres, self.to_postgres, self.loop, self.inc, LEASE_S)
        catalog = ClusterCatalog(runner)
        self.node = Node(self.inc, f"n{self.inc}", SCHEMA, heartbeat, catalog, secret=b"")
        self.node.on_ended.append(self._ended)
        self.node.on_asked[SESSION] = lambda tenant, name: self._asked(name)
        self._catalog = SessionCatalog(runner, self._clock, DEFAULT_TENANT, self.inc)
        heartbeat.start()
        client: Any = SimKafkaClient(self._kafka, self.to_kafka)
        work = await KafkaWork.start(client, threading.Event(), self.inc)
        work.on_dead.append(lambda: self.node.end("a fence of this node is in a log"))
        for topic_id, partition in self._topics.items():
            end, _ = await client.offset(partition, LATEST)
            log = KafkaLog(
                partition,
                partition.topic,
                LogSettings(),
                state=(Bounds(0, end), 1, 0),
                clock=self._clock,
                work=work,
                cache=ChunkCache(1 << 20),
            )
            self.logs[topic_id] = log
            seen = self.seen[topic_id] = []
            self.first_seen[topic_id] = end
            log.on_commit = partial(_see, partition.topic, seen)
            identity = LogIdentity(DEFAULT_TENANT, topic_id, partition.topic)
            await learn_earlier_fences(catalog, identity, log)
            work.follow(log)
        parts = [SimpleNamespace(id=topic_id, log=log) for topic_id, log in self.logs.items()]
        engine = SimpleNamespace(topics=SimpleNamespace(working=lambda: parts))
        tenants: Any = SimpleNamespace(
            engines={DEFAULT_TENANT: engine}, shared=SimpleNamespace(clock=self._clock)
        )
        Recovery(self.node, tenants, cast(Any, self))
        await self.node.wait_settled()
        await self.look()
        self.is_serving = True
        self._checkpoints = self.loop.create_task(self._write_checkpoints())

    async def read_all(self, found: dict[int, list[tuple[int, bytes]]]) -> None:
        """Every message that counts, by topic: offset and payload."""
        for topic_id, log in self.logs.items():
            seen = found[topic_id] = []
            async for batch in log.batches_since(0):
                _see(log.partition.topic, seen, batch, None)

    async def look(self) -> None:
        """As `Following.look`: the fences that other nodes wrote."""
        for topic_id, known in (await self.node.catalog.fences()).items():
            self.logs[topic_id].learn_fences(known)

    def _ended(self, reason: str) -> None:
        """Nothing is acknowledged any more, and the process ends."""
        self.why_ended = reason
        self._clockwork.after(0.0, self.kill)

    def kill(self) -> None:
        if self.loop.is_dead:
            return
        self.is_serving = False
        self.loop.kill()
        cut_s = max(0.0, self.to_postgres.there_cut_until_s - self._clockwork.now_s)
        self._clockwork.after(cut_s + 0.01, lambda: self._postgres.unlock(self.inc))
        for session in self.sessions.values():
            session.link.close()

    # Sessions

    async def connect(self, client_id: str, link: Link) -> None:
        """Claim the session of a client; its link is told "connected", or closed."""
        async with self._turns.setdefault(client_id, asyncio.Lock()):
            try:
                await self._release(client_id)  # an older connection of the client at this node
                await self._claim(client_id, link)
            except PenstockError:
                link.close()

    async def _claim(self, client_id: str, link: Link) -> None:
        claiming = Claiming(self.node, DEFAULT_TENANT, client_id)
        while link.is_open:
            try:
                stored, _ = await self._catalog.begin(client_id, "", EXPIRY_S, is_clean=False)
                break
            except SessionElsewhere as elsewhere:
                await claiming.wait(elsewhere)
        else:
            return
        opened = {(topic_id, packet_id) for topic_id, packet_id in stored.opened}
        session = SimSession(client_id, stored.incarnation, link, opened)
        self.sessions[client_id] = session
        if link.is_open:
            self._tell(session, "connected")
        else:
            await self._release(client_id)

    def _asked(self, client_id: str) -> None:
        if client_id in self.sessions:
            self.loop.create_task(self._leave(client_id))

    async def _leave(self, client_id: str) -> None:
        async with self._turns.setdefault(client_id, asyncio.Lock()):
            with suppress(PenstockError):  # asked again
                await self._release(client_id)

    async def _release(self, client_id: str) -> None:
        """Close the connection, wait for what is on its way, save, and let others claim it."""
        session = self.sessions.get(client_id)
        if session is None:
            return
        session.link.close()
        session.is_leaving = True
        while session.storing:
            session.settled.clear()
            await session.settled.wait()
        ending = Ending(
            client_id,
            session.incarnation,
            EXPIRY_S,
            at_us=0,
            positions=(),
            outstanding=(),
            opened=sorted(session.opened),
            feed_ids=(),
            feeds=(),
        )
        await self._catalog.end(ending)
        del self.sessions[client_id]

    def _tell(self, session: SimSession, answer: str) -> None:
        """Only a node that has not ended answers."""
        if session.link.is_open and not self.node.ended:
            session.link.hear(answer)

    # Messages

    def publish(
        self, client_id: str, link: Link, topic_id: int, packet_id: int, payload: bytes
    ) -> None:
        """QoS 1 with the packet id 0, else QoS 2."""
        session = self.sessions.get(client_id)
        if session is None or session.link is not link or session.is_leaving:
            return
        key = (topic_id, packet_id)
        if key in session.opened:
            self._tell(session, "received")
            return
        marks: list[Mark] = []
        if packet_id:
            marks = [Mark(MARK_QOS2_OPENED, _KEY.pack(session.incarnation, packet_id), 0)]

        def stored(error: Exception | None) -> None:
            self._settle(session)
            if error is None:
                if packet_id:
                    session.opened.add(key)
                self._tell(session, "received")
            else:
                session.link.close()

        session.storing += 1
        run = joined_run(self._topics[topic_id].topic, [payload], 1)
        self.logs[topic_id].append([run], Told(stored), marks)

    def release(self, client_id: str, link: Link, topic_id: int, packet_id: int) -> None:
        session = self.sessions.get(client_id)
        if session is None or session.link is not link or session.is_leaving:
            return
        key = (topic_id, packet_id)
        if key not in session.opened:
            self._tell(session, "completed")
            return
        mark = Mark(MARK_QOS2_RELEASED, _KEY.pack(session.incarnation, packet_id), NO_RECORD)

        def stored(error: Exception | None) -> None:
            self._settle(session)
            if error is None:
                session.opened.discard(key)
                self._released.append((client_id, topic_id, packet_id))
                self._tell(session, "completed")
            else:
                session.link.close()

        session.storing += 1
        self.logs[topic_id].append([], Told(stored), [mark])

    def _settle(self, session: SimSession) -> None:
        session.storing -= 1
        session.settled.set()

    async def _write_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.1, 1.5))
            released, self._released = self._released, []
            opened = [
                (session.client_id, *key)
                for session in self.sessions.values()
                for key in sorted(session.opened)
            ]
            levels = {one: (log.epoch, log.bounds().end) for one, log in self.logs.items()}
            checkpoint = Checkpoint(
                levels=levels,
                opened=opened,
                released=[one for one in released if one not in set(opened)],
            )
            try:
                await self._catalog.save(checkpoint)
            except PenstockError:
                self._released = released + self._released


def _see(topic: str, seen: list[tuple[int, bytes]], batch: Any, runs: Any) -> None:
    records = batch.records(topic, batch.base_offset, batch.end_offset)
    seen += [(record.offset, bytes(record.payload)) for record in records]
