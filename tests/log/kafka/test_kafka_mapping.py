"""Is a message the same message after it was a Kafka record, and is a foreign record a message?"""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import (
    MARK_IDEMPOTENCY_KEY,
    MARK_QOS2_RELEASED,
    NO_RECORD,
    Mark,
    encode_headers,
)
from penstock.log.kafka.records.mapping import decode_batch, encode_batch, record_count
from penstock.log.kafka.records.properties import Properties, decode_properties, encode_properties
from penstock.log.kafka.records.record_batch import (
    NULL,
    RecordBatch,
    Records,
    encode_bytes,
    encode_record_headers,
    encode_time,
    seal,
    split,
)
from penstock.log.kafka.records.sections import KEY_HEADER
from penstock.model.record import Record
from tests.appends import add
from tests.log.format.batch_model import ModelLog, RunPlan, placed_marks, run_plans
from tests.log.kafka.test_kafka_records import T_MS, golden

TOPIC = "topic"
T = T_MS * 1_000
PRODUCER = (4_000, 1)


def stored(data: bytes, base_offset: int = 0) -> RecordBatch:
    """The batch as Kafka stores it: with its offset, and the epoch of its leader."""
    placed = base_offset.to_bytes(8, "big") + data[8:12] + (3).to_bytes(4, "big") + data[16:]
    (batch,) = split(placed)
    return batch


def records(batches: list[Batch]) -> list[Record]:
    return [
        record
        for batch in batches
        for record in batch.records(TOPIC, batch.base_offset, batch.end_offset)
    ]


def assert_no_gap(batches: list[Batch], first: int, end: int) -> None:
    for batch in batches:
        assert batch.base_offset == first and batch.end_offset > first
        first = batch.end_offset
    assert first == end


@given(st.lists(run_plans(), min_size=1, max_size=4))
def test_messages_come_back_as_they_were_published(plans: list[RunPlan]) -> None:
    model = ModelLog()
    batch = model.batch(plans)
    data = encode_batch(batch, PRODUCER, 5)
    back = decode_batch(stored(data), TOPIC)
    assert records(back) == model.records
    assert sorted(map(str, placed_marks(back))) == sorted(map(str, model.marks))
    assert_no_gap(back, 0, record_count(batch))
    assert {one.header.epoch for one in back} == {4}


@given(st.lists(run_plans(), min_size=1, max_size=4))
def test_any_kafka_program_finds_name_payload_and_headers(plans: list[RunPlan]) -> None:
    model = ModelLog()
    theirs = list(DefaultRecordBatch(encode_batch(model.batch(plans), PRODUCER, 0)))
    assert len(theirs) == len(model.records)
    for one, record in zip(theirs, model.records, strict=True):
        assert (one.key, one.value) == (record.name.encode(), record.payload)
        assert one.timestamp == record.timestamp // 1_000
        headers = [(key, value.decode()) for key, value in one.headers if key != "~p"]
        assert headers == list(record.headers)


def everything() -> Batch:
    builder = BatchBuilder(0)
    add(builder, "orders/1", [b"a", b"b"], T + 7, 1, "till", T + 99, encode_headers((("k", "ü"),)))
    add(builder, "orders/2", [b""], T + 2_500, 2 | 4 | 2 << 3)
    builder.add_mark(MARK_IDEMPOTENCY_KEY, b"key", 1)
    builder.add_mark(MARK_QOS2_RELEASED, b"gone", NO_RECORD)
    return builder.encode(1, 0, 0)


def test_the_bytes_of_our_records_stay_as_they_are() -> None:
    assert encode_batch(everything(), PRODUCER, 11, 6) == golden("penstock")
    back = decode_batch(stored(golden("penstock")), TOPIC)
    assert records(back) == everything().records(TOPIC, 0, 3)
    assert back[0].blob == b"ab"  # who reads batches as they are stored gets no marks
    marks = placed_marks(back)
    assert marks == [(MARK_IDEMPOTENCY_KEY, b"key", 1), (MARK_QOS2_RELEASED, b"gone", None)]


def test_marks_alone_are_a_record_without_key_and_take_one_offset() -> None:
    builder = BatchBuilder(T)
    builder.add_mark(MARK_QOS2_RELEASED, b"gone", NO_RECORD)
    batch = builder.encode(1, 0, 0)
    assert encode_batch(batch, PRODUCER, 0) == golden("penstock-marks")
    (theirs,) = DefaultRecordBatch(golden("penstock-marks"))
    assert theirs.key is None and theirs.value is None
    (back,) = decode_batch(stored(golden("penstock-marks"), 40), TOPIC)
    assert (back.base_offset, back.end_offset, back.header.count) == (40, 41, 0)
    assert back.marks() == [Mark(MARK_QOS2_RELEASED, b"gone")]


def test_a_foreign_record_is_a_message_of_qos_1() -> None:
    found = records(decode_batch(split(golden("none"))[0], TOPIC))
    assert [(one.offset, one.name, one.payload) for one in found] == [
        (0, "orders/1", b"first"),
        (1, "orders/2", b""),
        (2, TOPIC, b"no key"),
        (3, "ü/☃", b"z" * 300),
        (4, TOPIC, b""),
    ]
    assert found[0].headers == (("k", "v"), ("k", "ü"), ("n", ""))
    assert found[4].headers == ((KEY_HEADER, "//4="),)  # its key cannot be a name: nothing is lost
    assert all((one.qos, one.retain, one.publisher) == (1, False, "") for one in found)
    # Kafka lets producers stamp as they like; the times of a batch never fall here.
    assert [one.timestamp - T for one in found] == [0, 5_000, 5_000, 2_000_000, 2_001_000]


@pytest.mark.parametrize("key", [b"a/+/b", b"#", b"$SYS/x", b"a\x00b", b"", b"\xff"])
def test_a_foreign_key_that_cannot_be_a_name_is_kept_in_a_header(key: bytes) -> None:
    written = Records()
    written.add(encode_time(0), encode_bytes(key), b"x", encode_record_headers([]))
    (one,) = records(decode_batch(stored(seal(written, T_MS, T_MS, (-1, -1), -1)), TOPIC))
    assert one.name == TOPIC
    assert [name for name, _ in one.headers] == ([KEY_HEADER] if key else [])


def test_kafkas_own_records_are_offsets_without_messages() -> None:
    batches = [one for batch in split(golden("txn")) for one in decode_batch(batch, TOPIC)]
    assert_no_gap(batches, 0, 9)
    assert [one.payload for one in records(batches)] == [
        *(b"commit", b"commit2", b"abort", b"abort2", b"commit", b"commit2")
    ]


def foreign(offset_delta: int) -> Records:
    written = Records()
    written.count = offset_delta
    written.add(encode_time(0), encode_bytes(b"n"), b"%d" % offset_delta, encode_record_headers([]))
    return written


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True).map(sorted))
def test_offsets_that_somebody_removed_are_covered_by_the_batch_before(deltas: list[int]) -> None:
    all_records = Records()
    for delta in deltas:
        all_records._parts += foreign(delta)._parts
    all_records.count = len(deltas)
    data = bytearray(seal(all_records, T_MS, T_MS, (-1, -1), -1))
    data[23:27] = (40).to_bytes(4, "big")  # the last offset of the batch was removed, too
    from penstock.log.format.checksum import crc32c

    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    batches = decode_batch(stored(bytes(data), 100), TOPIC)
    assert_no_gap(batches, 100, 141)
    found = [(one.offset, one.payload) for one in records(batches)]
    assert found == [(100 + delta, b"%d" % delta) for delta in deltas]


def test_marks_between_messages_of_one_batch_are_a_batch_of_their_own() -> None:
    written = Records()
    no_headers = encode_record_headers([])
    properties = Properties(0, 0, T)
    properties.marks = [Mark(MARK_QOS2_RELEASED, b"gone")]
    marks = encode_record_headers([(b"~p", encode_properties(properties))])
    written.add(encode_time(0), encode_bytes(b"a"), b"1", no_headers)
    written.add(encode_time(0), NULL, None, marks)
    written.add(encode_time(0), encode_bytes(b"b"), b"2", no_headers)
    batches = decode_batch(stored(seal(written, T_MS, T_MS, PRODUCER, 0), 10), TOPIC)
    assert_no_gap(batches, 10, 13)
    assert [(one.offset, one.name) for one in records(batches)] == [(10, "a"), (12, "b")]


@given(st.binary(max_size=40))
def test_a_header_that_penstock_did_not_write_makes_a_foreign_record(value: bytes) -> None:
    written = Records()
    tail = encode_record_headers([(b"~p", value)])
    written.add(encode_time(0), encode_bytes(b"n"), b"x", tail)
    found = decode_batch(stored(seal(written, T_MS, T_MS, (-1, -1), -1)), TOPIC)
    assert [one.payload for one in records(found)] == [b"x"]


@given(st.binary(max_size=60).map(lambda data: b"\x01" + data))
def test_properties_are_read_or_left_alone(value: bytes) -> None:
    properties = decode_properties(value)
    assert properties is None or properties.stamp >= -(2**63)
