"""What a file declares: values without behaviour, with all checks that need no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.pipeline.declared.places import Places
from penstock.pipeline.declared.problems import Problem

ONCE: Final = "once"  # a trigger: take what is there, and end

APPEND: Final = "append"
UPDATE: Final = "update"
COMPLETE: Final = "complete"

BINARY: Final = "binary"
TEXT: Final = "text"
JSON: Final = "json"

DELTA: Final = "delta"
PARQUET: Final = "parquet"
FORMATS: Final = (DELTA, PARQUET, "csv", "json")


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Topics as a stream."""

    name: str
    topics: tuple[str, ...]
    names: str | None = None
    start: str = "earliest"
    where: str | None = None
    payload: str = BINARY  # binary, text, json, or the fields of a JSON object with their types
    event_time: str | None = None  # an expression; else the broker's timestamp
    watermark_s: float | None = None
    batch_records: int | None = None
    skips_lost: bool = False


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table, as it is when the pipeline starts."""

    name: str
    path: Path
    format: str


@dataclass(frozen=True, slots=True)
class Step:
    """A query over sources and other steps."""

    name: str
    sql: str
    reads: tuple[str, ...] = ()  # in lower case


@dataclass(frozen=True, slots=True)
class TopicSink:
    """Rows become records of a topic; without `topic` each row names its own."""

    name: str
    step: str
    topic: str | None
    mode: str


@dataclass(frozen=True, slots=True)
class TableSink:
    """Rows go into a Delta table."""

    name: str
    step: str
    path: Path
    mode: str
    partition_by: tuple[str, ...] = ()


Source = TopicSource | TableSource
Sink = TopicSink | TableSink


@dataclass(frozen=True, slots=True)
class Declaration:
    """A pipeline. Steps stand after what they read; names are unique in any letter case."""

    file: Path
    name: str
    checkpoint: Path
    trigger_s: float | None  # None: once
    partitions: int | None
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    places: Places
    unused: tuple[Problem, ...]  # told when nothing else is wrong: a misspelled FROM looks like it
