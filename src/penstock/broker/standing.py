"""How sessions stand: who is connected, what is out to each, and what it has waiting.

What waits is counted in the logs, from where a session stands to their ends, in one pass for all
that are asked about. A pass looks at a bounded amount; beyond it a number is a lower bound and
says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.consumers import read_batches
from penstock.broker.engine import Engine
from penstock.broker.sessions import OwnFeed, Session
from penstock.broker.topics import Topic
from penstock.catalog.session_list import SessionList, SessionRow
from penstock.core.names import SHARE_PREFIX, matches
from penstock.core.where import Where, compile_where
from penstock.log.batch import Batch
from penstock.log.format import QOS_MASK
from penstock.model.errors import Gap
from penstock.model.limits import MIB

SCAN_BYTES_MAX: Final = 64 * MIB  # looked at in one topic for one report


@dataclass(slots=True)
class Reader:
    """One position of a session in every topic, and the filters that go with it."""

    positions: dict[int, int]  # topic id -> next offset; level with a topic that is not in it
    filters: list[tuple[str, dict[int, int]]]  # with the offsets from which they count
    where: Where | None = None
    waiting: int = 0
    is_exact: bool = True
    starts: dict[tuple[int, str], int] = field(default_factory=dict)  # (topic id, name) -> offset

    def start(self, topic_id: int, name: str) -> int:
        """From which offset on this name counts; -1: it never does."""
        known = self.starts.get((topic_id, name))
        if known is None:
            since = [
                since.get(topic_id, 0) for filter, since in self.filters if matches(filter, name)
            ]
            known = max(self.positions[topic_id], min(since)) if since else -1
            self.starts[topic_id, name] = known
        return known


@dataclass(frozen=True, slots=True)
class Standing:
    """A session, as an operator sees it."""

    client_id: str
    user: str
    is_connected: bool
    expiry_s: int
    filters: list[tuple[str, int]]  # with their QoS
    outstanding: int  # sent and not acknowledged
    readers: list[Reader]

    @property
    def waiting(self) -> int:
        """Messages above QoS 0 that it has not been sent."""
        return sum(reader.waiting for reader in self.readers)

    @property
    def is_exact(self) -> bool:
        return all(reader.is_exact for reader in self.readers)


async def describe_sessions(
    engine: Engine, catalog: SessionList, connected: dict[str, Session], client_ids: list[str]
) -> list[Standing]:
    """In the order asked for; those that are not there are left out."""
    rows = await catalog.find([one for one in client_ids if one not in connected])
    stored = {row.client_id: row for row in rows}
    standings = []
    for client_id in client_ids:
        session = connected.get(client_id)
        if session is not None:
            standings.append(_of_session(session))
        elif client_id in stored:
            standings.append(await _of_row(engine, stored[client_id]))
    for topic in engine.topics.all():
        if not topic.refusal:
            readers = [reader for standing in standings for reader in standing.readers]
            await _count(topic, readers)
    return standings


def _of_session(session: Session) -> Standing:
    plain = [one for one in session.subscriptions.values() if one.is_plain and one.qos]
    readers = [Reader(dict(session.lags), [(one.filter, one.since) for one in plain])]
    readers += [_of_feed(feed) for feed in session.feeds]
    outbox = session.outbox
    return Standing(
        session.client_id,
        outbox.principal.user if outbox is not None else "",
        True,
        session.expiry_s,
        [(one.filter, one.qos) for one in session.subscriptions.values()],
        session.window.count - len(session.released),
        readers,
    )


def _of_feed(feed: OwnFeed) -> Reader:
    return Reader(dict(feed.lags), [(feed.subscription.filter, {})], feed.where)


async def _of_row(engine: Engine, row: SessionRow) -> Standing:
    plain: list[tuple[str, dict[int, int]]] = []
    readers = []
    for one in row.filters:
        if one.feed_id:
            offsets = await _clamped(engine, row.feeds.get(one.feed_id, {}))
            where = compile_where(one.expression) if one.expression else None
            readers.append(Reader(offsets, [(one.filter, {})], where))
        elif one.qos and not one.filter.startswith(SHARE_PREFIX):
            plain.append((one.filter, one.since))
    positions = await _clamped(engine, row.positions)
    for topic in engine.topics.all():
        positions.setdefault(topic.id, 0)  # born while the client was away
    return Standing(
        row.client_id,
        row.owner,
        False,
        row.expiry_s,
        [(one.filter, one.qos) for one in row.filters],
        row.outstanding,
        [Reader(positions, plain), *readers],
    )


async def _clamped(engine: Engine, positions: dict[int, tuple[int, int]]) -> dict[int, int]:
    offsets = {}
    for topic_id, (epoch, offset) in positions.items():
        topic = engine.topics.by_id(topic_id)
        if topic is not None and not topic.refusal:
            offsets[topic_id] = await topic.log.clamp(epoch, offset)
    return offsets


async def _count(topic: Topic, readers: list[Reader]) -> None:
    """Add what waits in one topic to each reader."""
    first, end = topic.log.bounds()
    behind = [one for one in readers if one.filters and one.positions.get(topic.id, end) < end]
    if not behind:
        return
    offset = max(min(one.positions[topic.id] for one in behind), first)
    scanned_bytes = 0
    while offset < end:
        if scanned_bytes > SCAN_BYTES_MAX:
            for one in behind:
                one.is_exact = False
            return
        try:
            batches = await read_batches(topic, offset)
        except Gap:
            offset = topic.log.bounds().first
            continue
        for batch in batches:
            scanned_bytes += batch.header.blob_raw_length
            _count_batch(topic, batch, end, behind)
            offset = max(offset, batch.end_offset)
        if not batches:
            return


def _count_batch(topic: Topic, batch: Batch, end: int, readers: list[Reader]) -> None:
    base = batch.base_offset
    last = min(batch.header.count, end - base)
    if last <= 0:
        return
    names = batch.names(0, last)
    flags = batch.flags(0, last)
    kept = [bool(flag & QOS_MASK) for flag in flags]
    whole = Counter(name for name, is_kept in zip(names, kept, strict=True) if is_kept)
    for reader in readers:
        if topic.id not in reader.positions:
            continue
        if reader.where is not None:
            reader.waiting += _count_passing(topic, batch, last, reader)
            continue
        for name, count in whole.items():
            start = reader.start(topic.id, name)
            if start < 0 or start >= base + last:
                continue
            if start > base:
                count = sum(1 for at in range(start - base, last) if kept[at] and names[at] == name)
            reader.waiting += count


def _count_passing(topic: Topic, batch: Batch, last: int, reader: Reader) -> int:
    assert reader.where is not None
    start = max(reader.positions[topic.id], batch.base_offset)
    records = batch.records(topic.declared, start, batch.base_offset + last)
    return sum(
        1
        for record in records
        if reader.start(topic.id, record.name) >= 0 and reader.where.passes(record)
    )
