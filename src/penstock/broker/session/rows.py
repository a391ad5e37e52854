"""A session as rows of the catalog."""

from __future__ import annotations

from penstock.broker.session.session import OwnFeed, Session, Subscription
from penstock.broker.topic.topics import Topics
from penstock.catalog.session.feeds import FeedRow
from penstock.catalog.session.stored_sessions import NO_PACKET_ID, OutstandingRow, SubscriptionRow
from penstock.core.delivery.tags import (
    NO_FEED,
    make_place,
    make_tag,
    offset_of,
    stored_feed_id_of,
    topic_id_of,
)


def outstanding_rows(session: Session) -> list[OutstandingRow]:
    """What is out to the client, in the order of sending, and what must not be sent again.

    The latter was out when the client came back and is done by now; while the session's position
    (or its feed's) lies before it, only its row (without a packet id) tells that it is. What came
    from a share is left out: that is the share's to keep.
    """
    out = [one for one in session.window.items() if one[0] not in session.shared]
    rows = [
        outstanding_row(
            tag,
            packet_id,
            2 if packet_id in session.twice else 1,
            is_released=session.is_released(packet_id),
        )
        for packet_id, tag in out
    ]
    done = session.resent.difference([tag for _, tag in out])
    if done:
        lags = {feed.id: feed.lags for feed in session.feeds} | {NO_FEED: session.lags}
        for tag in done:
            row = outstanding_row(tag, NO_PACKET_ID, 2, is_released=True)
            if lags.get(row.feed_id, {}).get(row.topic_id, row.offset + 1) <= row.offset:
                rows.append(row)
    return rows


def outstanding_row(tag: int, packet_id: int, qos: int, *, is_released: bool) -> OutstandingRow:
    return OutstandingRow(
        topic_id=topic_id_of(tag),
        offset=offset_of(tag),
        packet_id=packet_id,
        qos=qos,
        is_released=is_released,
        feed_id=stored_feed_id_of(tag),
    )


def tag_of(row: OutstandingRow) -> int:
    """The opposite: the window's tag of a stored message."""
    return make_tag(make_place(row.feed_id, row.topic_id), row.offset)


def feed_rows(topics: Topics, feed: OwnFeed, offsets: dict[int, int]) -> list[FeedRow]:
    """Where a feed is in each topic that `offsets` has."""
    return [
        (feed.id, topic.id, topic.log.epoch, offsets[topic.id])
        for topic in topics.all()
        if topic.id in offsets
    ]


def subscription_row(one: Subscription) -> SubscriptionRow:
    feed = one.feed
    return SubscriptionRow(
        filter=one.filter,
        qos=one.qos,
        no_local=one.no_local,
        retain_as_published=one.retain_as_published,
        identifier=one.identifier,
        since=one.since,
        feed_id=NO_FEED if feed is None else feed.id,
        expression=feed.where.text if feed is not None and feed.where is not None else "",
    )
