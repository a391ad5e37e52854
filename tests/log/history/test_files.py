"""Does a history file hold every record exactly, and is damage anywhere in it noticed?"""

from __future__ import annotations

import random
from dataclasses import replace
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.history import files
from penstock.log.history.files import (
    EncodedFile,
    FileFacts,
    FileName,
    HistoryFile,
    encode_file,
    parse_name,
)
from penstock.model.errors import CorruptError
from penstock.model.record import Record
from tests.log.files.segments import plain_run
from tests.log.format.batch_model import TOPIC, ModelLog, RunPlan, run_plans

FACTS = FileFacts(TOPIC, 7, 3)
KINDS = ["bytes", "text", "json"]


def opened(file: EncodedFile) -> HistoryFile:
    return HistoryFile(file.name, pa.BufferReader(file.data))


def records_of(file: HistoryFile) -> list[Record]:
    """The rows as records, by a way that shares nothing with the writer."""
    table = file.parquet.read()
    stamps = table.column("timestamp").cast(pa.int64()).to_pylist()
    expiries = table.column("expires_at").cast(pa.int64()).to_pylist()
    rest = table.drop_columns(["timestamp", "expires_at"]).to_pylist()
    return [
        Record(
            TOPIC,
            0,
            row["offset"],
            stamp,
            row["name"],
            row["payload"],
            tuple((p["key"], p["value"]) for p in row["header_pairs"])
            if row["header_pairs"] is not None
            else tuple(row["headers"]),
            row["publisher"],
            row["qos"],
            row["retain"],
            expiry,
            KINDS.index(row["kind"]),
        )
        for row, stamp, expiry in zip(rest, stamps, expiries, strict=True)
    ]


@given(st.lists(st.lists(run_plans(), max_size=3), min_size=1, max_size=4), st.data())
def test_every_record_of_a_range_comes_back_whole(
    plans: list[list[RunPlan]], data: st.DataObject
) -> None:
    model = ModelLog()
    batches = [model.batch(runs) for runs in plans]
    if not model.end:
        return
    base = data.draw(st.integers(0, model.end - 1))
    end = data.draw(st.integers(base + 1, model.end))
    with (
        mock.patch.object(files, "GROUP_ROWS", data.draw(st.integers(1, 5))),
        mock.patch.object(files, "GROUP_PAYLOAD_BYTES", data.draw(st.integers(1, 20))),
    ):
        file = opened(encode_file(batches, base, end, FACTS))
    wanted = model.records[base:end]
    assert records_of(file) == wanted
    assert (file.name.base, file.name.end, file.facts) == (base, end, FACTS)
    file.verify()
    names = file.names()
    assert names is not None and set(names) == {record.name for record in wanted}
    at = 0
    for number, rows in enumerate(file.group_rows):
        held = {record.name for record in wanted[at : at + rows]}
        at += rows
        assert held == {name for name, found in names.items() if found is None or number in found}


def test_headers_are_stored_once_unless_a_key_repeats() -> None:
    model = ModelLog()
    plain = replace(plain_run("a", [b"1"]), headers=(("b", "1"), ("a", "2")))
    twice = replace(plain_run("a", [b"2"]), headers=(("a", "1"), ("b", "2"), ("a", "3")))
    table = opened(encode_file([model.batch([plain, twice])], 0, 2, FACTS)).parquet.read()
    assert table.column("headers").to_pylist() == [
        [("b", "1"), ("a", "2")],
        [("a", "1"), ("b", "2")],
    ]
    assert [pairs is None for pairs in table.column("header_pairs").to_pylist()] == [True, False]


def test_a_missing_record_is_noticed_before_a_file_exists() -> None:
    model = ModelLog()
    first, _, third = (model.batch([plain_run("a", [b"x"] * 3)]) for _ in range(3))
    with pytest.raises(CorruptError, match="offsets from 0 on are not consecutive"):
        encode_file([first, third], 0, 9, FACTS)
    with pytest.raises(CorruptError, match="from offset 3 to 9 are missing"):
        encode_file([first], 0, 9, FACTS)


def test_the_name_of_a_file_says_what_it_holds_and_other_names_mean_nothing() -> None:
    name = FileName(5, 1_000, 0xAB)
    assert str(name) == "00000000000000000005-00000000000000001000-000000ab.parquet"
    assert parse_name(str(name)) == name
    for other in ("part-0.parquet", f"{name}.tmp", f"x{name}", ""):
        assert parse_name(other) is None


def test_a_flipped_bit_anywhere_is_noticed_or_changes_nothing() -> None:
    model = ModelLog()
    runs = [plain_run(f"n/{i % 7}", [b"payload %d" % i] * 40, 10) for i in range(30)]
    encoded = encode_file([model.batch(runs)], 0, model.end, FACTS)
    whole = encoded.data.to_pybytes()
    chosen = random.Random(5)
    noticed = 0
    for _ in range(120):
        damaged = bytearray(whole)
        damaged[chosen.randrange(len(whole))] ^= 1 << chosen.randrange(8)
        try:
            file = HistoryFile(encoded.name, pa.BufferReader(bytes(damaged)))
            file.verify()
            assert records_of(file) == model.records
        except (CorruptError, OSError, pa.ArrowException):
            noticed += 1
    assert noticed > 60
