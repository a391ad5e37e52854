"""What Spark tasks do for `dispatch`: rows of deliveries, and counts of what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.jobs.dispatch.matching import matcher_of
from penstock.pipeline.jobs.dispatch.readers import Readers

DELIVERIES: Final = pa.schema(
    [
        pa.field("client_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("name", pa.string()),
        pa.field("qos", pa.int32()),
        pa.field("feed", pa.int32()),
        pa.field("date", pa.date32()),
    ]
)
DELIVERIES_SQL: Final = (
    "client_id string, topic string, partition int, offset long, timestamp timestamp, name string,"
    " qos int, feed int"
)
COUNTS_SQL: Final = "reader long, topic string, waiting long"
COLUMNS: Final = (
    "topic string, partition int, offset long, timestamp timestamp, name string,"
    " publisher string, qos int, expires_at timestamp"
)
COLUMNS_OF_RECORDS: Final = COLUMNS + ", headers map<string,string>, payload binary"


def columns_for(readers: Readers) -> str:
    """What must be read of the topics: all of it only if an expression asks."""
    return COLUMNS_OF_RECORDS if any(one.where for one in readers.readers) else COLUMNS


def deliver(readers: Readers, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row for each record and reader it goes to."""
    matcher = matcher_of(readers)
    clients = pa.array([one.client_id for one in readers.readers], pa.string())
    feeds = np.array([one.feed_id for one in readers.readers], np.int32)
    for batch in batches:
        for pairs in matcher.pairs(batch):
            if not len(pairs.rows):
                continue
            rows = pa.array(pairs.rows)
            yield pa.RecordBatch.from_arrays(
                [
                    clients.take(pa.array(pairs.readers)),
                    batch.column("topic").take(rows),
                    batch.column("partition").take(rows),
                    batch.column("offset").take(rows),
                    batch.column("timestamp").take(rows),
                    batch.column("name").take(rows),
                    pa.array(pairs.qos.astype(np.int32)),
                    pa.array(feeds[pairs.readers]),
                ],
                names=DELIVERIES.names[:-1],
            )


def count(
    readers: Readers, now_us: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """How many records of each topic wait for each reader, counted by this task."""
    matcher = matcher_of(readers)
    found: dict[str, Counter[int]] = {}
    for batch in batches:
        for topic, part in _by_topic(_alive(batch, now_us)):
            counted = found.setdefault(topic, Counter())
            for pairs in matcher.pairs(part):
                kept = pairs.kept(pairs.is_kept)
                numbers, counts = np.unique(kept.readers, return_counts=True)
                counted.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    for topic, counted in found.items():
        yield pa.RecordBatch.from_pydict(
            {
                "reader": pa.array(list(counted), pa.int64()),
                "topic": pa.array([topic] * len(counted), pa.string()),
                "waiting": pa.array(list(counted.values()), pa.int64()),
            }
        )


def _alive(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Without expired records, which nobody receives."""
    expires_at = batch.column("expires_at")
    if expires_at.null_count == len(expires_at):
        return batch
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now_us)
    late = pc.greater(expires_at, pa.scalar(now, expires_at.type))
    return batch.filter(pc.fill_null(late, True))


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = batch.column("topic")
    for topic in pc.unique(topics).to_pylist():
        yield topic, batch.filter(pc.equal(topics, topic))
