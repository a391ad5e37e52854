"""Tags: where a message that is out to a client lies, as one integer.

A window remembers a tag for each packet id. From the lowest bit on, a tag is 48 bits of offset,
32 bits of topic id and a feed id; the feed id and the topic id together are a *place*. The next
offset of a place is the next tag. Hot loops use the constants, everything else the functions.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

TAG_SHIFT: Final = 48  # a tag is place << TAG_SHIFT | offset
OFFSET_MASK: Final = (1 << TAG_SHIFT) - 1
PLACE_SHIFT: Final = 32  # a place is feed id << PLACE_SHIFT | topic id
TOPIC_MASK: Final = (1 << PLACE_SHIFT) - 1
NO_FEED: Final = 0  # feed id of what a plain subscription or a share brings: its place is the topic
# In a feed id: sent because it was retained. The same message may be out a second time, sent live.
RETAINED_FEED: Final = 1 << 30


def make_place(feed_id: int, topic_id: int) -> int:
    return feed_id << PLACE_SHIFT | topic_id


def retained_place(place: int) -> int:
    """The place of messages that are sent from it because they are retained."""
    return place | RETAINED_FEED << PLACE_SHIFT


def make_tag(place: int, offset: int) -> int:
    return place << TAG_SHIFT | offset


def offset_of(tag: int) -> int:
    return tag & OFFSET_MASK


def topic_id_of(tag: int) -> int:
    return tag >> TAG_SHIFT & TOPIC_MASK


def stored_feed_id_of(tag: int) -> int:
    """The feed id with RETAINED_FEED, if that is in it: as the catalog has it."""
    return tag >> (TAG_SHIFT + PLACE_SHIFT)


def feed_id_of(tag: int) -> int:
    return stored_feed_id_of(tag) & ~RETAINED_FEED


def is_retained(tag: int) -> bool:
    """Was the message sent because it was retained?"""
    return stored_feed_id_of(tag) & RETAINED_FEED != 0
