"""The traces of a tenant: they follow commits, and hear from doors what is sent and acknowledged.

While no trace is on, nothing of this runs: commits have no further follower, and `engine.watch` and
the `watch` of each connection are None.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from penstock.broker.deliver.commits import Runs
from penstock.broker.exchange import Exchange
from penstock.broker.session.session import Session
from penstock.broker.share.share import Share
from penstock.broker.tasks import Tasks
from penstock.broker.topic.topics import Topic
from penstock.broker.trace.memory import (
    NOT_KNOWN,
    REMEMBERED_MAX,
    ByReader,
    Message,
    Stored,
    Where,
    is_removed,
)
from penstock.broker.trace.readers import SESSION, SHARE, RecordReader, readers_of, unpushed_behind
from penstock.broker.trace.readers import WAITING as STILL_WAITING
from penstock.broker.trace.trace import (
    ACKNOWLEDGED,
    DROPPED,
    GIVEN_BACK,
    READ,
    RECEIVED,
    REFUSED,
    REMOVED,
    SENT,
    SENT_AGAIN,
    STORED,
    WAITING,
    Trace,
    TraceEvent,
)
from penstock.broker.trace.watch import Places, Traced
from penstock.core.delivery.run import Run
from penstock.core.delivery.tags import offset_of, topic_id_of
from penstock.log.format.batch import Batch
from penstock.model.errors import InvalidSetting, PenstockError, RefusedError
from penstock.model.record import QOS_MASK, Record

TRACES_MAX: Final = 8  # of a tenant, with those that are over
SECONDS_MAX: Final = 3_600
LOOKUPS_MAX: Final = 100  # records whose readers are still to be looked up
PUSHED: Final = (SESSION, SHARE)  # kinds of readers that are sent messages without asking


NOWHERE: Final = Where()
Place = tuple[int, int]  # topic id, offset


class Tracer:
    """Implements Watch. Runs on the event loop."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._engine = exchange.engine
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(self._loop)
        self.traces: dict[int, Trace] = {}
        self._next_id = 1
        self._out: ByReader[int, Message] = ByReader()  # sent, not acknowledged; by tag
        self._given: ByReader[Where, Message] = ByReader()  # to a group, and not answered
        self._waits: ByReader[Place, Message] = ByReader()  # told to wait for a reader
        self._stored: dict[Place, Stored] = {}  # the newest REMEMBERED_MAX
        self._lookups: deque[tuple[Topic, int]] = deque()
        self._is_looking = False

    # On and off

    def begin(self, names: str, client: str, seconds: int) -> Trace:
        """Follow messages of a checked filter and of a client from now on, for so long at most."""
        if not 1 <= seconds <= SECONDS_MAX:
            raise InvalidSetting(
                f"a trace of {seconds} seconds is not possible: 1 to {SECONDS_MAX} are allowed"
            )
        self._make_room()
        now_us = self._engine.clock.now_us()
        trace = Trace(self._next_id, names, client, now_us, now_us + seconds * 1_000_000)
        self._next_id += 1
        self.traces[trace.id] = trace
        trace.timer = self._loop.call_later(seconds, self.end, trace)
        self._switch()
        return trace

    def _make_room(self) -> None:
        """One that is over goes first; RefusedError if all are on."""
        if len(self.traces) < TRACES_MAX:
            return
        for one in self.traces.values():
            if not one.is_on:
                del self.traces[one.id]
                return
        raise RefusedError(f"{TRACES_MAX} traces are on, which is the maximum: delete one of them")

    def end(self, trace: Trace) -> None:
        """Its events stay until it is deleted."""
        trace.end()
        self._switch()

    def delete(self, trace: Trace) -> None:
        self.end(trace)
        self.traces.pop(trace.id, None)

    def close(self) -> None:
        for trace in list(self.traces.values()):
            self.delete(trace)

    @property
    def _on(self) -> list[Trace]:
        return [one for one in self.traces.values() if one.is_on]

    def _switch(self) -> None:
        """Listen while a trace is on, and only then."""
        engine, is_on = self._engine, bool(self._on)
        if is_on == (engine.watch is not None):
            return
        watch = engine.watch = self if is_on else None
        if is_on:  # before deliveries: a message is stored before it is sent
            engine.followers.insert(0, self._committed)
            engine.upkeep.errands.append(self._look_for_removed)
        else:
            engine.followers.remove(self._committed)
            engine.upkeep.errands.remove(self._look_for_removed)
            for memory in (self._out, self._given, self._waits, self._stored, self._lookups):
                memory.clear()
        for session in self._exchange.sessions.connected.values():
            if session.outbox is not None:
                session.outbox.watch = watch

    # What happens to messages

    def _committed(self, topic: Topic, batch: Batch, runs: Runs) -> None:
        """Records became durable: when they were received, from whom, and where they are."""
        count = batch.header.count
        on = self._on
        clients = {one.client for one in on if one.client}
        if not any(one.wants_name(text) or text in clients for text in batch.strings for one in on):
            return
        names, publishers = batch.names(0, count), batch.publishers(0, count)
        first = 0
        for at in range(1, count + 1):
            if at < count and (names[at], publishers[at]) == (names[first], publishers[first]):
                continue
            if any(one.wants(names[first], publishers[first]) for one in on):
                self._note_stored(topic, batch, first, at - first)
            first = at

    def _note_stored(self, topic: Topic, batch: Batch, first: int, count: int) -> None:
        name, publisher = batch.names(first, first + 1)[0], batch.publishers(first, first + 1)[0]
        qos = batch.flags(first, first + 1)[0] & QOS_MASK
        offset = batch.base_offset + first
        received_at = batch.timestamp(first)
        sync_s = topic.log.last_sync_s
        detail = f"synced in {sync_s * 1e3:.1f} ms" if sync_s else ""
        where = Where(topic.declared, offset, topic.partition)
        self._add(RECEIVED, name, publisher, where, count=count, qos=qos, at=received_at)
        self._add(STORED, name, publisher, where, count=count, qos=qos, detail=detail)
        for at in range(count):
            if len(self._lookups) < LOOKUPS_MAX:
                self._lookups.append((topic, offset + at))
            if count - at <= REMEMBERED_MAX:
                self._remember(
                    topic, Stored(where._replace(offset=offset + at), name, publisher, qos)
                )
        store = self._exchange.store
        if not self._is_looking and (store.stored or len(store.shares)):
            self._is_looking = True
            self._tasks.spawn(self._look_up())

    def _remember(self, topic: Topic, stored: Stored) -> None:
        self._stored[topic.id, stored.where.offset] = stored
        if len(self._stored) > REMEMBERED_MAX:
            del self._stored[next(iter(self._stored))]  # the oldest

    async def _look_up(self) -> None:
        """Say for whom new records wait: clients that are away, or too far behind."""
        try:
            while self._lookups:
                topic, offset = self._lookups.popleft()
                records = [
                    record
                    for batch in await topic.read(offset)
                    if batch.base_offset <= offset < batch.end_offset
                    for record in batch.records(topic.declared, offset, offset + 1, topic.partition)
                ]
                for record in records:
                    for one in await readers_of(self._exchange, topic, record):
                        if one.state == STILL_WAITING and one.kind in PUSHED:
                            self._note_waiting(topic, record, one)
        except (OSError, PenstockError):
            self._lookups.clear()  # the topic is gone, or cannot be read: there is nothing to say
        finally:
            self._is_looking = False

    def _note_waiting(self, topic: Topic, record: Record, reader: RecordReader) -> None:
        why = "behind" if reader.is_connected else "away"
        detail = f"the {reader.kind} is {why}: it continues at offset {reader.next_offset}"
        where = Where(record.topic, record.offset, record.partition)
        self._add(WAITING, record.name, reader.reader, where, qos=record.qos, detail=detail)
        if self._wants(record.name, reader.reader):
            message = Message(record.name, record.qos, where)
            self._waits.put(reader.reader, (topic.id, record.offset), message)

    def forwarded(self, session: Session | None, name: str, count: int) -> None:
        if count and session is not None:
            if self._wants(name, session.client_id):  # else nobody was told that it waits
                self._forget_waiting(session.client_id, name, count)
            self._add(SENT, name, session.client_id, count=count, qos=0)

    def _forget_waiting(self, client_id: str, name: str, count: int) -> None:
        """Which ones were sent is not said; a reader is sent its messages in their order."""
        waiting = [place for place, one in self._waits.of(client_id) if one.name == name]
        for place in waiting[:count]:
            self._waits.pop(client_id, place)

    def sent(
        self, session: Session | None, name: str, packet_ids: list[int], qos: int, again: bool
    ) -> None:
        if session is None or not packet_ids or not self._wants(name, session.client_id):
            return
        tags = [session.window.tag_of(one) for one in packet_ids]
        for packet_id, tag in zip(packet_ids, tags, strict=True):
            giver = session.shared.get(packet_id)
            share = giver.key if isinstance(giver, Share) else ""
            if tag >= 0:
                self._waits.pop(share or session.client_id, (topic_id_of(tag), offset_of(tag)))
            self._out.put(session.client_id, tag, Message(name, qos, self._place(tag), share))
        what = SENT_AGAIN if again else SENT
        self._add(what, name, session.client_id, self._place(tags[0]), count=len(tags), qos=qos)

    def acknowledged(self, session: Session, packet_ids: list[int]) -> None:
        self._answered(session, packet_ids, ACKNOWLEDGED, "")

    def rejected(self, session: Session, packet_id: int) -> None:
        self._answered(session, [packet_id], DROPPED, "the client rejected the message")

    def _answered(self, session: Session, packet_ids: list[int], what: str, detail: str) -> None:
        for packet_id in packet_ids:
            tag = session.window.tag_of(packet_id)
            known = self._out.pop(session.client_id, tag)
            if known is not None:
                self._tell(what, known, session.client_id, detail)

    def dropped(
        self,
        session: Session | None,
        name: str,
        count: int,
        reason: str,
        offset: int = NOT_KNOWN,
    ) -> None:
        if count and session is not None:
            if offset != NOT_KNOWN:  # what was told to be out or to wait has a place
                self._forget(session.client_id, name, range(offset, offset + count))
            where = Where("", offset)
            self._add(DROPPED, name, session.client_id, where, count=count, detail=reason)

    def lost(self, reader: str, topic: Topic, name: str, places: range, reason: str) -> None:
        for offset in places:
            self._waits.pop(reader, (topic.id, offset))
        where = Where(topic.declared, places.start, topic.partition)
        self._add(DROPPED, name, reader, where, count=len(places), detail=reason)

    def _forget(self, client_id: str, name: str, offsets: range) -> None:
        """They were dropped: they do not end with the session as well. '' is any name."""
        for tag, one in self._out.of(client_id):
            if _is_meant(one, name, offsets):
                self._out.pop(client_id, tag)
        for place, one in self._waits.of(client_id):
            if _is_meant(one, name, offsets):
                self._waits.pop(client_id, place)

    def read(self, reader: str, topic: str, records: Iterable[Traced], detail: str = "") -> None:
        for one in records:
            where = Where(topic, one.offset, one.partition)
            self._add(READ, one.name, reader, where, qos=one.qos, detail=detail)
            if detail and self._wants(one.name, reader):
                self._given.put(reader, where, Message(one.name, one.qos, where))

    def settled(self, reader: str, topic: Topic, places: Places, detail: str = "") -> None:
        what = GIVEN_BACK if detail else ACKNOWLEDGED
        for partition, offsets in places.items():
            for offset in offsets:
                where = Where(topic.declared, offset, partition)
                known = self._given.pop(reader, where)
                if known is not None:
                    self._tell(what, known, reader, detail)

    def refused(self, publisher: str, run: Run, reason: str, error: Exception) -> None:
        detail = f"{reason.replace('_', ' ')}: {error}"
        self._add(REFUSED, run.name, publisher, count=run.count, qos=run.qos, detail=detail)

    # Messages that nobody gets any more

    def left(self, client_id: str) -> None:
        for tag, one in self._out.of(client_id):
            if one.share and one.qos == 1:
                self._out.pop(client_id, tag)
                self._waits.put(one.share, (topic_id_of(tag), offset_of(tag)), one)
                self._tell(GIVEN_BACK, one, client_id, "the client disconnected")

    def ended(self, client_id: str, reason: str) -> None:
        for _, one in [*self._out.take(client_id), *self._waits.take(client_id)]:
            self._tell(DROPPED, one, client_id, reason)

    def share_ended(self, share: str) -> None:
        for _, one in self._waits.take(share):
            self._tell(DROPPED, one, share, "no session holds the shared subscription any more")

    async def _look_for_removed(self) -> None:
        """Called after retention: what it removed, and who had not read it yet."""
        topics = self._engine.topics
        runs: dict[int, list[tuple[Stored, int]]] = {}  # by topic id: the first of a run, how many
        for (topic_id, offset), stored in list(self._stored.items()):
            topic = topics.by_id(topic_id)
            if not is_removed(topic, offset):
                continue
            del self._stored[topic_id, offset]
            mine = runs.setdefault(topic_id, [])
            if mine and stored.follows(_last(*mine[-1])):
                mine[-1] = (mine[-1][0], mine[-1][1] + 1)
            else:
                mine.append((stored, 1))
        for topic_id, found in runs.items():
            self._tell_removed(topics.by_id(topic_id), found)
        for reader, place, one in self._waits:
            topic = topics.by_id(place[0])
            if is_removed(topic, place[1]):
                self._waits.pop(reader, place)
                self._tell(DROPPED, one, reader, "retention")

    def _tell_removed(self, topic: Topic | None, runs: list[tuple[Stored, int]]) -> None:
        why = "the topic was deleted" if topic is None else "retention"
        behind = [] if topic is None else unpushed_behind(self._exchange, topic)
        for one, count in runs:
            where, name, qos = one.where, one.name, one.qos
            self._add(REMOVED, name, one.publisher, where, count=count, qos=qos, detail=why)
            for reader, next_offset in behind:
                read = max(0, next_offset - where.offset)
                if read < count:
                    lost = where._replace(offset=where.offset + read)
                    self._add(DROPPED, name, reader, lost, count=count - read, qos=qos, detail=why)

    # Events

    def _tell(self, what: str, one: Message, client: str, detail: str) -> None:
        self._add(what, one.name, client, one.where, qos=one.qos, detail=detail)

    def _wants(self, name: str, client: str) -> bool:
        return any(one.wants(name, client) for one in self._on)

    def _place(self, tag: int) -> Where:
        """Where the message of a tag lies; one that is not stored lies nowhere."""
        part = self._engine.topics.by_id(topic_id_of(tag)) if tag >= 0 else None
        if part is None:
            return NOWHERE
        return Where(part.declared, offset_of(tag), part.partition)

    def _add(
        self,
        what: str,
        name: str,
        client: str,
        where: Where = NOWHERE,
        count: int = 1,
        qos: int | None = None,
        detail: str = "",
        at: int = 0,
    ) -> None:
        now_us = self._engine.clock.now_us()
        offset = None if where.offset == NOT_KNOWN else where.offset
        for trace in self._on:
            if trace.wants(name, client):
                event = TraceEvent(
                    number=0,
                    at=at or now_us,
                    what=what,
                    name=name,
                    topic=where.topic,
                    offset=offset,
                    count=count,
                    client=client,
                    qos=qos,
                    detail=detail,
                    partition=where.partition,
                )
                trace.add(event, now_us)


def _is_meant(one: Message, name: str, offsets: range) -> bool:
    return one.where.offset in offsets and name in ("", one.name)


def _last(first: Stored, count: int) -> Stored:
    return first._replace(where=first.where._replace(offset=first.where.offset + count - 1))
