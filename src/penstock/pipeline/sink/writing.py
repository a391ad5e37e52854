"""What one Spark task writes: its rows, staged in a file for each partition of each topic.

Loads no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.log.kafka.partitioner import partition_of
from penstock.log.staging.area import StagedFile
from penstock.model.errors import RefusedError
from penstock.pipeline.sink.intake import FoundTopic, Intake, Staging
from penstock.pipeline.sink.rows import TopicRows, kind_of

_HEADERS = pa.map_(pa.string(), pa.string())


class TaskWrite:
    """Rows on their way into files; `write` is called once."""

    def __init__(
        self, intake: Intake, topic: str | None, source: str, number: int, partition: int
    ) -> None:
        self._intake = intake
        self._topic = topic  # of rows that name none
        self._source = source
        self._number = number
        self._partition = partition
        self._topics: dict[str, FoundTopic] = {}  # by topic as rows spell it
        self._files: dict[int, _TopicFile] = {}

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedFile]:
        """Stage all rows; leaves nothing behind when one of them cannot be stored."""
        try:
            for batch in batches:
                if batch.num_rows:
                    self._take(batch)
            for file in self._files.values():
                file.flush()
            return [one for file in self._files.values() for one in file.staging.finish()]
        except BaseException:
            left = [one for file in self._files.values() for one in file.staging.give_up()]
            self._intake.discard(self._source, left)
            raise

    def _take(self, batch: pa.RecordBatch) -> None:
        rows = pa.record_batch(
            [
                batch.column("payload"),
                _column(batch, "name", pa.string()),
                _headers(batch),
                _column(batch, "kind", pa.string()),
            ],
            names=["payload", "name", "headers", "kind"],
        )
        for topic, mine in self._by_topic(batch, rows):
            if topic not in self._topics:
                self._topics[topic] = self._intake.find(topic)
            found = self._topics[topic]
            for number, part in _by_partition(found, mine):
                self._file(found, number, part.column(0).type).add(part)

    def _by_topic(
        self, batch: pa.RecordBatch, rows: pa.RecordBatch
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, rows
            return
        topics = batch.column("topic")
        for topic in pc.unique(topics).to_pylist():
            if topic is None:
                raise RefusedError(
                    "a row has no topic (NULL): filter such rows out, or set a value with coalesce"
                )
            yield topic, rows.filter(pc.equal(topics, topic))

    def _file(self, topic: FoundTopic, number: int, payload: pa.DataType) -> _TopicFile:
        part_id = topic.topic_id + number
        if part_id not in self._files:
            part = f"{self._partition}-{part_id}"
            staging = self._intake.stage(self._source, self._number, part, part_id)
            rows = TopicRows(topic.declared, kind_of(payload))
            self._files[part_id] = _TopicFile(rows, staging)
        return self._files[part_id]


def _by_partition(topic: FoundTopic, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows by the partition that their names belong to."""
    if topic.partitions == 1:
        yield 0, rows
        return
    encoded = pc.fill_null(rows.column("name"), topic.declared).dictionary_encode()
    of_name = [
        partition_of(str(name).encode(), topic.partitions)
        for name in encoded.dictionary.to_pylist()
    ]
    numbers = pa.array(of_name, pa.int32()).take(encoded.indices)
    for number in sorted(set(of_name)):
        yield number, rows.filter(pc.equal(numbers, number))


class _TopicFile:
    """The rows of one topic, and what is staged of them."""

    def __init__(self, rows: TopicRows, staging: Staging) -> None:
        self.staging = staging
        self._rows = rows

    def add(self, rows: pa.RecordBatch) -> None:
        for full in self._rows.add(*rows.columns):
            self._write(full)

    def flush(self) -> None:
        if not self._rows.is_empty:
            self._write(self._rows.take())

    def _write(self, rows: pa.RecordBatch) -> None:
        self.staging.add(self._rows.encode(rows, self.staging.next_key()))


def _headers(batch: pa.RecordBatch) -> Any:
    """From a column with all pairs, if there is one: a map of Spark's has each key once."""
    if "header_pairs" not in batch.schema.names:
        return _column(batch, "headers", _HEADERS)
    pairs = batch.column("header_pairs")
    return pa.MapArray.from_arrays(pairs.offsets, pairs.values.field(0), pairs.values.field(1))


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> Any:
    if name in batch.schema.names:
        return batch.column(name)
    return pa.nulls(batch.num_rows, kind)
