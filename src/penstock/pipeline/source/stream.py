"""A topic as a stream: what Spark asks of a streaming source, micro-batch after micro-batch.

Spark keeps the end of each micro-batch before it reads it, and the start of none. So the end of the
first one carries the start along: whatever is planned once is planned again the same way, also
when the driver died before the first micro-batch was done, and although topics have grown or lost
records since (docs/decisions, "The first end carries the start").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.core.naming.names import topic_key
from penstock.pipeline.settling import settle
from penstock.pipeline.source.offsets import Place, Places, StreamOffset, split_key, stream_offset
from penstock.pipeline.source.options import SourceOptions
from penstock.pipeline.source.origin import (
    DELETED,
    LEFT_OUT,
    Origin,
    Range,
    TopicState,
    Wanted,
    lost,
)
from penstock.pipeline.source.plan import (
    beginning,
    cut_ranges,
    limited,
    place_at,
    ranges_between,
    resolve,
)


@dataclass(frozen=True)
class Piece(InputPartition):
    """What one task reads; None: nothing."""

    range: Range | None


def pieces_of(
    origin: Origin, ranges: list[Range], options: SourceOptions
) -> Sequence[InputPartition]:
    return [Piece(piece) for piece in cut_ranges(origin, ranges, options.pieces_min)]


def read_piece(origin: Origin, partition: InputPartition, wanted: Wanted) -> Iterator[Any]:
    """The Arrow batches of a task."""
    assert isinstance(partition, Piece)
    found = iter(()) if partition.range is None else origin.scan(partition.range, wanted)
    settle()
    return found


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. On the driver it lives as long as the query; tasks only call `read`."""

    def __init__(self, origin: Origin, options: SourceOptions, wanted: Wanted) -> None:
        self._origin = origin
        self._options = options
        self._wanted = wanted
        self._initial: StreamOffset | None = None
        self._target: Places | None = None  # of `availableNow`: nothing past it is read
        # Windows that were complete when the query ended come out in its next micro-batch, which
        # Spark would not run before the next record.
        self._owes_batch = options.finishes_windows

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            states = self._origin.states(self._options.topics)
            start = resolve(self._origin, states, self._options.start, "startingOffsets")
            self._initial = StreamOffset(start, is_initial=True)
        return self._initial.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = _ends(self._states())

    def getDefaultReadLimit(self) -> ReadLimit:
        records_max = self._options.records_max
        return ReadAllAvailable() if records_max is None else ReadMaxRows(records_max)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = stream_offset(start)
        states = {state.key: state for state in self._states()}
        if self._options.fails_on_loss:
            for topic, place in begun.places.items():
                if topic not in states:
                    name = split_key(topic)[0]
                    raise lost(name, place.offset, 0, self._why_gone(name))
        ends = _ends(states.values()) if self._target is None else self._target
        begins = {
            topic: beginning(self._origin, state, begun.places.get(topic))
            for topic, state in states.items()
            if topic in ends
        }
        # Never behind the start, and a topic that is gone keeps its place.
        ends = begun.places | {
            topic: Place(max(place.offset, begins[topic]), place.topic_id, place.epoch)
            for topic, place in ends.items()
            if topic in begins
        }
        if isinstance(limit, ReadMaxRows):
            ends = limited(begins, ends, limit.max_rows)
        owes_batch, self._owes_batch = self._owes_batch, False
        if begun.is_initial:
            return StreamOffset(ends, start=begun.places).to_json()
        if owes_batch and ends == begun.places:
            return StreamOffset(ends, restarts=begun.restarts + 1).to_json()
        # Nothing new must be the very same text, or Spark runs a micro-batch for it.
        return dict(start) if ends == begun.places else StreamOffset(ends).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        return StreamOffset(_ends(self._states())).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[Any]:
        begun, ended = stream_offset(start), stream_offset(end)
        first = begun.places
        if begun.is_initial and ended.start is not None:
            first = ended.start
        ranges = ranges_between(
            self._origin,
            self._states(),
            first,
            ended.places,
            fails_on_loss=self._options.fails_on_loss,
        )
        return pieces_of(self._origin, ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_piece(self._origin, partition, self._wanted)

    def _why_gone(self, topic: str) -> str:
        asked = {topic_key(one) for one in self._options.topics}
        return LEFT_OUT if asked and topic_key(topic) not in asked else DELETED

    def _states(self) -> list[TopicState]:
        """The topics of this query that are there now."""
        topics = self._options.topics
        return self._origin.states(topics, missing_ok=True)


def _ends(states: Any) -> Places:
    return {state.key: place_at(state, state.end) for state in states}
