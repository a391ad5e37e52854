"""Can bytes from the network be a batch that readers trip over? What passes must be readable."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.builder import Columns, assemble
from penstock.log.format.marks import MARK_SPARK_BATCH, Mark, encode_headers
from penstock.log.staging.area import STAGED_BLOB_BYTES
from penstock.log.staging.foreign import check_batch
from penstock.model.errors import CorruptError, PenstockError, TooLarge
from penstock.model.record import KIND_JSON, KIND_SHIFT, KIND_TEXT
from tests.examples import examples

SEED = 20


def batch_of(
    payloads: list[bytes], names: list[str], *, compressed: bool = False, flags: bytes = b""
) -> Batch:
    """As tasks make them."""
    columns = Columns()
    columns.count = len(payloads)
    columns.record_flags = 1
    columns.flags = flags
    starts = [0]
    for payload in payloads:
        starts.append(starts[-1] + len(payload))
    columns.starts = struct.pack(f"<{len(starts)}I", *starts)
    columns.strings = sorted(set(names))
    if len(columns.strings) > 1:
        ids = [columns.strings.index(name) for name in names]
        columns.names = struct.pack(f"<{len(ids)}I", *ids)
    headers = [encode_headers((("k", str(at)),) if at % 2 else ()) for at in range(len(payloads))]
    columns.headers = b"".join(headers)
    bounds = [0]
    for one in headers:
        bounds.append(bounds[-1] + len(one))
    columns.header_starts = struct.pack(f"<{len(bounds)}I", *bounds)
    columns.marks = [Mark(MARK_SPARK_BATCH, b"key", 0)]
    batch = assemble(columns, b"".join(payloads), 0, 0, 0)
    if compressed:
        batch.compress()
    return batch


def remade(batch: Batch) -> Batch:
    """As it comes from the network, with checksums that fit what it holds now."""
    batch.header.columns_checksum = crc32c(batch.columns)
    batch.header.blob_checksum = crc32c(batch.stored_blob)
    return decode_batch(b"".join(batch.to_bytes()), 0)


@pytest.mark.parametrize("compressed", [False, True])
def test_what_tasks_make_passes_and_its_names_are_told(compressed: bool) -> None:
    batch = batch_of([b"a" * 500, b"", b"b" * 500], ["x/1", "y", "x/1"], compressed=compressed)
    assert check_batch(remade(batch), 1_000) == {"x/1", "y"}


def test_records_may_differ_in_the_kind_of_their_values_and_in_nothing_else() -> None:
    kinds = bytes([1, 1 | KIND_TEXT << KIND_SHIFT, 1 | KIND_JSON << KIND_SHIFT])
    passes = remade(batch_of([b"a", b"b", b"1"], ["x"] * 3, flags=kinds))
    assert check_batch(passes, 100) == {"x"}
    assert [one.value for one in passes.records("t", 0, 3)] == [b"a", "b", 1]
    for wrong in (0, 2, 5, 31):
        batch = batch_of([b"a", b"b"], ["x", "x"], flags=bytes([1, wrong]))
        with pytest.raises(CorruptError, match="of their own"):
            check_batch(remade(batch), 100)


def test_payloads_have_the_limit_of_any_publish() -> None:
    with pytest.raises(TooLarge, match="message of 500 bytes: at most 499"):
        check_batch(remade(batch_of([b"a", b"b" * 500], ["x", "x"])), 499)
    with pytest.raises(TooLarge, match="message of 500 bytes"):
        check_batch(remade(batch_of([b"b" * 500], ["x"])), 499)


def test_a_blob_that_claims_to_be_huge_is_not_unpacked() -> None:
    batch = batch_of([b"a" * 5_000, b"b" * 5_000], ["x", "x"], compressed=True)
    batch.header.blob_raw_length = 2 * STAGED_BLOB_BYTES + 1
    with pytest.raises(CorruptError, match="too many"):
        check_batch(remade(batch), 10_000)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("record_flags", 0), ("record_flags", 5), ("record_flags", 31), ("publisher_id", 0)],
)
def test_records_speak_for_nobody_and_retain_nothing(flag: str, value: int) -> None:
    batch = batch_of([b"a", b"b"], ["x", "x"])
    setattr(batch.header, flag, value)
    with pytest.raises(CorruptError, match="of their own"):
        check_batch(remade(batch), 100)


@given(seed=st.integers(0, 1 << 32), changes=st.integers(1, 4), compressed=st.booleans())
@examples(300)
def test_whatever_passes_can_be_read(seed: int, changes: int, compressed: bool) -> None:
    chance = random.Random(seed)
    payloads = [chance.randbytes(chance.randrange(9)) * 8 for _ in range(chance.randrange(1, 9))]
    names = [chance.choice(["a", "b/c", "ü"]) for _ in payloads]
    flags = bytes(chance.choice([1, 9]) for _ in payloads) if chance.random() < 0.5 else b""
    batch = batch_of(payloads, names, compressed=compressed, flags=flags)
    columns, blob = bytearray(batch.columns), bytearray(batch.stored_blob)
    for _ in range(changes):
        part = chance.choice([columns, blob])
        if part:
            part[chance.randrange(len(part))] = chance.choice([0, 1, 2, 255, chance.randrange(256)])
    changed = Batch(batch.header, bytes(columns), bytes(blob))
    try:
        found = remade(changed)
        names_found = check_batch(found, 1_000)
    except PenstockError:
        return
    records = found.records("t", 0, found.header.count)
    assert len(records) == len(payloads)
    assert {record.name for record in records} <= names_found
    assert b"".join(record.payload for record in records) == bytes(found.blob)
    assert fmt.unpack_header(fmt.pack_header(found.header), 0) is not None
