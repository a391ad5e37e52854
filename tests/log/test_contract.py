"""What every log promises, whatever it is kept in (penstock.log.interface.Log)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.delivery.run import MixedRun, run_of
from penstock.log.format.marks import MARK_IDEMPOTENCY_KEY, NO_RECORD, Mark
from penstock.log.interface import Bounds, KeptLog, LogSettings
from penstock.model.errors import Gap, UnavailableError
from penstock.model.record import KIND_JSON, KIND_TEXT, Record
from tests.appends import append
from tests.log.conftest import IDENTITY, Bench


async def read_all(log: KeptLog, offset: int | None = None) -> list[Record]:
    first, end = log.bounds()
    offset = first if offset is None else offset
    records: list[Record] = []
    while offset < end:
        for batch in await log.read(offset):
            records += batch.records("orders", offset, end)
            offset = max(offset, batch.end_offset)
    return records


class Heard:
    """Implements Waiter."""

    has_given_up = False

    def __init__(self, log: KeptLog) -> None:
        self._log = log
        self.offsets: list[int] = []
        self.ends: list[int] = []  # of the log, each time
        self.refusals = 0

    def committed(self, offset: int) -> None:
        self.offsets.append(offset)
        self.ends.append(self._log.bounds().end)

    def refused(self, error: Exception) -> None:
        self.refusals += 1


async def read_marks(log: KeptLog) -> list[tuple[int, Mark]]:
    """(offset of the record it guards, or -1, and the mark)."""
    found: list[tuple[int, Mark]] = []
    offset, end = log.bounds()
    while offset < end:
        for batch in await log.read(offset):
            for mark in batch.marks():
                at = -1 if mark.index == NO_RECORD else batch.base_offset + mark.index
                found.append((at, mark))
            offset = max(offset, batch.end_offset)
    return found


async def test_appending_nothing_is_durable_at_once_and_leaves_nothing(bench: Bench) -> None:
    log = await bench.create()
    assert await asyncio.wait_for(append(log, run_of("orders", [])), 10) == 0
    assert await append(log, run_of("orders", [b"a"])) == 0
    assert await asyncio.wait_for(append(log, run_of("orders", [])), 10) == 1
    assert log.bounds() == Bounds(0, 1)
    assert len(await log.read(0)) == 1
    assert len([batch async for batch in log.batches_since(0)]) == 1
    await log.close()
    with pytest.raises(UnavailableError):
        await append(log, run_of("orders", []))


async def test_messages_of_several_names_appended_at_once_keep_their_order(bench: Bench) -> None:
    log = await bench.create()
    mixed = MixedRun(["orders/1", "orders/2"], [2, 1], b"..a..bc", [2, 5, 6], [1] * 3)
    mixed.publisher = "till"
    log.append(mixed)
    assert await append(log, run_of("orders/1", [b"d"])) == 3
    records = await read_all(log)
    assert [(one.name, one.payload) for one in records] == [
        ("orders/1", b"a"),
        ("orders/1", b"b"),
        ("orders/2", b"c"),
        ("orders/1", b"d"),
    ]
    assert [one.publisher for one in records] == ["till", "till", "till", ""]
    await log.close()
    log.append(MixedRun(["orders/1"], [1], b"e", [0], [1]))  # nobody waits, nobody is told


async def test_offsets_are_dense_and_records_come_back_as_appended(bench: Bench) -> None:
    log = await bench.create()
    assert await append(log, run_of("orders/1", [b"a", b"", b"c" * 5000])) == 0
    assert await append(log, run_of("orders/2", [b"d"], KIND_TEXT, "till-7")) == 3
    draft = run_of(
        "orders/3",
        [b"{}"],
        KIND_JSON,
        headers=(("k", "v"), ("k", "ü")),
        qos=2,
        retain=True,
        expires_at=5,
    )
    assert await append(log, draft) == 4
    log = await bench.reopen()
    records = await read_all(log)
    assert [r.offset for r in records] == [0, 1, 2, 3, 4]
    assert [r.payload for r in records] == [b"a", b"", b"c" * 5000, b"d", b"{}"]
    assert [r.name for r in records] == ["orders/1"] * 3 + ["orders/2", "orders/3"]
    assert records[3].publisher == "till-7" and records[3].kind == KIND_TEXT
    assert records[0].publisher == "" and records[0].headers == ()
    last = records[4]
    assert last.headers == (("k", "v"), ("k", "ü"))
    assert (last.qos, last.retain, last.expires_at, last.kind) == (2, True, 5, KIND_JSON)
    assert log.bounds() == Bounds(0, 5)


async def test_appends_of_one_tick_share_a_batch_and_keep_their_order(bench: Bench) -> None:
    log = await bench.create()
    waiting = [append(log, run_of(f"n/{i % 3}", [b"%d" % i])) for i in range(100)]
    assert await asyncio.gather(*waiting) == list(range(100))
    assert [r.payload for r in await read_all(log)] == [b"%d" % i for i in range(100)]
    assert len(await log.read(0)) == 1


async def test_nothing_is_visible_before_it_is_acknowledged(bench: Bench) -> None:
    log = await bench.create()
    waiting = append(log, run_of("n", [b"x"]))
    assert log.bounds().end == 0
    assert await log.read(0) == []
    await waiting
    assert log.bounds().end == 1


async def test_reading_at_any_offset_begins_with_the_batch_that_holds_it(bench: Bench) -> None:
    log = await bench.create()
    for size in (1, 7, 3, 20):
        await append(log, run_of("n", [b"p"] * size))
    log = await bench.reopen()
    for offset in range(31):
        records = await read_all(log, offset)
        assert [r.offset for r in records] == list(range(offset, 31))
    assert await log.read(31) == []


async def test_timestamps_never_fall_although_the_clock_does(bench: Bench) -> None:
    log = await bench.create()
    now = bench.clock.now_us()
    await append(log, run_of("n", [b"1"]))
    bench.clock.set_wall(now - 3_600_000_000)
    await append(log, run_of("n", [b"2"]))
    log = await bench.reopen()
    await append(log, run_of("n", [b"3"]))
    bench.clock.set_wall(now + 1_000_000)
    await append(log, run_of("n", [b"4"]))
    stamps = [r.timestamp for r in await read_all(log)]
    assert stamps == [now, now, now, now + 1_000_000]


async def test_offset_at_finds_the_first_record_not_before_a_time(bench: Bench) -> None:
    log = await bench.create()
    start = bench.clock.now_us()
    for _ in range(10):
        await asyncio.gather(append(log, run_of("n", [b"a", b"b"])))
        bench.clock.advance(60)
    log = await bench.reopen()
    assert await log.offset_at(0) == 0
    assert await log.offset_at(start) == 0
    assert await log.offset_at(start + 1) == 2
    assert await log.offset_at(start + 5 * 60_000_000) == 10
    assert await log.offset_at(bench.clock.now_us() + 10**12) == 20


async def test_offset_at_finds_records_inside_a_batch(bench: Bench) -> None:
    log = await bench.create()
    start = bench.clock.now_us()
    waiting = []
    for _ in range(5):
        waiting.append(append(log, run_of("n", [b"x"])))
        bench.clock.advance(4_000)  # the batch spans more than 32 bits of µs
    await asyncio.gather(*waiting)
    for index in range(5):
        assert await log.offset_at(start + index * 4_000_000_000) == index
        assert await log.offset_at(start + index * 4_000_000_000 + 1) == index + 1


async def test_wait_past_suspends_until_the_record_is_visible(bench: Bench) -> None:
    log = await bench.create()
    await append(log, run_of("n", [b"0"]))
    await log.wait_past(0)
    waiting = asyncio.ensure_future(log.wait_past(2))
    await append(log, run_of("n", [b"1"]))
    assert not waiting.done()
    await append(log, run_of("n", [b"2"]))
    await waiting
    assert log.bounds().end == 3


async def test_a_waiter_that_gives_up_disturbs_nobody(bench: Bench) -> None:
    log = await bench.create()
    reader = asyncio.ensure_future(log.wait_past(0))
    publisher = asyncio.ensure_future(append(log, run_of("n", [b"0"])))
    reader.cancel()
    publisher.cancel()
    assert await append(log, run_of("n", [b"1"])) in (0, 1)
    assert (await read_all(log))[-1].payload == b"1"


async def test_who_waits_for_an_append_hears_of_it_in_order_while_it_is_the_newest(
    bench: Bench,
) -> None:
    log = await bench.create()
    heard = Heard(log)
    log.append([run_of("n", [b"0", b"1"])], heard)
    log.append([run_of("n", [b"2"])], heard)
    log.append([], heard)  # nothing: heard of after what is before it
    await append(log, run_of("n", [b"3"]))
    assert heard.offsets == [0, 2, 3] and heard.ends[0] >= 3
    await log.close()
    log.append([run_of("n", [b"4"])], heard)
    assert heard.offsets == [0, 2, 3] and heard.refusals == 1


async def test_marks_stay_beside_their_record_and_are_no_records(bench: Bench) -> None:
    log = await bench.create()
    key = Mark(MARK_IDEMPOTENCY_KEY, b"key-1", 1)
    await asyncio.gather(
        append(log, run_of("n", [b"a"])), append(log, run_of("n", [b"b", b"c"]), [key])
    )
    alone = Mark(MARK_IDEMPOTENCY_KEY, b"key-2")
    await append(log, run_of("n", []), [alone])
    assert await append(log, run_of("n", [b"d"])) == (3 if bench.is_dense else 4)
    log = await bench.reopen()
    assert [r.payload for r in await read_all(log)] == [b"a", b"b", b"c", b"d"]
    marks = await read_marks(log)
    assert [(at, mark.key) for at, mark in marks] == [(2, b"key-1"), (-1, b"key-2")]


async def test_trim_by_age_drops_only_records_older_than_the_limit(bench: Bench) -> None:
    log = await bench.create(LogSettings(segment_age_s=0.5))
    for i in range(6):
        await append(log, run_of("n", [b"%d" % i]))
        bench.clock.advance(10)
    cut = bench.clock.now_us() - 35_000_000
    dropped = await log.trim(cut, None)
    first, end = log.bounds()
    assert (dropped, first, end) == (3, 3, 6)
    with pytest.raises(Gap, match="first record is 3"):
        await log.read(2)
    log = await bench.reopen()
    assert [r.payload for r in await read_all(log)] == [b"3", b"4", b"5"]
    assert await append(log, run_of("n", [b"6"])) == 6


async def test_trim_by_age_empties_a_log_nobody_writes_to(bench: Bench) -> None:
    log = await bench.create()
    await append(log, run_of("n", [b"old"] * 5))
    bench.clock.advance(100)
    assert await log.trim(bench.clock.now_us(), None) == 5
    assert log.bounds() == Bounds(5, 5)
    log = await bench.reopen()
    assert await append(log, run_of("n", [b"new"])) == 5


async def test_trim_never_acts_on_a_stamp_in_the_future(bench: Bench) -> None:
    log = await bench.create(LogSettings(segment_age_s=0.5))
    now = bench.clock.now_us()
    bench.clock.set_wall(now + 10**13)
    for i in range(3):
        await append(log, run_of("n", [b"%d" % i]))
        bench.clock.advance(1)
    bench.clock.set_wall(now)
    assert await log.trim(now, None) == 0


async def test_trim_by_bytes_keeps_at_least_that_much(bench: Bench) -> None:
    log = await bench.create(LogSettings(segment_bytes=64 * 1024))
    for _ in range(40):
        await append(log, run_of("n", [bytes(10_000)]))
    before = await log.stored_bytes()
    await log.trim(None, 150_000)
    after = await log.stored_bytes()
    assert 150_000 <= after < before
    assert log.bounds().end == 40


async def test_on_commit_hears_every_batch_in_offset_order(bench: Bench) -> None:
    log = await bench.create()
    heard: list[tuple[int, int]] = []
    log.on_commit = lambda batch, runs: heard.append((batch.base_offset, batch.end_offset))
    for size in (1, 2, 3):
        await append(log, run_of("n", [b""] * size))
    assert heard == [(0, 1), (1, 3), (3, 6)]


async def test_a_closed_log_refuses_and_finishes_what_it_had_accepted(bench: Bench) -> None:
    log = await bench.create()
    waiting = append(log, run_of("n", [b"x"]))
    if bench.is_durable:
        await log.close()
    assert await waiting == 0
    await log.close()
    with pytest.raises(UnavailableError, match="closed"):
        await append(log, run_of("n", [b"y"]))


async def test_a_deleted_log_is_gone_and_its_identity_can_be_made_anew(bench: Bench) -> None:
    log = await bench.create()
    await append(log, run_of("n", [b"x"]))
    await log.close()
    await bench.store.delete(IDENTITY)
    assert bench.store.list() == []
    log = await bench.create()
    assert log.bounds() == Bounds(0, 0)
    assert bench.store.list() == [IDENTITY]
    assert await bench.store.describe(IDENTITY) == ("Orders", bench.settings)
