"""Does a tag tell where a message lies, whatever it was made of?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.tags import (
    RETAINED_FEED,
    feed_id_of,
    is_retained,
    make_place,
    make_tag,
    offset_of,
    retained_place,
    stored_feed_id_of,
    topic_id_of,
)

FEEDS = st.integers(0, RETAINED_FEED - 1)
TOPICS = st.integers(0, 2**32 - 1)
OFFSETS = st.integers(0, 2**48 - 2)


@given(FEEDS, TOPICS, OFFSETS, st.booleans())
def test_a_tag_gives_back_what_it_was_made_of(
    feed_id: int, topic_id: int, offset: int, retained: bool
) -> None:
    place = make_place(feed_id, topic_id)
    if retained:
        place = retained_place(place)
    tag = make_tag(place, offset)
    assert (feed_id_of(tag), topic_id_of(tag), offset_of(tag)) == (feed_id, topic_id, offset)
    assert is_retained(tag) == retained
    assert place == make_place(stored_feed_id_of(tag), topic_id)


@given(FEEDS, TOPICS, OFFSETS)
def test_neighbours_in_a_place_have_neighbouring_tags(
    feed_id: int, topic_id: int, offset: int
) -> None:
    place = make_place(feed_id, topic_id)
    assert make_tag(place, offset) + 1 == make_tag(place, offset + 1)


@given(TOPICS)
def test_without_a_feed_the_place_is_the_topic(topic_id: int) -> None:
    assert make_place(0, topic_id) == topic_id
