"""A file becomes a `Declaration`, or an InvalidPipeline that tells everything wrong with it.

Needs no Spark and no broker: keys, types, positions, filters, triggers, names, cycles, and steps
that nobody reads. Paths in a file are relative to the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.core.naming.names import check_filter, check_topic, quoted
from penstock.model.errors import InvalidPipeline, RefusedError
from penstock.pipeline.declared.declaration import (
    APPEND,
    BINARY,
    COMPLETE,
    DELTA,
    FORMATS,
    PARQUET,
    UPDATE,
    Declaration,
    Sink,
    Source,
    Step,
    TableSink,
    TableSource,
    TopicSink,
    TopicSource,
)
from penstock.pipeline.declared.order import find_unused, put_in_order
from penstock.pipeline.declared.places import Place, Places, find_places
from penstock.pipeline.declared.problems import Problems, nearest
from penstock.pipeline.declared.values import (
    a_count,
    a_duration,
    a_position,
    a_text,
    a_trigger,
    a_where,
    one_of,
    some_texts,
    some_topics,
    yes_or_no,
)
from penstock.pipeline.declared.words import is_query, tables_of

T = TypeVar("T")

FILE_BYTES_MAX: Final = 1 << 20
TABLES: Final = ("pipeline", "sources", "steps", "sinks")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_BAD_TOML: Final = re.compile(
    r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL
)
_PIPELINE_KEYS: Final = ("name", "checkpoint", "trigger", "partitions")
_TOPIC_KEYS: Final = (
    *("topic", "names", "from", "where", "payload", "event_time", "watermark"),
    *("batch_records", "skip_lost"),
)
_TABLE_KEYS: Final = ("table", "format")
_STEP_KEYS: Final = ("sql",)
_SINK_KEYS: Final = ("step", "topic", "table", "mode", "partition_by")


def read_declaration(file: Path) -> Declaration:
    """What the file declares; InvalidPipeline has every problem with its line."""
    text = _read(file)
    lines = text.split("\n")
    problems = Problems(file, lines)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        problems.add(*_toml_problem(str(wrong), lines))
        problems.raise_any()
        raise AssertionError("a problem was added") from wrong
    declaration = _Reader(file, document, find_places(text), problems).declaration()
    problems.raise_any()
    return declaration


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as failed:
        raise InvalidPipeline(f"{file} cannot be read: {failed.strerror}") from failed
    if len(content) > FILE_BYTES_MAX:
        raise InvalidPipeline(
            f"{file} is larger than {FILE_BYTES_MAX:,} bytes: give the file of a pipeline"
        )
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as wrong:
        raise InvalidPipeline(f"{file} is not UTF-8: {wrong}") from wrong


def _toml_problem(said: str, lines: list[str]) -> tuple[Place, str]:
    match = _BAD_TOML.fullmatch(said)
    what = match[1] if match else said
    if match and match[2]:
        return Place(int(match[2]), int(match[3])), f"the file is not valid TOML: {what}"
    return Place(len(lines), 1), f"the file is not valid TOML: {what} at the end of the file"


class _Reader:
    """One reading of one file."""

    def __init__(
        self, file: Path, document: dict[str, Any], places: Places, problems: Problems
    ) -> None:
        self._file = file
        self._document = document
        self._places = places
        self._problems = problems

    def declaration(self) -> Declaration:
        for key in self._document:
            if key not in TABLES:
                said = f"unknown table or key {key!r}: {nearest(key, TABLES)}"
                self._problem(said, key)
        pipeline = self._table(self._document.get("pipeline", {}), ("pipeline",), _PIPELINE_KEYS)
        name = pipeline.get("name", a_text, self._file.stem)
        checkpoint = pipeline.get("checkpoint", self._path, self._path(f"{name}.checkpoint"))
        trigger_s = pipeline.get("trigger", a_trigger, None)
        partitions = pipeline.get("partitions", lambda value: a_count(value, 10_000), None)
        sources: list[Source] = self._all("sources", self._source)
        steps: list[Step] = self._all("steps", self._step)
        sinks: list[Sink] = self._all("sinks", self._sink)
        self._problems.raise_any()  # what was not understood would be missed below
        steps = put_in_order(sources, steps, sinks, self._places, self._problems)
        unused = find_unused(sources, steps, sinks, self._places)
        return Declaration(
            file=self._file,
            name=name,
            checkpoint=checkpoint,
            trigger_s=trigger_s,
            partitions=partitions,
            sources=tuple(sources),
            steps=tuple(steps),
            sinks=tuple(sinks),
            places=self._places,
            unused=tuple(unused),
        )

    # Tables

    def _all(self, kind: str, read: Callable[[str, Any], T | None]) -> list[T]:
        """The tables [kind.NAME]; a file without one of a kind does nothing."""
        given = self._document.get(kind, {})
        if not isinstance(given, dict):
            self._problem(f"{kind} is not a table: write [{kind}.NAME]", kind)
            return []
        if not given and kind != "steps":
            self._problem(f"[{kind}] is empty: write [{kind}.NAME], with {_NEEDS[kind]}", kind)
        found = []
        for name, value in given.items():
            if not _NAME.fullmatch(name):
                self._problem(
                    f"{quoted(name)} is not a valid name in SQL: use at most 128 letters, digits "
                    "and _",
                    *(kind, name),
                )
            one = read(name, value)
            if one is not None:
                found.append(one)
        return found

    def _source(self, name: str, value: Any) -> Source | None:
        path = ("sources", name)
        has_table = isinstance(value, dict) and "table" in value and "topic" not in value
        keys = _TABLE_KEYS if has_table else _TOPIC_KEYS
        table = self._table(value, path, keys, others=(*_TABLE_KEYS, *_TOPIC_KEYS))
        if has_table:
            where = table.get("table", self._path, self._file)
            guess = DELTA if (where / "_delta_log").is_dir() else PARQUET
            return TableSource(name, where, table.get("format", one_of(FORMATS), guess))
        topics = table.get("topic", some_topics, None)
        if "topic" not in table.given and table.is_table:
            self._problem(
                f"source {name!r} has neither 'topic' nor 'table': give one of them", *path
            )
        start = table.get("from", lambda value: a_position(value, topics), "earliest")
        return TopicSource(
            name=name,
            topics=topics or (),
            names=table.get("names", lambda value: check_filter(a_text(value)), None),
            start=start,
            where=table.get("where", a_where, None),
            payload=table.get("payload", a_text, BINARY),
            event_time=table.get("event_time", a_text, None),
            watermark_s=table.get("watermark", a_duration, None),
            batch_records=table.get("batch_records", a_count, None),
            skips_lost=table.get("skip_lost", yes_or_no, False),
        )

    def _step(self, name: str, value: Any) -> Step | None:
        table = self._table(value, ("steps", name), _STEP_KEYS)
        sql = table.needed("sql", a_text)
        if sql is None:
            return None
        sql = sql.rstrip()
        if not is_query(sql):
            self._problem(
                f"step {name!r} is not a query: it must begin with SELECT, WITH, FROM or VALUES, "
                "and must not change data",
                *("steps", name, "sql"),
            )
            return None
        return Step(name, sql.removesuffix(";"), tables_of(sql))

    def _sink(self, name: str, value: Any) -> Sink | None:
        path = ("sinks", name)
        table = self._table(value, path, _SINK_KEYS)
        step = table.needed("step", a_text)
        if "topic" in table.given and "table" in table.given:
            self._problem(f"sink {name!r} has both a topic and a table: declare two sinks", *path)
        if step is None:
            return None
        if "table" not in table.given:
            if "partition_by" in table.given:
                self._problem("partition_by is only for tables: remove it", *path, "partition_by")
            topic = table.get("topic", lambda value: check_topic(a_text(value)), None)
            mode = table.get("mode", one_of((APPEND, UPDATE), _ONLY_GROWS), APPEND)
            return TopicSink(name, step, topic, mode)
        where = table.get("table", self._path, self._file)
        mode = table.get("mode", one_of((APPEND, COMPLETE), _NO_UPDATE), APPEND)
        partition_by = table.get("partition_by", some_texts, ())
        return TableSink(name, step, where, mode, partition_by)

    # Parts

    def _table(
        self, value: Any, path: tuple[str, ...], keys: tuple[str, ...], others: Iterable[str] = ()
    ) -> _Table:
        return _Table(
            value, path, keys, others=tuple(others), places=self._places, problems=self._problems
        )

    def _path(self, value: Any) -> Path:
        text = a_text(value)
        if "://" in text:
            raise RefusedError(f"{quoted(text)} is a URL: give a directory on this machine")
        return (self._file.absolute().parent / text).absolute()

    def _problem(self, said: str, *path: str) -> None:
        self._problems.add(self._places.of(*path), said)


class _Table:
    """One table of the file. Problems are gathered; what is wrong counts as not given."""

    def __init__(
        self,
        value: Any,
        path: tuple[str, ...],
        keys: tuple[str, ...],
        others: tuple[str, ...],
        places: Places,
        problems: Problems,
    ) -> None:
        self._path = path
        self._places = places
        self._problems = problems
        self.is_table = isinstance(value, dict)
        self.given: dict[str, Any] = value if self.is_table else {}
        if not self.is_table:
            self._problem(f"{'.'.join(path)} is not a table: write [{'.'.join(path)}]")
        for key in self.given:
            if key not in keys:
                self._problem(f"{_unknown_key(key, path, keys, others)}", key)

    def get(self, key: str, check: Callable[[Any], T], default: Any) -> Any:
        """The checked value; of one that is missing or wrong the default."""
        if key not in self.given:
            return default
        try:
            return check(self.given[key])
        except RefusedError as wrong:
            self._problem(f"{key}: {wrong}", key)
            return default

    def needed(self, key: str, check: Callable[[Any], T]) -> T | None:
        if self.is_table and key not in self.given:
            self._problem(f"{key!r} is missing in [{'.'.join(self._path)}]")
        found: T | None = self.get(key, check, None)
        return found

    def _problem(self, said: str, *below: str) -> None:
        self._problems.add(self._places.of(*self._path, *below), said)


_NEEDS: Final = {"sources": "topic or table", "sinks": "step, and topic or table"}
_ONLY_GROWS: Final = "a topic only grows"
_NO_UPDATE: Final = "rows of a table are not updated one by one"


def _unknown_key(
    key: str, path: tuple[str, ...], keys: Iterable[str], others: Iterable[str]
) -> str:
    head = f"unknown key {key!r} in [{'.'.join(path)}]"
    if key in others:
        return f"{head}: it belongs to a source with {'table' if key in _TABLE_KEYS else 'topic'}"
    return f"{head}: {nearest(key, keys)}"
