"""Does a reader of the files see what the log itself shows, and never more?"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.delivery.run import run_of
from penstock.log.files.active import create_segment
from penstock.log.files.disk import RealDisk
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.endfile import End, read_end
from penstock.log.files.layout import log_directory
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import SegmentHeader, segment_path
from penstock.log.format.marks import MARK_WILL, Mark
from penstock.log.interface import Bounds, LogSettings
from penstock.model.errors import CorruptError, Gap
from penstock.model.limits import KIB
from penstock.model.record import Record
from tests.appends import append
from tests.log.files.appending_child import payload
from tests.log.files.faulty_disk import FaultyDisk
from tests.log.files.stores import IDENTITY, StoreWorld, read_all, wait_for

SMALL = LogSettings(segment_bytes=64 * KIB)
ROOT = Path(__file__).parents[3]


def everything(reader: FileReader) -> list[Record]:
    first, end = reader.bounds()
    return [r for b in reader.batches(first, end) for r in b.records("orders", first, end)]


async def fill(world: StoreWorld, log: EmbeddedLog, count: int) -> None:
    for _ in range(count):
        end = log.bounds().end
        await append(log, run_of(f"n/{end % 3}", [b"%09d" % end + bytes(4 * KIB)]))
        world.clock.advance(1)


async def test_a_reader_equals_the_log_before_and_after_every_change(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    old = FileReader(RealDisk(), world.directory)

    async def compare() -> None:
        for reader in (old, FileReader(RealDisk(), world.directory)):
            assert reader.bounds() == log.bounds()
            assert everything(reader) == await read_all(log)

    await compare()
    for _ in range(3):
        await fill(world, log, 25)
        await compare()
        await log.seal_closed()
        await compare()
        await fill(world, log, 5)
        await log.trim(None, 100 * KIB)
        await compare()
        log = await world.reopen(log)
        await compare()


async def test_offset_at_equals_the_log_in_every_form(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    start = world.clock.now_us()
    reader = FileReader(RealDisk(), world.directory)

    async def compare() -> None:
        records = await read_all(log)
        end = log.bounds().end
        stamps = {start - 1, *(r.timestamp + d for r in records for d in (-1, 0, 1))}
        for stamp in sorted(stamps):
            wanted = next((r.offset for r in records if r.timestamp >= stamp), end)
            assert reader.offset_at(stamp) == wanted == await log.offset_at(stamp)

    await compare()
    await fill(world, log, 40)
    await compare()
    await log.seal_closed()
    await fill(world, log, 3)
    await compare()
    await log.trim(start + 20_000_000, None)
    await compare()


async def test_a_time_between_a_mark_and_the_next_segment_is_found_behind_the_mark(
    world: StoreWorld,
) -> None:
    log = await world.create(LogSettings(segment_bytes=8 * KIB))
    await append(log, run_of("n", [bytes(7 * KIB)]))
    world.clock.advance(10)
    await append(log, run_of("n", []), [Mark(MARK_WILL, b"w")])  # stamps the first segment
    between = world.clock.now_us() - 1
    world.clock.advance(10)
    await append(log, run_of("n", [bytes(7 * KIB)]))
    assert len(list(world.directory.glob("*.log"))) == 2
    assert await log.offset_at(between) == 1
    assert FileReader(RealDisk(), world.directory).offset_at(between) == 1


async def test_a_reader_never_goes_past_the_end_although_the_bytes_are_there(
    world: StoreWorld,
) -> None:
    log = await world.create()
    await append(log, run_of("n", [b"a"]))
    end = read_end(RealDisk(), world.directory)
    assert end is not None
    await append(log, run_of("n", [b"b", b"c"]))
    (world.directory / "end").write_bytes(end.pack())
    reader = FileReader(RealDisk(), world.directory)
    assert reader.bounds() == Bounds(0, 1)
    assert [r.payload for r in everything(reader)] == [b"a"]
    assert reader.read(1) == []
    assert reader.offset_at(2**60) == 1


async def test_a_segment_that_was_just_begun_does_not_count_yet(world: StoreWorld) -> None:
    log = await world.create()
    await append(log, run_of("n", [b"a"]))
    create_segment(RealDisk(), world.directory, SegmentHeader(0, 1, 1, 1, 1)).close_file()
    reader = FileReader(RealDisk(), world.directory)
    assert reader.bounds() == Bounds(0, 1)
    assert [r.payload for r in everything(reader)] == [b"a"]


async def test_a_range_is_cut_to_whole_batches_that_touch_it(world: StoreWorld) -> None:
    log = await world.create()
    for size in (3, 5, 2):
        await append(log, run_of("n", [b"x"] * size))
    reader = FileReader(RealDisk(), world.directory)
    assert [b.base_offset for b in reader.batches(0, 10)] == [0, 3, 8]
    assert [b.base_offset for b in reader.batches(2, 4)] == [0, 3]
    assert [b.base_offset for b in reader.batches(3, 8)] == [3]
    assert [b.base_offset for b in reader.batches(8, 99)] == [8]
    assert list(reader.batches(4, 4)) == list(reader.batches(10, 99)) == []


def sealed_under(world: StoreWorld, log: EmbeddedLog) -> Callable[[], None]:
    """Seals the log from another thread, as a broker in another process would."""
    loop = asyncio.get_running_loop()

    def seal() -> None:
        asyncio.run_coroutine_threadsafe(log.seal_closed(), loop).result(60)

    return seal


async def test_a_segment_sealed_between_look_and_read_is_looked_up_again(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    await fill(world, log, 40)
    wanted = await read_all(log)
    disk = FaultyDisk(RealDisk())
    reader = FileReader(disk, world.directory)
    reader.read(0)  # the old form is known
    gate = disk.hold("open", f"{0:020d}.log")
    reading = asyncio.ensure_future(asyncio.to_thread(reader.read, 0))
    await asyncio.to_thread(wait_for, gate.arrived)
    assert await log.seal_closed() > 0
    gate.opened.set()
    batches = await reading
    assert batches[0].records("orders", 0, 2**62) == wanted[: batches[0].end_offset]
    assert batches[0].header.count > 1, "it is the sealed form"


async def test_the_newest_segment_may_be_closed_and_sealed_while_it_is_walked(
    world: StoreWorld,
) -> None:
    log = await world.create(SMALL)
    await fill(world, log, 8)
    disk = FaultyDisk(RealDisk())
    reader = FileReader(disk, world.directory)
    reader.read(0)  # the newest segment is known so far
    await fill(world, log, 2)
    gate = disk.hold("open", f"{0:020d}.log")
    reading = asyncio.ensure_future(asyncio.to_thread(reader.read, 9))
    await asyncio.to_thread(wait_for, gate.arrived)
    await fill(world, log, 20)
    assert await log.seal_closed() > 0
    gate.opened.set()
    (batch, *_) = await reading
    assert int(batch.records("orders", 9, 10)[0].payload[:9]) == 9


@pytest.mark.parametrize("ask", ["bounds", "read", "offset_at"])
async def test_a_segment_trimmed_between_look_and_read_is_a_gap_or_the_new_bounds(
    world: StoreWorld, ask: str
) -> None:
    log = await world.create()
    await fill(world, log, 3)
    disk = FaultyDisk(RealDisk())
    reader = FileReader(disk, world.directory)
    gate = disk.hold("open", f"{0:020d}.log")
    work: dict[str, Callable[[], object]] = {
        "bounds": reader.bounds,
        "read": lambda: reader.read(0),
        "offset_at": lambda: reader.offset_at(0),
    }
    asking = asyncio.ensure_future(asyncio.to_thread(work[ask]))
    await asyncio.to_thread(wait_for, gate.arrived)
    world.clock.advance(100)
    assert await log.trim(world.clock.now_us(), None) == 3
    gate.opened.set()
    if ask == "read":
        with pytest.raises(Gap, match="first record is 3"):
            await asking
    else:
        assert await asking in (Bounds(3, 3), 3)


async def test_the_newest_segment_may_change_between_end_and_listing(world: StoreWorld) -> None:
    log = await world.create()
    await fill(world, log, 3)
    disk = FaultyDisk(RealDisk())
    gate = disk.hold("answer", "end")
    reader = FileReader(disk, world.directory)
    asking = asyncio.ensure_future(asyncio.to_thread(reader.bounds))
    await asyncio.to_thread(wait_for, gate.arrived)
    world.clock.advance(100)
    await log.trim(world.clock.now_us(), None)
    gate.opened.set()
    assert await asking == Bounds(3, 3)


async def test_what_is_missing_or_damaged_is_said_with_its_path(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    await fill(world, log, 40)
    await log.close()
    end = (world.directory / "end").read_bytes()
    reader = FileReader(RealDisk(), world.directory)
    (world.directory / "end").unlink()
    with pytest.raises(CorruptError, match=r"/end is missing or damaged"):
        reader.bounds()
    (world.directory / "end").write_bytes(end[:-1] + b"x")
    with pytest.raises(CorruptError, match=r"/end is missing or damaged"):
        reader.read(0)
    (world.directory / "end").write_bytes(End(1, 99, 77, 64).pack())
    with pytest.raises(CorruptError, match=r"00077\.log: the file was removed or replaced"):
        reader.read(0)
    (world.directory / "end").write_bytes(end)
    path = segment_path(world.directory, 0)
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=r"0000\.log at byte 64: payloads"):
        reader.read(0)
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=r"0000\.log"):
        FileReader(RealDisk(), world.directory).read(0)


@pytest.mark.slow
async def test_readers_in_threads_see_every_record_in_order_while_a_broker_works(
    world: StoreWorld,
) -> None:
    """Appends, rolls, seals and trims on the loop; three threads read the files all the while."""
    log = await world.create(SMALL)
    stop = threading.Event()
    ends: list[int] = [0]  # what the log itself has shown so far
    failures: list[str] = []

    def follow() -> None:
        try:
            _follow(world.directory, stop, ends)
        except BaseException as failed:
            failures.append(repr(failed))

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(150):
        end = log.bounds().end
        ends[0] = end + 10  # nothing past it can be visible before the next append
        await append(log, run_of(f"n/{number % 3}", [payload(end + i) for i in range(10)]))
        world.clock.advance(1)
        if number % 7 == 0:
            await log.seal_closed()
        if number % 11 == 0:
            await log.trim(None, 300 * KIB)
    stop.set()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert failures == []


def _follow(directory: Path, stop: threading.Event, ends: list[int]) -> int:
    """Read on and on; every record is the next one, is right, and was visible to the log."""
    reader = FileReader(RealDisk(), directory)
    offset = 0
    seen = 0
    while True:
        is_last = stop.is_set()
        try:
            batches = reader.read(offset)
        except Gap:
            first = reader.bounds().first
            assert first > offset
            offset = first
            continue
        for batch in batches:
            for record in batch.records("orders", offset, 2**62):
                assert record.offset == offset, (record.offset, offset)
                assert record.payload == payload(offset)
                offset += 1
                seen += 1
        assert offset <= ends[0]
        if is_last and not batches:
            return seen


@pytest.mark.slow
def test_a_reader_follows_a_broker_in_another_process(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.log.files.appending_child", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == "open\n"
        directory = log_directory(tmp_path, IDENTITY)
        reader = FileReader(RealDisk(), directory)
        offset = seen = 0
        times_behind = 0
        while seen < 4_000:
            try:
                batches = reader.read(offset)
            except Gap:
                offset = reader.bounds().first
                times_behind += 1
                continue
            for batch in batches:
                for record in batch.records("orders", offset, 2**62):
                    assert (record.offset, record.payload) == (offset, payload(offset))
                    offset += 1
                    seen += 1
            assert offset <= reader.bounds().end
            back = reader.bounds().first
            try:
                for batch in reader.read(back)[:1]:
                    assert batch.payloads(0, 1) == [payload(back)]
            except Gap:
                times_behind += 1
        child.stdin.close()
        first, end = map(int, child.stdout.readline().split())
        assert reader.bounds() == Bounds(first, end)
        assert [r.payload for r in everything(reader)] == [payload(i) for i in range(first, end)]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
