"""Where a query is in its topics, and how that is written down. Pure.

A place is an offset and, once Spark has stored it, the topic's id and epoch: so a topic that was
deleted and made anew, or a log that lost records, is noticed instead of being read at offsets that
mean something else now. The JSON form `{"orders":{"0":23,"1":7}}` is what users write; Spark's
checkpoints hold `{"orders":{"0":23,"id":7,"epoch":1}}`, with `epochs` of further partitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.naming.names import quoted
from penstock.core.position import OFFSET_END
from penstock.model.errors import InvalidSetting

PARTITION: Final = "0"  # a topic in files has exactly one
_FACTS: Final = ("id", "epoch", "epochs")  # what a place has besides offsets
EARLIEST: Final = -2  # in JSON, as Spark's Kafka source has them
LATEST: Final = -1

# No topic begins with '$', so these keys cannot collide with topics in a stream's offsets.
_INITIAL: Final = "$initial"
_FROM: Final = "$from"
_RESTARTS: Final = "$restarts"


@dataclass(frozen=True, slots=True)
class Place:
    """The next offset in one topic; EARLIEST and LATEST only where users write it."""

    offset: int
    topic_id: int = 0  # 0: not known
    epoch: int = 0


Places = dict[str, Place]  # by `place_key` of a topic, as written, and a partition


def place_key(topic: str, partition: int) -> str:
    """The topic alone for its first partition; no topic's name has a slash."""
    return f"{topic}/{partition}" if partition else topic


def split_key(key: str) -> tuple[str, int]:
    """What `place_key` was made of."""
    topic, _, partition = key.partition("/")
    return topic, int(partition or 0)


def topics_in(places: Mapping[str, object]) -> tuple[str, ...]:
    """The topics whose partitions have places, each once."""
    return tuple(dict.fromkeys(split_key(key)[0] for key in places))


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """What a stream stores as the end of a micro-batch.

    `is_initial` marks what initialOffset gave, which Spark does not store and asks for again after
    a crash. The first end that is stored therefore carries it along as `start`. `restarts` makes
    the end of a micro-batch without records differ from its start.
    """

    places: Places
    is_initial: bool = False
    start: Places | None = None
    restarts: int = 0

    def to_json(self) -> dict[str, Any]:
        stored: dict[str, Any] = _stored(self.places)
        if self.is_initial:
            stored[_INITIAL] = True
        if self.start is not None:
            stored[_FROM] = _stored(self.start)
        if self.restarts:
            stored[_RESTARTS] = self.restarts
        return stored


def stream_offset(stored: Mapping[str, Any]) -> StreamOffset:
    """What `StreamOffset.to_json` gave."""
    topics = {topic: value for topic, value in stored.items() if not topic.startswith("$")}
    start = stored.get(_FROM)
    return StreamOffset(
        _places("offset", topics),
        stored.get(_INITIAL, False) is True,
        None if start is None else _places("offset", start),
        stored.get(_RESTARTS, 0),
    )


def places_text(places: Places) -> str:
    """Places as an option in JSON that holds all that is known of them."""
    return json.dumps(StreamOffset(places).to_json())


def places_from_text(option: str, text: str) -> Places:
    """An option in JSON; InvalidSetting says what is wrong with it."""
    try:
        value = json.loads(text)
    except ValueError as wrong:
        raise InvalidSetting(f"{option} {quoted(text)} is not JSON: {wrong}; {_FORM}") from None
    if not isinstance(value, dict) or not value:
        raise InvalidSetting(f"{option} {quoted(text)} names no topic; {_FORM}")
    return _places(option, value)


_FORM: Final = (
    'write {"orders":{"0":23}}, with an offset for each partition, -2 for the earliest and -1 for '
    "the latest"
)


def _stored(places: Places) -> dict[str, Any]:
    """By topic, and in it by partition."""
    stored: dict[str, Any] = {}
    for (topic, partition), place in sorted(
        (split_key(key), place) for key, place in places.items()
    ):
        facts = stored.setdefault(topic, {})
        facts[str(partition)] = place.offset
        if partition:
            facts.setdefault("id", place.topic_id - partition if place.topic_id else 0)
            facts.setdefault("epochs", {})[str(partition)] = place.epoch
        else:
            facts |= {"id": place.topic_id, "epoch": place.epoch}
    return stored


def _places(option: str, value: Mapping[str, Any]) -> Places:
    places: Places = {}
    for topic, inner in value.items():
        places |= _topic_places(option, topic, inner)
    return places


def _topic_places(option: str, topic: str, inner: Any) -> Places:
    """The places of one topic, one for each partition."""
    offsets = (
        {} if not isinstance(inner, dict) else {k: v for k, v in inner.items() if k not in _FACTS}
    )
    if not isinstance(inner, dict) or not offsets:
        raise InvalidSetting(
            f"{option}: topic {quoted(topic)} needs an offset for partition '0'; {_FORM}"
        )
    topic_id, epoch, epochs = inner.get("id", 0), inner.get("epoch", 0), inner.get("epochs", {})
    places: Places = {}
    for key, number in offsets.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 9):
            raise InvalidSetting(
                f"{option}: {quoted(key)} is not the number of a partition of topic "
                f"{quoted(topic)}; {_FORM}"
            )
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if not is_whole or not EARLIEST <= number < OFFSET_END:
            raise InvalidSetting(f"{option}: {quoted(number)} is not an offset; {_FORM}")
        partition = int(key)
        own_epoch = epochs.get(key, 0) if partition else epoch
        own_id = topic_id + partition if topic_id else 0
        places[place_key(topic, partition)] = Place(number, own_id, own_epoch)
    return places
