"""What happens between an append and its acknowledgement, and when the disk does not play along?"""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest

from penstock.core.delivery.run import MixedRun, Run, run_of
from penstock.log.appending import PENDING_BYTES_MAX
from penstock.log.files.commit import INLINE_BYTES_MAX
from penstock.log.files.disk import RealDisk
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.endfile import read_end
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import segment_bases
from penstock.log.interface import OS, Bounds, LogIdentity, LogSettings
from penstock.model.errors import UnavailableError
from penstock.model.limits import MIB
from tests.appends import append
from tests.log.files.stores import StoreWorld, arrived, read_all, until


def draft(payload: bytes = b"x", count: int = 1) -> Run:
    return run_of("n", [payload] * count)


async def batch_counts(log: EmbeddedLog) -> list[int]:
    """How many records each batch holds."""
    counts = []
    offset, end = log.bounds()
    while offset < end:
        for batch in await log.read(offset):
            counts.append(batch.header.count)
            offset = batch.end_offset
    return counts


# Pending bytes


async def test_publishers_beyond_the_pending_bound_wait_and_are_admitted_in_order(
    world: StoreWorld,
) -> None:
    assert PENDING_BYTES_MAX == 8 * MIB
    log = await world.create()
    gate = world.disk.hold("write", ".log")
    waiting = [append(log, draft(b"first"))]
    await arrived(gate)
    waiting += [append(log, draft(b"%d" % i + bytes(3 * MIB))) for i in range(8)]
    gate.opened.set()
    assert await asyncio.gather(*waiting) == list(range(9))
    log = await world.reopen(log)
    # Three of 3 MiB reach the bound of 8 MiB; the others wait for that commit.
    assert await batch_counts(log) == [1, 3, 3, 2]
    assert [r.payload[:1] for r in await read_all(log)][1:] == [b"%d" % i for i in range(8)]


async def test_empty_payloads_are_bounded_too(world: StoreWorld) -> None:
    log = await world.create()
    gate = world.disk.hold("write", ".log")
    waiting = [append(log, draft(b"first"))]
    await arrived(gate)
    waiting += [append(log, draft(b"", 50_000)) for _ in range(12)]
    gate.opened.set()
    await asyncio.gather(*waiting)
    sizes = await batch_counts(log)
    assert sum(sizes) == 600_001
    assert max(sizes) <= 350_000


async def test_a_publisher_that_gives_up_disturbs_nobody(world: StoreWorld) -> None:
    log = await world.create()
    gate = world.disk.hold("write", ".log")
    waiting = [append(log, draft(b"a")), append(log, draft(b"b")), append(log, draft(b"c"))]
    await arrived(gate)
    pending = [append(log, draft(b"d%d" % i + bytes(4 * MIB))) for i in range(2)]
    queued = [append(log, draft(b"e")), append(log, draft(b"f")), append(log, draft(b"g"))]
    for given_up in (waiting[1], pending[0], queued[1]):
        assert isinstance(given_up, asyncio.Future)
        given_up.cancel()
    gate.opened.set()
    assert [await waiting[0], await waiting[2], await pending[1]] == [0, 2, 4]
    assert [await queued[0], await queued[2]] == [5, 6]
    # On its way or pending it is stored all the same; still queued it never was.
    assert [r.payload[:2] for r in await read_all(log)] == [
        b"a", b"b", b"c", b"d0", b"d1", b"e", b"g",
    ]  # fmt: skip


async def test_closing_finishes_what_was_accepted_even_what_was_queued(world: StoreWorld) -> None:
    log = await world.create()
    gate = world.disk.hold("write", ".log")
    waiting = [append(log, draft(b"%d" % i + bytes(4 * MIB))) for i in range(5)]
    await arrived(gate)
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="closed"):
        await append(log, draft())
    gate.opened.set()
    await closing
    assert await asyncio.gather(*waiting) == [0, 1, 2, 3, 4]
    end = read_end(RealDisk(), world.directory)
    assert end is not None and end.is_clean and end.durable_end == 5
    assert world.problems() == []


# Rounds


async def test_level_os_writes_small_batches_inline_and_large_ones_on_the_writer(
    world: StoreWorld,
) -> None:
    log = await world.create(LogSettings(durability=OS))
    syncs = world.disk.count("sync", ".log")
    waiting = append(log, draft())
    await asyncio.sleep(0)
    assert isinstance(waiting, asyncio.Future) and waiting.done()
    assert await waiting == 0 and world.workers.rounds == []
    assert await append(log, draft(bytes(INLINE_BYTES_MAX))) == 1
    assert world.workers.rounds == [1]
    assert world.disk.count("sync", ".log") == syncs
    assert [len(r.payload) for r in await read_all(log)] == [1, INLINE_BYTES_MAX]


async def test_level_fsync_syncs_every_commit_once_for_all_that_share_it(world: StoreWorld) -> None:
    log = await world.create()
    before = world.disk.count("sync", ".log")
    await asyncio.gather(*[append(log, draft()) for _ in range(50)])
    assert world.disk.count("sync", ".log") == before + 1
    calls = [call for call, name in world.disk.calls if name.endswith(".log")]
    assert calls[-2:] == ["write", "sync"]


async def test_nothing_is_acknowledged_before_its_sync_returned(world: StoreWorld) -> None:
    log = await world.create()
    gate = world.disk.hold("sync", ".log")
    waiting = append(log, draft())
    await arrived(gate)
    assert isinstance(waiting, asyncio.Future) and not waiting.done()
    assert log.bounds().end == 0 and await log.read(0) == []
    assert FileReader(RealDisk(), world.directory).bounds().end == 0
    gate.opened.set()
    assert await waiting == 0
    assert FileReader(RealDisk(), world.directory).bounds().end == 1


async def test_logs_that_are_dirty_together_share_a_round(world: StoreWorld) -> None:
    logs = [await world.create(identity=LogIdentity("default", i, f"t{i}")) for i in range(6)]
    waiting = [append(log, draft(b"%d" % i)) for i, log in enumerate(logs) for _ in range(3)]
    assert await asyncio.gather(*waiting) == [0, 1, 2] * 6
    assert world.workers.rounds == [6]
    for i, log in enumerate(logs):
        assert [r.payload for r in await read_all(log)] == [b"%d" % i] * 3


async def test_a_log_whose_write_fails_leaves_the_others_of_its_round_alone(
    world: StoreWorld,
) -> None:
    logs = [await world.create(identity=LogIdentity("default", i, f"t{i}")) for i in range(3)]
    world.disk.fail("write", ".log", errno.ENOSPC, times=1)
    results = await asyncio.gather(*[append(log, draft()) for log in logs], return_exceptions=True)
    assert [isinstance(result, UnavailableError) for result in results] == [True, False, False]


# A write that fails


@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "full"), (errno.EIO, "writing failed")])
async def test_a_failed_write_refuses_and_leaves_no_trace(
    world: StoreWorld, code: int, says: str
) -> None:
    log = await world.create()
    await append(log, draft(b"kept"))
    world.disk.fail("write", ".log", code)
    for _ in range(3):
        with pytest.raises(UnavailableError, match=says) as refused:
            await append(log, draft(bytes(5_000)))
        assert refused.value.retry_after_s > 0
    assert log.fence == "" and log.bounds() == Bounds(0, 1)
    assert [r.payload for r in await read_all(log)] == [b"kept"]
    assert world.problems() == []
    world.disk.heal()  # space returned: nobody has to do anything
    assert await append(log, draft(b"after")) == 1
    log = await world.reopen(log)
    assert [r.payload for r in await read_all(log)] == [b"kept", b"after"]
    assert log.epoch == 1 and world.store.notes == []


async def test_a_write_that_fails_after_its_last_byte_is_not_there_after_a_crash(
    world: StoreWorld,
) -> None:
    log = await world.create()
    await append(log, draft(b"kept"))
    world.disk.fail("write", ".log", errno.EIO, written_first=True)
    with pytest.raises(UnavailableError):
        await append(log, draft(b"refused"))
    # Nobody closes the log: what lies on disk now is what a crash would leave.
    again = await world.store.open(log_identity(), log.settings)
    assert [r.payload for r in await read_all(again)] == [b"kept"]
    world.disk.heal()
    await again.close()


async def test_zeros_that_do_not_fit_are_left_out_and_the_batch_is_stored(
    world: StoreWorld,
) -> None:
    log = await world.create()
    await append(log, draft(Random(1).randbytes(200_000)))
    before = world.disk.count("write", ".log")
    world.disk.fail("write", ".log", errno.ENOSPC, times=1)  # batch and zeros together
    assert await append(log, draft(b"fits")) == 1
    assert world.disk.count("write", ".log") == before + 2
    assert world.problems() == []
    log = await world.reopen(log)
    assert (await read_all(log))[1].payload == b"fits"


async def test_a_roll_that_finds_no_space_is_tried_again_with_the_next_commit(
    world: StoreWorld,
) -> None:
    log = await world.create(LogSettings(segment_bytes=10_000))
    await append(log, draft(bytes(9_000)))
    world.disk.fail("write", ".log.tmp", errno.ENOSPC)
    with pytest.raises(UnavailableError, match="full"):
        await append(log, draft(bytes(9_000)))
    world.disk.heal()
    assert await append(log, draft(b"after")) == 1
    assert await append(log, draft(bytes(9_000))) == 2
    log = await world.reopen(log)
    assert [len(r.payload) for r in await read_all(log)] == [9_000, 5, 9_000]
    assert world.problems() == []


async def test_readers_of_files_go_on_when_a_new_segment_took_no_batch_and_the_old_one_is_trimmed(
    world: StoreWorld,
) -> None:
    log = await world.create(LogSettings(segment_bytes=10_000))
    await append(log, draft(bytes(9_000)))
    world.disk.fail("write", f"{1:020d}.log.tmp", errno.ENOSPC, after=1)  # not its header
    with pytest.raises(UnavailableError, match="full"):
        await append(log, draft(bytes(9_000)))
    world.clock.advance(100)
    assert await log.trim(world.clock.now_us(), None) == 1
    reader = FileReader(RealDisk(), world.directory)
    assert reader.bounds() == log.bounds() == Bounds(1, 1)
    assert world.problems() == []


# A sync that fails


def log_identity() -> LogIdentity:
    return LogIdentity("default", 1, "orders")


async def test_a_failed_sync_fences_the_log_and_reading_goes_on(world: StoreWorld) -> None:
    log = await world.create()
    await append(log, draft(b"kept"))
    reader = asyncio.ensure_future(log.wait_past(1))
    gate = world.disk.hold("sync", ".log")
    world.disk.fail("sync", ".log", errno.EIO, times=1)
    waiting = [append(log, draft(b"lost"))]
    await arrived(gate)
    waiting += [append(log, draft(bytes(5 * MIB))) for _ in range(3)]  # pending and queued
    gate.opened.set()
    for one in waiting:
        with pytest.raises(UnavailableError, match="fenced at 1"):
            await one
    assert "fenced at 1" in log.fence
    syncs = world.disk.count("sync", ".log")
    with pytest.raises(UnavailableError, match="fenced"):
        await append(log, draft())
    assert [r.payload for r in await read_all(log)] == [b"kept"]
    assert not reader.done() and log.bounds() == Bounds(0, 1)
    assert FileReader(RealDisk(), world.directory).bounds() == Bounds(0, 1)
    end = read_end(RealDisk(), world.directory)
    assert end is not None and end.is_fenced and end.durable_end == 1
    await log.close()
    assert world.disk.count("sync", ".log") == syncs, "a fenced log is never synced again"
    with pytest.raises(UnavailableError):
        await reader


async def test_messages_that_nobody_waits_for_are_counted_when_they_cannot_be_stored(
    world: StoreWorld,
) -> None:
    """On their way, pending, and after the log was fenced."""
    log = await world.create()
    lost: list[int] = []
    log.on_lost = lost.append
    await append(log, draft(b"kept", 5))
    log.append([draft(b"stored", 3)])
    await append(log, draft(b"kept"))
    gate = world.disk.hold("sync", ".log")
    world.disk.fail("sync", ".log", errno.EIO, times=1)
    log.append([draft(b"on its way", 7)])
    waiting = append(log, draft(b"with it"))
    await arrived(gate)
    log.append([draft(b"pending", 11), draft(b"pending")])
    gate.opened.set()
    with pytest.raises(UnavailableError, match="fenced"):
        await waiting
    assert sorted(lost) == [7, 12]
    log.append(MixedRun(["a", "b"], [1, 2], b"xyz", [0, 1, 2], [1, 1, 1]))
    assert sorted(lost) == [3, 7, 12]
    assert [r.payload for r in await read_all(log)] == [b"kept"] * 5 + [b"stored"] * 3 + [b"kept"]


async def test_a_fenced_log_goes_on_at_its_durable_end_after_a_restart(world: StoreWorld) -> None:
    log = await world.create()
    await append(log, draft(b"kept"))
    world.disk.fail("sync", ".log", errno.EIO, times=1)
    with pytest.raises(UnavailableError):
        await append(log, draft(b"lost", 7))
    log = await world.reopen(log)
    assert log.fence == "" and log.bounds() == Bounds(0, 1)
    assert [r.payload for r in await read_all(log)] == [b"kept"]
    assert any("continuing at the durable end 1" in note for note in world.store.notes)
    assert segment_bases(RealDisk(), world.directory) == [0, 1]
    assert await append(log, draft(b"new")) == 1
    assert log.epoch == 1, "nothing visible was lost"
    log = await world.reopen(log)
    assert [r.payload for r in await read_all(log)] == [b"kept", b"new"]
    assert world.problems() == []


async def test_a_write_that_cannot_be_undone_fences_and_is_not_there_after_a_restart(
    world: StoreWorld,
) -> None:
    log = await world.create()
    await append(log, draft(b"kept"))
    world.disk.fail("write", ".log", errno.EIO, written_first=True)
    world.disk.fail("truncate", ".log", errno.EIO)
    with pytest.raises(UnavailableError, match="fenced"):
        await append(log, draft(b"refused"))
    world.disk.heal()
    log = await world.reopen(log)
    assert [r.payload for r in await read_all(log)] == [b"kept"]


async def test_a_directory_that_cannot_be_synced_while_rolling_fences(world: StoreWorld) -> None:
    log = await world.create(LogSettings(segment_bytes=10_000))
    await append(log, draft(bytes(9_000)))
    world.disk.fail("sync_dir", world.directory.name, errno.EIO, times=1)
    with pytest.raises(UnavailableError, match="fenced at 1"):
        await append(log, draft(bytes(9_000)))
    log = await world.reopen(log)
    assert log.bounds() == Bounds(0, 1)
    assert await append(log, draft(b"new")) == 1
    log = await world.reopen(log)
    assert [len(r.payload) for r in await read_all(log)] == [9_000, 3]
    assert world.problems() == []


async def test_an_end_file_that_cannot_be_written_costs_nothing(world: StoreWorld) -> None:
    log = await world.create()
    world.disk.fail("write", "end", errno.EIO)
    assert await append(log, draft(b"a")) == 0
    world.disk.heal()
    assert await append(log, draft(b"b")) == 1
    assert FileReader(RealDisk(), world.directory).bounds() == Bounds(0, 2)


# Waiting for the end to move


async def test_every_waiter_is_woken_by_the_commit_that_passes_it_and_no_other(
    world: StoreWorld,
) -> None:
    log = await world.create()
    waiting = [asyncio.ensure_future(log.wait_past(i)) for i in range(10)]
    await append(log, draft(count=4))
    await asyncio.sleep(0)
    assert [one.done() for one in waiting] == [True] * 4 + [False] * 6
    waiting[5].cancel()
    await append(log, draft(count=3))
    await asyncio.sleep(0)
    assert [one.done() for one in waiting] == [True] * 7 + [False] * 3
    await log.close()
    for one in waiting[7:]:
        with pytest.raises(UnavailableError, match="closed"):
            await one
    with pytest.raises(UnavailableError, match="closed"):
        await log.wait_past(0)


async def test_a_writer_that_is_slow_is_not_waited_for_on_the_loop(world: StoreWorld) -> None:
    log = await world.create()
    gate = world.disk.hold("sync", ".log")
    waiting = asyncio.ensure_future(append(log, draft()))
    await arrived(gate)
    ticks = 0
    for _ in range(100):
        await asyncio.sleep(0)
        ticks += 1
    assert ticks == 100 and not waiting.done()
    gate.opened.set()
    await waiting
    await until(lambda: log.bounds().end == 1)


def gathered(log: EmbeddedLog, payload: bytes) -> None:
    """Append one message that nobody waits for."""
    log.append([run_of("n", [payload], qos=0)])


async def test_what_nobody_waits_for_gathers_also_while_a_commit_runs(world: StoreWorld) -> None:
    log = await world.create()
    gate = world.disk.hold("sync", ".log")
    first = asyncio.ensure_future(append(log, draft(b"first")))
    await arrived(gate)
    gathered(log, b"second")
    gate.opened.set()
    await first
    gathered(log, b"third")
    await log.wait_past(2)
    assert await batch_counts(log) == [1, 2], "the second waited for company"


async def test_a_reader_at_the_end_is_not_kept_waiting_by_what_gathers(world: StoreWorld) -> None:
    log = await world.create()
    gathered(log, b"first")
    timer = world.store._committer._timer
    assert timer is not None
    waiting = log.wait_past(0)
    sooner = world.store._committer._timer
    assert sooner is not None and sooner.when() < timer.when()
    await waiting
