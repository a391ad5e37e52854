"""Are plain records that are read in one walk the batch that they become one by one?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.fences import Fences
from penstock.log.kafka.records.mapping import decode_batch, decode_records, encode_batch
from penstock.log.kafka.records.plain import decode_plain
from penstock.log.kafka.records.record_batch import (
    NULL,
    Records,
    encode_bytes,
    encode_record_headers,
    encode_time,
    seal_bytes,
    split,
)
from penstock.model.errors import CorruptError
from tests.log.format.batch_model import ModelLog, RunPlan, run_plans
from tests.log.kafka.test_kafka_mapping import PRODUCER, TOPIC, T, stored
from tests.log.kafka.test_kafka_records import golden
from tests.log.kafka.test_kafka_undecoded import GOLDEN, assert_same

NO_HEADERS = encode_record_headers([])


@given(st.lists(run_plans(), min_size=1, max_size=4), st.integers(0, 9), st.booleans())
def test_records_of_penstock_become_the_same_batch(
    plans: list[RunPlan], incarnation: int, is_fenced: bool
) -> None:
    (one,) = split(encode_batch(ModelLog().batch(plans), PRODUCER, 5, incarnation))
    fences = Fences({incarnation: 0}) if is_fenced else None
    plain = decode_plain(one, one.records(), TOPIC, fences)
    if plain is not None:
        assert_same([plain], decode_records(one, one.records(), TOPIC, fences))
    assert_same(decode_batch(one, TOPIC, fences), decode_records(one, one.records(), TOPIC, fences))


KEYS = st.sampled_from([None, b"", b"a", b"a/b", TOPIC.encode(), b"\xff", b"$SYS/x", b"#"])
HEADERS = st.sampled_from([[], [(b"k", b"v")], [(b"k", None), (b"\xff", b"1")], [(b"~p", b"no")]])
TIMES = st.integers(-10, 10) | st.integers(-(2**40), 2**40)


@given(
    st.lists(
        st.tuples(TIMES, KEYS, st.none() | st.binary(max_size=200), HEADERS),
        min_size=1,
        max_size=9,
    )
)
def test_records_of_others_become_the_same_batch(
    parts: list[tuple[int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
) -> None:
    records = Records()
    for delta_ms, key, value, headers in parts:
        tail = encode_record_headers(headers)
        records.add(encode_time(delta_ms), encode_bytes(key), value, tail)
    data = seal_bytes(records.to_bytes(), len(parts), (T // 1_000, T // 1_000), PRODUCER, 0)
    (one,) = [stored(data, 70)]
    wanted = decode_records(one, one.records(), TOPIC, None)
    plain = decode_plain(one, one.records(), TOPIC, None)
    if plain is None:
        assert any(abs(delta_ms) > 2**33 for delta_ms, *_ in parts), "only such times take long"
    else:
        assert_same([plain], wanted)


@pytest.mark.parametrize("name", GOLDEN)
def test_records_of_every_producer_become_the_same_batch(name: str) -> None:
    for one in split(golden(name)):
        if not one.is_control:
            plain = decode_plain(one, one.records(), TOPIC, None)
            if plain is None:
                assert name.startswith("penstock"), "only we write marks"
            else:
                assert_same([plain], decode_records(one, one.records(), TOPIC, None))


@given(st.binary(max_size=60), st.integers(1, 3))
def test_damaged_records_are_left_to_who_says_what_is_wrong(data: bytes, count: int) -> None:
    (one,) = split(seal_bytes(data, count, (0, 0), PRODUCER, 0))
    try:
        wanted = decode_records(one, data, TOPIC, None)
    except CorruptError:
        wanted = []
    plain = decode_plain(one, data, TOPIC, None)
    if plain is not None:
        assert_same([plain], wanted)


def test_records_between_which_one_was_removed_are_not_plain() -> None:
    records = Records()
    for _ in range(3):
        records.add(encode_time(0), NULL, b"x", NO_HEADERS)
        records.count += 1
    data = seal_bytes(records.to_bytes(), 3, (0, 0), PRODUCER, 0)
    (one,) = split(data)
    assert decode_plain(one, one.records(), TOPIC, None) is None
