"""`format("penstock")` for writing: tasks stage batches, the driver hands them over.

A streaming query writes each micro-batch exactly once: its files are handed over under the query's
id and the micro-batch's number, which stay the same when Spark tries again, also after a crash.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DataType,
    MapType,
    StringType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from penstock.log.staging.area import StagedFile
from penstock.model.errors import InvalidSetting
from penstock.pipeline.settling import settle
from penstock.pipeline.sink.intake import Intake

COLUMNS: Final = ("payload", "name", "topic", "headers")
_KAFKA_COLUMNS: Final = {"key": "name", "value": "payload"}
_NO_JSON: Final = (VariantType, YearMonthIntervalType, CalendarIntervalType)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task staged."""

    source: str
    partition: int
    files: list[StagedFile]


class BatchWriter(DataSourceArrowWriter):
    """One write; a source of its own unless an idempotency key names it."""

    def __init__(self, intake: Intake, topic: str | None, key: str | None, number: int = 0) -> None:
        self._intake = intake
        self._topic = topic
        self._source = f"write {uuid.uuid4()}" if key is None else f"key {key}"
        self._number = number
        self._is_only = key is None

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write(self._intake, self._topic, self._source, self._number, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = _files(messages)
        if files:
            self._intake.hand_over(self._source, self._number, files, is_only=self._is_only)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._intake.discard(self._source, _files(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """One streaming query."""

    def __init__(self, intake: Intake, topic: str | None) -> None:
        self._intake = intake
        self._topic = topic

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        query = _context().getLocalProperty("sql.streaming.queryId")
        number = _context().getLocalProperty("streaming.sql.batchId")
        assert query is not None and number is not None, "Spark sets both for streaming queries"
        return _write(self._intake, self._topic, f"query {query}", int(number), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        files = _files(messages)
        if files:
            self._intake.hand_over(_source(messages), batchId, files, is_only=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        files = _files(messages)
        if files:
            self._intake.discard(_source(messages), files)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    return context


def _write(
    intake: Intake, topic: str | None, source: str, number: int, rows: Iterator[Any]
) -> Written:
    from penstock.pipeline.sink.writing import TaskWrite  # pyarrow: only tasks need it

    settle()
    partition = _context().partitionId()
    task = TaskWrite(intake, topic, source, number, partition)
    return Written(source, partition, task.write(rows))


def _written(messages: list[WriterCommitMessage | None]) -> list[Written]:
    """In the order of the partitions; a failed task has left none."""
    found = [message for message in messages if isinstance(message, Written)]
    return sorted(found, key=lambda message: message.partition)


def _files(messages: list[WriterCommitMessage | None]) -> list[StagedFile]:
    return [file for message in _written(messages) for file in message.files]


def _source(messages: list[WriterCommitMessage | None]) -> str:
    return _written(messages)[0].source


# What may be written


def check_columns(schema: StructType, topic: str | None) -> None:
    """Refuse a DataFrame that does not say what to publish where."""
    for field in schema:
        if field.name not in COLUMNS:
            near = [_KAFKA_COLUMNS[field.name]] if field.name in _KAFKA_COLUMNS else []
            near += difflib.get_close_matches(field.name, COLUMNS, 1)
            hint = f"did you mean {near[0]!r}?" if near else "select the columns to be written"
            raise InvalidSetting(
                f"column {field.name!r} cannot be written to a topic; allowed columns are "
                f"{', '.join(COLUMNS)}: {hint}"
                "; other columns can go into the payload as struct(…)"
            )
        _check_type(field.name, field.dataType)
    names = schema.names
    if "payload" not in names:
        raise InvalidSetting("column 'payload' is missing: it contains what is published")
    if "topic" in names and topic is not None:
        raise InvalidSetting("the topic is given twice: as an option and as a column")
    if "topic" not in names and topic is None:
        raise InvalidSetting("no topic is given: set the option 'topic', or add a column topic")


def _check_type(name: str, kind: DataType) -> None:
    if name == "payload":
        is_right = isinstance(kind, BinaryType | StringType | StructType)
        wanted = "binary, string, or a struct, which becomes JSON"
    elif name == "headers":
        is_right = (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, StringType)
        )
        wanted = "map<string,string>"
    else:
        is_right = isinstance(kind, StringType)
        wanted = "string"
    if not is_right:
        raise InvalidSetting(
            f"column {name!r} is {kind.simpleString()} and must be {wanted}: cast it"
        )
    if isinstance(kind, StructType):
        _check_json(name, kind)


def _check_json(path: str, kind: DataType) -> None:
    """Refuse what nobody would know again in JSON, in whatever it is."""
    is_odd_map = isinstance(kind, MapType) and isinstance(kind.keyType, StructType | ArrayType)
    if is_odd_map or isinstance(kind, _NO_JSON):
        raise InvalidSetting(
            f"{path} is {kind.simpleString()}, which cannot be converted to JSON: cast it, for "
            "example to string, or write to_json(payload) AS payload"
        )
    if isinstance(kind, StructType):
        for field in kind:
            _check_json(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_json(f"{path}[]", kind.elementType)
    elif isinstance(kind, MapType):
        _check_json(f"{path}[]", kind.valueType)
