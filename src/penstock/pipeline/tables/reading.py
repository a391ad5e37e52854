"""The past of topics in Spark: history files as Spark reads Parquet, and the rest from the log.

One snapshot: the bounds of the log are read first, then which files there are. In the other order
records that go into the history and out of the log in between would be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.types import StructType

from penstock.core.naming.names import topic_key
from penstock.pipeline.connecting import origin_of
from penstock.pipeline.delta.parquet import File, is_connect, read_parquet
from penstock.pipeline.source.directory import DirectoryOrigin
from penstock.pipeline.source.offsets import Place, Places, places_text, topics_in
from penstock.pipeline.source.options import Connection, topics_text
from penstock.pipeline.source.origin import Origin, Range, TopicState
from penstock.pipeline.source.plan import place_at
from penstock.pipeline.source.source import EXTRA, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.source.history import History

DEFAULT_PATH: Final = "./penstock_data"
# More of them are read by tasks, several at a time, as they are in the log.
TAIL_RECORDS_MAX: Final = 500_000
_COLUMNS: Final = {field.name: field for field in [*SCHEMA, *EXTRA]}
_CONSTANT: Final = ("topic", "partition")  # columns that history files do not store
# In the files this column is NULL where `headers` says it all.
_PAIRS: Final = "coalesce(header_pairs, map_entries(headers)) AS header_pairs"


def table(
    spark: SparkSession,
    topic: str,
    *,
    path: str | Path | None = None,
    url: str | None = None,
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
    names: str | None = None,
    where: str | None = None,
) -> DataFrame:
    """All records of a topic, in its history and in its log, as they are now.

    The topic is in the data directory `path`, or at the address `url` of a running broker. Spark
    prunes columns and pushes filters into the history's files by itself. `names`, a filter such as
    sensors/#, and `where` choose records as they do for `format("penstock")`.
    """
    files = None if url else Path(path or DEFAULT_PATH).absolute()
    connection = Connection(files, url or "", user, password=password, token=token, tenant=tenant)
    options = {"names": names, "where": where}
    chosen = {key: text for key, text in options.items() if text is not None}
    return table_at(spark, connection, topic, chosen)


def table_at(
    spark: SparkSession, connection: Connection, topic: str, chosen: Mapping[str, str]
) -> DataFrame:
    """As `table`; `chosen` are the options that choose records."""
    origin = origin_of(connection)
    states = origin.states((topic,))
    start = {state.key: place_at(state, state.first) for state in states}
    end = {state.key: place_at(state, state.end) for state in states}
    if chosen:  # by the code of the broker, on both parts
        return through_source(spark, connection, start, end, SCHEMA, **chosen)
    return read_past(spark, connection, start, end, SCHEMA, origin=origin)


def read_past(
    spark: SparkSession,
    connection: Connection,
    start: Places,
    end: Places,
    columns: StructType | str,
    *,
    fails_on_loss: bool = True,
    origin: Origin | None = None,
) -> DataFrame:
    """The records between two places of each topic, with these columns.

    The places are of the log as it was before this call, and every start is below its end. `origin`
    saves a second look at the topics.
    """
    schema = (
        columns
        if isinstance(columns, StructType)
        else cast(StructType, StructType.fromDDL(columns))
    )
    parts: list[DataFrame] = []
    rest = dict(start)
    origin = origin or origin_of(connection)
    if isinstance(origin, DirectoryOrigin) and not is_connect(spark):
        for state in origin.states(tuple(start), missing_ok=True):
            past = _past_of(origin, state, start, end)
            if past is not None:
                parts.append(past.rows(spark, origin, schema))
                rest[past.topic] = replace(start[past.topic], offset=past.end_in(spark))
    rest = {topic: place for topic, place in rest.items() if place.offset < end[topic].offset}
    if rest:
        ends = {topic: end[topic] for topic in rest}
        loss = {"failOnDataLoss": str(fails_on_loss)}
        parts.append(through_source(spark, connection, rest, ends, schema, **loss))
    return reduce(type(parts[0]).unionByName, parts)


def through_source(
    spark: SparkSession,
    connection: Connection,
    start: Places,
    end: Places,
    schema: StructType,
    **options: str,
) -> DataFrame:
    """The same by `format("penstock")`, whose tasks read log and history."""
    return (
        spark.read.format("penstock")
        .schema(schema)
        .options(**connection.options(), **options)
        .option("topic", topics_text(topics_in(start)))
        .option("startingOffsets", places_text(start))
        .option("endingOffsets", places_text(end))
        .load()
    )


@dataclass(frozen=True, slots=True)
class _Past:
    """What Spark reads of one topic from files."""

    topic: str
    state: TopicState
    history: History
    start: int
    end: int  # of what is asked for, which may be beyond the history

    def has_tail_file(self, spark: SparkSession) -> bool:
        """Whether the records behind the history are worth a file here, for tasks here."""
        count = self.end - self.history.end
        is_local = (spark.sparkContext.master or "").startswith("local")
        return is_local and 0 < count <= TAIL_RECORDS_MAX

    def end_in(self, spark: SparkSession) -> int:
        """How far files go."""
        return self.end if self.has_tail_file(spark) else min(self.history.end, self.end)

    def rows(self, spark: SparkSession, origin: DirectoryOrigin, schema: StructType) -> DataFrame:
        from pyspark.sql.pandas.types import to_arrow_schema

        needed = [name for name in schema.names if name not in _CONSTANT] + ["offset"]
        needed += ["headers"] if "header_pairs" in schema.names else []
        stored = StructType([_COLUMNS[name] for name in dict.fromkeys(needed)])
        values = (self.topic, 0)
        files = [File(path, values) for path in self.history.paths_between(self.start, self.end)]
        if self.has_tail_file(spark):
            from penstock.pipeline.tables.tail import tail_file

            state = self.state
            tail = Range(self.topic, state.topic_id, state.epoch, self.history.end, self.end)
            arrow: Any = to_arrow_schema(stored, timezone="UTC")
            files.append(File(str(tail_file(origin, tail, arrow)), values))
        constants = StructType([_COLUMNS[name] for name in _CONSTANT])
        rows = read_parquet(spark, files, stored, constants)
        if self.start > self.history.first:
            rows = rows.where(f"offset >= {self.start}")
        if self.end < self.history.end:
            rows = rows.where(f"offset < {self.end}")
        return rows.selectExpr(
            *(_PAIRS if name == "header_pairs" else name for name in schema.names)
        )


def _past_of(
    origin: DirectoryOrigin, state: TopicState, start: Places, end: Places
) -> _Past | None:
    """None: the history has nothing of it, or it is about another life of the topic."""
    (topic,) = [one for one in start if topic_key(one) == topic_key(state.topic)]
    begin, finish = start[topic], end[topic]
    if not all(_is_of(state, place) for place in (begin, finish)):
        return None
    history = origin.history(state.topic_id)
    if history is None or not history.place.is_directory:
        return None
    if not history.first <= begin.offset < min(history.end, finish.offset):
        return None
    return _Past(topic, state, history, begin.offset, finish.offset)


def _is_of(state: TopicState, place: Place) -> bool:
    return place.topic_id in (0, state.topic_id) and place.epoch in (0, state.epoch)
