"""Does a log go on into its history, below its first segment, as if the segments were there?"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from penstock.log.history import files
from penstock.log.history.reading.cold import PART_ROWS, ColdRecords
from penstock.model.errors import CorruptError, Gap, UnavailableError
from tests.log.history.cold_world import IDENTITY, TOPIC, HistoryWorld, open_history


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HistoryWorld]:
    async with open_history(tmp_path) as opened:
        yield opened


def cold(world: HistoryWorld) -> ColdRecords:
    found = world.log._cold
    assert found is not None
    return found


def process_id(world: HistoryWorld) -> int:
    assert world.store.history is not None
    child = world.store.history._child
    assert child is not None
    return child.pid


@pytest.mark.slow
async def test_readers_get_the_same_records_from_log_and_history(world: HistoryWorld) -> None:
    await world.fill(200)
    wanted = await world.records()
    await world.tier(110)
    assert await world.records() == wanted, "the log has everything"
    border = await world.trim(100)
    assert 0 < border <= 100
    assert world.log.bounds() == (0, 200)
    assert await world.records() == wanted
    random = Random(5)
    for start in [0, border - 1, border, *(random.randrange(200) for _ in range(10))]:
        assert await world.records(start) == wanted[start:]


@pytest.mark.slow
async def test_whoever_wants_few_records_gets_a_part_of_a_group_and_whoever_goes_on_gets_groups(
    world: HistoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = 4 * PART_ROWS
    monkeypatch.setattr(files, "GROUP_ROWS", group)
    count = 6 * group
    await world.fill_fast(count, group // 64)
    wanted = await world.records()
    await world.tier(count - 64)
    await world.trim(count - 64)
    assert world.log.hot_first > 5 * group
    loaded, found = cold(world)._loader, Random(5)
    edges = [0, PART_ROWS - 1, PART_ROWS, group - 1, group, 5 * group - 1]
    for start in [*edges, *(found.randrange(5 * group) for _ in range(20))]:
        batches = await world.log.read(start)
        assert sum(batch.header.count for batch in batches) <= PART_ROWS
        found_here = [one for batch in batches for one in batch.records(TOPIC, start, count)]
        assert found_here == wanted[start : batches[-1].end_offset]
    before = loaded.loads
    assert await world.records() == wanted
    assert loaded.loads - before <= 12, "two parts, and then the groups; some parts are in memory"
    assert loaded.has(cold(world)._files[0], 3)


@pytest.mark.slow
async def test_times_are_found_in_history_and_at_its_border(world: HistoryWorld) -> None:
    await world.fill(200)
    stamps = [record.timestamp for record in await world.records()]
    await world.tier(60)
    await world.tier(130)
    border = await world.trim(120)
    for offset in [0, 1, 59, 60, 61, border - 1, border, border + 1, 199]:
        assert await world.log.offset_at(stamps[offset]) == offset
        assert await world.log.offset_at(stamps[offset] - 1) == offset
        assert await world.log.offset_at(stamps[offset] + 1) == offset + 1


@pytest.mark.slow
async def test_a_reader_crosses_the_border_while_it_moves(world: HistoryWorld) -> None:
    await world.fill(300)
    wanted = await world.records()
    await world.tier(50)
    reads = 0
    offset, found = 0, []
    while offset < 300:
        for batch in await world.log.read(offset):
            found += batch.records("orders", offset, 300)
            offset = max(offset, batch.end_offset)
        reads += 1
        if reads % 2 and world.log.hot_first < 200:
            await world.tier(min(cold(world).end + 60, 290))
            await world.trim(cold(world).end - 1)
    assert found == wanted
    assert world.log.hot_first > 100


@pytest.mark.slow
async def test_a_log_that_is_opened_again_knows_its_history(world: HistoryWorld) -> None:
    await world.fill(100)
    wanted = await world.records()
    await world.tier(80)
    await world.trim(80)
    await world.log.close()
    world.log = await world.store.open(IDENTITY, world.settings)
    assert world.log.bounds().first == 0
    assert await world.records() == wanted


@pytest.mark.slow
async def test_old_files_that_were_removed_are_a_gap(world: HistoryWorld) -> None:
    await world.fill(200)
    wanted = await world.records()
    await world.tier(60)
    await world.tier(130)
    await world.trim(130)
    manifest = world.manifest()
    old = manifest.files[0]
    manifest.remove([old])
    (Path(world.manifest().storage.uri) / str(old.name)).unlink()
    with pytest.raises(Gap):
        await world.log.read(10)
    assert world.log.bounds().first == 60
    assert await world.records() == wanted[60:]


@pytest.mark.slow
async def test_history_that_ends_before_the_log_begins_is_not_read(world: HistoryWorld) -> None:
    await world.fill(200)
    await world.tier(60)
    border = await world.trim(130)
    assert border > 60
    assert world.log.bounds().first == border
    with pytest.raises(Gap):
        await world.log.read(10)


@pytest.mark.slow
async def test_a_damaged_file_is_reported_and_not_read(world: HistoryWorld) -> None:
    await world.fill(100)
    await world.tier(80)
    await world.trim(80)
    storage = world.manifest().storage
    (name,) = [one for one in storage.names() if one.endswith(".parquet")]
    path = Path(storage.uri) / name
    group = pq.ParquetFile(path).metadata.row_group(0)
    (payload,) = [
        one
        for one in map(group.column, range(group.num_columns))
        if one.path_in_schema == "payload"
    ]
    data = bytearray(path.read_bytes())
    data[payload.data_page_offset + payload.total_compressed_size // 2] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(CorruptError):
        await world.log.read(10)
    assert (await world.records(95))[-1].offset == 99, "the log itself is fine"


@pytest.mark.slow
async def test_a_process_that_was_killed_is_replaced(world: HistoryWorld) -> None:
    await world.fill(100)
    wanted = await world.records()
    await world.tier(80)
    await world.trim(80)
    os.kill(process_id(world), signal.SIGSTOP)
    reading = asyncio.create_task(world.log.read(3))
    await asyncio.sleep(0)
    os.kill(process_id(world), signal.SIGKILL)
    with pytest.raises(UnavailableError, match="try again"):
        await reading
    assert await world.records() == wanted


@pytest.mark.slow
async def test_a_process_that_does_not_answer_holds_up_nobody_else(tmp_path: Path) -> None:
    async with open_history(tmp_path) as world:
        await world.fill(100)
        wanted = await world.records()
        await world.tier(80)
        border = await world.trim(80)
        history = world.store.history
        assert history is not None
        history._answer_s_max = 0.5
        os.kill(process_id(world), signal.SIGSTOP)
        readings = [asyncio.create_task(world.log.read(one)) for one in (0, 5, 60)]
        await world.fill(3)
        assert (await world.records(border))[:-3] == wanted[border:]
        assert not any(one.done() for one in readings)
        answers = await asyncio.gather(*readings, return_exceptions=True)
        assert all(isinstance(one, UnavailableError) for one in answers)
        assert history.failures
        history._answer_s_max = 30
        assert (await world.records())[:-3] == wanted, "another process answers"
