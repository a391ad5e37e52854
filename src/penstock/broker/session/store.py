"""The keeper: persistent sessions and retained messages, kept true across any end.

What a session has acknowledged is saved lazily, together for all of them, by a checkpoint (see
catalog.sessions): a crash may repeat a QoS 1 message, with DUP if a checkpoint knows that it was
sent. QoS 2 is stricter: a message is written down as outstanding before it leaves, and as released
before PUBREL leaves; what a client has opened lies as a mark beside its message in the log.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from penstock.broker.deliver.retained import Retained
from penstock.broker.engine import Engine
from penstock.broker.publish.used_keys import Keys
from penstock.broker.session.endings import Endings
from penstock.broker.session.rows import outstanding_row, outstanding_rows, subscription_row
from penstock.broker.session.session import (
    OwnFeed,
    Session,
    Subscription,
)
from penstock.broker.share.registry import Shares, pin_row
from penstock.broker.share.share import Share
from penstock.broker.topics import Topic
from penstock.broker.upkeep import SESSIONS
from penstock.catalog.feeds import FeedRow
from penstock.catalog.sessions import Checkpoint, Ending, SessionCatalog
from penstock.catalog.stored_sessions import OutstandingRow, StoredSession
from penstock.core.names import quoted
from penstock.core.run import Encoding, Run
from penstock.log.format.marks import (
    MARK_IDEMPOTENCY_KEY,
    MARK_QOS2_OPENED,
    MARK_QOS2_RELEASED,
    MARK_WILL,
    Mark,
)
from penstock.log.interface import Waiter
from penstock.log.waiting import append_durably
from penstock.model.errors import PenstockError, UnavailableError

CHECKPOINT_S: Final = 1.0  # how much a crash may make us repeat
_KEY: Final = struct.Struct(">QH")
_WILL_KEY: Final = struct.Struct(">Q")


def opened_mark(session: Session, packet_id: int, index: int) -> Mark:
    """Beside a QoS 2 message: this packet id is taken until it is released."""
    return Mark(MARK_QOS2_OPENED, _KEY.pack(session.incarnation, packet_id), index)


def will_mark(will_id: int) -> Mark:
    """Beside the message of a will: it is published."""
    return Mark(MARK_WILL, _WILL_KEY.pack(will_id), 0)


class Keeper:
    """Implements the sessions' Vault; used on the event loop."""

    def __init__(self, engine: Engine, catalog: SessionCatalog) -> None:
        self.retained = Retained(engine.clock)
        self.stored: dict[str, str] = {}  # clients with a session in the catalog, and whose it is
        self.shares = Shares(engine, catalog.shares, self._spawn)
        self.keys = Keys(catalog.keys, engine.clock)
        self._engine = engine
        self._catalog = catalog
        self._busy: set[Session] = set()
        self._levels: dict[int, tuple[int, int]] = {}  # as last saved
        # Changes since the last checkpoint, by client: topic id, packet id -> open now?
        self._opened: dict[str, dict[tuple[int, int], bool]] = {}
        self._wills: set[int] = set()  # ids of wills that are in the logs and still in the catalog
        self._opening: Counter[str] = Counter()  # runs of QoS 2 on their way to the disk
        self._settled: list[asyncio.Future[None]] = []  # wait for some client's to be there
        self._tasks: set[asyncio.Task[Any]] = set()
        self._endings = Endings(self._spawn)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Task[None] | None = None

    # Start and end

    async def open(self) -> None:
        """Take over what the catalog knows and follow the logs from its levels to their ends."""
        self.stored, self._levels, rows = await self._catalog.recover()
        self.retained.load(rows)
        await self.shares.load(await self._catalog.shares.recover())
        incarnations = await self._catalog.incarnations()
        for topic in self._working():
            await self._follow(topic, incarnations)
        await self.checkpoint()
        self._engine.on_forget = self._forget_topic
        self._timer = self._loop.create_task(self._run(), name="penstock-checkpoint")

    def _working(self) -> list[Topic]:
        """Topics whose logs can be followed; the level of the others stays where it was."""
        return [topic for topic in self._engine.topics.all() if not topic.refusal]

    def _forget_topic(self, topic: Topic) -> None:
        self.retained.forget_topic(topic.id)
        self.shares.forget_topic(topic.id)
        self.keys.forget_topic(topic.id)

    async def _follow(self, topic: Topic, incarnations: dict[int, str]) -> None:
        epoch, level = self._levels.get(topic.id, (topic.log.epoch, 0))
        async for batch in topic.log.batches_since(await topic.log.clamp(epoch, level)):
            self.retained.follow(topic.id, batch)
            for mark in batch.marks():
                if mark.kind in (MARK_QOS2_OPENED, MARK_QOS2_RELEASED):
                    incarnation, packet_id = _KEY.unpack(mark.key)
                    client_id = incarnations.get(incarnation)
                    if client_id is not None:
                        is_open = mark.kind == MARK_QOS2_OPENED
                        self._note_opened(client_id, topic.id, [packet_id], is_open)
                elif mark.kind == MARK_WILL:
                    self._wills.update(_WILL_KEY.unpack(mark.key))
                elif mark.kind == MARK_IDEMPOTENCY_KEY:
                    self.keys.follow(topic.id, batch, mark)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._endings.close()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.checkpoint()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            try:
                await self.checkpoint()
                for client_id in await self._catalog.expire():
                    self.stored.pop(client_id, None)
                    self._engine.metrics.traffic.sessions_expired += 1
                    self.shares.gone(client_id)
                await self.keys.expire()
            except PenstockError as trouble:
                self._engine.upkeep.note_trouble(SESSIONS, f"sessions: {trouble}")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The checkpoint

    async def checkpoint(self) -> None:
        """Save levels, positions behind them, and the views as of now, in one transaction."""
        point = Checkpoint(endings=self._endings.carry())
        levels = {topic.id: (topic.log.epoch, topic.log.bounds().end) for topic in self._working()}
        point.levels = {
            topic_id: level
            for topic_id, level in levels.items()
            if level != self._levels.get(topic_id)
        }
        busy = set(self._busy)
        for session in busy:
            self._describe(session, point)
        self.retained.expire()
        point.retained, point.forgotten = self.retained.take_changes()
        wills, self._wills = self._wills, set()
        point.wills = list(wills)
        opened, self._opened = self._opened, {}
        for client_id, changes in opened.items():
            for key, is_open in changes.items():
                (point.opened if is_open else point.released).append((client_id, *key))
        point.shares, shares = self.shares.take_changes()
        point.keys = self.keys.take_changes()
        changes_any = point.busy or point.retained or point.forgotten or opened or wills
        if not (point.levels or point.shares or point.keys or changes_any):
            self._endings.put_down(point.endings, is_saved=False)  # its own way will do
            return
        point.clock = self._engine.clock.reading()
        try:
            await self._catalog.save(point)
        except BaseException:
            self._endings.put_down(point.endings, is_saved=False)
            self.retained.put_back(point.retained, point.forgotten)
            for client_id, changes in opened.items():
                self._opened[client_id] = changes | self._opened.get(client_id, {})
            self._wills |= wills
            self._busy |= busy
            for share in shares:
                share.is_busy = True
            self.keys.settle(is_saved=False)
            raise
        self._endings.put_down(point.endings, is_saved=True)
        self.keys.settle(is_saved=True)
        self._levels.update(point.levels)

    def _describe(self, session: Session, point: Checkpoint) -> None:
        """Where a busy session stands; one that is level again is busy no more."""
        if session.outbox is None:
            self._busy.discard(session)  # its end is saved on its own
            return
        point.busy.append(session.client_id)
        moves = False
        for topic_id, offset in session.lags.items():
            topic = self._engine.topics.by_id(topic_id)
            if topic is not None:
                point.behind.append((session.client_id, topic_id, topic.log.epoch, offset))
                moves |= not topic.refusal
        rows = outstanding_rows(session)
        point.outstanding += [(session.client_id, row) for row in rows]
        feeds = session.feeds
        behind = [row for feed in feeds for row in self._feed_rows(feed, feed.lags)]
        if feeds:
            point.feeds.append((session.client_id, [feed.id for feed in feeds], behind))
            lagging = {topic_id for feed in feeds for topic_id in feed.lags}
            moves |= any(topic.id in lagging for topic in self._working())
        if not moves and not rows:
            self._busy.discard(session)

    def forget_will(self, will_id: int) -> None:
        """Its mark is in a log; called before the next checkpoint can see that log's end."""
        self._wills.add(will_id)

    def _feed_rows(self, feed: OwnFeed, offsets: dict[int, int]) -> list[FeedRow]:
        return [
            (feed.id, topic.id, topic.log.epoch, offsets[topic.id])
            for topic in self._engine.topics.all()
            if topic.id in offsets
        ]

    # Coming and going

    async def begin(self, session: Session, *, is_clean: bool) -> tuple[StoredSession, bool]:
        """Load or make the session of a client that connects; whether it was there before."""
        await self._endings.wait(session.client_id)
        while self._opening[session.client_id]:  # sent by an earlier connection: not known yet
            settled = self._loop.create_future()
            self._settled.append(settled)
            await settled
        if is_clean:
            self._opened.pop(session.client_id, None)
            self.shares.gone(session.client_id)
        if session.expiry_s == 0 and is_clean:
            await self._catalog.forget(session.client_id)
            self.stored.pop(session.client_id, None)
            return StoredSession(session.client_id, 0, 0, [], {}, [], []), False
        assert session.outbox is not None
        owner = session.outbox.principal.user
        stored, is_present = await self._catalog.begin(
            session.client_id, owner, session.expiry_s, is_clean=is_clean
        )
        self.stored[session.client_id] = owner
        session.incarnation = stored.incarnation
        session.vault = self
        for topic_id, packet_id in stored.opened:
            session.opened[packet_id] = topic_id
        changes = self._opened.get(session.client_id, {})  # known here, not yet in the catalog
        for (topic_id, packet_id), is_open in changes.items():
            if is_open:
                session.opened[packet_id] = topic_id
            elif session.opened.get(packet_id) == topic_id:
                del session.opened[packet_id]
        return stored, is_present

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
            self._endings.save(self._catalog.leave, session.client_id, session.incarnation)

    def end(self, session: Session) -> None:
        """The client went; what it leaves is saved in the background, in order."""
        self._busy.discard(session)
        if session.expiry_s == 0:
            self.stored.pop(session.client_id, None)
            self.shares.gone(session.client_id)
            self._endings.save(self._catalog.remove, session.client_id, session.incarnation)
            return
        topics = self._engine.topics.all()
        ends = self._engine.topics.ends()
        positions = [
            (topic.id, topic.log.epoch, session.lags.get(topic.id, ends[topic.id]))
            for topic in topics
        ]
        feeds = session.feeds
        opened = [
            (topic_id, packet_id)
            for packet_id, topic_id in session.opened.items()
            if packet_id not in session.opening
        ]
        ending = Ending(
            session.client_id,
            session.incarnation,
            session.expiry_s,
            self._engine.clock.steady_us(),
            positions,
            outstanding_rows(session),
            opened,
            [feed.id for feed in feeds],
            [row for feed in feeds for row in self._feed_rows(feed, ends | feed.lags)],
        )
        self._endings.save_end(self._catalog.end, ending)

    async def forget(self, client_id: str) -> None:
        """Drop the session of a client that is not connected; durable on return."""
        if not await self._catalog.forget_away(client_id):
            raise UnavailableError(f"client {quoted(client_id)} is just coming or going: try again")
        self.stored.pop(client_id, None)
        self._opened.pop(client_id, None)
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
                feeds += self._feed_rows(one.feed, one.feed.lags)
                self.touch(session)
        rows = [subscription_row(one) for one in subscriptions]
        shares = self.shares.first_states(fresh)
        await self._catalog.subscribe(session.client_id, rows, feeds, shares)

    async def unsubscribe(self, session: Session, filters: list[str]) -> None:
        await self._catalog.unsubscribe(session.client_id, filters)

    # The sessions' Vault

    def touch(self, session: Session) -> None:
        self._busy.add(session)

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
        self._spawn(self._then(session, stored, act))

    async def _then(
        self, session: Session, stored: Awaitable[None], act: Callable[[], None]
    ) -> None:
        """Act once it is stored; a client that cannot be served so is let go and comes back."""
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

    # QoS 2 from clients

    def begin_opening(self, session: Session, packet_ids: list[int]) -> None:
        """Their messages and marks are on their way to the disk."""
        session.opening.update(packet_ids)
        self._opening[session.client_id] += 1

    def end_opening(
        self, session: Session, topic: Topic, packet_ids: list[int], *, is_open: bool
    ) -> None:
        """They are durable, or were refused."""
        client_id = session.client_id
        session.opening.difference_update(packet_ids)
        if is_open:
            self._note_opened(client_id, topic.id, packet_ids, True)
        self._opening[client_id] -= 1
        if not self._opening[client_id]:
            del self._opening[client_id]
            settled, self._settled = self._settled, []
            for one in settled:
                if not one.done():
                    one.set_result(None)

    def _note_opened(
        self, client_id: str, topic_id: int, packet_ids: list[int], is_open: bool
    ) -> None:
        changes = self._opened.setdefault(client_id, {})
        for packet_id in packet_ids:
            changes[topic_id, packet_id] = is_open

    def close_opened(self, session: Session, packet_ids: list[int], waiter: Waiter) -> None:
        """Store that these packet ids are released; the waiter hears when that is durable."""
        self._spawn(self._close_opened(session, packet_ids, waiter))

    async def _close_opened(self, session: Session, packet_ids: list[int], waiter: Waiter) -> None:
        by_topic: dict[int, list[int]] = {}
        for packet_id in packet_ids:
            topic_id = session.opened.pop(packet_id, None)
            if topic_id is not None:
                by_topic.setdefault(topic_id, []).append(packet_id)
        try:
            while by_topic:
                topic_id, ids = next(iter(by_topic.items()))
                topic = self._engine.topics.by_id(topic_id)
                if topic is not None:
                    keys = [_KEY.pack(session.incarnation, packet_id) for packet_id in ids]
                    marks = [Mark(MARK_QOS2_RELEASED, key) for key in keys]
                    await append_durably(topic.log, [], marks)
                    self._note_opened(session.client_id, topic_id, ids, False)
                del by_topic[topic_id]
        except PenstockError as refused:
            for topic_id, ids in by_topic.items():  # they are open still, and asked for again
                session.opened.update(dict.fromkeys(ids, topic_id))
            waiter.refused(refused)
        else:
            waiter.committed(0)
