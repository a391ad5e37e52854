"""From options and stored offsets to ranges of records: what a query reads, and what it lost.

Everything here runs on the driver and decides by offsets alone. A range that is shorter than asked
for is a loss, and a loss is an error unless the query says otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.core.naming.names import quoted, topic_key
from penstock.core.position import AtOffset, AtOffsets, AtTime, Earliest, Latest, Position
from penstock.model.errors import Gap, InvalidPosition, InvalidSetting
from penstock.pipeline.source.offsets import EARLIEST, LATEST, Place, Places, split_key
from penstock.pipeline.source.options import SourceOptions
from penstock.pipeline.source.origin import (
    DELETED,
    MADE_ANEW,
    SHRUNK,
    TRIMMED,
    Origin,
    Range,
    TopicState,
    lost,
)


def batch_ranges(origin: Origin, options: SourceOptions) -> list[Range]:
    """What a batch query reads."""
    states = origin.states(options.topics)
    start = resolve(origin, states, options.start, "startingOffsets")
    end = resolve(origin, states, options.end, "endingOffsets")
    return ranges_between(origin, states, start, end, fails_on_loss=options.fails_on_loss)


def resolve(
    origin: Origin, states: list[TopicState], position: Position | Places, option: str
) -> Places:
    """A place in every topic."""
    if isinstance(position, dict):
        return _named_places(states, position, option)
    return {
        state.key: place_at(state, _offset(origin, state, position, option)) for state in states
    }


def ranges_between(
    origin: Origin, states: list[TopicState], start: Places, end: Places, *, fails_on_loss: bool
) -> list[Range]:
    """The records between two places in each topic; a topic that `start` lacks is read whole."""
    now = {state.key: state for state in states}
    ranges = []
    for key, finish in end.items():
        begin = start.get(key, Place(0, finish.topic_id, finish.epoch))
        state = now.get(key)
        if state is None:
            if fails_on_loss:
                raise lost(split_key(key)[0], begin.offset, finish.offset, DELETED)
            continue
        try:
            found = _range(origin, state, begin, finish)
        except Gap:
            if fails_on_loss:
                raise
            found = _what_is_left(origin, state, begin, finish)
        if found.start < found.end:
            ranges.append(found)
    return ranges


def cut_ranges(origin: Origin, ranges: list[Range], pieces_min: int | None) -> list[Range]:
    """The ranges in pieces for tasks, in proportion to their records."""
    total = sum(one.end - one.start for one in ranges)
    pieces: list[Range] = []
    for one in ranges:
        share = -(-(pieces_min or 1) * (one.end - one.start) // total)
        pieces += origin.cut(one, share)
    return pieces


def beginning(origin: Origin, state: TopicState, place: Place | None) -> int:
    """Where reading continues after a stored position, given what is stored now."""
    if place is None or place.topic_id not in (0, state.topic_id):
        return state.first
    return max(_now(origin, state, place), state.first)


def limited(begins: dict[str, int], end: Places, records_max: int) -> Places:
    """`end` moved back so that all topics together give at most this many records."""
    waiting = {topic: max(end[topic].offset - begin, 0) for topic, begin in begins.items()}
    total = sum(waiting.values())
    if total <= records_max:
        return end
    takes = {topic: records_max * count // total for topic, count in waiting.items()}
    spare = records_max - sum(takes.values())
    # What rounding left over goes to those who got least, so that nobody starves.
    for topic in sorted(waiting, key=lambda topic: takes[topic]):
        extra = min(spare, waiting[topic] - takes[topic], 1)
        takes[topic] += extra
        spare -= extra
    return {
        topic: replace(place, offset=begins[topic] + takes[topic]) if topic in begins else place
        for topic, place in end.items()
    }


def place_at(state: TopicState, offset: int) -> Place:
    return Place(offset, state.topic_id, state.epoch)


def _offset(origin: Origin, state: TopicState, position: Position, option: str) -> int:
    match position:
        case Earliest():
            return state.first
        case Latest():
            return state.end
        case AtTime(timestamp_us):
            return origin.offset_at(state, timestamp_us)
        case AtOffset(offset):
            if state.partitions > 1:
                raise InvalidPosition(
                    f"{option}: topic {quoted(state.topic)} has {state.partitions} partitions: "
                    f'write {{"{state.topic}":{{"0":{offset},"1":…}}}} with an offset for each'
                )
            return _checked(state, offset, option)
        case AtOffsets():
            raise InvalidSetting(
                f'{option} names no topic: write {{"{state.topic}": {{"0": 23, "1": 7}}}}'
            )


def _checked(state: TopicState, offset: int, option: str) -> int:
    if offset > state.end:
        raise InvalidPosition(
            f"{option}: offset {offset} is beyond the end of {state.named}: use an "
            f"offset from {state.first} to {state.end}"
        )
    return offset


def _named_places(states: list[TopicState], given: Places, option: str) -> Places:
    wanted = {topic_key(state.key): state for state in states}
    topics = {topic_key(state.topic) for state in states}
    by_key = {topic_key(topic): place for topic, place in given.items()}
    for key in given:
        topic, partition = split_key(key)
        if topic_key(topic) in topics and topic_key(key) not in wanted:
            raise InvalidSetting(
                f"{option}: topic {quoted(topic)} has no partition {partition}: name those it has"
            )
        if topic_key(topic) not in topics:
            raise InvalidSetting(
                f"{option} names topic {quoted(topic)}, which this query does not read"
            )
    places = {}
    for key, state in wanted.items():
        if key not in by_key:
            raise InvalidSetting(
                f"{option} has no offset for {state.named}: "
                "name every topic and partition, with -2 for earliest and -1 for latest"
            )
        place = by_key[key]
        if place.offset == EARLIEST:
            place = place_at(state, state.first)
        elif place.offset == LATEST:
            place = place_at(state, state.end)
        elif not place.epoch:
            place = place_at(state, _checked(state, place.offset, option))
        places[state.key] = place
    return places


def _range(origin: Origin, state: TopicState, start: Place, end: Place) -> Range:
    """Exactly [start, end), or the Gap that says what is missing."""
    for place in (start, end):
        if place.topic_id not in (0, state.topic_id):
            raise lost(state.topic, start.offset, end.offset, MADE_ANEW)
        moved = _now(origin, state, place)
        if moved < place.offset:
            raise lost(state.topic, moved, place.offset, SHRUNK)
    if start.offset < state.first and start.offset < end.offset:
        raise lost(state.topic, start.offset, min(state.first, end.offset), TRIMMED)
    return range_of(state, start.offset, end.offset)


def _what_is_left(origin: Origin, state: TopicState, start: Place, end: Place) -> Range:
    """What of [start, end) can still be read, by those who do not mind the rest."""
    if end.topic_id not in (0, state.topic_id):
        return range_of(state, 0, 0)
    return range_of(state, beginning(origin, state, start), _now(origin, state, end))


def _now(origin: Origin, state: TopicState, place: Place) -> int:
    if place.epoch == state.epoch and place.offset <= state.end:
        return place.offset
    return origin.clamp(state, place.epoch or state.epoch, place.offset)


def range_of(state: TopicState, start: int, end: int) -> Range:
    """[start, end) of a partition."""
    return Range(
        topic=state.topic,
        topic_id=state.topic_id,
        epoch=state.epoch,
        start=start,
        end=end,
        partition=state.partition,
    )
