"""How far the readers of topics are behind: as the catalog has it, or as a running broker tells."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from penstock.catalog.outside import CatalogPlace, look, see_consumers
from penstock.client.wire import ConsumersIn, GroupsIn
from penstock.model.errors import TopicNotFound
from penstock.model.record import Offsets, TenantId, offset_in
from penstock.pipeline.link import BrokerLink, topic_path
from penstock.pipeline.source.origin import Origin, TopicState

# consumer or group, its name, topic, position, the topic's end, lag
Lag = tuple[str, str, str, int, int, int]


def saved_lags(
    place: CatalogPlace, tenant: TenantId, origin: Origin, states: list[TopicState]
) -> list[Lag]:
    """By the positions that are saved, which may be a second old."""
    by_id = {state.topic_id: state for state in states}
    with look(place) as fetch:
        seen = see_consumers(fetch, tenant)
    found: dict[tuple[str, str, str], list[tuple[TopicState, int]]] = {}
    for one in seen:
        state = by_id.get(one.topic_id)
        if state is not None:
            offset = origin.clamp(state, one.epoch, one.next_offset)
            found.setdefault((one.kind, one.name, state.topic), []).append((state, offset))
    return [_lag(kind, name, at) for (kind, name, _), at in found.items()]


def told_lags(link: BrokerLink, states: list[TopicState]) -> list[Lag]:
    """By the positions that readers have now."""
    rows = []
    topics: dict[str, list[TopicState]] = {}
    for state in states:
        topics.setdefault(state.topic, []).append(state)
    for topic, parts in topics.items():
        with suppress(TopicNotFound):  # it went meanwhile, and its readers with it
            body = bytes(link.ask("GET", topic_path(topic, "consumers")).body)
            for consumer in msgspec.json.decode(body, type=ConsumersIn).consumers:
                at = _offsets(parts, consumer.next_offset)
                rows.append(_lag("consumer", consumer.consumer, at))
            body = bytes(link.ask("GET", topic_path(topic, "groups")).body)
            for group in msgspec.json.decode(body, type=GroupsIn).groups:
                rows.append(_lag("group", group.group, _offsets(parts, group.next_offset)))
    return rows


def _offsets(parts: list[TopicState], offsets: Offsets) -> list[tuple[TopicState, int]]:
    return [(state, offset_in(offsets, state.partition)) for state in parts]


def _lag(kind: str, name: str, parts: list[tuple[TopicState, int]]) -> Lag:
    """Against the ends that were seen before, which a reader may have passed since.

    Offsets of several partitions are added up.
    """
    behind = sum(max(state.end - max(offset, state.first), 0) for state, offset in parts)
    end, position = sum(state.end for state, _ in parts), sum(offset for _, offset in parts)
    return kind, name, parts[0][0].topic, position, end, behind
