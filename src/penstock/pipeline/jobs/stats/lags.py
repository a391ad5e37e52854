"""How far the readers of topics are behind: as the catalog has it, or as a running broker tells."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from penstock.catalog.outside import CatalogPlace, look, see_consumers
from penstock.model.errors import TopicNotFound
from penstock.model.record import TenantId
from penstock.pipeline.link import BrokerLink, topic_path
from penstock.pipeline.source.origin import Origin, TopicState

# consumer or group, its name, topic, position, the topic's end, lag
Lag = tuple[str, str, str, int, int, int]


class _Consumer(msgspec.Struct):
    consumer: str
    next_offset: int


class _Group(msgspec.Struct):
    group: str
    next_offset: int


class _Consumers(msgspec.Struct):
    consumers: list[_Consumer]


class _Groups(msgspec.Struct):
    groups: list[_Group]


def saved_lags(
    place: CatalogPlace, tenant: TenantId, origin: Origin, states: list[TopicState]
) -> list[Lag]:
    """By the positions that are saved, which may be a second old."""
    by_id = {state.topic_id: state for state in states}
    with look(place) as fetch:
        seen = see_consumers(fetch, tenant)
    rows = []
    for one in seen:
        state = by_id.get(one.topic_id)
        if state is not None:
            offset = origin.clamp(state, one.epoch, one.next_offset)
            rows.append(_lag(one.kind, one.name, state, offset))
    return rows


def told_lags(link: BrokerLink, states: list[TopicState]) -> list[Lag]:
    """By the positions that readers have now."""
    rows = []
    for state in states:
        with suppress(TopicNotFound):  # it went meanwhile, and its readers with it
            body = bytes(link.ask("GET", topic_path(state.topic, "consumers")).body)
            consumers = msgspec.json.decode(body, type=_Consumers).consumers
            rows += [_lag("consumer", one.consumer, state, one.next_offset) for one in consumers]
            body = bytes(link.ask("GET", topic_path(state.topic, "groups")).body)
            groups = msgspec.json.decode(body, type=_Groups).groups
            rows += [_lag("group", one.group, state, one.next_offset) for one in groups]
    return rows


def _lag(kind: str, name: str, state: TopicState, offset: int) -> Lag:
    """Against the end that was seen before, which a reader may have passed since."""
    behind = max(state.end - max(offset, state.first), 0)
    return kind, name, state.topic, offset, state.end, behind
