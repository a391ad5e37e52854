"""What Spark stages and hands over to a running broker: into the logs exactly once, and delivered.

Tasks send files of batches, which are checked and made durable here; the driver hands over which of
them count. From then on the broker finishes, also after a crash (`log/staging/intake.py`).
"""

from __future__ import annotations

import asyncio
import unicodedata
from pathlib import Path
from typing import Final

from penstock.broker.engine import Engine
from penstock.broker.publish.submissions import built_in_denial
from penstock.broker.topics import Topic
from penstock.core.access import PUBLISH, Authorise, Principal, denial
from penstock.core.names import quoted
from penstock.log.format.batch import Batch
from penstock.log.interface import KeptLog
from penstock.log.staging.area import (
    DONE_S,
    NAME_FORM,
    ONLY_S,
    PART_FORM,
    StagedData,
    StagedFile,
    StagingArea,
    check_kept,
    check_part,
    read_batches,
)
from penstock.log.staging.foreign import check_batch
from penstock.log.staging.intake import finish, take_in
from penstock.model.errors import CorruptError, NotAuthorized, RefusedError

__all__ = ["NAME_FORM", "PART_FORM", "SOURCE_CHARS_MAX", "Staged", "StagedFile"]

CLEAN_EVERY_S: Final = 3_600.0
SOURCE_CHARS_MAX: Final = 512


class Staged:
    """The staging area of a broker's data directory. A source's requests take turns."""

    def __init__(self, engine: Engine, authorise: Authorise) -> None:
        self._engine = engine
        self._authorise = authorise
        self._turns: dict[str, _Turn] = {}
        self._cleaned_s = self._engine.clock.monotonic_s()
        self._engine.upkeep.errands.append(self._look_after)

    async def stage(
        self,
        principal: Principal,
        source: str,
        number: int,
        part: str,
        topic: Topic,
        data: bytes,
    ) -> StagedFile:
        """Keep a file of batches, durably; RefusedError says what is wrong with it."""
        area = self._area()
        self._check_space()
        check_source(source)
        check_part(part)
        if topic.is_built_in:
            raise NotAuthorized(built_in_denial(topic))
        payload_bytes_max = self._engine.settings.payload_bytes_max
        batches, names = await asyncio.to_thread(
            _checked, data, source, number, part, payload_bytes_max
        )
        for name in names:
            if not self._authorise(principal, PUBLISH, name, topic.key):
                self._engine.metrics.dropped["not_authorized"] += 1
                raise NotAuthorized(denial(principal, PUBLISH, name))
        records = sum(batch.header.count for batch in batches)
        self._engine.quotas.check_rate(principal.user, records, len(data))
        staged = StagedData(source, number, part, topic.id, batches)
        return await asyncio.to_thread(area.keep, staged)

    async def hand_over(
        self, source: str, number: int, files: list[StagedFile], *, is_only: bool
    ) -> bool:
        """All of them come into their topics, once; False when that number had done so before."""
        area = self._area()
        self._check_space()
        for file in files:
            check_kept(number, file)
        async with self._turn(check_source(source)):
            return await take_in(
                area,
                source,
                number,
                files,
                self._log_of,
                self._engine.clock,
                kept_s=ONLY_S if is_only else DONE_S,
            )

    async def discard(self, source: str, files: list[StagedFile]) -> None:
        """Forget files that were staged and will not be handed over."""
        area = self._area()
        for file in files:
            check_part(file.part)
        async with self._turn(check_source(source)):
            await asyncio.to_thread(area.discard, source, files)

    def _area(self) -> StagingArea:
        directory: Path | None = self._engine.pipelines.directory
        if directory is None:
            raise RefusedError(
                "a broker in memory cannot store staged files: publish the records instead"
            )
        return StagingArea(directory)

    async def _log_of(self, topic_id: int) -> KeptLog | None:
        topic = self._engine.topics.by_id(topic_id)
        return None if topic is None else topic.log

    def _turn(self, source: str) -> _Turn:
        turn = self._turns.get(source)
        if turn is None:
            turn = self._turns[source] = _Turn(self._turns, source)
        return turn

    def _check_space(self) -> None:
        if self._engine.upkeep.refusal:
            raise self._engine.upkeep.refused()

    async def _look_after(self) -> None:
        """Finish what was decided and then interrupted, by a full disk perhaps."""
        if self._engine.pipelines.directory is None:
            return
        area, clock = self._area(), self._engine.clock
        for manifest in await asyncio.to_thread(area.all_decided):
            async with self._turn(manifest.source):
                left = await asyncio.to_thread(area.decided, manifest.source)
                if left is not None:
                    await finish(area, left, self._log_of, clock)
        if clock.monotonic_s() - self._cleaned_s > CLEAN_EVERY_S:
            self._cleaned_s = clock.monotonic_s()
            await asyncio.to_thread(area.clean, clock.age_us)


class _Turn:
    """A lock that is removed when nobody holds it or waits for it."""

    def __init__(self, turns: dict[str, _Turn], source: str) -> None:
        self._turns = turns
        self._source = source
        self._lock = asyncio.Lock()
        self._wanted = 0

    async def __aenter__(self) -> None:
        self._wanted += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._wanted -= 1
        if not self._wanted:
            del self._turns[self._source]


def check_source(source: str) -> str:
    has_control = any(unicodedata.category(char) == "Cc" for char in source[:SOURCE_CHARS_MAX])
    if not 1 <= len(source) <= SOURCE_CHARS_MAX or has_control:
        raise RefusedError(
            f"source {quoted(source)} cannot be used: it has 1 to {SOURCE_CHARS_MAX} characters "
            "and no control characters"
        )
    return source


def _checked(
    data: bytes, source: str, number: int, part: str, payload_bytes_max: int
) -> tuple[list[Batch], set[str]]:
    """The batches, and every name in them; refuses what nobody could publish either."""
    names: set[str] = set()
    batches = []
    try:
        for batch in read_batches(memoryview(data), source, number, part):
            names |= check_batch(batch, payload_bytes_max)
            batches.append(batch)
    except CorruptError as broken:
        raise RefusedError(f"batch {len(batches)} is invalid: {broken}") from None
    if not batches:
        raise RefusedError("the file contains no batch: stage files with records only")
    return batches, names
