"""Stored batches as runs: the same records as `Batch.records`, however they were appended."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.deliver.stored_runs import stored_run, stored_runs
from penstock.core.delivery.run import Run
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import encode_headers
from penstock.model.clock import ManualClock
from penstock.model.record import KIND_SHIFT, RETAIN, Headers, Record
from penstock.model.timeline import Timeline
from tests.appends import add, add_gapped

STRAIGHT = Timeline(ManualClock())  # stamps are steady time
HEADERS: list[Headers] = [(), (("k", "v"),), (("k", "v"), ("k", "w"))]

APPENDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "a/b"]),
        st.lists(st.binary(max_size=5), min_size=1, max_size=4),
        st.integers(0, 2),  # QoS
        st.booleans(),  # retain
        st.sampled_from(["", "a", "me"]),  # publisher, one of them spelled like a name
        st.sampled_from([0, 5, 9]),  # expiry
        st.sampled_from(HEADERS),
        st.booleans(),  # with other bytes between the payloads
        st.integers(0, 1),  # kind
    ),
    min_size=1,
    max_size=12,
)

Appends = list[tuple[str, list[bytes], int, bool, str, int, Headers, bool, int]]


def build(appends: Appends, base_offset: int) -> Batch:
    builder = BatchBuilder(0)
    for name, payloads, qos, retain, publisher, expires_at, headers, gaps, kind in appends:
        flags = qos | (RETAIN if retain else 0) | kind << KIND_SHIFT
        rest = (1000, flags, publisher, expires_at, encode_headers(headers))
        if gaps:
            data = b"".join(b"--" + payload for payload in payloads)
            lengths = [len(payload) for payload in payloads]
            starts = [sum(lengths[:at]) + 2 * (at + 1) for at in range(len(lengths))]
            add_gapped(builder, name, data, starts, lengths, *rest)
        else:
            add(builder, name, payloads, *rest)
    return builder.encode(1, base_offset, 0)


def taken_apart(base: int, run: Run) -> Iterator[tuple[object, ...]]:
    for at in range(run.count):
        payload = run.data[run.starts[at] : run.starts[at] + run.lengths[at]]
        yield (
            base + at,
            run.name,
            payload,
            run.qos,
            run.retain,
            run.publisher,
            run.until_us or None,
            run.headers,
            run.kind,
        )


def fields(record: Record) -> tuple[object, ...]:
    return (
        record.offset,
        record.name,
        record.payload,
        record.qos,
        record.retain,
        record.publisher,
        record.expires_at,
        record.headers,
        record.kind,
    )


@given(appends=APPENDS, base=st.integers(0, 1 << 40), skip=st.integers(-3, 60), data=st.data())
def test_runs_hold_the_records_of_their_batch(
    appends: Appends, base: int, skip: int, data: st.DataObject
) -> None:
    batch = build(appends, base)
    start = base + skip
    records = batch.records("", start, batch.end_offset)
    runs = [
        one for first, run in stored_runs(batch, start, STRAIGHT) for one in taken_apart(first, run)
    ]
    assert runs == [fields(record) for record in records]
    names = data.draw(st.sets(st.sampled_from(["a", "b", "a/b"])))
    wanted = {number for number, text in enumerate(batch.strings) if text in names}
    runs = [
        one
        for first, run in stored_runs(batch, start, STRAIGHT, wanted)
        for one in taken_apart(first, run)
        if one[1] in names  # a batch of one name is not looked through
    ]
    assert runs == [fields(record) for record in records if record.name in names]


@given(appends=APPENDS, base=st.integers(0, 1000), at=st.integers(0, 1000))
def test_one_record_is_a_run_of_one(appends: Appends, base: int, at: int) -> None:
    batch = build(appends, base)
    offset = base + at % batch.header.count
    (record,) = batch.records("", offset, offset + 1)
    assert list(taken_apart(offset, stored_run(batch, offset, STRAIGHT))) == [fields(record)]
