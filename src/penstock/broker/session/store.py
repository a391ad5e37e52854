"""The session store: sessions that outlive their connections, kept true across any end.

What a session has acknowledged is saved lazily, together for all of them, by a checkpoint: a crash
may repeat a QoS 1 message, with DUP if a checkpoint knows that it was sent. QoS 2 is stricter: a
message is written down as outstanding before it leaves, and as released before PUBREL leaves; what
a client has opened is a mark of its message in the log (`inbound_qos2.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Final

from penstock.broker.access.owners import Owners
from penstock.broker.cluster.claiming import Arrival, Claiming
from penstock.broker.deliver.commits import Runs
from penstock.broker.deliver.retained import Retained
from penstock.broker.engine import Engine
from penstock.broker.publish.used_keys import Keys
from penstock.broker.session.checkpoint import CHECKPOINT_S, BusySessions, Checkpoints, Levels
from penstock.broker.session.endings import Endings
from penstock.broker.session.inbound_qos2 import InboundQos2
from penstock.broker.session.known_clients import KnownClients
from penstock.broker.session.rows import (
    feed_rows,
    outstanding_row,
    outstanding_rows,
    subscription_row,
)
from penstock.broker.session.session import Session, Subscription
from penstock.broker.session.will_marks import WillMarks
from penstock.broker.share.dealing import Dealing
from penstock.broker.share.registry import Shares, pin_row
from penstock.broker.share.share import Share
from penstock.broker.tasks import Tasks
from penstock.broker.topic.topics import Topic
from penstock.broker.upkeep.upkeep import SESSIONS
from penstock.catalog.session.feeds import FeedRow
from penstock.catalog.session.saving import Ending
from penstock.catalog.session.sessions import SessionCatalog, SessionElsewhere
from penstock.catalog.session.stored_sessions import OutstandingRow, StoredSession, no_session
from penstock.core.delivery.run import Encoding, Run
from penstock.core.erasure import Erasure
from penstock.core.naming.names import quoted
from penstock.core.quotas import SESSIONS as SESSIONS_QUOTA
from penstock.log.format.batch import Batch
from penstock.log.format.marks import (
    MARK_IDEMPOTENCY_KEY,
    MARK_QOS2_OPENED,
    MARK_QOS2_RELEASED,
    MARK_WILL,
)
from penstock.log.interface import SharedLog
from penstock.model.errors import PenstockError, UnavailableError

FOLLOWED_S_MAX: Final = 10.0  # so long a client waits for a node that is behind
LOOK_S: Final = 0.02


class SessionStore:
    """Implements the sessions' Vault; used on the event loop."""

    def __init__(self, engine: Engine, catalog: SessionCatalog) -> None:
        loop = asyncio.get_running_loop()
        self.stored: Owners[str] = Owners()  # of the sessions in the catalog, by client id
        self.tasks = Tasks(loop)
        self._soon = asyncio.Event()  # the next checkpoint does not wait for its time
        self.retained = Retained(engine.clock, catalog.fetch_retained, self._soon.set)
        self.shares = Shares(engine, catalog.shares, self.tasks.spawn)
        self.dealing: Dealing | None = None  # as one of several nodes: the parts of shares
        if engine.shared.node is not None:
            self.dealing = Dealing(engine, engine.shared.node, self.shares, catalog.parts)
        self.keys = Keys(catalog.keys, engine.clock, engine.quotas)
        self.inbound = InboundQos2(engine.topics, self.tasks.spawn)
        self.will_marks = WillMarks()
        self.clients = KnownClients(engine.clock)
        self._endings = Endings(self.tasks.spawn)
        self._levels = Levels(engine.topics)
        self._busy = BusySessions(engine.topics)
        self.checkpoints = Checkpoints(
            catalog,
            engine.clock,
            [
                self._endings,
                self._levels,
                self._busy,
                self.retained,
                self.will_marks,
                self.inbound,
                self.shares,
                self.keys,
                self.clients,
            ],
        )
        self._engine = engine
        self._node = engine.shared.node
        self._catalog = catalog
        self._loop = loop
        self._timer: asyncio.Task[None] | None = None
        self._is_open = asyncio.Event()
        engine.erasing.retained = self

    # Start and end

    async def open(self) -> None:
        """Take over what the catalog knows and follow the logs from its levels to their ends."""
        owners, self._levels.saved, rows = await self._catalog.recover()
        self.stored = Owners(owners, await self._catalog.filter_counts())
        self.retained.load(rows)
        if self._node is None:
            await self.shares.load(await self._catalog.shares.recover())
            incarnations = await self._catalog.incarnations()
            for topic in self._engine.topics.working():
                await self._follow(topic, incarnations)
            await self.checkpoints.save()
        else:
            await self._follow_nodes()
            assert self.dealing is not None
            self.dealing.start()
        self._engine.on_forget = self._forget_topic
        self._is_open.set()
        self._timer = self._loop.create_task(self._run(), name="penstock-checkpoint")

    async def erase_retained(self, topic_id: int, erasure: Erasure, *, dry_run: bool) -> int:
        """Forget the retained messages of these records, durably; how many there were."""
        await self._is_open.wait()
        names = await self.retained.erased_names(topic_id, erasure)
        if not dry_run:
            self.retained.erase(names, erasure)
            await self.checkpoints.save()
            # What an interrupted order had reached is in no view any more.
            await self._catalog.erase_retained(topic_id, erasure, dry_run=False)
        return len(names)

    def _forget_topic(self, topic: Topic) -> None:
        self.retained.forget_topic(topic.id)
        self.shares.forget_topic(topic.id)
        self.keys.forget_topic(topic.id)

    async def _follow(self, topic: Topic, incarnations: dict[int, str]) -> None:
        epoch, level = self._levels.saved.get(topic.id, (topic.log.epoch, 0))
        async for batch in topic.log.batches_since(await topic.log.clamp(epoch, level)):
            self.retained.follow(topic.id, batch)
            for mark in batch.marks():
                if mark.kind in (MARK_QOS2_OPENED, MARK_QOS2_RELEASED):
                    self.inbound.follow(topic.id, mark, incarnations)
                elif mark.kind == MARK_WILL:
                    self.will_marks.follow(mark)
                elif mark.kind == MARK_IDEMPOTENCY_KEY:
                    self.keys.follow(topic.id, batch, mark)

    async def _follow_nodes(self) -> None:
        """Other nodes write meanwhile: follow the logs until they have nothing that is unknown.

        From then on commits tell. Marks of sessions and wills are their own node's to save.
        """
        saved, self._levels.saved = self._levels.saved, {}  # this node has saved none yet
        await self.checkpoints.save()
        followed: dict[int, int] = {}
        while True:
            behind = [
                topic
                for topic in self._engine.topics.working()
                if followed.get(topic.id, -1) < topic.log.bounds().end
            ]
            if not behind:
                break
            for topic in behind:
                if topic.id not in followed:
                    epoch, level = saved.get(topic.id, (topic.log.epoch, 0))
                    followed[topic.id] = await topic.log.clamp(epoch, level)
                async for batch in topic.log.batches_since(followed[topic.id]):
                    self.retained.follow(topic.id, batch)
                    self._follow_keys(topic, batch)
                    followed[topic.id] = batch.end_offset
                followed[topic.id] = max(followed[topic.id], topic.log.bounds().first)
        self._engine.followers.append(self._committed)

    def _committed(self, topic: Topic, batch: Batch, runs: Runs) -> None:
        """Keys that other nodes have stored; those of this one are noted by who stores them."""
        if runs is None:
            self._follow_keys(topic, batch)

    def _follow_keys(self, topic: Topic, batch: Batch) -> None:
        if batch.header.marks_length:
            for mark in batch.marks():
                if mark.kind == MARK_IDEMPOTENCY_KEY:
                    self.keys.follow(topic.id, batch, mark)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._endings.close()
        await self.tasks.wait_done()
        if self.dealing is not None:
            await self.dealing.close()
        await self.checkpoints.save()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._soon.wait(), CHECKPOINT_S)
            self._soon.clear()
            try:
                await self.checkpoints.save()
                for client_id in await self._catalog.expire() if self._expires else ():
                    self.stored.pop(client_id, None)
                    self._engine.metrics.traffic.sessions_expired += 1
                    self.shares.gone(client_id, "the session expired")
                await self.keys.expire()
            except PenstockError as trouble:
                self._engine.upkeep.note_trouble(SESSIONS, f"sessions: {trouble}")

    @property
    def _expires(self) -> bool:
        """Whether a session may have expired: another node may have made it."""
        return bool(self.stored) or self._node is not None

    # Coming and going

    async def begin(
        self, session: Session, *, is_clean: bool, arrival: Arrival | None = None
    ) -> tuple[StoredSession, bool]:
        """Load or make the session of a client that connects; whether it was there before.

        A node gives `arrival`: it claims every session, also of clients that leave nothing behind.
        """
        await self._endings.wait(session.client_id)
        await self.inbound.wait_known(session.client_id)
        if is_clean or self._node is not None:  # other nodes may have saved it since it was here
            self.inbound.forget(session.client_id)
        if is_clean:
            self.shares.gone(session.client_id, "a new session began")
        if session.expiry_s == 0 and is_clean and self._node is None:
            await self._catalog.forget(session.client_id)
            self.stored.pop(session.client_id, None)
            return no_session(session.client_id), False
        assert session.outbox is not None
        owner = session.outbox.principal.user
        with self._making(session.client_id, owner):
            stored, is_present = await self._begin(session, owner, arrival, is_clean=is_clean)
            self.stored[session.client_id] = owner
            self.stored.weigh(session.client_id, len(stored.subscriptions))
        session.incarnation = stored.incarnation
        session.vault = self
        if self._node is not None:
            self.shares.take_pins(session.client_id, stored.pins)
        self.inbound.restore(session, stored.opened)
        return stored, is_present

    async def _begin(
        self, session: Session, owner: str, arrival: Arrival | None, *, is_clean: bool
    ) -> tuple[StoredSession, bool]:
        client_id, expiry_s = session.client_id, session.expiry_s
        if self._node is None or arrival is None:
            return await self._catalog.begin(client_id, owner, expiry_s, is_clean=is_clean)
        claiming = Claiming(self._node, self._engine.tenant, client_id)
        while True:
            try:
                return await self._catalog.begin(
                    *(client_id, owner, expiry_s),
                    is_clean=is_clean,
                    may_have=arrival.may_have,
                    limits=self._engine.quotas.both,
                )
            except SessionElsewhere as elsewhere:
                if not arrival.is_wanted():
                    raise
                await claiming.wait(elsewhere)

    def _making(self, client_id: str, owner: str) -> AbstractContextManager[None]:
        """Around storing the session of a client; QuotaExceeded if it is one too many."""
        stored = self.stored
        quotas = self._engine.quotas
        if self._node is not None:  # nodes count in the catalog
            return quotas.counting()
        if client_id in stored:
            return nullcontext()
        return quotas.making_own(SESSIONS_QUOTA, len(stored), owner, stored.count_of(owner))

    async def wait_followed(self, stored: StoredSession) -> None:
        """As a node: suspends until this one has seen all that the session had seen elsewhere.

        Else it would be given again what it has, and what is out could not be read.
        """
        if self._node is None:
            return
        out = [(one.topic_id, one.offset + 1) for one in stored.outstanding]
        ends = dict(sorted(out + [(pin.row.topic_id, pin.row.offset + 1) for pin in stored.pins]))
        for positions in (stored.positions, *stored.feeds.values()):
            for topic_id, (_, offset) in positions.items():
                ends[topic_id] = max(offset, ends.get(topic_id, 0))
        try:
            async with asyncio.timeout(FOLLOWED_S_MAX):
                for topic_id, end in ends.items():
                    await self._wait_followed(topic_id, end)
        except TimeoutError:
            raise UnavailableError(
                f"this node is behind the one that had the session of {quoted(stored.client_id)}: "
                "try again, or connect to another node"
            ) from None

    async def _wait_followed(self, topic_id: int, end: int) -> None:
        while True:
            topic = self._engine.topics.by_id(topic_id)
            if topic is not None:
                break
            await asyncio.sleep(LOOK_S)  # another node has made it
        if isinstance(topic.log, SharedLog):
            await topic.log.wait_followed(end)

    async def offsets(self, stored: StoredSession) -> dict[int, int]:
        """Where a session that was away goes on in each topic; from 0 in one born since."""
        return await self._clamped(stored.positions)

    async def feed_offsets(self, stored: StoredSession, feed_id: int) -> dict[int, int]:
        """The same for one of its feeds."""
        return await self._clamped(stored.feeds.get(feed_id, {}))

    async def _clamped(self, positions: dict[int, tuple[int, int]]) -> dict[int, int]:
        offsets: dict[int, int] = {}
        for topic in self._engine.topics.all():
            epoch, offset = positions.get(topic.id, (topic.log.epoch, 0))
            offsets[topic.id] = await topic.log.clamp(epoch, offset)
        return offsets

    def leave(self, session: Session) -> None:
        """The client went before it had its session back, which stays as it was."""
        if session.expiry_s == 0:
            self.end(session)
        else:
            self.shares.depart(session.client_id)
            self._endings.save(self._catalog.leave, session.client_id, session.incarnation)

    def give_up(self, client_id: str) -> None:
        """Another node asks for a session of which nobody is here, nor on the way."""
        if not self._endings.is_pending(client_id):
            self.shares.depart(client_id)
            self._endings.save(self._catalog.give_up, client_id)

    def end(self, session: Session) -> None:
        """The client went; what it leaves is saved in the background, in order."""
        self._busy.sessions.discard(session)
        if session.expiry_s == 0:
            self.stored.pop(session.client_id, None)
            self.shares.gone(session.client_id)
            self._endings.save(self._catalog.remove, session.client_id, session.incarnation)
            return
        self.stored.weigh(session.client_id, len(session.subscriptions))
        topics = self._engine.topics.all()
        ends = self._engine.topics.ends()
        positions = [
            (topic.id, topic.log.epoch, session.lags.get(topic.id, ends[topic.id]))
            for topic in topics
        ]
        feeds = session.feeds
        behind: list[FeedRow] = []
        for feed in feeds:
            behind += feed_rows(self._engine.topics, feed, ends | feed.lags)
        opened = [
            (topic_id, packet_id)
            for packet_id, topic_id in session.opened.items()
            if packet_id not in (session.opening or ())
        ]
        ending = Ending(
            client_id=session.client_id,
            incarnation=session.incarnation,
            expiry_s=session.expiry_s,
            at_us=self._engine.clock.steady_us(),
            positions=positions,
            outstanding=outstanding_rows(session),
            opened=opened,
            feed_ids=[feed.id for feed in feeds],
            feeds=behind,
            settled=self.shares.settled_by(session.client_id),
        )
        self.shares.depart(session.client_id)
        if self._node is not None and (
            self.inbound.is_storing(session.client_id)
            or self.inbound.is_in_doubt(session.client_id)
        ):
            self._endings.save(self._end_complete, session.client_id, ending)
        else:
            self._endings.save_end(self._catalog.end, ending)

    async def _end_complete(self, client_id: str, ending: Ending) -> None:
        """Release a session once it is known which of its last marks were stored.

        The node that claims it next must not store these messages again, nor may a mark of this
        node come after one of that node.
        """
        await self.inbound.wait_known(client_id)
        if self.inbound.is_in_doubt(client_id):
            return  # who recovers this node finds out
        opened = self.inbound.opened_of(client_id, ending.opened)
        await self._catalog.end(replace(ending, opened=opened))

    async def forget(self, client_id: str) -> None:
        """Drop the session of a client that is not connected; durable on return."""
        if not await self._catalog.forget_away(client_id):
            raise UnavailableError(
                f"client {quoted(client_id)} is connecting or disconnecting: try again"
            )
        self.stored.pop(client_id, None)
        self.inbound.forget(client_id)
        self.shares.gone(client_id)

    async def stored_rows(self) -> bytes:
        """All persistent sessions as the newest checkpoint has them, as JSON."""
        return await self._catalog.rows_as_json()

    def subscribe(self, session: Session, subscriptions: list[Subscription]) -> Awaitable[None]:
        """Durable once it was awaited; a feed has not begun before that."""
        shares = [one.share for one in subscriptions if isinstance(one.share, Share)]
        fresh = [share for share in shares if self.shares.number(share)]
        return self._subscribe(session, subscriptions, fresh)

    async def _subscribe(
        self, session: Session, subscriptions: list[Subscription], fresh: list[Share]
    ) -> None:
        """One unit, queued at once: what the client asks for next comes behind all of it."""
        feeds: list[FeedRow] = []
        for one in subscriptions:
            if one.feed is not None:
                feeds += feed_rows(self._engine.topics, one.feed, one.feed.lags)
                self.touch(session)
        rows = [subscription_row(one) for one in subscriptions]
        shares = self.shares.first_states(fresh)
        ids = await self._catalog.subscribe(session.client_id, rows, feeds, shares)
        if self.dealing is not None and ids:
            await self.dealing.begin(ids)

    async def unsubscribe(self, session: Session, filters: list[str]) -> None:
        await self._catalog.unsubscribe(session.client_id, filters)

    # The sessions' Vault

    def touch(self, session: Session) -> None:
        self._busy.sessions.add(session)

    def send(
        self, session: Session, tag: int, run: Run, ids: list[int], encoding: Encoding
    ) -> None:
        rows = []
        if encoding.qos == 2:
            rows = [
                outstanding_row(tag + at, packet_id, 2, is_released=False)
                for at, packet_id in enumerate(ids)
            ]
        outbox = session.outbox
        assert outbox is not None
        self._store(session, rows, lambda: outbox.send(run, 0, ids, encoding, False))

    def release(self, session: Session, packet_ids: list[int]) -> None:
        rows = []
        for packet_id in packet_ids:
            tag = session.window.tag_of(packet_id)
            if tag >= 0:
                rows.append(outstanding_row(tag, packet_id, 2, is_released=True))
        outbox = session.outbox
        assert outbox is not None
        self._store(session, rows, lambda: outbox.release(packet_ids))

    def _store(self, session: Session, rows: list[OutstandingRow], act: Callable[[], None]) -> None:
        """Act once the rows are stored: each with its session, or with the share it came from."""
        session.storing += 1
        own, shared = [], []
        for row in rows:
            share = session.shared.get(row.packet_id)
            if isinstance(share, Share):
                pin = share.pins.get(session.client_id, {}).get(row.packet_id)
                if pin is not None:
                    pin.is_released = row.is_released
                    shared.append((share.id, pin_row(session.client_id, row.packet_id, pin)))
            else:
                own.append(row)
        stored = self._catalog.put_outstanding(session.client_id, own, shared)
        self.tasks.spawn(self._then(session, stored, act))

    async def _then(
        self, session: Session, stored: Awaitable[None], act: Callable[[], None]
    ) -> None:
        """Act once it is stored; if that fails, close the connection: the client reconnects."""
        outbox = session.outbox
        try:
            await stored
            session.storing -= 1
        except PenstockError:
            if outbox is not None:
                outbox.close()
            return
        if session.outbox is outbox and outbox is not None:
            act()
