"""Do rows of history become the very records that the log had?"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.format.batch import Batch, decode_batch
from penstock.log.history import files
from penstock.log.history.files import FileFacts, encode_file
from penstock.log.history.reading import rows as history_rows
from penstock.log.history.reading.rows import to_batches
from penstock.log.history.reading.tables import GroupedFile
from penstock.log.history.schema import to_rows
from penstock.model.errors import CorruptError
from penstock.model.record import Record
from tests.log.files.segments import plain_run
from tests.log.format.batch_model import TOPIC, ModelLog, RunPlan, run_plans


def sent(batch: Batch) -> Batch:
    """As it arrives in the broker, every checksum verified."""
    return decode_batch(b"".join(batch.to_bytes()), 0)


def rows_of(*batches: Batch) -> pa.Table:
    return pa.Table.from_batches(to_rows(batches, 0, 2**62))


def records(batches: list[Batch]) -> list[Record]:
    return [one for batch in batches for one in sent(batch).records(TOPIC, 0, 2**62)]


@given(st.lists(st.lists(run_plans(), max_size=4), min_size=1, max_size=4), st.integers(1, 7))
def test_batches_become_rows_of_a_file_and_the_same_records_again(
    plans: list[list[RunPlan]], group_rows: int
) -> None:
    model = ModelLog()
    batches = [model.batch(runs) for runs in plans]
    if not model.records:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "GROUP_ROWS", group_rows)
        written = encode_file(batches, 0, model.end, FileFacts(TOPIC, 7, 1))
    file = GroupedFile(written.name, pa.BufferReader(written.data))
    offsets, times = file.index()
    assert offsets == list(range(0, model.end, group_rows))
    assert times == [model.records[at].timestamp for at in offsets]
    found = [one for group in range(len(offsets)) for one in file.read(group)]
    assert records(found) == model.records


@given(st.lists(run_plans(), min_size=1, max_size=6), st.data())
def test_every_part_of_the_rows_becomes_its_records(
    plans: list[RunPlan], data: st.DataObject
) -> None:
    model = ModelLog()
    rows = rows_of(model.batch(plans))
    start = data.draw(st.integers(0, model.end))
    count = data.draw(st.integers(0, model.end - start))
    found = to_batches(rows.slice(start, count), 0)
    assert records(found) == model.records[start : start + count]


def test_rows_with_much_payload_become_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_rows, "BLOB_BYTES", 100)
    model = ModelLog()
    payloads = [b"x" * 40, b"y" * 60, b"", b"z" * 300, b"1", b"2" * 99, b"3"]
    rows = rows_of(model.batch([plain_run("n", payloads)]))
    found = to_batches(rows, 0)
    assert [batch.header.count for batch in found] == [3, 1, 2, 1]
    assert records(found) == model.records


def test_rows_with_a_hole_are_refused() -> None:
    model = ModelLog()
    rows = rows_of(model.batch([plain_run("n", [b"1", b"2", b"3"])]))
    with pytest.raises(CorruptError, match="not one after the other"):
        to_batches(rows.take([0, 2]), 0)
