"""The topics of a declaration, looked for before Spark is started: it takes seconds to start."""

from __future__ import annotations

from penstock.core.position import AtTime, parse_position
from penstock.model.clock import SystemClock
from penstock.model.errors import InvalidPosition, RefusedError, TopicNotFound
from penstock.pipeline.connecting import origin_of
from penstock.pipeline.declared.declaration import Declaration, TopicSource
from penstock.pipeline.declared.places import Path
from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.source.offsets import Places
from penstock.pipeline.source.options import STREAM, SourceOptions, source_options, topics_text
from penstock.pipeline.source.plan import place_at, resolve


def check_topics(declared: Declaration, reading: dict[str, str]) -> None:
    """InvalidPipeline unless the topics and offsets of all sources exist."""
    problems = Problems(declared.file, declared.places.lines)
    for source in declared.sources:
        if isinstance(source, TopicSource):
            try:
                check_source(reading | options_of(source))
            except RefusedError as wrong:
                note_refusal(problems, declared, ("sources", source.name), wrong)
    problems.raise_any()


def check_source(options: dict[str, str]) -> None:
    """RefusedError unless its topics and offsets exist: Spark asks for them only in the query."""
    asked = _asked(options)
    origin = origin_of(asked.connection)
    resolve(origin, origin.states(asked.topics), asked.start, "startingOffsets")


def ends_of(options: dict[str, str]) -> Places:
    """Where the topics of a source end now."""
    asked = _asked(options)
    states = origin_of(asked.connection).states(asked.topics)
    return {state.key: place_at(state, state.end) for state in states}


def _asked(options: dict[str, str]) -> SourceOptions:
    return source_options(options, STREAM, SystemClock().now_us())


def options_of(source: TopicSource) -> dict[str, str]:
    """A source as options of `format("penstock")`."""
    options = {"topic": topics_text(source.topics), "failOnDataLoss": str(not source.skips_lost)}
    is_time = isinstance(parse_position(source.start, 1 << 62), AtTime)
    options["startingTimestamp" if is_time else "startingOffsets"] = source.start
    if source.names is not None:
        options["names"] = source.names
    if source.where is not None:
        options["where"] = source.where
    if source.watermark_s is not None:
        options["finishWindows"] = "true"
    if source.batch_records is not None:
        options["maxOffsetsPerTrigger"] = str(source.batch_records)
    return options


def note_refusal(
    problems: Problems, declared: Declaration, path: Path, wrong: RefusedError
) -> None:
    """Add an error of a source or a sink at the place of the key that it is about."""
    key = "topic" if isinstance(wrong, TopicNotFound) else ""
    if isinstance(wrong, InvalidPosition):
        key = "from"
    said = str(wrong).removeprefix("startingOffsets: ")
    problems.add(declared.places.of(*path, key), said)
