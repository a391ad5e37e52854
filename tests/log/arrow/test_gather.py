"""Do many batches at once give exactly the rows that they give one by one?"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.run import run_of
from penstock.log.arrow.columns import EXTRA, SCHEMA, schema_of, to_arrow
from penstock.log.arrow.gather import gather
from penstock.log.files.disk import RealDisk
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import decode_batches
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.interface import LogSettings
from penstock.model.errors import CorruptError
from penstock.model.limits import KIB, MIB
from tests.appends import add, append
from tests.log.files.segments import plain_run
from tests.log.files.stores import StoreWorld
from tests.log.format.batch_model import TOPIC, ModelLog, RunPlan, run_plans

WHERE = Path("log")


def stored(batches: list[Batch]) -> bytes:
    """As they lie in a file."""
    return b"".join(part for batch in batches for part in batch.to_bytes())


def one_by_one(data: bytes, schema: pa.Schema, start: int, end: int) -> pa.Table:
    batches = decode_batches(data, 0, WHERE)
    return pa.Table.from_batches(to_arrow(batches, TOPIC, schema, start, end), schema)


def without_headers(plans: list[list[RunPlan]]) -> bool:
    return all(not run.headers for runs in plans for run in runs)


def values(rows: Any) -> list[list[Any]]:
    """By column; times as numbers, since Python has no dates as late as a message may expire."""
    columns = [
        one.cast(pa.int64()) if pa.types.is_timestamp(one.type) else one for one in rows.columns
    ]
    return [one.to_pylist() for one in columns]


WHOLE = schema_of([*SCHEMA.names, *EXTRA.names])

plans = st.lists(st.lists(run_plans(), max_size=4), min_size=1, max_size=6)


@given(plans, st.integers(-2, 30), st.integers(-2, 60), st.sampled_from(WHOLE.names))
def test_rows_are_the_same_as_one_by_one_in_any_range(
    chosen: list[list[RunPlan]], start: int, size: int, column: str
) -> None:
    model = ModelLog()
    data = stored([model.batch(runs) for runs in chosen])
    for schema in (WHOLE, schema_of([column])):
        found = gather(data, TOPIC, schema, start, start + size)
        if found is None:
            assert not without_headers(chosen)
            continue
        found.validate(full=True)
        assert found.schema == schema
        wanted = one_by_one(data, schema, start, start + size)
        assert values(found) == values(wanted)


def test_batches_of_every_layout_are_gathered_together() -> None:
    model = ModelLog()
    gapped = RunPlan("g", [b"1", b"", b"3"], 0, 1, False, 0, "", 0, (), [b"xx", b"", b"y"], [])
    batches = [
        model.batch([plain_run("a", [b"x", b""]), plain_run("b/c", [b"y"], 5, publisher="p")]),
        model.batch([gapped]),
        model.batch([plain_run("a", [b"z"], 2**33)]),
        model.batch([plain_run("q", [b""] * 3, publisher="q")]),
    ]
    data = stored(batches)
    found = gather(data, TOPIC, SCHEMA, 0, 100)
    assert found is not None
    assert found.to_pylist() == one_by_one(data, SCHEMA, 0, 100).to_pylist()
    assert found.num_rows == 10


def test_batches_of_marks_only_give_no_rows() -> None:
    builder = BatchBuilder(5)
    builder.add_mark(3, b"k", 0)
    found = gather(stored([builder.encode(1, 7, 0)]), TOPIC, SCHEMA, 0, 100)
    assert found is not None
    assert (found.num_rows, found.schema) == (0, SCHEMA)


def test_what_it_cannot_do_is_left_to_others() -> None:
    packed = BatchBuilder(0)
    add(packed, "n", [bytes(100_000)], 1, 1)
    batch = packed.encode(1, 0, 0)
    batch.compress()
    headed = BatchBuilder(0)
    add(headed, "n", [b"x"], 1, 1, headers=b"\x01\0k\x01\0\0\0v")
    for one in (batch, headed.encode(1, 0, 0)):
        assert gather(stored([one]), TOPIC, SCHEMA, 0, 10) is None


def test_no_damaged_byte_is_ever_delivered() -> None:
    model = ModelLog()
    data = stored([model.batch([plain_run("a/b", [b"12345"] * 3, n)]) for n in range(3)])
    chance = random.Random(3)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << chance.randrange(8)
        assert gather(bytes(damaged), TOPIC, SCHEMA, 0, 100) is None, at
        with pytest.raises(CorruptError):
            decode_batches(bytes(damaged), 0, WHERE)
    for length in range(1, len(data), 7):
        if length % (len(data) // 3):
            assert gather(data[:length], TOPIC, SCHEMA, 0, 100) is None


async def test_raw_reading_covers_a_log_of_small_batches_exactly(world: StoreWorld) -> None:
    log = await world.create(LogSettings(segment_bytes=6 * MIB))
    noise = random.Random(1)
    for number in range(400):
        payload = noise.randbytes(20 * KIB) + b"%d" % number
        await append(log, run_of(f"n/{number % 5}", [payload, b"x"]))
    reader = FileReader(RealDisk(), world.directory)
    for start, end in [(0, 800), (13, 14), (5, 799), (250, 600), (800, 900)]:
        offset = start
        seen: list[int] = []
        while offset < min(end, 800):
            data, reached = reader.read_raw(offset, end)
            rows = gather(data, TOPIC, schema_of(["offset"]), offset, end)
            assert rows is not None and reached > offset
            seen += rows["offset"].to_pylist()
            offset = reached
        assert seen == list(range(start, min(end, 800)))
    assert reader.read_raw(800, 900) == (b"", 800)
    assert reader.bounds() == log.bounds()
    await log.seal_closed()
    assert FileReader(RealDisk(), world.directory).read_raw(0, 800) == (b"", 0)
