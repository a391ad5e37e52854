"""The queries of a declared pipeline: one for each sink, each with a checkpoint of its own.

A query that ends takes the others with it. Whatever happens to the driver, the checkpoint and the
sinks together say how far each query is: what is started again goes on there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors import RefusedError, UnavailableError
from penstock.pipeline.declared.declaration import COMPLETE, UPDATE, Declaration, Sink, TableSink
from penstock.pipeline.declared.tables import PipelineTable
from penstock.pipeline.declared.views import topic_options
from penstock.pipeline.jobs import Progress, Report
from penstock.pipeline.recorder import reason
from penstock.pipeline.source.offsets import stream_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Add = Callable[["DataFrame", str, int], None]  # rows, the query's id, the micro-batch's number

LOOK_S: Final = 0.2  # how often queries are asked how far they are
SOURCES_LOOK_S: Final = 0.05
ID_S_MAX: Final = 60.0  # between the start of a query and knowing its id
STARTS_MAX: Final = 3  # of one query, while its sources come too late for Spark
SOURCES_S_MAX: Final = 60.0  # for a query to open its sources before the next one is started


class Queries:
    """The running queries of one pipeline."""

    def __init__(self, declared: Declaration, writing: dict[str, str], *, once: bool) -> None:
        self._declared = declared
        self._writing = writing
        self._once = once
        self._running: dict[str, StreamingQuery] = {}
        self._meters: dict[str, _Meter] = {}
        self._began_s = time.monotonic()

    def start(self, outputs: dict[str, DataFrame]) -> None:
        """Start all, or none."""
        try:
            self._start_all(outputs)
        except BaseException:
            self._stop()
            raise

    def _start_all(self, outputs: dict[str, DataFrame]) -> None:
        for sink in self._declared.sinks:
            frame = outputs[sink.name]
            writer = (
                frame.writeStream.queryName(f"{self._declared.name} {sink.name}")
                .outputMode(sink.mode)
                .option("checkpointLocation", str(self._declared.checkpoint / sink.name))
            )
            self._meters[sink.name] = _Meter()
            for _ in range(STARTS_MAX):
                query = self._start(sink, frame, self._triggered(writer))
                self._running[sink.name] = query
                _wait_sources_open(query)
                if not _was_too_slow(query):
                    break

    def _start(self, sink: Sink, frame: DataFrame, writer: DataStreamWriter) -> StreamingQuery:
        if isinstance(sink, TableSink):
            return _start_adding(writer, _into_table(sink, frame))
        options = self._writing | topic_options(sink)
        if sink.mode == UPDATE:
            return _start_adding(writer, _into_topic(options))
        return writer.format("penstock").options(**options).start()

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Wait for the end: of all queries, or of the one that fails, or until told to stop."""
        try:
            while not stop.is_set():
                is_running = any(query.isActive for query in self._running.values())
                if self._look():
                    report(self.progress())
                self._raise_failure()
                if not is_running:
                    break
                stop.wait(LOOK_S)
        finally:
            self._stop()
        self._look()
        return self.progress()

    def progress(self) -> Progress:
        meters = list(self._meters.values())
        took_s = max(time.monotonic() - self._began_s, 1e-3)
        rows = max((meter.rows for meter in meters), default=0)
        offsets: dict[str, int] = {}
        lag: dict[str, int] = {}
        is_known = all(meter.topics for meter in meters)  # else somebody may be further behind
        for meter in meters if is_known else ():
            for topic, (offset, end) in meter.topics.items():
                offsets[topic] = min(offset, offsets.get(topic, offset))
                lag[topic] = max(end - offset, lag.get(topic, 0))
        batches = sum(meter.batches for meter in meters)
        return Progress(
            rows, batches, rows / took_s, dict(sorted(offsets.items())), sum(lag.values())
        )

    def _triggered(self, writer: DataStreamWriter) -> DataStreamWriter:
        trigger_s = self._declared.trigger_s
        if self._once or trigger_s is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{round(trigger_s * 1_000)} milliseconds")

    def _look(self) -> bool:
        """Ask how far the queries are; whether one has gone on."""
        has_gone_on = False
        for name, query in self._running.items():
            has_gone_on |= self._meters[name].take(query)
        return has_gone_on

    def _raise_failure(self) -> None:
        for name, query in self._running.items():
            failed = None if query.isActive else query.exception()
            if failed is not None:
                raise RefusedError(f"sink {name!r} failed: {reason(failed)}") from failed

    def _stop(self) -> None:
        for query in self._running.values():
            query.stop()


class _Meter:
    """How far one query is, by what it reports."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.topics: dict[str, tuple[int, int]] = {}  # the next offset, and the end
        self._seen = ""

    def take(self, query: StreamingQuery) -> bool:
        before = self.batches
        for told in query.recentProgress:
            one: dict[str, Any] = json.loads(told.json)
            if one["timestamp"] <= self._seen:
                continue
            self._seen = one["timestamp"]
            if "addBatch" in one["durationMs"]:
                self.batches += 1
                self.rows += one["numInputRows"]
            for source in one["sources"]:
                self._note(source.get("endOffset"), source.get("latestOffset"))
        return self.batches > before

    def _note(self, at: Any, latest: Any) -> None:
        """Offsets of sources that are not ours have another form."""
        if not isinstance(at, dict):
            return
        ends = stream_offset(latest).places if isinstance(latest, dict) else {}
        for topic, place in stream_offset(at).places.items():
            end = ends.get(topic, place).offset
            self.topics[topic] = (place.offset, max(end, place.offset))


def _into_table(sink: TableSink, frame: DataFrame) -> Add:
    table = PipelineTable(
        sink.path, frame.schema, sink.partition_by, replaces=sink.mode == COMPLETE
    )

    def add(rows: DataFrame, query: str, number: int) -> None:
        table.add(rows, f"penstock query {query}", number)

    return add


def _into_topic(options: dict[str, str]) -> Add:
    """Spark lets no Python sink take updates; a write of each micro-batch does, once."""

    def add(rows: DataFrame, query: str, number: int) -> None:
        key = {"idempotencyKey": f"updates {query}", "idempotencyNumber": str(number)}
        rows.write.format("penstock").mode("append").options(**options, **key).save()

    return add


def _start_adding(writer: DataStreamWriter, add: Add) -> StreamingQuery:
    """Start a query whose micro-batches are handed to `add`, with the query's id."""
    known = threading.Event()
    query: StreamingQuery | None = None

    def add_batch(rows: DataFrame, number: int) -> None:
        if not known.wait(ID_S_MAX):
            raise UnavailableError("the query's id is not known yet")
        assert query is not None
        add(rows, query.id, number)

    query = writer.foreachBatch(add_batch).start()
    known.set()
    return query


def _wait_sources_open(query: StreamingQuery) -> None:
    """Each source is a Python process, for which Spark waits 10 s: many at once take longer."""
    deadline_s = time.monotonic() + SOURCES_S_MAX
    while query.isActive and query.status["message"].startswith("Initializing"):
        if time.monotonic() > deadline_s:
            return
        time.sleep(SOURCES_LOOK_S)


def _was_too_slow(query: StreamingQuery) -> bool:
    """A source did not come within Spark's 10 s: nothing was read, so it can be tried again."""
    failed = None if query.isActive else query.exception()
    return failed is not None and "worker failed to connect back" in str(failed)
