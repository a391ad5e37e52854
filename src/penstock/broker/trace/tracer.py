"""The traces of a tenant: they follow commits, and hear from doors what is sent and acknowledged.

While no trace is on, nothing of this runs: commits have no further follower, and `engine.watch` and
the `watch` of each connection are None.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.broker.deliver.commits import Runs
from penstock.broker.exchange import Exchange
from penstock.broker.session.session import Session
from penstock.broker.tasks import Tasks
from penstock.broker.topic.topics import Topic
from penstock.broker.trace.readers import SESSION, SHARE, RecordReader, readers_of
from penstock.broker.trace.readers import WAITING as STILL_WAITING
from penstock.broker.trace.trace import (
    ACKNOWLEDGED,
    DROPPED,
    GIVEN_BACK,
    READ,
    RECEIVED,
    REFUSED,
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
OUT_MAX: Final = 10_000  # messages whose acknowledgement is waited for
LOOKUPS_MAX: Final = 100  # records whose readers are still to be looked up
NOT_KNOWN: Final = -1
PUSHED: Final = (SESSION, SHARE)  # kinds of readers that are sent messages without asking


class _Where(NamedTuple):
    """The place of the first message that an event is about."""

    topic: str = ""
    offset: int = NOT_KNOWN
    partition: int = 0


NOWHERE: Final = _Where()


class Tracer:
    """Implements Watch. Runs on the event loop."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._engine = exchange.engine
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(self._loop)
        self.traces: dict[int, Trace] = {}
        self._next_id = 1
        # Client, tag -> name and QoS of what was sent and is not acknowledged.
        self._out: dict[tuple[str, int], tuple[str, int]] = {}
        # Reader and place -> name and QoS of what a reader of a group has and did not answer.
        self._given: dict[tuple[str, _Where], tuple[str, int]] = {}
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
        else:
            engine.followers.remove(self._committed)
            self._out.clear()
            self._given.clear()
            self._lookups.clear()
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
        where = _Where(topic.declared, offset, topic.partition)
        self._add(RECEIVED, name, publisher, where, count=count, qos=qos, at=received_at)
        self._add(STORED, name, publisher, where, count=count, qos=qos, detail=detail)
        for at in range(count):
            if len(self._lookups) < LOOKUPS_MAX:
                self._lookups.append((topic, offset + at))
        store = self._exchange.store
        if not self._is_looking and (store.stored or len(store.shares)):
            self._is_looking = True
            self._tasks.spawn(self._look_up())

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
                            self._note_waiting(record, one)
        except (OSError, PenstockError):
            self._lookups.clear()  # the topic is gone, or cannot be read: there is nothing to say
        finally:
            self._is_looking = False

    def _note_waiting(self, record: Record, reader: RecordReader) -> None:
        why = "behind" if reader.is_connected else "away"
        detail = f"the {reader.kind} is {why}: it continues at offset {reader.next_offset}"
        where = _Where(record.topic, record.offset, record.partition)
        self._add(WAITING, record.name, reader.reader, where, qos=record.qos, detail=detail)

    def forwarded(self, session: Session | None, name: str, count: int) -> None:
        if count and session is not None:
            self._add(SENT, name, session.client_id, count=count, qos=0)

    def sent(
        self, session: Session | None, name: str, packet_ids: list[int], qos: int, again: bool
    ) -> None:
        if session is None or not packet_ids or not self._wants(name, session.client_id):
            return
        tags = [session.window.tag_of(one) for one in packet_ids]
        for tag in tags:
            if len(self._out) < OUT_MAX:
                self._out[session.client_id, tag] = (name, qos)
        what = SENT_AGAIN if again else SENT
        self._add(what, name, session.client_id, self._place(tags[0]), count=len(tags), qos=qos)

    def acknowledged(self, session: Session, packet_ids: list[int]) -> None:
        self._answered(session, packet_ids, ACKNOWLEDGED, "")

    def rejected(self, session: Session, packet_id: int) -> None:
        self._answered(session, [packet_id], DROPPED, "the client rejected the message")

    def _answered(self, session: Session, packet_ids: list[int], what: str, detail: str) -> None:
        for packet_id in packet_ids:
            tag = session.window.tag_of(packet_id)
            known = self._out.pop((session.client_id, tag), None)
            if known is not None:
                name, qos = known
                self._add(what, name, session.client_id, self._place(tag), qos=qos, detail=detail)

    def dropped(
        self,
        session: Session | None,
        name: str,
        count: int,
        reason: str,
        offset: int = NOT_KNOWN,
    ) -> None:
        if count and session is not None:
            where = _Where("", offset)
            self._add(DROPPED, name, session.client_id, where, count=count, detail=reason)

    def lost(self, reader: str, topic: Topic, name: str, places: range, reason: str) -> None:
        where = _Where(topic.declared, places.start, topic.partition)
        self._add(DROPPED, name, reader, where, count=len(places), detail=reason)

    def read(self, reader: str, topic: str, records: Iterable[Traced], detail: str = "") -> None:
        for one in records:
            where = _Where(topic, one.offset, one.partition)
            self._add(READ, one.name, reader, where, qos=one.qos, detail=detail)
            if detail and len(self._given) < OUT_MAX and self._wants(one.name, reader):
                self._given[reader, where] = (one.name, one.qos)

    def settled(self, reader: str, topic: Topic, places: Places, detail: str = "") -> None:
        what = GIVEN_BACK if detail else ACKNOWLEDGED
        for partition, offsets in places.items():
            for offset in offsets:
                where = _Where(topic.declared, offset, partition)
                known = self._given.pop((reader, where), None)
                if known is not None:
                    name, qos = known
                    self._add(what, name, reader, where, qos=qos, detail=detail)

    def refused(self, publisher: str, run: Run, reason: str, error: Exception) -> None:
        detail = f"{reason.replace('_', ' ')}: {error}"
        self._add(REFUSED, run.name, publisher, count=run.count, qos=run.qos, detail=detail)

    # Events

    def _wants(self, name: str, client: str) -> bool:
        return any(one.wants(name, client) for one in self._on)

    def _place(self, tag: int) -> _Where:
        """Where the message of a tag lies; one that is not stored lies nowhere."""
        part = self._engine.topics.by_id(topic_id_of(tag)) if tag >= 0 else None
        if part is None:
            return NOWHERE
        return _Where(part.declared, offset_of(tag), part.partition)

    def _add(
        self,
        what: str,
        name: str,
        client: str,
        where: _Where = NOWHERE,
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
