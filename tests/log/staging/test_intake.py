"""Are staged batches taken into logs exactly once, whenever the taking is interrupted?"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.core.delivery.run import run_of
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import MARK_SPARK_BATCH
from penstock.log.interface import KeptLog, LogIdentity, LogSettings, Waiter
from penstock.log.staging.area import (
    AREA,
    DONE_S,
    ORPHAN_S,
    StagedFile,
    StagingArea,
    mark_key,
)
from penstock.log.staging.intake import LogOf, finish_all, take_in
from penstock.model.errors import CorruptError, UnavailableError
from penstock.model.limits import KIB
from tests.appends import add, append
from tests.log.files.stores import StoreWorld, read_all

OTHER = LogIdentity("default", 2, "other")
QUERY = "query-1"


def stage(
    area: StagingArea,
    payloads: list[list[bytes]],
    *,
    source: str = QUERY,
    number: int = 0,
    part: str = "0",
    topic_id: int = 1,
) -> StagedFile:
    """A file with one batch for each list of payloads."""
    file = area.begin(source, number, part, topic_id)
    for held in payloads:
        builder = BatchBuilder(0)
        add(builder, "n", held, 0, 1)
        builder.add_mark(MARK_SPARK_BATCH, mark_key(source, number, part, file.batches), 0)
        file.add(builder.encode(0, 0, 0))
    return file.finish()


def logs(*known: tuple[int, KeptLog]) -> LogOf:
    async def log_of(topic_id: int) -> KeptLog | None:
        return dict(known).get(topic_id)

    return log_of


@pytest.fixture
async def log(world: StoreWorld) -> AsyncIterator[EmbeddedLog]:
    yield await world.create()


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(tmp_path)


async def payloads_of(log: KeptLog) -> list[bytes]:
    return [record.payload for record in await read_all(log)]


def left_over(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / AREA).rglob("*") if path.is_file())


async def test_what_is_staged_comes_into_the_log_in_order_and_leaves_nothing_behind(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea, tmp_path: Path
) -> None:
    files = [stage(area, [[b"a", b"b"], [b"c"]], part="0"), stage(area, [[b"d"]], part="1")]
    assert await payloads_of(log) == []
    assert await take_in(area, QUERY, 0, files, logs((1, log)), world.clock)
    assert await payloads_of(log) == [b"a", b"b", b"c", b"d"]
    assert left_over(tmp_path) == ["done.json"]


async def test_a_number_that_was_taken_in_is_not_taken_in_again(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea, tmp_path: Path
) -> None:
    taken = []
    for number, text in [(0, b"a"), (1, b"b"), (1, b"b again"), (0, b"a again")]:
        files = [stage(area, [[text]], number=number)]
        taken.append(await take_in(area, QUERY, number, files, logs((1, log)), world.clock))
    assert taken == [True, True, False, False]
    assert await payloads_of(log) == [b"a", b"b"]
    assert left_over(tmp_path) == ["done.json"]


async def test_sources_do_not_know_of_each_other(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea
) -> None:
    for source in ("a", "b", "a/../b", "ü" * 200):
        files = [stage(area, [[source.encode()]], source=source)]
        assert await take_in(area, source, 0, files, logs((1, log)), world.clock)
    assert len(await payloads_of(log)) == 4


async def test_a_source_with_one_number_only_leaves_nothing_at_all(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea, tmp_path: Path
) -> None:
    files = [stage(area, [[b"a"]])]
    await take_in(area, QUERY, 0, files, logs((1, log)), world.clock, kept_s=0)
    assert await payloads_of(log) == [b"a"]
    assert os.listdir(tmp_path / AREA) == []


@pytest.mark.parametrize("committed", range(6))
async def test_what_was_decided_is_finished_after_a_crash_wherever_it_struck(
    world: StoreWorld, tmp_path: Path, committed: int
) -> None:
    """The holder dies after `committed` of five batches; the next one finishes them."""
    log = await world.create()
    other = await world.create(identity=OTHER)
    area = StagingArea(tmp_path)
    files = [
        stage(area, [[b"1"], [b"2"]], number=7, part="0"),
        stage(area, [[b"x"]], number=7, part="0-2", topic_id=2),
        stage(area, [[b"3"], [b"4"]], number=7, part="1"),
    ]
    both = logs((1, log), (2, other))
    world.disk.fail("write", ".log", errno.ENOSPC, after=committed)
    try:
        await take_in(area, QUERY, 7, files, both, world.clock)
    except UnavailableError:
        pass
    else:
        assert committed == 5
    world.disk.heal()
    await append(log, run_of("between", [b"p"]))
    again = [stage(area, [[b"other rows"]], number=7)]  # what Spark computes may differ
    assert not await take_in(area, QUERY, 7, again, both, world.clock)
    found = [payload for payload in await payloads_of(log) if payload != b"p"]
    assert sorted(found) == [b"1", b"2", b"3", b"4"]
    assert await payloads_of(other) == [b"x"]
    assert left_over(tmp_path) == ["done.json"]


async def test_whoever_opens_the_directory_next_finishes_what_was_decided(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea, tmp_path: Path
) -> None:
    files = [stage(area, [[b"a"], [b"b"]])]
    world.disk.fail("write", ".log", errno.ENOSPC, after=1)
    with pytest.raises(UnavailableError):
        await take_in(area, QUERY, 0, files, logs((1, log)), world.clock)
    world.disk.heal()
    log = await world.reopen(log)
    assert await finish_all(StagingArea(tmp_path), logs((1, log)), world.clock) == 2
    assert await payloads_of(log) == [b"a", b"b"]
    assert await finish_all(area, logs((1, log)), world.clock) == 0


async def test_a_crash_after_the_last_append_repeats_nothing(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea
) -> None:
    files = [stage(area, [[b"a"], [b"b"]])]
    real, area.finish = area.finish, dies  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await take_in(area, QUERY, 0, files, logs((1, log)), world.clock)
    area.finish = real  # type: ignore[method-assign]
    await log.seal_closed()
    assert await finish_all(area, logs((1, log)), world.clock) == 2
    assert await payloads_of(log) == [b"a", b"b"]


def dies(*_: object) -> None:
    raise RuntimeError("the process ends here")


async def test_what_retention_has_begun_to_take_is_not_appended_again(
    world: StoreWorld, tmp_path: Path
) -> None:
    log = await world.create(LogSettings(segment_bytes=64 * KIB))
    area = StagingArea(tmp_path)
    large = [[os.urandom(40_000)] for _ in range(6)]
    files = [stage(area, large)]
    real, area.finish = area.finish, dies  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await take_in(area, QUERY, 0, files, logs((1, log)), world.clock)
    area.finish = real  # type: ignore[method-assign]
    await log.trim(None, 100 * KIB)
    first, end = log.bounds()
    assert 0 < first < end == 6
    await finish_all(area, logs((1, log)), world.clock)
    assert log.bounds() == (first, 6)


async def test_a_topic_that_was_deleted_meanwhile_is_left_out(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea
) -> None:
    files = [stage(area, [[b"a"]]), stage(area, [[b"gone"]], part="1", topic_id=9)]
    assert await take_in(area, QUERY, 0, files, logs((1, log)), world.clock)
    assert await payloads_of(log) == [b"a"]


async def test_a_damaged_or_missing_file_is_named_and_stays_decided(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea, tmp_path: Path
) -> None:
    file = stage(area, [[b"a" * 100]])
    (path,) = (tmp_path / AREA).rglob(file.name)
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole[:120] + b"!" + whole[121:], b"", None):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        with pytest.raises(CorruptError, match=path.name.replace(".", r"\.")):
            await take_in(area, QUERY, 0, [file], logs((1, log)), world.clock)
        assert await payloads_of(log) == []
    path.write_bytes(whole)
    assert await finish_all(area, logs((1, log)), world.clock) == 1
    assert await payloads_of(log) == [b"a" * 100]


async def test_a_batch_without_the_mark_of_its_number_is_not_appended(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea
) -> None:
    with pytest.raises(CorruptError, match="has no mark"):
        files = [stage(area, [[b"a"]], number=3)]
        await take_in(area, QUERY, 4, files, logs((1, log)), world.clock)
    assert await payloads_of(log) == []


def test_discarded_files_are_gone(tmp_path: Path) -> None:
    area = StagingArea(tmp_path)
    area.discard(QUERY, [stage(area, [[b"a"]]), stage(area, [[b"b"]], part="1")])
    assert os.listdir(tmp_path / AREA) == []


async def test_what_a_killed_attempt_left_of_a_finished_number_is_removed_at_once(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea, tmp_path: Path
) -> None:
    files = [stage(area, [[b"a"]], number=3)]
    await take_in(area, QUERY, 3, files, logs((1, log)), world.clock)
    late, following = stage(area, [[b"late"]], number=3), stage(area, [[b"next"]], number=4)
    area.clean(world.clock.age_us)
    assert not list((tmp_path / AREA).rglob(late.name))
    assert area.missing(QUERY, [following]) == []


async def test_orphans_and_ended_sources_are_removed_when_they_are_old(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea, tmp_path: Path
) -> None:
    now = world.clock.now_us()
    await take_in(area, "ended", 0, [stage(area, [[b"a"]], source="ended")],
                  logs((1, log)), world.clock)  # fmt: skip
    orphan = stage(area, [[b"b"]])
    (path,) = (tmp_path / AREA).rglob(orphan.name)
    os.utime(path, (now / 1e6, now / 1e6))
    area.clean(world.clock.age_us)
    assert len(left_over(tmp_path)) == 2
    world.clock.advance(ORPHAN_S + 1)
    area.clean(world.clock.age_us)
    assert left_over(tmp_path) == ["done.json"]
    world.clock.advance(DONE_S)
    area.clean(world.clock.age_us)
    assert os.listdir(tmp_path / AREA) == []


async def test_many_batches_wait_for_their_commit_only_so_many_at_a_time(
    world: StoreWorld, log: EmbeddedLog, area: StagingArea
) -> None:
    files = [stage(area, [[b"%d" % n] for n in range(40)])]
    waiting: list[int] = []
    append = log.append_batch

    def noted(batch: Batch, waiter: Waiter | None = None) -> None:
        waiting.append(len(log._placing.waiting))
        append(batch, waiter)

    log.append_batch = noted  # type: ignore[method-assign]
    await take_in(area, QUERY, 0, files, logs((1, log)), world.clock)
    assert await payloads_of(log) == [b"%d" % n for n in range(40)]
    assert max(waiting) < 4
