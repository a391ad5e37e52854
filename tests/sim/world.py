"""One history: logs that live and die several times on one disk, chosen by a seed.

A life opens the logs, compares what is there with what was promised, then lets actors publish,
read, seal, trim and change settings until the life ends: in order, by a kill, or by a power loss,
at a moment or in the middle of any disk operation, the operations of recovery included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, Final

from penstock.log.broken import DamagedLog
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.endfile import read_end
from penstock.log.files.reader import FileReader
from penstock.log.files.store import EmbeddedStore
from penstock.log.files.upkeep.verify import verify_log
from penstock.log.interface import FSYNC, OS, LogSettings
from penstock.model.clock import ManualClock
from penstock.model.errors import Gap, UnavailableError
from tests.appends import append
from tests.sim.drafts import random_append
from tests.sim.fake_disk import Crash, FakeDisk
from tests.sim.house import (
    ROOT,
    House,
    look_before_opening,
    look_from_outside,
    marks_on_disk,
    read_all,
    small_bounds,
)
from tests.sim.promises import Broken, Call, demand
from tests.sim.workers import SimWorkers, VirtualLoop, bury_task

QUIET_SEEDS: Final = (6, 8)  # last digits of seeds whose clients are alone now and then
RARE: Final = (  # operations worth crashing at, and how many of them a life has
    ("sync directory", 20),
    ("sync end", 4),
    ("write end", 8),
    ("rename", 10),
    ("remove", 10),
    ("create", 10),
    ("truncate", 20),
    ("sync", 60),
)


class SimulatedMachine:
    """All that a seed decides."""

    def __init__(
        self, seed: int, trace: Callable[[str], None] | None = None, left_out: str | None = None
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.disk = FakeDisk(Random(seed + 1))
        self._say = trace or (lambda text: None)
        self.disk.trace = self._say
        if left_out is not None:
            self.disk.sites = set()
            self.disk.left_out = left_out
        self.clock = ManualClock()
        self.houses = [House(n + 1, self._settings()) for n in range(self.rng.choice((1, 1, 1, 2)))]
        self.lives = self.rng.randint(2, 6)
        # Its own chance: the seeds that `mutants` names keep the histories they have.
        self._quiet = Random(seed + 2) if seed % 10 in QUIET_SEEDS else None
        self.failures: list[BaseException] = []
        self.power_goes = False  # when this life ends
        self.is_sync_unseen = False  # a sync failed, and the process died before it could say so
        self.number = 0  # of appends; makes every payload and mark its own

    def _settings(self) -> LogSettings:
        rng = self.rng
        return LogSettings(
            durability=rng.choice((FSYNC, FSYNC, OS)),
            segment_bytes=rng.choice((300, 2_000, 10_000, 60_000)),
            segment_age_s=rng.choice((5.0, 1_000.0)),
        )

    def run_and_check(self) -> None:
        """Live through the whole history; raises at the first broken promise."""
        with small_bounds(self.rng):
            for life in range(self.lives + 1):
                is_last = life == self.lives
                self._say(f"-- life {life}{', the last' if is_last else ''}")
                self._live(is_last)

    # One life

    def _live(self, is_last: bool) -> None:
        loop = VirtualLoop(self._quiet)
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(self._see_exception)
        self.disk.on_crash = loop.stop
        if not is_last:
            self._plan_faults()
        main = loop.create_task(self._life(loop, is_last))
        main.add_done_callback(lambda _: loop.stop())
        try:
            loop.run_forever()
            self._judge(main)
        finally:
            self._bury(loop)
        power_lost = self.power_goes
        self._say(f"-- the life ends{' and so does the power' if power_lost else ''}")
        for house in self.houses:
            house.power_lost |= power_lost
            house.failed_syncs += self.disk.failed_syncs
            if house.log is not None:
                house.promises.first = max(house.promises.first, house.log.bounds().first)
                house.log = None
            else:
                house.was_closed = False  # opening it failed half way
        self.disk.restart(power_lost=power_lost)

    def _judge(self, main: asyncio.Task[None]) -> None:
        for failure in self.failures:
            raise failure
        if main.done() and not main.cancelled():
            failed = main.exception()
            if failed is not None and not isinstance(failed, Crash):
                raise failed
        if not self.disk.is_dead:
            demand(main.done(), "the loop stopped and nobody knows why")

    def _see_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failed = context.get("exception")
        if isinstance(failed, Crash) or self.disk.is_dead:
            return
        self.failures.append(failed or Broken(str(context.get("message"))))
        loop.stop()

    def _bury(self, loop: VirtualLoop) -> None:
        """The process is gone: whatever it was about to do does not happen."""
        self.disk.is_dead = True
        for task in asyncio.all_tasks(loop):
            bury_task(task)
        loop.set_exception_handler(lambda loop, context: None)
        asyncio.set_event_loop(None)
        loop.close()

    def _plan_faults(self) -> None:
        rng, disk = self.rng, self.disk
        self.power_goes = rng.random() < 0.5
        if self.is_sync_unseen:  # what the last process left in the cache is put to the test
            self.is_sync_unseen, self.power_goes = False, True
            disk.crash_on, disk.crash_in = "write end", rng.randrange(4)
            return
        if rng.random() < 0.1:
            self.is_sync_unseen, self.power_goes = True, False
            disk.sync_fails_in, disk.sync_kills = rng.randrange(40), 1.0
            return
        disk.sync_kills = 0.3
        kind = rng.randrange(5)
        if kind == 0:
            disk.crash_in = rng.randrange(20)  # in recovery, most likely
        elif kind == 1:
            disk.crash_in = rng.randrange(400)
        elif kind < 4:
            disk.crash_on, most = rng.choice(RARE)
            disk.crash_in = rng.randrange(most)
        if rng.random() < 0.3:
            disk.sync_fails_in = rng.randrange(rng.choice((5, 60)))

    async def _life(self, loop: VirtualLoop, is_last: bool) -> None:
        workers = SimWorkers(loop, self.rng)
        store = EmbeddedStore(ROOT, self.disk, self.clock, loop, workers)
        self.clock.advance(self.rng.choice((0.0, 0.1, 10.0)))
        for house in self.houses:
            if not await self._open(store, house):
                return  # a fault kept it closed: the next process tries again
        if is_last:
            return
        actors = [loop.create_task(actor) for actor in self._actors(store)]
        for actor in actors:
            actor.add_done_callback(self._see_actor_end)
        await asyncio.sleep(self.rng.choice((0.05, 0.3, 1.0)))
        for actor in actors:
            actor.cancel()
        await asyncio.gather(*actors, return_exceptions=True)
        if self.rng.random() < 0.4:
            await self._close()

    def _see_actor_end(self, actor: asyncio.Task[None]) -> None:
        if not actor.cancelled() and not self.disk.is_dead:
            failed = actor.exception()
            if failed is not None:
                self.failures.append(failed)
                actor.get_loop().stop()

    async def _close(self) -> None:
        for house in self.houses:
            assert house.log is not None
            try:
                await house.log.close()
                house.was_closed = not house.log.fence
            except OSError:
                self._demand_failed_sync("close")
            await asyncio.sleep(0)  # answers reach the callers in the next round
            waiting = [c for c in house.promises.calls if not c.future.cancelled() and c.base < 0]
            demand(not waiting, f"{house.identity.slug}: closed, and {len(waiting)} calls wait on")
            if house.was_closed:
                self._say(f"{house.identity.slug} closed in order")
                house.promises.synced_end = len(house.promises.visible)

    def _demand_failed_sync(self, what: str) -> None:
        demand(
            self.disk.failed_syncs > 0 or self.disk.failed_reads > 0 or self.disk.fills > 0,
            f"{what} failed on a disk in order",
        )

    # Opening

    async def _open(self, store: EmbeddedStore, house: House) -> bool:
        slug = house.identity.slug
        if house.is_made:
            look_before_opening(self.disk, house)
        try:
            if house.identity in store.list():
                declared, settings = await store.describe(house.identity)
                demand(declared == slug, f"{slug}: topic.json says {declared}")
                demand(
                    settings in house.declared,
                    f"{slug}: topic.json has lost the settings",
                )
                log = await store.open(house.identity, house.settings)
            else:
                demand(not house.is_made, f"{slug}: its directory or topic.json is gone")
                log = await store.create(house.identity, slug, house.settings)
        except UnavailableError:
            self._demand_failed_sync("opening")
            return False
        except DamagedLog as broken:  # the disk failed right then; damage would be a broken promise
            if not isinstance(broken.__cause__, OSError):
                raise
            self._demand_failed_sync("opening")
            return False
        self._say(f"{slug} opened at {log.bounds()}, epoch {log.epoch}: {store.notes}")
        await self._compare(house, log)
        house.log = log
        house.is_made = True
        house.is_loose = log.settings.durability == OS
        house.unsynced_credit = house.failed_syncs = 0
        house.power_lost = house.was_closed = False
        log.on_commit = house.see_commit
        return True

    async def _compare(self, house: House, log: EmbeddedLog) -> None:
        promises = house.promises
        slug = house.identity.slug
        first, end = log.bounds()
        records = await read_all(log, slug)
        keeps = len(promises.visible)
        may_lose = house.power_lost or (house.is_loose and house.failed_syncs > 0)
        if may_lose:
            keeps = promises.synced_end
        old_epoch, old_end = promises.epoch, len(promises.visible)
        if house.failed_syncs < 2:  # the one that fenced it; then `end` says so, durably
            promises.refused = [call for call in promises.refused if not call.is_fenced]
        promises.see_recovered(
            records,
            first,
            log.epoch,
            keeps=keeps,
            marks_may_go=may_lose and house.is_loose,
            ghosts_allowed=house.power_lost,
        )
        if house.was_closed:
            demand(log.epoch == old_epoch, f"{slug}: a new epoch after it was closed in order")
        for position in {first, end, old_end, (end + old_end) // 2}:
            clamped = await log.clamp(old_epoch, position)
            expected = min(position, end) if position <= old_end else end
            if first <= position <= old_end:
                demand(
                    clamped == expected, f"{slug}: {position} is moved to {clamped}, not {expected}"
                )
        promises.see_marks(marks_on_disk(self.disk, house))
        look_from_outside(self.disk, house, FileReader(self.disk, house.directory))
        with self.disk.healthy_reads():
            report = verify_log(self.disk, house.directory)
        demand(not report.problems, f"{slug}: {[str(problem) for problem in report.problems]}")
        end_now = read_end(self.disk, house.directory)
        demand(end_now is not None and end_now.durable_end == end, f"{slug}: `end` says {end_now}")

    # Actors

    def _actors(self, store: EmbeddedStore) -> list[Coroutine[Any, Any, None]]:
        actors: list[Coroutine[Any, Any, None]] = [self._trouble()]
        for house in self.houses:
            actors += [self._publish(house) for _ in range(self.rng.randint(1, 3))]
            actors += [self._read(house) for _ in range(self.rng.randint(0, 2))]
            actors += [self._peek(house), self._wait(house)]
            if self.rng.random() < 0.7:  # upkeep syncs the directory, and so hides who forgot to
                actors.append(self._keep_house(house))
            if self.rng.random() < 0.5:
                actors.append(self._alter(store, house))
        return actors

    async def _pause(self) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.001, 0.005, 0.03)))

    async def _publish(self, house: House) -> None:
        log = house.log
        assert log is not None
        while True:
            for _ in range(self.rng.choice((1, 1, 2, 8))):
                self._append(house, log)
            if self.rng.random() < 0.02 and house.promises.calls:
                self.rng.choice(list(house.promises.calls)).future.cancel()
            await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.005, 0.03, 0.1)))
            if self.rng.random() < 0.01:
                self.clock.set_wall(self.clock.now_us() - self.rng.randrange(100_000_000))
            self.clock.advance(self.rng.choice((0.0, 0.0, 0.001, 1.0)))

    def _append(self, house: House, log: EmbeddedLog) -> None:
        self.number += 1
        draft, marks, records = random_append(self.rng, self.number)
        fence = log.fence
        future = append(log, draft, marks)
        assert isinstance(future, asyncio.Future)
        call = Call(records, marks, future, self.disk.is_full)
        house.promises.calls.append(call)
        if fence:
            demand(future.done(), f"{house.identity.slug}: a fenced log takes an append")
        fills = self.disk.fills
        future.add_done_callback(lambda _: self._answered(house, call, fills))

    def _answered(self, house: House, call: Call, fills: int) -> None:
        if call.future.cancelled() or self.disk.is_dead:
            return
        failed = call.future.exception()
        slug = house.identity.slug
        if failed is None:
            house.promises.see_ack(call, call.future.result())
            return
        demand(isinstance(failed, UnavailableError), f"{slug}: refused with {failed!r}")
        is_fenced = "a sync failed" in str(failed)
        if is_fenced:
            demand(self.disk.failed_syncs > 0, f"{slug}: fenced without a reason")
        elif "the disk is full" in str(failed):
            had_space = not call.was_full and not self.disk.is_full and fills == self.disk.fills
            demand(not had_space, f"{slug}: full, it says, and there was space")
        else:
            demand("closed" in str(failed), f"{slug}: refused with {failed!r}")
        house.promises.see_refusal(call, is_fenced)

    async def _read(self, house: House) -> None:
        log, promises, slug = house.log, house.promises, house.identity.slug
        assert log is not None
        while True:
            await self._pause()
            first, end = log.bounds()
            offset = self.rng.randint(max(first - 3, 0), end + 2)
            if self.rng.random() < 0.2:
                await self._ask_time(house, log)
                continue
            try:
                batches = await log.read(offset)
            except Gap:
                demand(offset < log.bounds().first, f"{slug}: {offset} is no gap")
                continue
            except OSError:
                demand(self.disk.failed_reads > 0, f"{slug}: reading failed on a disk in order")
                continue
            if offset < end and offset >= first:
                demand(bool(batches), f"{slug}: nothing is read at {offset} before the end {end}")
            demand(offset >= first, f"{slug}: {offset} was trimmed, and reading it says nothing")
            for batch in batches:
                records = batch.records(slug, offset, batch.end_offset)
                demand(batch.base_offset <= offset, f"{slug}: a gap before {batch.base_offset}")
                promises.see_records(records, offset)
                offset = max(offset, batch.end_offset)
            demand(offset <= max(log.bounds().end, end + 2), f"{slug}: read past the end")

    async def _ask_time(self, house: House, log: EmbeddedLog) -> None:
        times = house.promises.times
        if not times:
            return
        stamp = self.rng.choice(times) + self.rng.choice((-1, 0, 0, 1, 10_000_000))
        end = log.bounds().end
        try:
            offset = await log.offset_at(stamp)
        except OSError:
            demand(self.disk.failed_reads > 0, "offset_at failed on a disk in order")
            return
        slug = house.identity.slug
        first = log.bounds().first
        demand(offset <= log.bounds().end, f"{slug}: time {stamp} is past the end")
        demand(
            all(at < stamp for at in times[first:offset]),
            f"{slug}: {offset} is not the first at {stamp}",
        )
        if offset < end:
            demand(times[offset] >= stamp, f"{slug}: {offset} is before {stamp}")

    async def _wait(self, house: House) -> None:
        log = house.log
        assert log is not None
        while True:
            offset = max(log.bounds().end + self.rng.randint(-2, 5), 0)
            await log.wait_past(offset)
            demand(log.bounds().end > offset, f"{house.identity.slug}: woken before {offset} came")
            await self._pause()

    async def _peek(self, house: House) -> None:
        reader = FileReader(self.disk, house.directory)
        while True:
            await asyncio.sleep(self.rng.choice((0.003, 0.02, 0.1)))
            look_from_outside(self.disk, house, reader, self.rng.choice((1, 10, 50)))

    async def _keep_house(self, house: House) -> None:
        log, slug = house.log, house.identity.slug
        assert log is not None
        while True:
            await asyncio.sleep(self.rng.choice((0.002, 0.01, 0.1)))
            try:
                if self.rng.random() < 0.5:
                    await log.seal_closed()
                elif self.rng.random() < 0.5:
                    before_us = self.clock.now_us() - self.rng.choice((0, 1_000_000, 10_000_000))
                    first = log.bounds().first
                    await log.trim(before_us, None)
                    dropped = house.promises.times[first : log.bounds().first]
                    demand(all(at < before_us for at in dropped), f"{slug}: trimmed too much")
                else:
                    await log.trim(None, self.rng.choice((1, 5_000, 50_000)))
                await log.stored_bytes()
            except OSError:
                self._demand_failed_sync("upkeep")

    async def _alter(self, store: EmbeddedStore, house: House) -> None:
        log = house.log
        assert log is not None
        while True:
            await asyncio.sleep(self.rng.choice((0.01, 0.1, 0.5)))
            level = OS if house.settings.durability == FSYNC else FSYNC
            house.settings = replace(house.settings, durability=level)
            self._say(f"{house.identity.slug} is now at level {level}")
            house.declared.append(house.settings)
            try:
                await store.declare(house.identity, house.identity.slug, house.settings)
                house.declared = [house.settings]
            except UnavailableError:
                self._demand_failed_sync("altering")
            if level == FSYNC:
                house.unsynced_credit = 1  # a commit may be on its way that does not sync
            else:
                house.is_loose = True
            log.settings = house.settings

    async def _trouble(self) -> None:
        rng, disk = self.rng, self.disk
        while True:
            await asyncio.sleep(rng.choice((0.02, 0.2, 1.0)))
            choice = rng.random()
            if choice < 0.25:
                disk.fill(rng.choice((0, 0, 4_096, 20_000)))
                await asyncio.sleep(rng.choice((0.005, 0.05)))
                disk.empty()
            elif choice < 0.3:
                disk.sync_fails_in = rng.randrange(10)
            elif choice < 0.5:
                disk.read_fails_in = rng.randrange(10)
