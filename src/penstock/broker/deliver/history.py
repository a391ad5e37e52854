"""Feeds of subscriptions with `from` or `where`: history, then what comes, filtered.

A feed is a position in every topic and no buffer: it always reads the log. While it lags it
catches up with others of its topic; level with the durable end it is idle until a commit holds a
name it wants. So there is no moment between history and live, and a slow client costs nothing but
its position. A feed advances while the window and the connection of its session have room.
Every record carries its topic, its offset and its time as headers, and access is asked for every
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock.broker.deliver.catchup import CatchUp
from penstock.broker.deliver.commits import Runs
from penstock.broker.engine import Engine
from penstock.broker.session.session import MaySubscribe, OwnFeed, Session
from penstock.broker.topic.parts import resolve, resolve_all
from penstock.broker.topic.topics import Topic
from penstock.catalog.session.retained import RetainedRow
from penstock.core.access import RECEIVE, Authorise
from penstock.core.delivery.run import Run, record_flags
from penstock.core.naming.names import matches, quoted
from penstock.core.position import AtOffset, AtOffsets, Position
from penstock.log.files.segment import StaleSegment
from penstock.log.format.batch import Batch
from penstock.model.errors import InvalidPosition, UnavailableError
from penstock.model.record import Record, shown_time
from penstock.model.timeline import Timeline

FEEDS_MAX: Final = 100  # of one session; each may make the broker read whole logs
SLICE_RECORDS_MAX: Final = 500  # filtered before others get their turn: a few milliseconds
NAMES_MAX: Final = 10_000  # names a feed remembers its decision for
SHOWN_TOPICS_MAX: Final = 3  # in a refusal

TOPIC_HEADER: Final = "penstock-topic"
OFFSET_HEADER: Final = "penstock-offset"
TIME_HEADER: Final = "penstock-time"
PARTITION_HEADER: Final = "penstock-partition"  # only where a topic has several
_OWN_HEADERS: Final = (TOPIC_HEADER, OFFSET_HEADER, TIME_HEADER, PARTITION_HEADER)


class Feeds:
    """The feeds of connected sessions."""

    def __init__(
        self,
        engine: Engine,
        authorise: Authorise,
        may_subscribe: MaySubscribe,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._authorise = authorise
        self._may_subscribe = may_subscribe
        self._on_trouble = on_trouble
        self._open: dict[OwnFeed, None] = {}  # delivering, in the order of their beginning
        self._catchups: dict[int, CatchUp[OwnFeed]] = {}  # by topic id

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OwnFeed]:
        return iter(self._open)

    @property
    def is_running(self) -> bool:
        """Does any feed read the log right now?"""
        return any(catchup.is_running for catchup in self._catchups.values())

    # Where a feed begins

    async def locate(self, filter: str, position: Position) -> dict[int, int]:
        """The offset in every topic that a position means; InvalidPosition.

        An offset belongs to the one topic that the filter means, by today's placement; what other
        topics may get later is read from their ends on.
        """
        topics = self._engine.topics
        found: dict[int, int]
        if isinstance(position, AtOffset | AtOffsets):
            topic = self._only_topic(filter)
            offsets = await resolve_all(topic, position)
            found = {one.id: one.log.bounds().end for one in topics.all()}
            return found | {
                part.id: offset for part, offset in zip(topic.parts, offsets, strict=True)
            }
        found = {}
        try:
            for topic in topics.all():
                found[topic.id] = await resolve(topic, position)
            return found
        except (OSError, RuntimeError, StaleSegment) as failed:
            raise UnavailableError(f"a topic cannot be searched: {failed}") from failed

    def _only_topic(self, filter: str) -> Topic:
        topics = self._engine.topics
        meant = sorted(topics.find(key).declared for key in topics.placement.places(filter))
        if len(meant) > 1:
            shown = ", ".join(quoted(one) for one in meant[:SHOWN_TOPICS_MAX])
            if len(meant) > SHOWN_TOPICS_MAX:
                shown += f" and {len(meant) - SHOWN_TOPICS_MAX} more"
            raise InvalidPosition(
                f"an offset belongs to one topic, and names that match {quoted(filter)} may be in "
                f"{shown}: give a time or a duration back such as -1h, or a narrower filter"
            )
        return topics.get(meant[0])

    # Beginning, going on and ending

    def start(self, feed: OwnFeed) -> None:
        """Deliver from where it lags; a topic it has not heard of is new, and read from 0."""
        for topic in self._engine.topics.all():
            offset = feed.lags.get(topic.id, 0)
            if offset < topic.log.bounds().end:
                feed.lags[topic.id] = offset
            else:
                feed.lags.pop(topic.id, None)
        if not self._open:
            self._engine.followers.append(self.committed)
        self._open[feed] = None
        self._go_on(feed)

    def stop(self, feed: OwnFeed) -> None:
        """Stop delivering; its lags still hold its position."""
        if self._open.pop(feed, False) is None and not self._open:
            self._engine.followers.remove(self.committed)
        feed.subscription.session.stalled.pop(feed, None)
        for catchup in self._catchups.values():
            catchup.leave(feed)

    def resume(self, session: Session) -> None:
        """The session may have room again: feeds that found none go on."""
        for feed, qos in list(session.stalled.items()):
            if _has_room(session, qos, 0):
                del session.stalled[feed]
                self._go_on(feed)

    def rules_changed(self) -> None:
        """What principals may do is another thing now."""
        for feed in self._open:
            feed.names.clear()

    def _go_on(self, feed: OwnFeed) -> None:
        for topic_id in list(feed.lags):
            topic = self._engine.topics.by_id(topic_id)
            if topic is None:
                del feed.lags[topic_id]
            elif not topic.refusal:  # else it keeps its place until the files are back
                self._board(feed, topic)

    def _board(self, feed: OwnFeed, topic: Topic) -> None:
        session = feed.subscription.session
        if session.vault is not None:
            session.vault.touch(session)
        if feed in session.stalled:
            return
        if not _has_room(session, 0, 0):
            session.stalled[feed] = 0
            return
        catchup = self._catchups.get(topic.id)
        if catchup is None:
            catchup = self._catchups[topic.id] = CatchUp(
                topic,
                lambda batch, start, end, here: self._serve(topic, batch, start, end, here),
                SLICE_RECORDS_MAX,
                self._engine.metrics,
                self._on_trouble,
            )
        catchup.join(feed)

    def committed(self, topic: Topic, batch: Batch, runs: Runs) -> None:
        """Wake the feeds that are level and want something of it; the others read it in time."""
        if not batch.header.count:
            return
        for feed in self._open:
            if topic.id not in feed.lags:
                if not any(self._wants(feed, topic, name) for name in batch.glimpse_names()):
                    continue
                feed.lags[topic.id] = batch.base_offset
            self._board(feed, topic)

    # Delivering

    def _wants(self, feed: OwnFeed, topic: Topic, name: str) -> bool:
        """Does its filter match the name, and may its client receive it (law 9)?"""
        known = feed.names.get((topic.id, name))
        if known is None:
            outbox = feed.subscription.session.outbox
            assert outbox is not None, "feeds stop when their client goes"
            if len(feed.names) >= NAMES_MAX:
                feed.names.clear()
            filter, principal = feed.subscription.filter, outbox.principal
            known = (
                matches(filter, name)
                and self._authorise(principal, RECEIVE, name, topic.key)
                and self._may_subscribe(principal, filter)
            )
            feed.names[topic.id, name] = known
        return known

    def _serve(self, topic: Topic, batch: Batch, start: int, end: int, here: set[OwnFeed]) -> None:
        if not batch.header.count:
            return  # offsets without a message
        catchup = self._catchups[topic.id]
        ids = batch.name_ids()
        base = batch.base_offset
        numbers = {0} if ids is None else set(ids[start - base : end - base])
        names = [batch.strings[number] for number in numbers]
        wanting = [feed for feed in here if any(self._wants(feed, topic, name) for name in names)]
        if not wanting:
            return
        first = min(catchup.readers[feed] for feed in wanting)
        records = batch.records(topic.declared, first, end, topic.partition)
        for feed in wanting:
            self._hand_all(catchup, feed, records)

    def _hand_all(self, catchup: CatchUp[OwnFeed], feed: OwnFeed, records: list[Record]) -> None:
        """Hand on what passes, up to the first record for which there is no room."""
        start = catchup.readers[feed]
        place = feed.place(catchup.topic.id)
        where = feed.where
        for record in records:
            if record.offset < start or not self._wants(feed, catchup.topic, record.name):
                continue
            if where is not None and not where.passes(record):
                continue
            if not self._hand(feed, place, record, catchup.topic):
                catchup.move(feed, record.offset)
                catchup.leave(feed)
                return

    def _hand(self, feed: OwnFeed, place: int, record: Record, topic: Topic) -> bool:
        """Send one record, or pass over it; False if there is no room for it now."""
        subscription = feed.subscription
        session = subscription.session
        metrics, clock = self._engine.metrics, self._engine.clock
        if subscription.no_local and record.publisher == session.client_id:
            return True
        run = feed_run(record, topic, clock)
        if run.until_us and run.until_us <= clock.steady_us():
            metrics.dropped["expired"] += 1
            if self._engine.watch is not None:
                self._engine.watch.dropped(session, run.name, 1, "expired", record.offset)
            return True
        if session.is_sent(place, record.offset):
            return True  # out already, from before a crash
        if not send_one(feed, place, record.offset, run, subscription.retain_as_published):
            session.stalled[feed] = min(run.qos, subscription.qos)
            return False
        metrics.records_delivered += 1
        return True


def send_one(feed: OwnFeed, place: int, offset: int, run: Run, as_published: bool) -> bool:
    """Send a run of one message to the feed's client; False if there is no room for it now."""
    subscription = feed.subscription
    session = subscription.session
    outbox = session.outbox
    qos = min(run.qos, subscription.qos)
    if outbox is None or not _has_room(session, qos, len(run.data)):
        return False
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    encoding = outbox.encoding(qos, as_published, identifiers)
    if qos == 0:
        outbox.forward(run.name, run.count, encoding.forward_bytes(run))
    else:
        session.send(place, offset, run, encoding)
    return True


def _has_room(session: Session, qos: int, size: int) -> bool:
    """May a message of this QoS and size be sent now, in order and without being dropped?"""
    outbox = session.outbox
    if outbox is None or session.is_resending or not outbox.has_room or not outbox.fits(size):
        return False
    # Without an acknowledgement it would overtake what is being stored.
    return session.window.room > 0 if qos else not session.storing


def feed_run(record: Record, topic: Topic, clock: Timeline) -> Run:
    """A record as a feed sends it: it says where it lies and when it came."""
    payload = record.payload
    flags = record_flags(record.qos, record.retain, record.kind)
    run = Run(record.name, payload, [0], [len(payload)], flags)
    headers = record.headers
    if headers:  # a record that was copied from another feed speaks of another place
        headers = tuple(pair for pair in headers if pair[0] not in _OWN_HEADERS)
    run.headers = (
        *headers,
        (TOPIC_HEADER, record.topic),
        (OFFSET_HEADER, str(record.offset)),
        (TIME_HEADER, shown_time(record.timestamp)),
    )
    if len(topic.parts) > 1:
        run.headers = (*run.headers, (PARTITION_HEADER, str(record.partition)))
    if record.expires_at:
        run.until_us = clock.until_us(record.timestamp, record.expires_at)
    run.publisher = record.publisher
    return run


def retained_record(row: RetainedRow, topic: Topic) -> Record:
    """A retained message as the record it is in its topic."""
    return Record(
        topic=topic.declared,
        partition=topic.partition,
        offset=row.offset,
        timestamp=row.timestamp,
        name=row.name,
        payload=row.payload,
        headers=row.headers,
        publisher=row.publisher,
        qos=row.qos,
        retain=True,
        expires_at=row.expires_at or None,
        kind=row.kind,
    )
