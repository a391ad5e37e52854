"""What is measured: sealed topics, the same rows as Parquet, a topic of small batches."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.log.scans import payload
from bench.serving import Serving
from penstock import AsyncBroker, Broker
from penstock.pipeline.jobs.archive.job import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "bench"
SMALL: Final = "small"
NAMES: Final = 1_000
LARGE_BATCH: Final = 1_000
SMALL_BATCH: Final = 10
SEALED_SEGMENTS: Final = "32 MiB"
PUBLISHERS: Final = 100  # at once, a record each
POOL: Final = 50_000  # payloads that are used again and again


class Tables:
    """Made when first asked for; a directory for each."""

    def __init__(self, spark: SparkSession, scratch: Path, records: int) -> None:
        self.spark = spark
        self.scratch = scratch
        self.records = records
        choose = random.Random(1)
        self._pool = [payload("json", number, choose) for number in range(POOL)]
        self._made = 0
        self._serving: dict[Path, Serving] = {}

    @cached_property
    def sealed(self) -> Path:
        """A data directory whose topic `bench` has all records in sealed segments."""
        path = self.scratch / "sealed"
        asyncio.run(self._publish(path, TOPIC, LARGE_BATCH, SEALED_SEGMENTS))
        return path

    @cached_property
    def mixed(self) -> Path:
        """As `sealed`, but hardly two records next to each other have the same name."""
        path = self.scratch / "mixed"
        asyncio.run(self._publish_each(path))
        return path

    @cached_property
    def small(self) -> Path:
        """A data directory whose topic `small` has all records in batches of ten, unsealed."""
        path = self.scratch / "small"
        asyncio.run(self._publish(path, SMALL, SMALL_BATCH, "64 GiB"))
        return path

    @cached_property
    def parquet(self) -> Path:
        """The rows of the sealed topic, as Spark writes them with snappy."""
        return self._as_parquet(self.topic(), "parquet")

    @cached_property
    def archived(self) -> Path:
        """The rows of the sealed topic with the columns of an archive, likewise."""
        return self._as_parquet(self.topic(COLUMNS), "archived")

    @cached_property
    def mixed_parquet(self) -> Path:
        """The rows of the mixed topic, likewise."""
        return self._as_parquet(self.mixed_topic(), "mixed-parquet")

    def _as_parquet(self, rows: DataFrame, name: str) -> Path:
        path = self.scratch / name
        rows.write.parquet(str(path))
        return path

    async def _publish(self, path: Path, topic: str, batch: int, segment_bytes: str) -> None:
        async with AsyncBroker(path, **_settings(segment_bytes)) as broker:
            await broker.create_topic(topic)
            for first in range(0, self.records, batch):
                at = first % (POOL - batch)
                name = f"sensors/{first // batch % NAMES}/temp"
                await broker.publish_many(self._pool[at : at + batch], topic, name=name)
            if topic == TOPIC:
                await _seal(broker)

    async def _publish_each(self, path: Path) -> None:
        choose = random.Random(2)
        names = [f"sensors/{number}/temp" for number in range(NAMES)]
        async with AsyncBroker(path, **_settings(SEALED_SEGMENTS)) as broker:
            await broker.create_topic(TOPIC)
            for first in range(0, self.records, PUBLISHERS):
                at = first % (POOL - PUBLISHERS)
                payloads = self._pool[at : at + PUBLISHERS]
                await asyncio.gather(
                    *(broker.publish(one, TOPIC, name=choose.choice(names)) for one in payloads)
                )
            await _seal(broker)

    def topic(self, columns: str = "") -> DataFrame:
        """The sealed topic, pruned to columns such as `offset long`."""
        return self._read(self.sealed, TOPIC, columns)

    def mixed_topic(self, columns: str = "") -> DataFrame:
        return self._read(self.mixed, TOPIC, columns)

    def small_topic(self) -> DataFrame:
        return self._read(self.small, SMALL, "")

    def _read(self, path: Path, topic: str, columns: str) -> DataFrame:
        reader = self.spark.read.format("penstock")
        if columns:
            reader = reader.schema(columns)
        return reader.load(str(path), topic=topic, endingOffsets=str(self.records))

    def remote_topic(self, columns: str = "") -> DataFrame:
        """The sealed topic, read from a broker that serves it."""
        reader = self.spark.read.format("penstock")
        if columns:
            reader = reader.schema(columns)
        end = str(self.records)
        return reader.load(url=self.serve(self.sealed), topic=TOPIC, endingOffsets=end)

    def serve(self, data: Path) -> str:
        """The address of a broker process on a data directory."""
        if data not in self._serving:
            self._serving[data] = Serving(data)
        return self._serving[data].url

    def close(self) -> None:
        for one in self._serving.values():
            one.stop()
        self._serving.clear()

    def rows(self) -> DataFrame:
        return self.spark.read.parquet(str(self.parquet))

    def archived_rows(self) -> DataFrame:
        return self.spark.read.parquet(str(self.archived))

    def mixed_rows(self) -> DataFrame:
        return self.spark.read.parquet(str(self.mixed_parquet))

    def fresh(self, what: str) -> Path:
        """A path that nobody has written to."""
        self._made += 1
        return self.scratch / f"{what}-{self._made}"

    def empty_topic(self) -> Path:
        """A closed data directory with an empty topic `bench`."""
        path = self.fresh("data")
        with Broker(path) as broker:
            broker.create_topic(TOPIC)
        return path


def _settings(segment_bytes: str) -> dict[str, Any]:
    return {"durability": "os", "segment_bytes": segment_bytes, "upkeep_s": 3_600}


async def _seal(broker: AsyncBroker) -> None:
    """Put all that was published into sealed segments."""
    await broker.alter_topic(TOPIC, segment_age=0.001)
    await broker.publish(b"begins a segment", TOPIC)
    await broker.engine.topics.get(TOPIC).log.seal_closed()


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def drain(rows: DataFrame) -> float:
    """Seconds to compute all rows and throw them away."""
    return seconds(lambda: rows.write.format("noop").mode("overwrite").save())
