"""The real exchange and store without sockets: clients that take and acknowledge as told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from penstock.app.wiring import open_memory
from penstock.broker.engine import Engine
from penstock.broker.exchange import Exchange
from penstock.broker.session.resume import go_on, restore
from penstock.broker.session.session import NEVER_EXPIRES, Session, Subscription
from penstock.broker.session.store import SessionStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.trace.watch import Watch
from penstock.catalog.session.stored_sessions import StoredSession
from penstock.core.access import FULL, Principal
from penstock.core.delivery.run import Encoding, Run, record_flags
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.log.interface import LogSettings
from penstock.model.record import DEFAULT_TENANT
from tests.appends import Told
from tests.broker.model_broker import Message, Wanted
from tests.waiting import WAIT_S


class FakeEncoding:
    """Implements `Encoding`; its bytes are only a handle for the outbox."""

    def __init__(self, qos: int, as_published: bool, identifiers: tuple[int, ...]) -> None:
        self.qos = qos
        self.as_published = as_published
        self.identifiers = identifiers

    def forward_bytes(self, run: Run) -> bytes:
        handle = b"%d %d" % (id(self), id(run))
        ENCODINGS[handle] = self, run
        return handle

    def message(self, run: Run, index: int) -> Message:
        start = run.starts[index]
        payload = run.data[start : start + run.lengths[index]]
        retain = run.retain and self.as_published
        return Message(run.name, payload, self.qos, retain, self.identifiers)


ENCODINGS: dict[bytes, tuple[FakeEncoding, Run]] = {}


@dataclass
class Sent:
    """On its way to the client: a message, or the release of one."""

    packet_id: int
    message: Message | None
    dup: bool


@dataclass
class Client:
    """One client over all its connections. Implements the broker's Outbox while connected."""

    client_id: str
    session: Session | None = None
    received: list[Message] = field(default_factory=list)
    inbox: deque[Sent] = field(default_factory=deque)
    held: set[int] = field(default_factory=set)  # QoS 2 received and not yet released
    in_flight: set[int] = field(default_factory=set)
    window: int = 1
    has_room: bool = True
    next_id: int = 1
    principal = Principal(DEFAULT_TENANT, "", FULL)
    watch: Watch | None = None
    complaints: list[str] = field(default_factory=list)

    def encoding(self, qos: int, as_published: bool, identifiers: tuple[int, ...]) -> Encoding:
        return FakeEncoding(qos, as_published, identifiers)

    def fits(self, size: int) -> bool:
        return True

    def forward(self, name: str, count: int, data: bytes) -> None:
        encoding, run = ENCODINGS.pop(data)
        assert (name, count) == (run.name, run.count)
        self.received += [encoding.message(run, at) for at in range(count)]

    def send(
        self, run: Run, first: int, packet_ids: list[int], encoding: Encoding, dup: bool
    ) -> None:
        assert isinstance(encoding, FakeEncoding)
        for at, packet_id in enumerate(packet_ids, first):
            if packet_id in self.in_flight:
                self.complaints.append(f"packet id {packet_id} is used twice")
            self.in_flight.add(packet_id)
            self.inbox.append(Sent(packet_id, encoding.message(run, at), dup))
        if len(self.in_flight) > self.window:
            self.complaints.append(f"{len(self.in_flight)} in flight, {self.window} allowed")

    def release(self, packet_ids: list[int]) -> None:
        self.inbox.extend(Sent(packet_id, None, False) for packet_id in packet_ids)

    def close(self) -> None:
        self.complaints.append("the broker closed")

    def take(self, exchange: Exchange, count: int) -> None:
        """Read so many packets and answer each at once."""
        session = self.session
        assert session is not None
        for _ in range(min(count, len(self.inbox))):
            sent = self.inbox.popleft()
            packet_id = sent.packet_id
            if sent.message is None:
                self.held.discard(packet_id)
                self.in_flight.discard(packet_id)
                session.acknowledge([packet_id])
            elif sent.message.qos == 1:
                self.received.append(sent.message)
                self.in_flight.discard(packet_id)
                session.acknowledge([packet_id])
            else:
                if packet_id not in self.held:
                    self.received.append(sent.message)
                    self.held.add(packet_id)
                elif not sent.dup:
                    self.complaints.append(f"packet id {packet_id} is held, and no DUP")
                session.received([packet_id])
        if session.is_behind:
            exchange.sessions.resume(session)


class ExchangeWorld:
    """An exchange, its store and its clients."""

    def __init__(self, engine: Engine, *, keeps_qos0: bool = False) -> None:
        self.engine = engine
        self.store = SessionStore(engine, engine.session_catalog)
        self.exchange = Exchange(engine, self.store, keeps_qos0=keeps_qos0)
        self.clients: dict[str, Client] = {}
        self._publishing = 0

    def client(self, client_id: str) -> Client:
        if client_id not in self.clients:
            self.clients[client_id] = Client(client_id)
        return self.clients[client_id]

    async def connect(self, client_id: str, *, clean: bool, is_kept: bool, window: int) -> bool:
        """As the door does it; True if the session was there before."""
        client = self.client(client_id)
        if client.session is not None:
            self.disconnect(client_id)
            await asyncio.sleep(0)  # its end is on its way to the catalog before the new begin
        session = Session(client_id, client, window)
        session.expiry_s = NEVER_EXPIRES if is_kept else 0
        client.window = window
        client.in_flight.clear()
        is_present = False
        if is_kept or client_id in self.store.stored:
            stored, is_present = await self.store.begin(session, is_clean=clean)
            if is_present:
                await restore(self.exchange, session, stored)
        if not is_present:
            client.held.clear()
        client.session = session
        self.exchange.sessions.attach(session)
        if is_present:
            asyncio.get_running_loop().create_task(go_on(self.exchange, session))
        return is_present

    def disconnect(self, client_id: str) -> None:
        """Without a word: what was on its way is lost."""
        client = self.clients[client_id]
        assert client.session is not None
        self.exchange.sessions.detach(client.session)
        client.session = None
        client.inbox.clear()

    async def subscribe(self, client_id: str, filter: str, wanted: Wanted) -> None:
        session = self.clients[client_id].session
        assert session is not None
        one = Subscription(
            session,
            filter,
            wanted.qos,
            wanted.no_local,
            wanted.retain_as_published,
            wanted.identifier,
        )
        ends = self.exchange.engine.topics.ends()
        self.exchange.sessions.subscribe(one)
        if session.vault is not None:
            await self.store.subscribe(session, [one])
        self.exchange.retained_delivery.send_retained(one, ends)

    async def unsubscribe(self, client_id: str, filter: str) -> bool:
        session = self.clients[client_id].session
        assert session is not None
        was_there = self.exchange.sessions.unsubscribe(session, filter)
        if session.vault is not None:
            await self.store.unsubscribe(session, [filter])
        return was_there

    def publish(
        self, client_id: str, name: str, payloads: list[bytes], qos: int, retain: bool
    ) -> None:
        """A run of messages; QoS 2 all the way to its release."""
        client = self.clients[client_id]
        session = client.session
        assert session is not None
        lengths = [len(payload) for payload in payloads]
        starts = [sum(lengths[:at]) for at in range(len(lengths))]
        run = Run(name, b"".join(payloads), starts, lengths, record_flags(qos, retain))
        run.publisher = client_id
        route = self.exchange.router.find(name)
        if qos == 0:
            self.exchange.publisher.publish(route, run, None)
            return
        self._publishing += 1
        if qos == 1:
            self.exchange.publisher.publish(route, run, Told(self._done))
            return
        ids = [(client.next_id + at) % 1000 + 1 for at in range(len(payloads))]
        client.next_id += len(payloads)
        waiter = Told(lambda error: self._release(session, ids, error))
        self.exchange.publisher.publish_once(route, run, session, ids, waiter)

    def _release(self, session: Session, ids: list[int], error: Exception | None) -> None:
        assert error is None
        self.exchange.publisher.release(session, ids, Told(self._done))

    def _done(self, error: Exception | None) -> None:
        assert error is None
        self._publishing -= 1

    @property
    def is_busy(self) -> bool:
        exchange = self.exchange
        return bool(
            self._publishing
            or self.store.tasks
            or not all(topic.log.is_level for topic in self.engine.topics.all())
            or exchange.sharing.is_running
            or any(catchup.is_running for catchup in exchange.sessions._catchups.values())
            or exchange.feeds.is_running
        )

    async def settle_catalog(self) -> None:
        """Until what the store began is stored."""
        await self.store.tasks.wait_done()

    async def settle(self) -> None:
        """Until the broker waits for nothing but its clients."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_S
        quiet = 0
        while quiet < 5:
            await asyncio.sleep(0)
            quiet = 0 if self.is_busy else quiet + 1
            assert loop.time() < deadline, "the broker does not come to rest"

    async def drain(self, client_id: str, until: Callable[[], bool]) -> None:
        """The client takes all there is, until it has what it should."""
        client = self.clients[client_id]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_S
        while True:
            await self.settle()
            if client.inbox:
                client.take(self.exchange, len(client.inbox))
            elif until():
                return
            else:
                assert loop.time() < deadline, f"{client_id} waits for more"
                await asyncio.sleep(0.001)


@asynccontextmanager
async def opened_world() -> AsyncIterator[ExchangeWorld]:
    """An exchange in memory, with the default topic."""
    opened = await open_memory(BrokerSettings())
    await opened.engine.topics.create(DEFAULT_TOPIC, LogSettings(), exist_ok=True)
    world = ExchangeWorld(opened.engine)
    await world.store.open()
    yield world
    await world.store.close()
    await opened.close(True)


async def kept(world: ExchangeWorld, client_id: str, window: int = 100) -> Session:
    await world.connect(client_id, clean=False, is_kept=True, window=window)
    session = world.clients[client_id].session
    assert session is not None
    return session


async def after_a_crash(world: ExchangeWorld, client_id: str) -> StoredSession:
    """What the next life of the broker would find."""
    catalog = world.engine.session_catalog
    await catalog.recover()
    stored, is_present = await catalog.begin(client_id, "", NEVER_EXPIRES, is_clean=False)
    assert is_present
    return stored
