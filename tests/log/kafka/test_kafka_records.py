"""Do we read what other Kafka clients write, and do they read what we write?

The vectors in golden_kafka/ were taken from the files of a Kafka 4.3 that other libraries wrote to;
they are never written again. What we write is read by aiokafka's own decoder.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.kafka.partitioner import murmur2, partition_of
from penstock.log.kafka.records.record_batch import (
    RecordBatch,
    Records,
    encode_bytes,
    encode_record_headers,
    encode_time,
    read_record_headers,
    read_records,
    read_varint,
    seal,
    split,
    varint,
)
from penstock.model.errors import CorruptError

GOLDEN = Path(__file__).parent / "golden_kafka"
T_MS = 1_700_000_000_000
FIVE = [
    (T_MS, b"orders/1", b"first", [(b"k", b"v"), (b"k", "ü".encode()), (b"n", None)]),
    (T_MS + 5, b"orders/2", None, []),
    (T_MS + 3, None, b"no key", []),
    (T_MS + 2000, "ü/☃".encode(), b"z" * 300, []),
    (T_MS + 2001, b"\xff\xfe", b"", []),
]

Plain = tuple[int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]


def golden(name: str) -> bytes:
    lines = (GOLDEN / f"{name}.hex").read_text(encoding="ascii").splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


def plain(batch: RecordBatch) -> list[Plain]:
    """(time, key, value, headers) of each record."""
    data = batch.records()
    columns = read_records(data, batch.count)

    def part(start: int, length: int) -> bytes | None:
        return None if length < 0 else data[start : start + length]

    return [
        (
            batch.base_ms + columns.time_deltas[i],
            part(columns.key_starts[i], columns.key_lengths[i]),
            part(columns.value_starts[i], columns.value_lengths[i]),
            read_record_headers(data[columns.header_starts[i] : columns.header_ends[i]]),
        )
        for i in range(batch.count)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_librdkafka_are_read_in_every_compression(codec: str) -> None:
    (batch,) = split(golden(codec))
    assert plain(batch) == FIVE
    assert (batch.base_offset, batch.end_offset) == (0, 5)
    assert batch.producer_id >= 0 and batch.base_sequence == 0


def test_records_of_the_java_client_are_read() -> None:
    (batch,) = split(golden("java"))
    payload = b"payload payload payload"
    assert plain(batch) == [(T_MS + i, b"java/%d" % i, payload, []) for i in range(3)]


def test_transactions_and_the_records_that_end_them_are_told_apart() -> None:
    batches = split(golden("txn"))
    assert [batch.is_control for batch in batches] == [False, True] * 3
    assert all(batch.is_transactional for batch in batches)
    assert [batch.base_offset for batch in batches] == [0, 2, 3, 5, 6, 8]
    assert [value for _, _, value, _ in plain(batches[2])] == [b"abort", b"abort2"]


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd", "java", "txn"])
def test_what_a_fetch_cut_short_is_left_out_and_what_is_damaged_is_reported(name: str) -> None:
    data = golden(name)
    whole = len(split(data))
    assert len(split(data[:-1])) == whole - 1
    for at in (20, 40, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptError):
            split(bytes(damaged))


def test_a_batch_in_the_format_before_kafka_0_11_is_refused_by_name() -> None:
    data = bytearray(golden("none"))
    data[16] = 1
    with pytest.raises(CorruptError, match="has format 1: Penstock reads format 2"):
        split(bytes(data))


numbers = st.integers(-(2**63), 2**63 - 1)


@given(numbers, st.binary(max_size=3))
def test_a_number_is_read_as_it_was_written(value: int, rest: bytes) -> None:
    data = varint(value)
    assert read_varint(data + rest, 0) == (value, len(data))


maybe = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=5).map(str.encode), maybe), max_size=3)
plain_records = st.tuples(st.integers(0, 2**40), maybe, maybe, header_lists)


@given(st.lists(plain_records, min_size=1, max_size=8), st.integers(0, 2**31 - 1))
def test_another_library_reads_what_we_write(written: list[Plain], sequence: int) -> None:
    base = written[0][0]
    records = Records()
    for time, key, value, headers in written:
        tail = encode_record_headers(headers)
        records.add(encode_time(time - base), encode_bytes(key), value, tail)
    data = seal(records, base, max(one[0] for one in written), (7, 2), sequence)
    (batch,) = split(data)
    assert plain(batch) == written
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, sequence)
    theirs = DefaultRecordBatch(data)
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.base_sequence) == (7, sequence)
    read = [
        (one.timestamp, one.key, one.value, [(key.encode(), value) for key, value in one.headers])
        for one in theirs
    ]
    assert read == written


@given(st.binary(max_size=60), st.integers(1, 3))
def test_bytes_that_are_not_records_are_corrupt_and_nothing_else(data: bytes, count: int) -> None:
    try:
        columns = read_records(data, count)
        for start, end in zip(columns.header_starts, columns.header_ends, strict=True):
            read_record_headers(data[start:end])
            assert start <= end <= len(data)
    except CorruptError:
        return
    assert len(columns.header_starts) == count


# murmur2 and the partition of 16, as org.apache.kafka.common.utils.Utils says.
@pytest.mark.parametrize(
    ("key", "hashed", "partition"),
    [
        ("", 275646681, 9),
        ("a", -1563381124, 12),
        ("ab", 316155434, 10),
        ("abc", 479470107, 11),
        ("abcd", -1323649548, 4),
        ("orders/1", 559511244, 12),
        ("sensors/berlin/7/temperature", -147269222, 10),
        ("ü/☃", -395861514, 6),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971, 13),
    ],
)
def test_a_name_has_the_partition_that_java_clients_choose(
    key: str, hashed: int, partition: int
) -> None:
    assert murmur2(key.encode()) == hashed & 0xFFFF_FFFF
    assert partition_of(key.encode(), 16) == partition
