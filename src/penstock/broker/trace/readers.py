"""Which readers have passed a record: what positions tell, whenever the record was stored.

A position says that a reader went by, not that it wanted the record; so sessions and shares count
only if a filter of theirs matches its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.broker.exchange import Exchange
from penstock.broker.session.backlog import SessionReport, find_sessions, known_clients
from penstock.broker.session.waiting import Reader
from penstock.broker.share.share import Share
from penstock.broker.topic.topics import Topic
from penstock.core.delivery.rule import NEVER_KEPT, is_from, kept_from_qos, stretches
from penstock.core.delivery.tags import make_place, make_tag
from penstock.core.naming.names import matches
from penstock.model.record import Record, offset_in

SESSION: Final = "session"
SHARE: Final = "shared subscription"
SESSIONS_MAX: Final = 1_000  # that are looked at for one record

PASSED: Final = "passed"
WAITING: Final = "waiting"  # behind the position of the reader
OUT: Final = "unacknowledged"
NOT_KEPT: Final = "not kept"  # of QoS 0: only who was connected was given it


class RecordReader(msgspec.Struct):
    """How a reader stands to one record; `next_offset` is where it goes on."""

    kind: str
    reader: str
    state: str
    next_offset: int
    is_connected: bool | None = None  # of a session, or any session of a shared subscription


async def readers_of(exchange: Exchange, topic: Topic, record: Record) -> list[RecordReader]:
    """Consumers and groups of the topic, and sessions and shares that read the record's name."""
    found = [*_consumers(exchange, topic, record), *_groups(exchange, topic, record)]
    for share in exchange.store.shares.all():
        if matches(share.filter, record.name):
            found.append(_share(share, topic, record))
    for report in await find_sessions(exchange, await known_clients(exchange, SESSIONS_MAX)):
        found += _session(exchange, report, topic, record)
    return found


def _consumers(exchange: Exchange, topic: Topic, record: Record) -> Iterator[RecordReader]:
    for one in exchange.engine.consumers.of(topic):
        state = PASSED if one.next_offset > record.offset else WAITING
        yield RecordReader("consumer", one.name, state, one.next_offset)


def _groups(exchange: Exchange, topic: Topic, record: Record) -> Iterator[RecordReader]:
    for one in exchange.engine.groups.of(topic.parts[0]):
        next_offset = offset_in(one.next_offset, record.partition)
        state = PASSED if next_offset > record.offset else WAITING
        place = record.partition, record.offset
        if any((pending.partition, pending.offset) == place for pending in one.pending):
            state = OUT
        yield RecordReader("group", one.group, state, next_offset)


def unpushed_behind(exchange: Exchange, topic: Topic) -> list[tuple[str, int]]:
    """Consumers and groups that had not read all of what retention has removed: name, offset."""
    first = topic.log.bounds().first
    engine = exchange.engine
    found = [(f"consumer {one.name}", one.next_offset) for one in engine.consumers.of(topic)]
    found += [
        (f"group {one.group}", offset_in(one.next_offset, topic.partition))
        for one in engine.groups.of(topic.parts[0])
    ]
    return [(name, next_offset) for name, next_offset in found if next_offset < first]


def _share(share: Share, topic: Topic, record: Record) -> RecordReader:
    end = topic.log.bounds().end
    position = (share.lags if share.members else share.away).get(topic.id, end)
    state = PASSED if position > record.offset else WAITING
    group = share.groups.get(topic.id)
    if group is not None:
        if record.offset in group.all_held():
            state = OUT
        elif record.offset in group.waiting():
            state = WAITING
    return RecordReader(SHARE, share.key, state, position, bool(share.members))


def _session(
    exchange: Exchange, report: SessionReport, topic: Topic, record: Record
) -> Iterator[RecordReader]:
    for reader in report.readers:
        state = _state(exchange, reader, topic, record)
        if state:
            position = reader.positions.get(topic.id, topic.log.bounds().end)
            is_connected = report.is_connected
            yield RecordReader(SESSION, report.client_id, state, position, is_connected)


def _state(exchange: Exchange, reader: Reader, topic: Topic, record: Record) -> str:
    """'' if no filter of the reader counts for the record."""
    wants = [one.want(topic.id) for one in reader.wishes if matches(one.filter, record.name)]
    offset = record.offset
    is_own = record.publisher == reader.client_id
    here = [
        one
        for one in stretches(wants)
        if one.start <= offset < one.end and is_from(one.publishers, is_own=is_own)
    ]
    if not here or (reader.where is not None and not reader.where.passes(record)):
        return ""
    tag = make_tag(make_place(reader.feed_id, topic.id), offset)
    session = exchange.sessions.connected.get(reader.client_id)
    if session is not None and tag in [one for _, one in session.window.items()]:
        return OUT
    lowest = min(kept_from_qos(one.reading, keeps_qos0=reader.keeps_qos0) for one in here)
    if lowest == NEVER_KEPT or record.qos < lowest:
        return NOT_KEPT
    if tag in reader.out:
        return PASSED if session is not None else OUT
    end = topic.log.bounds().end
    return PASSED if reader.positions.get(topic.id, end) > offset else WAITING
