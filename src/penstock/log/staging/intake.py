"""Taking staged batches into logs, exactly once, also when the taking is interrupted.

Called by the process that holds the data directory: the broker, or a Spark driver that locked it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol

from penstock.log.format.batch import Batch
from penstock.log.format.marks import MARK_SPARK_BATCH
from penstock.log.interface import Bounds, Waiter
from penstock.log.staging.area import DONE_S, Manifest, StagedFile, StagingArea, mark_key
from penstock.log.waiting import FutureWaiter
from penstock.model.clock import Clock
from penstock.model.errors import RefusedError

IN_FLIGHT_MAX: Final = 4  # batches of up to 4 MiB that wait for their commit


class Taking(Protocol):
    """The part of a log that the intake needs."""

    def bounds(self) -> Bounds: ...

    def append_batch(self, batch: Batch, waiter: Waiter | None = None) -> None: ...

    def batches_since(self, offset: int) -> AsyncIterator[Batch]: ...


LogOf = Callable[[int], Awaitable[Taking | None]]  # by topic id; None: the topic was deleted


async def take_in(
    area: StagingArea,
    source: str,
    number: int,
    files: list[StagedFile],
    log_of: LogOf,
    clock: Clock,
    *,
    kept_s: float = DONE_S,
) -> bool:
    """Append the files' batches to their logs; False when the number was taken in before.

    What an earlier attempt decided counts, whatever is handed over now. Once a manifest is decided
    its files are needed: RefusedError, and nothing is decided, when one of them is not there.
    """
    decided = await asyncio.to_thread(area.decided, source)
    if decided is not None:
        await finish(area, decided, log_of, clock)
    if await asyncio.to_thread(area.last_done, source) >= number:
        await asyncio.to_thread(area.discard, source, files)
        return False
    missing = await asyncio.to_thread(area.missing, source, files)
    if missing:
        raise RefusedError(f"{missing[0]!r} is not staged, or was removed: stage it again")
    ends = {}
    for topic_id in {file.topic_id for file in files}:
        log = await log_of(topic_id)
        if log is not None:
            ends[topic_id] = log.bounds().end
    manifest = Manifest(source, number, files, ends, kept_s)
    await asyncio.to_thread(area.decide, manifest)
    await finish(area, manifest, log_of, clock)
    return True


async def finish_all(area: StagingArea, log_of: LogOf, clock: Clock) -> int:
    """Finish whatever was decided and interrupted; how many records."""
    decided = await asyncio.to_thread(area.all_decided)
    for manifest in decided:
        await finish(area, manifest, log_of, clock)
    await asyncio.to_thread(area.clean, clock.age_us)
    return sum(file.records for manifest in decided for file in manifest.files)


async def finish(area: StagingArea, manifest: Manifest, log_of: LogOf, clock: Clock) -> None:
    """Append what of the manifest is not in its logs yet."""
    if await asyncio.to_thread(area.last_done, manifest.source) < manifest.number:
        for topic_id in dict.fromkeys(file.topic_id for file in manifest.files):
            log = await log_of(topic_id)
            if log is not None:
                files = [file for file in manifest.files if file.topic_id == topic_id]
                await _append(area, manifest, files, log)
    await asyncio.to_thread(area.finish, manifest, clock.stamp_us())


async def _append(
    area: StagingArea, manifest: Manifest, files: list[StagedFile], log: Taking
) -> None:
    placed = await _placed_before(manifest, files, log)
    waiting: deque[asyncio.Future[int]] = deque()
    number = 0
    try:
        for file in files:
            batches = area.batches(manifest, file)
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                if number not in placed:
                    waiting.append(_append_batch(log, batch))
                if len(waiting) >= IN_FLIGHT_MAX:
                    await waiting.popleft()
                number += 1
        while waiting:
            await waiting.popleft()
    finally:  # after a failure the others may have made it all the same: their marks tell
        await asyncio.gather(*waiting, return_exceptions=True)


def _append_batch(log: Taking, batch: Batch) -> asyncio.Future[int]:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    log.append_batch(batch, FutureWaiter(future))
    return future


async def _placed_before(manifest: Manifest, files: list[StagedFile], log: Taking) -> set[int]:
    """The numbers of the files' batches that are in the log already."""
    numbers = {
        key: number
        for number, key in enumerate(
            mark_key(manifest.source, manifest.number, file.part, batch)
            for file in files
            for batch in range(file.batches)
        )
    }
    end = manifest.ends.get(files[0].topic_id, 0)
    found = set()
    async for batch in log.batches_since(end):
        for mark in batch.marks():
            if mark.kind == MARK_SPARK_BATCH and mark.key in numbers:
                found.add(numbers[mark.key])
    if found and log.bounds().first > end:  # retention has begun to take them, the first ones first
        found.update(range(min(found)))
    return found
