"""What is kept of a session while its client is away, as the catalog has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.catalog.cluster.share_parts import StoredPin
from penstock.catalog.database.interface import Database
from penstock.catalog.session.feeds import FeedPositions, load_feeds
from penstock.core.delivery.tags import RETAINED_FEED
from penstock.model.record import TenantId

NO_PACKET_ID: Final = 0  # of an outstanding row that is done, and kept so that it is not sent again


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """One filter of a persistent session. `since` is the end of each topic when it was made."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int
    since: dict[int, int]
    feed_id: int = 0  # 0: it has no feed of its own
    expression: str = ""  # of the feed; empty: everything passes


@dataclass(frozen=True, slots=True)
class OutstandingRow:
    """A message sent and not known to be done."""

    topic_id: int
    offset: int
    packet_id: int
    qos: int
    is_released: bool
    feed_id: int = 0  # of the subscription it was sent for, if that has one; with RETAINED_FEED


@dataclass(frozen=True, slots=True)
class StoredSession:
    """All that is kept of a session while its client is away."""

    client_id: str
    incarnation: int
    expiry_s: int
    subscriptions: list[SubscriptionRow]
    positions: dict[int, tuple[int, int]]  # topic id -> epoch, next offset
    outstanding: list[OutstandingRow]  # in the order of sending, as far as offsets tell
    opened: list[tuple[int, int]]  # QoS 2 received and not released: topic id, packet id
    feeds: FeedPositions = field(default_factory=dict)
    pins: list[StoredPin] = field(default_factory=list)  # of shares, where several nodes have them

    @property
    def feed_id_last(self) -> int:
        """The highest id of a feed that anything stored speaks of."""
        used = [row.feed_id for row in self.subscriptions]
        used += [row.feed_id & ~RETAINED_FEED for row in self.outstanding]
        return max([*used, *self.feeds, 0])


def no_session(client_id: str) -> StoredSession:
    """Of a client of which nothing is kept."""
    return StoredSession(
        client_id=client_id,
        incarnation=0,
        expiry_s=0,
        subscriptions=[],
        positions={},
        outstanding=[],
        opened=[],
    )


def load_session(database: Database, tenant: TenantId, client_id: str) -> StoredSession:
    key = (tenant, client_id)
    ((incarnation, expiry_s),) = database.fetch(
        "select incarnation, expiry_s from sessions where tenant = $1 and client_id = $2", *key
    )
    subscriptions = database.fetch(
        "select filter, qos, options, identifier, since, feed_id, expression from subscriptions"
        " where tenant = $1 and client_id = $2",
        *key,
    )
    positions = database.fetch(
        "select topic_id, epoch, next_offset from session_positions"
        " where tenant = $1 and client_id = $2",
        *key,
    )
    outstanding = database.fetch(
        "select topic_id, message_offset, packet_id, qos, is_released, feed_id from outstanding"
        " where tenant = $1 and client_id = $2 order by topic_id, message_offset, feed_id",
        *key,
    )
    opened = database.fetch(
        "select topic_id, packet_id from opened where tenant = $1 and client_id = $2", *key
    )
    return StoredSession(
        client_id=client_id,
        incarnation=incarnation,
        expiry_s=expiry_s,
        subscriptions=[
            SubscriptionRow(
                filter=filter,
                qos=qos,
                no_local=bool(options & 1),
                retain_as_published=bool(options & 2),
                identifier=identifier,
                since=msgspec.json.decode(since, type=dict[int, int]),
                feed_id=feed_id,
                expression=expression,
            )
            for filter, qos, options, identifier, since, feed_id, expression in subscriptions
        ],
        positions={topic_id: (epoch, offset) for topic_id, epoch, offset in positions},
        outstanding=[
            OutstandingRow(topic_id=a, offset=b, packet_id=c, qos=d, is_released=bool(e), feed_id=f)
            for a, b, c, d, e, f in outstanding
        ],
        opened=[(topic_id, packet_id) for topic_id, packet_id in opened],
        feeds=load_feeds(database, tenant, client_id),
    )
