"""Are a few payloads of a row group read as Arrow reads them, and is damage noticed?"""

from __future__ import annotations

import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.log.history.files import (
    GROUP_ROWS,
    PAGE_ROWS,
    EncodedFile,
    FileFacts,
    HistoryFile,
    encode_file,
)
from penstock.log.history.reading.pages import UnknownPagesError, has_plain_pages, pick
from penstock.model.errors import CorruptError
from tests.log.files.segments import plain_run
from tests.log.format.batch_model import TOPIC, ModelLog

COUNT = GROUP_ROWS + 2_000
FACTS = FileFacts(TOPIC, 7, 3)
SIZES = {"of one size": (120, 120), "of all sizes": (0, 300), "of no bytes": (0, 0)}


def encoded(low: int, high: int, seed: int = 1) -> tuple[EncodedFile, list[bytes]]:
    chance = random.Random(seed)
    payloads = [chance.randbytes(chance.randint(low, high)) for _ in range(COUNT)]
    model = ModelLog()
    runs = [plain_run("n", payloads[at : at + 100], 10) for at in range(0, COUNT, 100)]
    return encode_file([model.batch(runs)], 0, model.end, FACTS), payloads


@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_the_payloads_of_any_rows_are_those_that_were_stored(sizes: tuple[int, int]) -> None:
    made, payloads = encoded(*sizes)
    file = HistoryFile(made.name, pa.BufferReader(made.data))
    edges = [0, PAGE_ROWS - 1, PAGE_ROWS, GROUP_ROWS - 1]
    chance = random.Random(2)
    for rows in ([0], edges, sorted(chance.sample(range(GROUP_ROWS), 30)), list(range(GROUP_ROWS))):
        assert file.payloads(0, rows).to_pylist() == [payloads[row] for row in rows]
    last = COUNT - GROUP_ROWS - 1
    assert file.payloads(1, [0, last]).to_pylist() == [payloads[GROUP_ROWS], payloads[-1]]


def test_our_files_have_pages_of_which_some_can_be_passed_over() -> None:
    made, _ = encoded(120, 120)
    file = pq.ParquetFile(pa.BufferReader(made.data))
    names = [file.metadata.schema.column(at).path for at in range(file.metadata.num_columns)]
    column = file.metadata.row_group(0).column(names.index("payload"))
    assert has_plain_pages(column)
    begin, end = column.data_page_offset, column.data_page_offset + column.total_compressed_size
    chunk = bytearray(made.data.to_pybytes()[begin:end])
    chunk[-5] ^= 1  # in the last page
    size_max = column.total_uncompressed_size
    assert len(pick(bytes(chunk), GROUP_ROWS, size_max, [0, PAGE_ROWS])) == 2
    with pytest.raises(CorruptError, match="does not match its checksum"):
        pick(bytes(chunk), GROUP_ROWS, size_max, [GROUP_ROWS - 1])


def test_a_flipped_bit_in_a_column_is_noticed_or_changes_nothing() -> None:
    made, payloads = encoded(0, 40)
    column = pq.ParquetFile(pa.BufferReader(made.data)).metadata.row_group(0).column(4)
    assert column.path_in_schema == "payload"
    begin, size = column.data_page_offset, column.total_compressed_size
    whole = made.data.to_pybytes()[begin : begin + size]
    rows = [7, PAGE_ROWS + 1, GROUP_ROWS - 1]
    chance = random.Random(3)
    noticed = 0
    headers = list(range(40)) * 8  # every bit of the first header
    for at in [*headers, *(chance.randrange(size) for _ in range(300))]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        try:
            found = pick(bytes(damaged), GROUP_ROWS, column.total_uncompressed_size, rows)
            assert found == [payloads[row] for row in rows]
        except (CorruptError, UnknownPagesError, OSError, pa.ArrowException):
            noticed += 1
    assert noticed > 150


@pytest.mark.parametrize(
    "written",
    [
        {"compression": "snappy"},
        {"compression": "zstd", "use_dictionary": True},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "zstd", "write_page_checksum": False},
        {"compression": "zstd", "write_statistics": True},
    ],
)
def test_columns_of_other_writers_are_left_to_arrow(written: dict[str, Any]) -> None:
    table = pa.table(
        [pa.array([b"a", b"bc", b"a"])],
        schema=pa.schema([pa.field("payload", pa.binary(), nullable=False)]),
    )
    settings = {"use_dictionary": False, "write_statistics": False, "write_page_checksum": True}
    sink = io.BytesIO()
    pq.write_table(table, sink, **(settings | written))
    column = pq.ParquetFile(sink).metadata.row_group(0).column(0)
    if has_plain_pages(column):
        begin = column.data_page_offset
        chunk = sink.getvalue()[begin : begin + column.total_compressed_size]
        with pytest.raises(UnknownPagesError):
            pick(chunk, 3, column.total_uncompressed_size, [1])
