"""Is a batch of Kafka that is read late the one that was stored, and does no view miss it?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.fences import Fences
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import MARK_IDEMPOTENCY_KEY
from penstock.log.kafka.records.mapping import decode_batch, encode_batch
from penstock.log.kafka.records.properties import KEY
from penstock.log.kafka.records.record_batch import (
    NULL,
    Records,
    encode_bytes,
    encode_record_headers,
    encode_time,
    read_record_headers,
    read_records,
    seal,
    split,
)
from penstock.log.kafka.records.scanning import glance
from penstock.log.kafka.records.undecoded import read_batch
from penstock.log.tail import Tail
from penstock.model.errors import CorruptError
from penstock.model.record import RETAIN
from tests.appends import add
from tests.log.format.batch_model import ModelLog, RunPlan, placed_marks, run_plans
from tests.log.kafka.test_kafka_mapping import PRODUCER, TOPIC, T, records, stored
from tests.log.kafka.test_kafka_records import golden

GOLDEN = ["none", "gzip", "snappy", "lz4", "zstd", "java", "txn", "penstock", "penstock-marks"]


def assert_same(found: list[Batch], wanted: list[Batch]) -> None:
    assert [(one.base_offset, one.end_offset) for one in found] == [
        (one.base_offset, one.end_offset) for one in wanted
    ]
    assert records(found) == records(wanted)
    assert placed_marks(found) == placed_marks(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one.incarnation, one.strings) == (other.incarnation, other.strings)
        assert one.to_bytes() == other.to_bytes()


@given(st.lists(run_plans(), min_size=1, max_size=4), st.integers(0, 9))
def test_a_batch_that_is_read_late_is_the_one_that_is_read_at_once(
    plans: list[RunPlan], incarnation: int
) -> None:
    data = encode_batch(ModelLog().batch(plans), PRODUCER, 5, incarnation)
    found = read_batch(stored(data, 70), TOPIC, None)
    for one in found:
        if one.undecoded is not None:
            names = one.glimpse_names()
            assert one.undecoded is not None, "a look at the names decodes nothing"
            assert one.strings[: len(names)] == names
    assert_same(found, decode_batch(stored(data, 70), TOPIC))


@given(st.lists(run_plans(), min_size=1, max_size=4), st.booleans())
def test_what_views_follow_is_always_decoded(plans: list[RunPlan], is_guarded: bool) -> None:
    batch = ModelLog().batch(plans)
    guarded = [(0, 1)] if is_guarded and batch.header.count else None
    data = encode_batch(batch, PRODUCER, 5, 3, guarded)
    (first, *_) = read_batch(stored(data), TOPIC, None)
    count = batch.header.count
    is_followed = (
        not count
        or bool(batch.header.marks_length)
        or is_guarded
        or any(flag & RETAIN for flag in batch.flags(0, count))
    )
    assert (first.undecoded is None) == is_followed


@pytest.mark.parametrize("name", GOLDEN)
def test_batches_of_every_producer_are_read_late_as_at_once(name: str) -> None:
    for one in split(golden(name)):
        assert_same(read_batch(one, TOPIC, None), decode_batch(one, TOPIC))


def foreign(*parts: tuple[bytes | None, list[tuple[bytes, bytes | None]]]) -> bytes:
    records = Records()
    for key, headers in parts:
        key_part = NULL if key is None else encode_bytes(key)
        records.add(encode_time(0), key_part, b"x" * 300, encode_record_headers(headers))
    return seal(records, T // 1_000, T // 1_000, PRODUCER, 0)


def test_foreign_messages_have_the_name_of_the_topic_where_the_key_cannot_be_one() -> None:
    data = foreign((b"a/b", []), (None, [(b"k", None)]), (b"\xff", []), (b"a/b", []))
    (batch,) = read_batch(stored(data), TOPIC, None)
    assert batch.undecoded is not None
    assert set(batch.glimpse_names()) == {"a/b", TOPIC}
    assert_same([batch], decode_batch(stored(data), TOPIC))


def test_a_batch_with_records_of_ours_and_of_others_is_decoded_at_once() -> None:
    builder = BatchBuilder(0)
    add(builder, "ours", [b"a"], T, 1, "till")
    (one,) = split(encode_batch(builder.encode(1, 0, 0), PRODUCER, 0))
    section = read_records(one.records(), 1)
    headers = read_record_headers(one.records()[section.header_starts[0] :])
    data = foreign((b"ours", headers), (b"theirs", []))
    (batch,) = read_batch(stored(data), TOPIC, None)
    assert batch.undecoded is None
    assert records([batch])[0].publisher == "till"


def test_properties_that_are_cut_short_or_of_a_later_version_make_no_secret_of_marks() -> None:
    for value in (b"", b"\x01\x04", b"\x02" + bytes(14), b"\x01\x00\xf0" + bytes(12)):
        (batch,) = read_batch(stored(foreign((b"a", [(KEY, value)]))), TOPIC, None)
        assert batch.undecoded is None


@given(st.binary(max_size=60), st.integers(0, 3))
def test_bytes_that_are_not_records_are_corrupt_and_nothing_else(data: bytes, count: int) -> None:
    try:
        seen = glance(data, count)
    except CorruptError:
        return
    if seen.is_plain:
        read_records(data, count)


def test_a_void_record_is_not_shown_by_a_log_that_follows() -> None:
    builder = BatchBuilder(0)
    add(builder, "a", [b"1"], T, 2)
    builder.add_mark(MARK_IDEMPOTENCY_KEY, b"key", 0)
    data = encode_batch(builder.encode(1, 0, 0), PRODUCER, 0, 3, [(0, 1)])
    found = read_batch(stored(data, 9), TOPIC, Fences({3: 4}))
    assert records(found) == [] and [one.end_offset for one in found] == [10]


def test_a_tail_counts_what_it_drops_as_it_counted_it_before_somebody_read_it() -> None:
    tail = Tail(0, 1 << 20)
    data = foreign(*[(b"a/%d" % i, []) for i in range(50)])
    for at in range(4):
        (batch,) = read_batch(stored(data, 50 * at), TOPIC, None)
        tail.append(batch)
    before = tail.bytes
    for batch in tail.read(0, 1 << 20):
        assert batch.undecoded is not None
        assert len(records([batch])) == 50
    tail.drop_before(100)
    assert tail.bytes == before // 2
