"""The worker's side of reading: a sealed log, the same rows as Parquet, and turns of reading."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import AsyncBroker
from penstock.log.arrow.columns import SCHEMA, schema_of, to_arrow
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs, log_directory
from penstock.log.files.reader import FileReader

PAYLOAD_BYTES: Final = 100
BATCH: Final = 1_000
NAMES: Final = 100
SEGMENT_BYTES: Final = 16 << 20
PARQUET: Final = "rows.parquet"

_open: dict[str, Any] = {}


def payload(kind: str, number: int, choose: random.Random) -> bytes:
    if kind == "random":
        return os.urandom(PAYLOAD_BYTES)
    text = json.dumps(
        {
            "device": f"sensor-{choose.randrange(10_000):05}",
            "site": choose.choice(["lisbon", "porto", "faro"]),
            "temp": round(choose.uniform(-20, 40), 3),
            "seq": number,
            "ok": True,
        }
    )
    return text.encode().ljust(PAYLOAD_BYTES)[:PAYLOAD_BYTES]


def build(directory: str, kind: str, records: int) -> None:
    """Publish the records and as many more as it takes to have them all in sealed segments."""
    root = Path(directory)
    asyncio.run(_publish(root, kind, records))
    open_log(directory)
    reader: FileReader = _open["log"]
    batches = to_arrow(reader.batches(0, records), "bench", SCHEMA, 0, records)
    table = pa.Table.from_batches(batches)
    assert table.num_rows == records
    pq.write_table(table, root / PARQUET, compression="snappy")


async def _publish(root: Path, kind: str, records: int) -> None:
    choose = random.Random(1)
    behind = SEGMENT_BYTES // PAYLOAD_BYTES
    async with AsyncBroker(root / "data", durability="os", segment_bytes=SEGMENT_BYTES) as broker:
        await broker.create_topic("bench")
        for first in range(0, records + behind, BATCH):
            batch = [payload(kind, first + number, choose) for number in range(BATCH)]
            name = f"sensors/{first // BATCH % NAMES}/temp"
            await broker.publish_many(batch, "bench", name=name)
        log = broker.engine.topics.get("bench").log
        await log.seal_closed()


def open_log(directory: str) -> None:
    root = Path(directory)
    disk = RealDisk()
    (identity,) = find_logs(disk, root / "data")
    _open["log"] = FileReader(disk, log_directory(root / "data", identity))
    _open["parquet"] = root / PARQUET
    if _open["parquet"].exists():
        _open["records"] = pq.read_metadata(_open["parquet"]).num_rows


def read_log(columns: list[str]) -> float:
    """Records per second."""
    schema = schema_of(columns) if columns else SCHEMA
    records: int = _open["records"]
    reader: FileReader = _open["log"]
    begin = time.perf_counter()
    rows = 0
    for batch in to_arrow(reader.batches(0, records), "bench", schema, 0, records):
        rows += batch.num_rows
    taken_s = time.perf_counter() - begin
    assert rows == records
    return rows / taken_s


def read_parquet(columns: list[str]) -> float:
    """Records per second, the faster of pyarrow's two ways."""
    return max(_parquet_whole(columns), _parquet_batches(columns))


def _parquet_whole(columns: list[str]) -> float:
    begin = time.perf_counter()
    table = pq.ParquetFile(_open["parquet"]).read(columns or None, use_threads=False)
    taken_s = time.perf_counter() - begin
    assert table.num_rows == _open["records"]
    return float(table.num_rows / taken_s)


def _parquet_batches(columns: list[str]) -> float:
    begin = time.perf_counter()
    file = pq.ParquetFile(_open["parquet"])
    rows = sum(batch.num_rows for batch in file.iter_batches(columns=columns or None))
    taken_s = time.perf_counter() - begin
    assert rows == _open["records"]
    return float(rows / taken_s)
