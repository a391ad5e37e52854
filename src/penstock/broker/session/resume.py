"""Clients that come back to their session: what it was, and what was out when they went.

What was out is sent again, with DUP and in the order of sending, before anything else; only then
the session goes on from the logs.
"""

from __future__ import annotations

from penstock.broker.deliver.history import feed_run
from penstock.broker.deliver.stored_runs import stored_run
from penstock.broker.exchange import Exchange
from penstock.broker.session.rows import tag_of
from penstock.broker.session.session import (
    OwnFeed,
    Session,
    Subscription,
)
from penstock.broker.share.share import Share
from penstock.broker.topic.topics import Topic
from penstock.catalog.session.stored_sessions import NO_PACKET_ID, OutstandingRow, StoredSession
from penstock.core.access import RECEIVE
from penstock.core.delivery.run import Encoding, Run
from penstock.core.delivery.tags import NO_FEED, feed_id_of, is_retained, offset_of, topic_id_of
from penstock.core.naming.names import SHARE_PREFIX
from penstock.core.where import compile_where
from penstock.log.format.batch import Batch
from penstock.model.errors import PenstockError


async def restore(exchange: Exchange, session: Session, stored: StoredSession) -> None:
    """Give a session back what it was before its client went; attach it afterwards."""
    await exchange.store.wait_followed(stored)
    for row in stored.subscriptions:
        one = Subscription(
            session,
            row.filter,
            row.qos,
            no_local=row.no_local,
            retain_as_published=row.retain_as_published,
            identifier=row.identifier,
        )
        one.since = row.since
        if row.feed_id:
            where = compile_where(row.expression) if row.expression else None
            one.feed = OwnFeed(one, row.feed_id, where)
            one.feed.lags = await exchange.store.feed_offsets(stored, row.feed_id)
        elif row.filter.startswith(SHARE_PREFIX):
            exchange.sharing.hold_again(one)
        session.subscriptions[row.filter] = one
    session.feed_id_last = stored.feed_id_last
    _restore_window(session, stored.outstanding)
    exchange.sharing.restore(session)
    session.from_offsets = await exchange.store.offsets(stored)
    session.is_resending = True


def _restore_window(session: Session, outstanding: list[OutstandingRow]) -> None:
    newest: dict[int, OutstandingRow] = {}
    session.resent = frozenset(map(tag_of, outstanding))
    for out in outstanding:
        if out.packet_id == NO_PACKET_ID:
            continue
        known = newest.get(out.packet_id)
        if known is None or _is_newer(out, known):
            newest.pop(out.packet_id, None)
            newest[out.packet_id] = out  # at its own place: they are sent in this order
    for out in newest.values():
        session.window.restore(out.packet_id, tag_of(out))
        if out.qos == 2:
            session.twice.add(out.packet_id)
        if out.is_released:
            session.note_released([out.packet_id])


def _is_newer(out: OutstandingRow, known: OutstandingRow) -> bool:
    """Of two messages under one packet id, stored since the last checkpoint: which came later?

    Each id is there once in a checkpoint, and only QoS 2 is stored in between. An id is used again
    after its release, or after the client refused its message: then rows are in the order sent.
    """
    if out.qos != known.qos:
        return out.qos > known.qos
    return known.is_released or not out.is_released


async def go_on(exchange: Exchange, session: Session) -> None:
    """Send again what was out when the client went, then go on from the logs."""
    sent: set[int] = set()
    last_read = LastRead()
    for packet_id, tag in session.window.items():
        outbox = session.outbox
        if outbox is None:
            return
        if session.is_released(packet_id):
            outbox.release([packet_id])
            continue
        topic = exchange.engine.topics.by_id(topic_id_of(tag))
        if topic is not None and topic.refusal:
            continue  # it cannot be read now, and nobody said that it is done
        # The window may have been larger then: the client's receive maximum of now counts.
        while len(sent) >= session.window.size_max:
            await session.wait_room()
            if session.outbox is None:
                return
            sent = {one for one in sent if session.window.tag_of(one) >= 0}
        sent.add(packet_id)
        if reason := await _resend(exchange, session, tag, packet_id, last_read):
            if exchange.engine.watch is not None:
                exchange.engine.watch.dropped(session, "", 1, reason, offset_of(tag))
            session.acknowledge([packet_id])
            exchange.engine.metrics.dropped[reason] += 1
    session.is_resending = False
    exchange.sessions.resume(session)


class LastRead:
    """What was read last from a log: messages that are sent again are mostly neighbours."""

    def __init__(self) -> None:
        self._topic: Topic | None = None
        self._batches: list[Batch] = []

    async def find(self, topic: Topic, offset: int) -> Batch | None:
        """The batch with the offset; None if the topic has no such batch any more."""
        if topic is self._topic:
            for batch in self._batches:
                if batch.base_offset <= offset < batch.end_offset:
                    return batch
        self._batches = await topic.read(offset)
        self._topic = topic
        return self._batches[0] if self._batches else None


async def _resend(
    exchange: Exchange, session: Session, tag: int, packet_id: int, last_read: LastRead
) -> str:
    """Send one message again, with DUP; why it is dropped instead, if it is."""
    topic = exchange.engine.topics.by_id(topic_id_of(tag))
    offset = offset_of(tag)
    if topic is None:
        return "retention"
    try:
        batch = await last_read.find(topic, offset)
    except PenstockError:
        return "retention"
    outbox = session.outbox
    if outbox is None:
        return ""
    if batch is None:
        return "retention"
    if feed_id_of(tag) == NO_FEED:
        run = stored_run(batch, offset, exchange.engine.clock)
    else:
        (record,) = batch.records(topic.declared, offset, offset + 1, topic.partition)
        run = feed_run(record, topic, exchange.engine.clock)
    if not exchange.authorise(outbox.principal, RECEIVE, run.name, topic.key):
        return "not_authorized"
    qos = 2 if packet_id in session.twice else 1
    encoding = _encoding(exchange, session, packet_id, tag=tag, run=run, qos=qos)
    outbox.send(run, 0, [packet_id], encoding, True)
    return ""


def _encoding(
    exchange: Exchange, session: Session, packet_id: int, tag: int, run: Run, qos: int
) -> Encoding:
    """As the message was encoded, if what it was sent for is still there."""
    outbox = session.outbox
    assert outbox is not None
    feed_id = feed_id_of(tag)
    as_retained = is_retained(tag)  # then it says so, whatever the subscription wants
    if feed_id == NO_FEED:
        member = exchange.router.find(run.name).members.get(session)
        if member is not None:
            member = member.reading(run)
        share = session.shared.get(packet_id)
        if isinstance(share, Share):
            member = share.member(session)
        if member is not None:
            return member.encoding(qos, is_retained=as_retained)
    for feed in session.feeds:
        if feed.id == feed_id:
            one = feed.subscription
            identifiers = (one.identifier,) if one.identifier else ()
            return outbox.encoding(qos, one.retain_as_published or as_retained, identifiers)
    return outbox.encoding(qos, as_retained, ())
