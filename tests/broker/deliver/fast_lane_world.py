"""The real exchange on the real log of files, whose commits wait until the test lets them end.

Messages come as clients, the bus and Spark publish them; commits succeed, or fail and are refused,
or fail for good. Readers take everything at once, so what they are handed is what they see. Each
reader checks on the spot that it sees nothing too soon; `settle` compares all of them with the log.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from penstock.broker.deliver.commits import Runs
from penstock.broker.engine import Engine
from penstock.broker.session.session import Subscription
from penstock.broker.settings import BrokerSettings
from penstock.broker.shared import Shared
from penstock.broker.topic.topics import Topic
from penstock.catalog.catalog import Catalog
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.database.thread import InlineRunner
from penstock.core.delivery.run import Encoding, MixedRun, Run, run_of
from penstock.core.naming.names import matches
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.log.files.commit import CommitJob, run_jobs
from penstock.log.files.segment import Segment
from penstock.log.files.store import EmbeddedStore
from penstock.log.files.upkeep.seal import seal_segment
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.interface import FSYNC, LogSettings
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.timeline import Timeline
from tests.appends import Told, add
from tests.broker.exchange_world import Client, ExchangeWorld, FakeEncoding
from tests.broker.model_broker import Message
from tests.log.files.faulty_disk import FaultyDisk
from tests.sim.fake_disk import FakeDisk

T = TypeVar("T")

NAMES = ["a", "a/b", "c"]
FILTERS = ["#", "a/#", "c"]
LINGER_S = 0.2  # of virtual time: what gathers is committed after it
COMMITS_MAX = 100  # that may still come when nothing is published any more
WRITER = "writer"


class HeldWorkers:
    """Implements `Workers`: a round ends when it is told to; other work is done at once."""

    def __init__(self, disk: FaultyDisk, loop: asyncio.AbstractEventLoop) -> None:
        self.is_held = False
        self._disk = disk
        self._loop = loop
        self._rounds: list[tuple[list[CommitJob], Callable[[], None]]] = []

    @property
    def has_round(self) -> bool:
        return bool(self._rounds)

    def commit(self, jobs: list[CommitJob], done: Callable[[], None]) -> None:
        self._rounds.append((jobs, done))
        if not self.is_held:
            self._loop.call_soon(self.finish)

    def finish(self, fault: str = "") -> None:
        """The round succeeds, or its "write" or its "sync" fails."""
        jobs, done = self._rounds.pop(0)
        if fault:
            self._disk.fail(fault, ".log", errno.ENOSPC if fault == "write" else errno.EIO, times=1)
        run_jobs(jobs)
        self._disk.heal()
        done()

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        try:
            future.set_result(work())
        except Exception as failed:
            future.set_exception(failed)
        return future

    def seal(self, segment: Segment) -> Awaitable[Segment]:
        return self.run(lambda: seal_segment(segment))

    def close(self) -> None:
        """There are no threads."""


@dataclass
class Listener(Client):
    """A client that notes everything in the order in which it was handed it."""

    on_message: Callable[[Listener, Message], None] = lambda listener, message: None
    filter: str = ""
    heard: list[bytes] = field(default_factory=list)
    missed: set[bytes] = field(default_factory=set)  # published before it came

    def forward(self, name: str, count: int, data: bytes) -> None:
        before = len(self.received)
        super().forward(name, count, data)
        for message in self.received[before:]:
            self._hear(message)

    def send(
        self, run: Run, first: int, packet_ids: list[int], encoding: Encoding, dup: bool
    ) -> None:
        super().send(run, first, packet_ids, encoding, dup)
        assert isinstance(encoding, FakeEncoding)
        for at in range(first, first + len(packet_ids)):
            self._hear(encoding.message(run, at))

    def _hear(self, message: Message) -> None:
        self.heard.append(message.payload)
        self.on_message(self, message)


@dataclass(frozen=True)
class Published:
    name: str
    qos: int
    retain: bool


class FastLaneWorld:
    """One topic, its publishers and its readers. Every step asserts."""

    def __init__(
        self, engine: Engine, workers: HeldWorkers, chance: Random, *, keeps_qos0: bool
    ) -> None:
        self.seen: Counter[str] = Counter()
        self.published: dict[bytes, Published] = {}  # by payload, which is a number of its own
        self.committed: dict[bytes, None] = {}  # in the order of the log
        self._ahead: set[bytes] = set()  # somebody saw them before their commit
        self._chance = chance
        self._workers = workers
        self._keeps_qos0 = keeps_qos0
        engine.followers.append(self._note_commit)  # hears of a commit before readers do
        self.world = ExchangeWorld(engine, keeps_qos0=keeps_qos0)
        self._engine = engine
        self._topic = engine.topics.get(DEFAULT_TOPIC)
        self._publisher = self.world.exchange.publisher
        self._listeners: list[Listener] = []

    def _note_commit(self, topic: Topic, batch: Batch, runs: Runs) -> None:
        records = batch.records(topic.declared, batch.base_offset, batch.end_offset)
        self.committed |= dict.fromkeys(record.payload for record in records)

    def _check_on_the_spot(self, listener: Listener, message: Message) -> None:
        payload = message.payload
        if payload in self.committed:
            return
        published = self.published[payload]
        assert published.qos == 0, "above QoS 0 nothing is seen before its commit"
        assert not published.retain, "nothing retained is seen before its commit"
        assert not self._keeps_qos0, "what is kept for sessions is not seen before its commit"
        self._ahead.add(payload)
        self.seen["ahead"] += 1

    # What happens

    async def join(self, filter: str, qos: int) -> None:
        client_id = f"reader-{len(self._listeners)}"
        listener = Listener(client_id, on_message=self._check_on_the_spot, filter=filter)
        self.world.clients[client_id] = listener
        is_kept = self._chance.random() < 0.5
        await self.world.connect(client_id, clean=True, is_kept=is_kept, window=10_000)
        listener.missed = {*self.committed, *self._ahead}
        assert listener.session is not None
        self.world.exchange.sessions.subscribe(Subscription(listener.session, filter, qos))
        self._listeners.append(listener)

    async def join_some(self) -> None:
        if len(self._listeners) < 5:
            await self.join(self._chance.choice(FILTERS), self._chance.randrange(2))

    def _payloads(self, name: str, qos: int, retain: bool) -> list[bytes]:
        count = self._chance.choice([1, 1, 2, 3])
        fresh = [b"%06d" % (len(self.published) + at) for at in range(count)]
        self.published |= dict.fromkeys(fresh, Published(name, qos, retain))
        return fresh

    async def publish(self) -> None:
        """As a client does, of QoS 0 or 1; now and then somebody waits for QoS 0, too."""
        chance = self._chance
        name, qos, retain = chance.choice(NAMES), chance.choice([0, 0, 1]), chance.random() < 0.15
        run = run_of(name, self._payloads(name, qos, retain), qos=qos, retain=retain)
        run.publisher = WRITER
        waiter = Told(self._note_answer) if qos or chance.random() < 0.1 else None
        self._publisher.publish(self.world.exchange.router.find(name), run, waiter)

    def _note_answer(self, error: Exception | None) -> None:
        self.seen["refused" if error else "acknowledged"] += 1

    async def publish_mixed(self) -> None:
        """Plain messages of several names in one append, as a client's chunk is stored."""
        if not self._publisher.is_level(self._topic):
            self.seen["mixed declined"] += 1
            return
        runs = [run_of(name, self._payloads(name, 0, False), qos=0) for name in NAMES]
        data = b"".join(run.data for run in runs)
        lengths = [length for run in runs for length in run.lengths]
        starts = [sum(lengths[:at]) for at in range(len(lengths))]
        mixed = MixedRun(NAMES, [run.count for run in runs], data, starts, lengths)
        self._publisher.publish_mixed(self._topic, mixed)
        for run in runs:
            for lane in self.world.exchange.router.find(run.name).lanes:
                for member in lane.members:
                    member.outbox.forward(run.name, run.count, lane.encoding.forward_bytes(run))
        self.seen["mixed"] += 1

    async def publish_from_the_bus(self) -> None:
        """Without a client: an append that only its commit delivers."""
        name, qos = self._chance.choice(NAMES), self._chance.randrange(2)
        done = self._engine.publish(
            self._topic, run_of(name, self._payloads(name, qos, False), qos=qos)
        )
        asyncio.ensure_future(done).add_done_callback(lambda future: future.exception())

    async def place(self) -> None:
        """A batch that was encoded elsewhere, as Spark's are."""
        name = self._chance.choice(NAMES)
        builder = BatchBuilder(0)
        add(builder, name, self._payloads(name, 1, False), 0, 1)
        encoded = b"".join(builder.encode(0, 0, 0).to_bytes())
        self._topic.log.append_batch(decode_batch(memoryview(encoded), 0))
        self.seen["placed"] += 1

    async def end_round(self) -> None:
        """A commit that is on its way succeeds, or its write fails."""
        if self._workers.has_round:
            fails = self._chance.random() < 0.2
            self._workers.finish("write" if fails else "")
            self.seen["failed commits" if fails else "commits"] += 1

    async def fence(self) -> None:
        """A sync fails: nothing is stored from now on."""
        if self._workers.has_round and self._chance.random() < 0.1:
            self._workers.finish("sync")
            self.seen["fences"] += 1

    async def refuse(self) -> None:
        """Space is short, or is there again."""
        self._engine.upkeep.refusal = "" if self._engine.upkeep.refusal else "the disk is full"

    async def wait(self) -> None:
        """What gathers begins its commit; what waits for the loop's next turn does, too."""
        await asyncio.sleep(self._chance.choice([0, 0, LINGER_S]))

    async def step(self, actions: list[Callable[[], Awaitable[None]]]) -> None:
        try:
            await self._chance.choice(actions)()
        except PenstockError:
            self.seen["refused"] += 1
        for listener in self._listeners:
            listener.take(self.world.exchange, len(listener.inbox))

    def _due(self, listener: Listener) -> list[bytes]:
        return [
            payload
            for payload in self.committed
            if payload not in listener.missed
            and matches(listener.filter, self.published[payload].name)
        ]

    # What must hold

    async def settle(self) -> None:
        """Everything is committed; then each reader has what is stored once, in the log's order."""
        self._engine.upkeep.refusal = ""
        self._workers.is_held = False
        while self._workers.has_round:
            self._workers.finish()
        for _ in range(COMMITS_MAX):
            await asyncio.sleep(LINGER_S)
        assert self._topic.log.is_level
        await self.world.settle()
        for listener in self._listeners:
            stored = [payload for payload in listener.heard if payload in self.committed]
            assert stored == self._due(listener), f"{listener.client_id} of {listener.filter}"
            assert len(set(listener.heard)) == len(listener.heard), "nothing comes twice"
            assert not listener.complaints
        self._check_lane_is_open()

    def _check_lane_is_open(self) -> None:
        """At rest a message of QoS 0 is handed on before anything else happens."""
        payload = b"%06d" % len(self.published)
        self.published[payload] = Published("a", 0, False)
        self._publisher.publish(
            self.world.exchange.router.find("a"), run_of("a", [payload], qos=0), None
        )
        for listener in self._listeners:
            if matches(listener.filter, "a"):
                assert (listener.heard[-1:] == [payload]) != self._keeps_qos0


@asynccontextmanager
async def opened_world(chance: Random, *, keeps_qos0: bool) -> AsyncIterator[FastLaneWorld]:
    loop = asyncio.get_running_loop()
    clock = Timeline(SystemClock())
    disk = FaultyDisk(FakeDisk(chance))
    workers = HeldWorkers(disk, loop)
    store = EmbeddedStore(Path("/data"), disk, clock, loop, workers)
    catalog = await Catalog.open(InlineRunner(SqliteDatabase(":memory:")), clock)
    shared = Shared(BrokerSettings(), catalog, store, clock, lambda: (1, 1))
    await shared.open()
    engine = Engine(shared)
    await engine.open()
    await engine.topics.create(DEFAULT_TOPIC, LogSettings(durability=FSYNC), exist_ok=True)
    world = FastLaneWorld(engine, workers, chance, keeps_qos0=keeps_qos0)
    await world.world.store.open()
    workers.is_held = True
    try:
        yield world
    finally:
        workers.is_held = False
        while workers.has_round:
            workers.finish()
        await world.world.store.close()
        await engine.close()
        await shared.close()
