"""Persistent sessions, as the catalog or a broker has them, made ready to meet records on tasks.

Runs on the driver. Positions of an earlier life of a log are moved to where they stand now, as the
broker does when a client comes back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import msgspec

from penstock.catalog.outside import (
    CatalogPlace,
    FilterSeen,
    SessionRows,
    SessionsSeen,
    fetch_sessions,
    look,
    see_sessions,
)
from penstock.core.delivery.rule import Want, is_ever_kept
from penstock.core.naming.names import SHARE_PREFIX
from penstock.model.record import TenantId
from penstock.pipeline.jobs.dispatch.readers import Filter, Reader, Readers
from penstock.pipeline.link import BrokerLink
from penstock.pipeline.source.origin import Origin, TopicState


def saved_sessions(place: CatalogPlace, tenant: TenantId) -> SessionsSeen:
    with look(place) as fetch:
        return see_sessions(fetch_sessions(fetch, tenant))


def told_sessions(link: BrokerLink) -> SessionsSeen:
    body = bytes(link.ask("GET", "/v1/subscriptions").body)
    return see_sessions(msgspec.json.decode(body, type=SessionRows))


def every_reader(seen: SessionsSeen, origin: Origin, states: list[TopicState]) -> Readers:
    """All filters of all sessions. A feed counts from where it stands: what it read before, and
    from where, is written down nowhere."""
    return _readers(seen, origin, states, is_waiting=False)


def waiting_readers(seen: SessionsSeen, origin: Origin, states: list[TopicState]) -> Readers:
    """What sessions whose clients are away will read when they come back.

    Records that a plain filter takes at QoS 0 are not kept for those away; a feed reads them too.
    """
    return _readers(seen, origin, states, is_waiting=True)


def begins(readers: Readers, states: Iterable[TopicState]) -> dict[str, int]:
    """By partition: the first record that one of these readers may want; its end if nobody does."""
    asked = [readers.readers[number] for number in {one.reader for one in readers.filters}]
    found = {}
    for state in states:
        first = min(
            (
                0 if one.positions is None else one.positions.get(state.topic_id, state.end)
                for one in asked
            ),
            default=state.end,
        )
        found[state.key] = min(max(first, state.first), state.end)
    return found


def _readers(
    seen: SessionsSeen, origin: Origin, states: list[TopicState], *, is_waiting: bool
) -> Readers:
    places = _Places(origin, states)
    readers: list[Reader] = []
    filters: list[Filter] = []
    numbers: dict[tuple[str, int], int] = {}
    for one in seen.filters:
        if one.filter.startswith(SHARE_PREFIX):
            continue  # what it brings waits for its group, not for this session
        is_kept = is_ever_kept(Want(one.qos), keeps_qos0=one.feed_id != 0)
        if is_waiting and (seen.connected[one.client_id] or not is_kept):
            continue
        key = (one.client_id, one.feed_id)
        if key not in numbers:
            numbers[key] = len(readers)
            is_placed = is_waiting or one.feed_id != 0
            positions = places.of(seen, one) if is_placed else None
            out = _out(seen, key, positions or {}) if is_waiting else frozenset()
            readers.append(Reader(one.client_id, one.feed_id, one.expression, positions, out))
        since = {} if one.feed_id else one.since
        filters.append(Filter(one.filter, numbers[key], one.qos, one.no_local, since))
    topics = {state.topic: state.topic_id - state.partition for state in states}
    return Readers(uuid.uuid4().hex, readers, filters, topics)


def _out(
    seen: SessionsSeen, key: tuple[str, int], positions: dict[int, int]
) -> frozenset[tuple[int, int]]:
    """What was sent of the records that the position has yet to pass."""
    sent = seen.out.get(key, ())
    return frozenset(place for place in sent if place[1] >= positions.get(place[0], 0))


class _Places:
    """Where stored positions stand now; looked up once for all sessions that stand together."""

    def __init__(self, origin: Origin, states: list[TopicState]) -> None:
        self._origin = origin
        self._states = states
        self._known: dict[tuple[int, int, int], int] = {}

    def of(self, seen: SessionsSeen, one: FilterSeen) -> dict[int, int]:
        """By topic id, for the session or the feed of this filter."""
        found = {}
        for state in self._states:
            epoch, offset = seen.at(one.client_id, one.feed_id, state.topic_id)
            key = (state.topic_id, epoch, offset)
            if key not in self._known:
                is_plain = epoch == state.epoch and offset <= state.end
                now = offset if is_plain else self._origin.clamp(state, epoch, offset)
                self._known[key] = now
            found[state.topic_id] = self._known[key]
        return found
