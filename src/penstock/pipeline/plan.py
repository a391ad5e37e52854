"""From options and stored offsets to ranges of records: what a query reads, and what it lost.

Everything here runs on the driver and decides by offsets alone. A range that is shorter than asked
for is a loss, and a loss is an error unless the query says otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.core.names import quoted, topic_key
from penstock.core.position import AtOffset, AtTime, Earliest, Latest, Position
from penstock.model.errors import Gap, InvalidPosition, InvalidSetting
from penstock.pipeline.offsets import EARLIEST, LATEST, Place, Places
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.origin import Origin, Range, TopicState, lost

_TRIMMED = "retention dropped them before they were read; keep them longer (retention_age)"
_SHRUNK = "the log lost them, or an older copy took its place"


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
        state.topic: _place(state, _offset(origin, state, position, option)) for state in states
    }


def ranges_between(
    origin: Origin, states: list[TopicState], start: Places, end: Places, *, fails_on_loss: bool
) -> list[Range]:
    """The records between two places in each topic; a topic that `start` lacks is read whole."""
    now = {state.topic: state for state in states}
    ranges = []
    for topic, finish in end.items():
        begin = start.get(topic, Place(0, finish.topic_id, finish.epoch))
        state = now.get(topic)
        if state is None:
            if fails_on_loss:
                raise lost(topic, begin.offset, finish.offset, "the topic was deleted")
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


def limited(start: Places, end: Places, records_max: int) -> Places:
    """`end` moved back so that all topics together give at most this many records."""
    waiting = {
        topic: max(place.offset - start[topic].offset, 0)
        for topic, place in end.items()
        if topic in start
    }
    total = sum(waiting.values())
    if total <= records_max:
        return end
    takes = {topic: records_max * count // total for topic, count in waiting.items()}
    spare = records_max - sum(takes.values())
    for topic, count in waiting.items():  # what rounding left over, so that nobody starves
        extra = min(spare, count - takes[topic], 1)
        takes[topic] += extra
        spare -= extra
    return {
        topic: replace(place, offset=start[topic].offset + takes[topic])
        for topic, place in end.items()
    }


def _place(state: TopicState, offset: int) -> Place:
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
            return _checked(state, offset, option)


def _checked(state: TopicState, offset: int, option: str) -> int:
    if offset > state.end:
        raise InvalidPosition(
            f"{option}: offset {offset} is beyond the end of topic {quoted(state.topic)}, "
            f"which holds {state.first} up to {state.end}"
        )
    return offset


def _named_places(states: list[TopicState], given: Places, option: str) -> Places:
    wanted = {topic_key(state.topic): state for state in states}
    by_key = {topic_key(topic): place for topic, place in given.items()}
    for topic in given:
        if topic_key(topic) not in wanted:
            raise InvalidSetting(
                f"{option} names topic {quoted(topic)}, which this query does not read"
            )
    places = {}
    for key, state in wanted.items():
        if key not in by_key:
            raise InvalidSetting(
                f"{option} has no offset for topic {quoted(state.topic)}: "
                "name every topic, with -2 for earliest and -1 for latest"
            )
        place = by_key[key]
        if place.offset == EARLIEST:
            place = _place(state, state.first)
        elif place.offset == LATEST:
            place = _place(state, state.end)
        elif not place.epoch:
            place = _place(state, _checked(state, place.offset, option))
        places[state.topic] = place
    return places


def _range(origin: Origin, state: TopicState, start: Place, end: Place) -> Range:
    """Exactly [start, end), or the Gap that says what is missing."""
    for place in (start, end):
        if place.topic_id not in (0, state.topic_id):
            raise lost(
                state.topic, start.offset, end.offset, "the topic was deleted and created anew"
            )
        moved = _now(origin, state, place)
        if moved < place.offset:
            raise lost(state.topic, moved, place.offset, _SHRUNK)
    if start.offset < state.first and start.offset < end.offset:
        raise lost(state.topic, start.offset, min(state.first, end.offset), _TRIMMED)
    return _plain(state, start.offset, end.offset)


def _what_is_left(origin: Origin, state: TopicState, start: Place, end: Place) -> Range:
    """What of [start, end) can still be read, by those who do not mind the rest."""
    if end.topic_id not in (0, state.topic_id):
        return _plain(state, 0, 0)
    is_new = start.topic_id not in (0, state.topic_id)
    begin = 0 if is_new else _now(origin, state, start)
    return _plain(state, max(begin, state.first), _now(origin, state, end))


def _now(origin: Origin, state: TopicState, place: Place) -> int:
    if place.epoch == state.epoch and place.offset <= state.end:
        return place.offset
    return origin.clamp(state, place.epoch or state.epoch, place.offset)


def _plain(state: TopicState, start: int, end: int) -> Range:
    return Range(state.topic, state.topic_id, state.epoch, start, end)
