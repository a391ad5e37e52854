"""Does sealing keep every record, mark, offset and stamp, and are its indexes exact?"""

from __future__ import annotations

import errno
import os
import random
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.files.disk import RealDisk
from penstock.log.files.segment import SEALED, Segment, SegmentHeader, StaleSegment
from penstock.log.files.upkeep import seal
from penstock.log.files.upkeep.seal import SEALED_BLOB_BYTES, SEALED_RECORDS, seal_segment
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import NO_RECORD
from penstock.model.errors import CorruptError
from tests.log.files.faulty_disk import FaultyDisk
from tests.log.files.segments import all_batches, plain_run, write_closed, write_model
from tests.log.format.bare_format import parse_segment
from tests.log.format.batch_model import TOPIC, ModelLog, RunPlan, T, placed_marks, run_plans


@contextmanager
def small_batches(records: int, blob_bytes: int) -> Iterator[None]:
    """Sealed batches so small that every example is split."""
    with (
        mock.patch.object(seal, "SEALED_RECORDS", records),
        mock.patch.object(seal, "SEALED_BLOB_BYTES", blob_bytes),
    ):
        yield


def check_sealed(model: ModelLog, sealed: Segment, base: int = 0) -> list[Batch]:
    """The sealed segment holds what the model says, and its footer tells the truth."""
    batches = all_batches(sealed)
    wanted = model.records[base:]
    found = [r for b in batches for r in b.records(TOPIC, 0, 2**62)]
    assert found == wanted
    assert sorted(placed_marks(batches), key=str) == sorted(model.marks, key=str)
    footer = sealed.read_footer()
    assert sealed.body.header.flags == SEALED
    assert (footer.end_offset, sealed.end_offset) == (model.end, model.end)
    position = 64
    for entry, batch in zip(footer.entries, batches, strict=True):
        h = batch.header
        assert h.flags & fmt.CONTIGUOUS
        assert (entry.base_offset, entry.count) == (h.base_offset, h.count)
        assert (entry.position, entry.length) == (position, h.stored_length)
        assert (entry.first_timestamp, entry.last_timestamp) == (h.base_timestamp, h.last_timestamp)
        stamps = [r.timestamp for r in batch.records(TOPIC, 0, 2**62)]
        assert not stamps or (h.base_timestamp, h.last_timestamp) == (stamps[0], stamps[-1])
        position += h.stored_length
    assert footer.position == position == sealed.body.length
    holders: dict[str, list[int]] = {}
    for number, batch in enumerate(batches):
        for name in {r.name for r in batch.records(TOPIC, 0, 2**62)}:
            holders.setdefault(name, []).append(number)
    for name in {r.name for r in wanted} | {"nobody", "p", "q"}:
        assert footer.batches_of(name) == holders.get(name, [])
    assert footer.names == sorted(name.encode() for name in holders)
    if footer.position < 100_000:  # the second reader is slow
        bare = parse_segment(sealed.path.read_bytes())
        assert bare.footer is not None and bare.footer.postings == holders
    return batches


@given(
    st.lists(st.lists(run_plans(), max_size=4), max_size=5),
    st.integers(1, 9),
    st.sampled_from([1, 20, 10**6]),
)
def test_any_segment_keeps_everything_when_sealed(
    plans: list[list[RunPlan]], records: int, blob_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory, small_batches(records, blob_bytes):
        model = ModelLog()
        closed = write_model(Path(directory), model, plans)
        sealed = seal_segment(closed)
        for batch in check_sealed(model, sealed):
            assert batch.header.count <= records
        assert os.listdir(directory) == [closed.path.name]


def test_a_source_batch_larger_than_a_sealed_one_is_split_with_its_marks(tmp_path: Path) -> None:
    model = ModelLog()
    count = 2 * SEALED_RECORDS + 100
    runs = [
        plain_run(f"n/{i % 7}", [b"%d" % i for i in range(i, i + 100)], 1, mark_kinds=[3, 5])
        for i in range(0, count, 100)
    ]
    closed = write_model(tmp_path, model, [[plain_run("first", [b"x"])], runs])
    batches = check_sealed(model, seal_segment(closed))
    assert [b.header.count for b in batches[:2]] == [SEALED_RECORDS, SEALED_RECORDS]
    assert len(batches) == 3
    unbound = [[m for m in b.marks() if m.index == NO_RECORD] for b in batches]
    assert [len(marks) > 0 for marks in unbound] == [True, False, False]
    assert all(0 <= m.index < b.header.count for b in batches for m in b.marks()
               if m.index != NO_RECORD)  # fmt: skip


def test_large_payloads_end_a_sealed_batch_before_the_count_does(tmp_path: Path) -> None:
    model = ModelLog()
    noise = random.Random(1).randbytes(SEALED_BLOB_BYTES // 2)
    plans = [[plain_run("n", [noise])] for _ in range(5)]
    batches = check_sealed(model, seal_segment(write_model(tmp_path, model, plans)))
    assert [b.header.count for b in batches] == [2, 2, 1]


def test_payloads_are_compressed_only_where_that_pays(tmp_path: Path) -> None:
    model = ModelLog()
    noise = random.Random(2).randbytes(SEALED_BLOB_BYTES)
    text = [b'{"temperature": 21.5, "unit": "C"}'] * (SEALED_BLOB_BYTES // 34 // 8)
    plans = [[plain_run("noise", [noise])], [plain_run("text", text)]]
    batches = check_sealed(model, seal_segment(write_model(tmp_path, model, plans)))
    first, *others = batches
    assert first.header.compression == fmt.COMPRESSION_NONE
    assert {b.header.compression for b in others} == {fmt.COMPRESSION_LZ4}
    assert sum(b.header.blob_length for b in others) < sum(map(len, text)) // 10


def test_marks_without_records_survive_alone(tmp_path: Path) -> None:
    model = ModelLog()
    closed = write_model(tmp_path, model, [[plain_run("n", [b"x"], mark_kinds=[1])], [], []])
    check_sealed(model, seal_segment(closed))


def test_a_batch_with_marks_only_after_a_full_sealed_batch_is_kept(tmp_path: Path) -> None:
    model = ModelLog()
    with small_batches(4, 10**6):
        batches = [model.batch([plain_run("n", [b"x"] * 4)])]
        lone = BatchBuilder(model.last_timestamp + 9)
        lone.add_mark(5, b"will", NO_RECORD)
        batches.append(lone.encode(1, model.end, 0))
        model.marks.append((5, b"will", None))
        closed = write_closed(tmp_path, SegmentHeader(0, 1, 0, T, 1), batches, model.end)
        found = check_sealed(model, seal_segment(closed))
    assert [b.header.count for b in found] == [4, 0]
    assert found[1].header.last_timestamp == model.last_timestamp + 9


def test_a_sealed_segment_keeps_no_memory_for_its_names(tmp_path: Path) -> None:
    model = ModelLog()
    runs = [plain_run(f"plant/device/{number}", [b"x"]) for number in range(5_000)]
    closed = write_model(tmp_path, model, [runs])
    tracemalloc.start()
    try:
        sealed = seal_segment(closed)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(sealed.read_footer().names) == 5_000
    assert held < 5_000 * 10


def test_a_reader_that_held_the_old_file_looks_again(tmp_path: Path) -> None:
    model = ModelLog()
    closed = write_model(tmp_path, model, [[plain_run("n", [b"x"] * 3)]])
    assert not closed.body.header.is_sealed
    seal_segment(closed)
    with pytest.raises(StaleSegment):
        closed.read_chunk(0)


def test_a_damaged_segment_is_never_sealed_over(tmp_path: Path) -> None:
    model = ModelLog()
    closed = write_model(tmp_path, model, [[plain_run("n", [b"payload"] * 3)]])
    data = bytearray(closed.path.read_bytes())
    data[-6] ^= 1
    closed.path.write_bytes(data)
    with pytest.raises(CorruptError, match=r"\.log at byte 64: payloads"):
        seal_segment(closed)
    assert closed.path.read_bytes() == data
    assert os.listdir(tmp_path) == [closed.path.name]


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_disk_that_fails_while_sealing_leaves_the_closed_segment(
    tmp_path: Path, call: str
) -> None:
    model = ModelLog()
    closed = write_model(tmp_path, model, [[plain_run("n", [b"payload"] * 3)]])
    before = closed.path.read_bytes()
    disk = FaultyDisk(RealDisk())
    segment = Segment(disk, closed.path, 0, model.end)
    disk.fail(call, ".sealing", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        seal_segment(segment)
    assert closed.path.read_bytes() == before
    assert os.listdir(tmp_path) == [closed.path.name]
    disk.heal()
    check_sealed(model, seal_segment(segment))
