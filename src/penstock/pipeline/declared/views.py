"""A declaration becomes DataFrames: sources and steps as views, each checked by Spark.

Nothing runs here: Spark parses and analyses. Its errors are reported with their line in the
file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from penstock.model.errors import RefusedError
from penstock.pipeline.declared.declaration import (
    BINARY,
    COMPLETE,
    DELTA,
    JSON,
    TEXT,
    Declaration,
    Sink,
    Source,
    Step,
    TableSource,
    TopicSink,
    TopicSource,
)
from penstock.pipeline.declared.explaining import explain, explain_streaming, quiet_errors
from penstock.pipeline.declared.files import read_files
from penstock.pipeline.declared.order import inputs_of
from penstock.pipeline.declared.places import Path
from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.tables import check_partitions, check_table
from penstock.pipeline.declared.topics import check_source, note_refusal, options_of
from penstock.pipeline.declared.words import may_use
from penstock.pipeline.delta.rows import read_delta
from penstock.pipeline.source.options import topics_text
from penstock.pipeline.source.source import SCHEMA, PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_TIME: Final = "event_time"
# Of a topic sink's rows these are not part of the payload.
_BESIDE_PAYLOAD: Final = ("name", "topic", "headers")


class Views:
    """The sources and steps of a declaration, as views of their own Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        declared: Declaration,
        reading: dict[str, str],
        writing: dict[str, str],
        *,
        prunes: bool = False,
    ) -> None:
        self._spark = spark
        self._prunes = prunes  # columns that nobody uses are not read
        self._declared = declared
        self._reading = reading  # where the topics are: options of the source, and of the sink
        self._writing = writing
        self._problems = Problems(declared.file, declared.places.lines)
        self.frames: dict[str, DataFrame] = {}  # by name, in lower case
        self.outputs: dict[str, DataFrame] = {}  # what each sink writes
        with quiet_errors():
            for source in declared.sources:
                self._make(("sources", source.name), source)
            for step in declared.steps:
                self._make(("steps", step.name, "sql"), step)
            for sink in declared.sinks:
                if sink.step.lower() in self.frames:
                    self._make_output(sink)
        self._problems.raise_any()
        self._problems.add_all(declared.unused)
        self._problems.raise_any()

    def _make(self, path: Path, one: Source | Step) -> None:
        if isinstance(one, Step) and any(name not in self.frames for name in one.reads):
            return  # the reason is known already
        sql = one.sql if isinstance(one, Step) else ""
        with suppress(_Noted), self._noting(path, sql):
            if isinstance(one, TopicSource):
                frame = self._stream(one)
            elif isinstance(one, TableSource):
                frame = self._table(one)
            else:
                frame = self._spark.sql(one.sql)
            frame.createTempView(one.name)
            self.frames[one.name.lower()] = frame

    def _stream(self, source: TopicSource) -> DataFrame:
        from pyspark.sql import functions as sf

        path = ("sources", source.name)
        options = self._reading | options_of(source)
        check_source(options)
        reader = self._spark.readStream.format("penstock").options(**options)
        frame = reader.schema(self._columns_of(source)).load()
        with self._noting((*path, "payload"), source.payload):
            frame = _with_payload(frame, source.payload)
        if source.event_time is not None:
            with self._noting((*path, "event_time"), source.event_time):
                time = sf.expr(source.event_time).cast("timestamp")
                frame = frame.withColumn(EVENT_TIME, time)
        if source.watermark_s is not None:
            column = EVENT_TIME if source.event_time is not None else "timestamp"
            frame = frame.withWatermark(column, f"{round(source.watermark_s * 1_000)} milliseconds")
        return frame

    def _columns_of(self, source: TopicSource) -> StructType:
        """The used columns of a topic: Spark does not tell, and reading all takes time."""
        key = source.name.lower()
        queries = [step.sql for step in self._declared.steps if key in step.reads]
        is_all = not self._prunes or any(sink.step.lower() == key for sink in self._declared.sinks)
        if source.event_time is not None:
            queries.append(f"SELECT {source.event_time}")
        needed = ["timestamp"] if source.watermark_s is not None else []
        if is_all:
            return SCHEMA
        used = [
            field
            for field in SCHEMA
            if field.name in needed or any(may_use(sql, field.name) for sql in queries)
        ]
        return StructType(used or [SCHEMA["offset"]])

    def _table(self, source: TableSource) -> DataFrame:
        with self._noting(("sources", source.name, "table")):
            if not source.path.exists():
                raise RefusedError(f"{str(source.path)!r} does not exist")
            if source.format == DELTA:
                return read_delta(self._spark, source.path)
            return read_files(self._spark, source)

    # Sinks

    def _make_output(self, sink: Sink) -> None:
        path = ("sinks", sink.name)
        frame = self.frames[sink.step.lower()]
        with suppress(_Noted), self._noting(path):
            if isinstance(sink, TopicSink):
                frame = as_records(frame)
                if sink.topic is None and "topic" not in frame.columns:
                    raise RefusedError(
                        f"sink {sink.name!r} has neither a topic nor a table, and its rows have "
                        "no column topic: give one of them"
                    )
                PenstockSource(self._writing | topic_options(sink)).streamWriter(
                    frame.schema, overwrite=False
                )
            else:
                with self._noting((*path, "partition_by")):
                    check_partitions(frame.schema, sink.partition_by)
                with self._noting((*path, "table")):
                    check_table(sink.path, frame.schema, sink.partition_by)
            self._check_streaming(sink)
            self.outputs[sink.name] = frame

    def _check_streaming(self, sink: Sink) -> None:
        """Refuse at the first step on the way to the sink that cannot be streamed into it."""
        for step in self._declared.steps:
            if step.name.lower() in self._inputs(sink.step.lower()):
                wrong = unsupported(self._spark, self.frames[step.name.lower()], sink.mode)
                if wrong is not None:
                    streams = [
                        one
                        for one in self._declared.sources
                        if isinstance(one, TopicSource)
                        and one.name.lower() in self._inputs(step.name.lower())
                    ]
                    index, said = explain_streaming(wrong, step, sink, streams)
                    place = self._declared.places.within(("steps", step.name, "sql"), index)
                    self._problems.add(place, said)
                    raise _Noted

    def _inputs(self, name: str) -> set[str]:
        return inputs_of(self._declared.steps, name)

    @contextmanager
    def _noting(self, path: Path, sql: str = "") -> Iterator[None]:
        """What is wrong within is noted at this place of the file, or of the SQL there, once."""
        places = self._declared.places
        try:
            yield
        except PySparkException as wrong:
            others = (*self._declared.steps, *self._declared.sources)
            known = [one.name for one in others if one.name not in path]
            index, said = explain(wrong, sql, known)
            self._problems.add(places.within(path, index) if sql else places.of(*path), said)
            raise _Noted from wrong
        except RefusedError as wrong:
            note_refusal(self._problems, self._declared, path, wrong)
            raise _Noted from wrong


class _Noted(Exception):
    """Something is wrong, and it is among the problems already."""


def _with_payload(frame: DataFrame, kind: str) -> DataFrame:
    """The column `payload` as the declaration wants it; what does not fit is NULL."""
    from pyspark.sql import functions as sf

    if kind == BINARY or "payload" not in frame.columns:
        return frame
    payload = sf.try_validate_utf8(sf.col("payload").cast("string"))
    if kind == JSON:
        payload = sf.try_parse_json(payload)
    elif kind != TEXT:
        payload = sf.from_json(payload, cast(StructType, StructType.fromDDL(kind)))
    return frame.withColumn("payload", payload)


def as_records(frame: DataFrame) -> DataFrame:
    """Rows as a topic takes them: without a column `payload`, all columns are its fields."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import VariantType

    if "payload" not in frame.columns:
        fields = [name for name in frame.columns if name not in _BESIDE_PAYLOAD]
        beside = [name for name in frame.columns if name in _BESIDE_PAYLOAD]
        record = sf.struct(*(sf.col(_quoted(name)) for name in fields))
        frame = frame.select(record.alias("payload"), *beside)
    kind = frame.schema["payload"].dataType
    if "variant" in kind.simpleString():
        payload = sf.col("payload")
        text = payload.cast("string") if isinstance(kind, VariantType) else sf.to_json(payload)
        frame = frame.withColumn("payload", text)
    return frame


def unsupported(spark: Any, frame: DataFrame, mode: str) -> PySparkException | None:
    """Why a DataFrame cannot be streamed in this output mode; Spark says so only at the start."""
    plan = frame._jdf.queryExecution().analyzed()
    jvm = spark._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    output = {"append": modes.Append, "update": modes.Update, COMPLETE: modes.Complete}[mode]()
    try:
        checker.checkForStreaming(plan, output)
    except PySparkException as wrong:
        return wrong
    return None


def topic_options(sink: TopicSink) -> dict[str, str]:
    """Where a sink's rows go, as options of `format("penstock")`."""
    return {} if sink.topic is None else {"topic": topics_text([sink.topic])}


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
