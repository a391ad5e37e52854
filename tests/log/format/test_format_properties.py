"""Does any batch that publishers can bring about come back exactly, and any damage come out?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.run import MixedRun
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import (
    Mark,
    decode_headers,
    decode_marks,
    encode_headers,
    encode_marks,
)
from penstock.model.errors import CorruptError
from penstock.model.limits import HEADERS_BYTES_MAX
from tests.appends import add, add_gapped
from tests.log.format.bare_format import parse_batch
from tests.log.format.batch_model import (
    STEPS_US,
    TOPIC,
    ModelLog,
    RunPlan,
    T,
    header_pairs,
    placed_marks,
    run_plans,
)

plan_lists = st.lists(run_plans(), max_size=6)


def stored(batch: Batch) -> bytes:
    return b"".join(batch.to_bytes())


@given(plan_lists)
def test_a_batch_comes_back_as_it_was_handed_over(plans: list[RunPlan]) -> None:
    model = ModelLog()
    data = stored(model.batch(plans))
    batch = decode_batch(data, 0)
    assert batch.records(TOPIC, 0, 2**62) == model.records
    assert placed_marks([batch]) == model.marks
    assert (batch.base_offset, batch.end_offset) == (0, model.end)
    assert batch.header.last_timestamp == model.last_timestamp
    assert batch.header.stored_length == len(data)
    assert len(data) % 8 == 0


@given(plan_lists, st.lists(run_plans(gapped=True), min_size=1, max_size=6))
def test_runs_of_several_names_added_at_once_make_the_same_batch_as_one_by_one(
    before: list[RunPlan], plans: list[RunPlan]
) -> None:
    together, apart = BatchBuilder(T), BatchBuilder(T)
    for builder in (together, apart):
        model = ModelLog()
        for plan in before:
            model.take(builder, plan)
    chunk = b""
    starts: list[int] = []
    lengths: list[int] = []
    for plan in plans:
        assert plan.junk is not None
        first, own = len(chunk), []
        for junk, payload in zip(plan.junk, plan.payloads, strict=True):
            own.append(len(chunk) - first + len(junk))
            chunk += junk + payload
        sizes = list(map(len, plan.payloads))
        add_gapped(apart, plan.name, chunk[first:], own, sizes, model.clock, 0, "p")
        starts += [first + start for start in own]
        lengths += sizes
    names = [plan.name for plan in plans]
    counts = [len(plan.payloads) for plan in plans]
    mixed = MixedRun(names, counts, chunk, starts, lengths)
    mixed.publisher = "p"
    together.add_mixed(mixed, model.clock)
    records = [builder.encode(0, 0, 0).records(TOPIC, 0, 2**62) for builder in (together, apart)]
    assert records[0] == records[1]
    assert (together.bytes, together.count) == (apart.bytes, apart.count)


@given(plan_lists)
def test_the_second_reader_agrees_on_any_batch(plans: list[RunPlan]) -> None:
    model = ModelLog()
    bare = parse_batch(stored(model.batch(plans)), 0)
    assert [(r.offset, r.timestamp, r.name, r.payload, r.headers) for r in bare.records] == [
        (r.offset, r.timestamp, r.name, r.payload, r.headers) for r in model.records
    ]
    assert [(r.publisher, r.qos, r.retain, r.expires_at, r.kind) for r in bare.records] == [
        (r.publisher, r.qos, r.retain, r.expires_at, r.kind) for r in model.records
    ]
    assert [(m.kind, m.key, m.index) for m in bare.marks] == model.marks


@given(st.lists(run_plans(), min_size=1, max_size=6), st.data())
def test_any_slice_holds_exactly_its_records(plans: list[RunPlan], data: st.DataObject) -> None:
    before = ModelLog()
    before.batch([RunPlan("n", [b""] * 3, 0, 1, False, 0, "", 0, (), None, [])])
    model = before
    batch = decode_batch(stored(model.batch(plans)), 0)
    assert batch.base_offset == 3
    positions = st.integers(-1, model.end + 2)
    for _ in range(10):
        start, end = data.draw(positions), data.draw(positions)
        wanted = [r for r in model.records[3:] if start <= r.offset < end]
        assert batch.records(TOPIC, start, end) == wanted


@given(st.lists(run_plans(), min_size=1, max_size=6), st.sampled_from([-1, 0, 1]))
def test_stamps_are_found_by_index_and_by_time(plans: list[RunPlan], nearby: int) -> None:
    model = ModelLog()
    batch = decode_batch(stored(model.batch(plans)), 0)
    stamps = [r.timestamp for r in model.records]
    assert stamps == sorted(stamps)
    assert [batch.timestamp(i) for i in range(len(stamps))] == stamps
    for wanted in {stamp + nearby for stamp in stamps} | {0, 2**60}:
        assert batch.index_at(wanted) == model.offset_at(wanted)


@given(st.lists(run_plans(), min_size=1, max_size=4), st.data())
def test_any_flipped_bit_is_refused_never_delivered(
    plans: list[RunPlan], data: st.DataObject
) -> None:
    whole = stored(ModelLog().batch(plans))
    for bit in data.draw(st.lists(st.integers(0, 8 * len(whole) - 1), min_size=20, max_size=20)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            decode_batch(bytes(damaged), 0)


@given(st.lists(run_plans(), min_size=1, max_size=3), st.data())
def test_any_changed_stretch_of_bytes_is_refused(plans: list[RunPlan], data: st.DataObject) -> None:
    whole = stored(ModelLog().batch(plans))
    at = data.draw(st.integers(0, len(whole) - 1))
    stretch = data.draw(st.binary(min_size=1, max_size=min(64, len(whole) - at)))
    damaged = whole[:at] + stretch + whole[at + len(stretch) :]
    if damaged == whole:
        return
    with pytest.raises(CorruptError):
        decode_batch(damaged, 0)


@given(run_plans(gapped=False), run_plans(gapped=True), run_plans(gapped=False))
def test_gaps_may_begin_and_end_inside_a_batch(
    first: RunPlan, gapped: RunPlan, last: RunPlan
) -> None:
    model = ModelLog()
    batch = decode_batch(stored(model.batch([first, gapped, last])), 0)
    assert not batch.header.flags & fmt.CONTIGUOUS
    assert batch.payloads(0, model.end) == [r.payload for r in model.records]


@given(plan_lists)
def test_a_batch_is_placed_elsewhere_by_a_new_header_alone(plans: list[RunPlan]) -> None:
    model = ModelLog()
    staged = model.batch(plans)
    body = stored(staged)[fmt.HEADER_BYTES :]
    staged.header.base_offset = 1_000
    staged.header.prev_checksum = 99
    staged.header.epoch = 8
    assert stored(staged)[fmt.HEADER_BYTES :] == body
    placed = decode_batch(stored(staged), 0)
    assert [r.offset - 1_000 for r in placed.records(TOPIC, 0, 2**62)] == [
        r.offset for r in model.records
    ]
    assert (placed.header.epoch, placed.header.prev_checksum) == (8, 99)


@given(header_pairs)
def test_record_headers_come_back_in_order_with_duplicates(pairs: list[tuple[str, str]]) -> None:
    assert decode_headers(encode_headers(tuple(pairs))) == tuple(pairs)


def test_the_largest_header_that_is_allowed_can_be_stored() -> None:
    for pairs in ((("k" * HEADERS_BYTES_MAX, ""),), (("", "v" * HEADERS_BYTES_MAX),)):
        assert decode_headers(encode_headers(pairs)) == pairs


@given(header_pairs.filter(bool), st.data())
def test_record_headers_that_end_early_are_refused(
    pairs: list[tuple[str, str]], data: st.DataObject
) -> None:
    encoded = encode_headers(tuple(pairs))
    cut = data.draw(st.integers(1, len(encoded) - 1))
    whole_pairs = {len(encode_headers(tuple(pairs[:n]))) for n in range(len(pairs))}
    if cut in whole_pairs:
        return
    with pytest.raises(CorruptError):
        decode_headers(encoded[:cut])


@given(st.lists(st.builds(Mark, st.integers(0, 255), st.binary(max_size=9)), min_size=1), st.data())
def test_marks_that_end_early_are_refused(marks: list[Mark], data: st.DataObject) -> None:
    encoded = encode_marks(marks)
    assert decode_marks(encoded) == marks
    cut = data.draw(st.integers(1, len(encoded) - 1))
    if cut in {len(encode_marks(marks[:n])) for n in range(len(marks))}:
        return
    with pytest.raises(CorruptError):
        decode_marks(encoded[:cut])


@given(st.lists(st.sampled_from(STEPS_US), min_size=1, max_size=8))
def test_only_the_columns_that_differ_are_stored(steps_us: list[int]) -> None:
    builder = BatchBuilder(0)
    clock = highest = T
    for step_us in steps_us:
        clock += step_us
        highest = max(highest, clock) if builder.count else clock
        add(builder, "n", [b"x"], clock, 1)
    batch = builder.encode(1, 0, 0)
    spread = batch.header.last_timestamp - batch.header.base_timestamp
    times = batch.header.flags & (fmt.TIMES | fmt.WIDE_TIMES)
    assert batch.header.last_timestamp == highest
    expected = fmt.WIDE_TIMES if spread > 0xFFFF_FFFF else fmt.TIMES if spread else 0
    assert times == expected
    assert batch.header.flags == fmt.CONTIGUOUS | expected


def test_a_header_that_describes_no_batch_is_refused_with_the_reason() -> None:
    good = ModelLog().batch([RunPlan("n", [b"x"], 0, 1, False, 0, "", 0, (), None, [])])

    def refusal(**changes: int) -> str:
        batch = decode_batch(stored(good), 0)
        for key, value in changes.items():
            setattr(batch.header, key, value)
        with pytest.raises(CorruptError) as refused:
            decode_batch(stored(batch), 0)
        return str(refused.value)

    assert "unknown batch flags 0x101" in refusal(flags=0x101)
    assert "unknown compression 2" in refusal(compression=2)
    assert "equal lengths" in refusal(blob_raw_length=2)
    assert "columns take" in refusal(count=9)
    assert "columns take" in refusal(string_count=50)
    assert "columns take" in refusal(marks_length=8)
    assert "cut short" in refusal(columns_length=2**31)
    assert "cut short" in refusal(blob_length=2**31, blob_raw_length=2**31)
