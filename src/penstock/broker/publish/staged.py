"""What Spark stages and hands over to a running broker: into the logs exactly once, and delivered.

Tasks send files of batches, which are checked and made durable here; the driver hands over which of
them count. From then on the broker finishes, also after a crash (`log/staging/intake.py`).
"""

from __future__ import annotations

import asyncio
import unicodedata
from dataclasses import dataclass
from typing import Final

from penstock.broker.engine import Engine
from penstock.broker.publish.submissions import built_in_denial
from penstock.broker.topic.topics import Topic
from penstock.core.access import PUBLISH, Authorise, Principal, denial
from penstock.core.naming.names import quoted
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
    mark_key,
    read_batches,
)
from penstock.log.staging.foreign import check_batch, with_mark
from penstock.log.staging.intake import finish, take_in
from penstock.model.errors import CorruptError, NotAuthorized, RefusedError, TooLarge
from penstock.model.limits import MIB

__all__ = ["NAME_FORM", "PART_FORM", "SOURCE_CHARS_MAX", "Staged", "StagedFile"]

CLEAN_EVERY_S: Final = 3_600.0
SOURCE_CHARS_MAX: Final = 512
STAGED_RAW_BYTES_MAX: Final = 512 * MIB  # of the payloads of one file: LZ4 shrinks up to 255-fold


class Staged:
    """The staging area of a tenant. A source's requests take turns."""

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
        self._check_space(topic)
        check_source(source)
        check_part(part)
        if topic.is_built_in:
            raise NotAuthorized(built_in_denial(topic))
        own = _own(principal, source)
        keys = _Keys(source, own, number, part)
        payload_bytes_max = self._engine.settings.payload_bytes_max
        batches, names = await asyncio.to_thread(_checked, data, keys, payload_bytes_max)
        for name in names:
            if topic.part_of(name) is not topic:
                raise RefusedError(
                    f"name {quoted(name)} does not belong to partition {topic.partition} of topic "
                    f"{quoted(topic.declared)}: stage a file for each partition; murmur2 of the "
                    "name chooses it, as Kafka's own clients do"
                )
            self._check_publish(principal, name, topic)
        records = sum(batch.header.count for batch in batches)
        self._engine.quotas.check_rate(principal.user, records, len(data))
        staged = StagedData(own, number, part, topic.id, batches)
        return await asyncio.to_thread(area.keep, staged)

    async def hand_over(
        self,
        principal: Principal,
        source: str,
        number: int,
        files: list[StagedFile],
        *,
        is_only: bool,
    ) -> bool:
        """All of them come into their topics, once; False when that number had done so before."""
        area = self._area()
        for file in files:
            check_kept(number, file)
            self._check_space(self._engine.topics.by_id(file.topic_id))
        own = _own(principal, check_source(source))
        async with self._turn(own):
            if not principal.grants.is_unlimited:  # rules may have changed since it was staged
                found = await asyncio.to_thread(area.names, own, number, files)
                self._check_found(principal, found)
            # A job that opened the directory itself, or an older release, has no owner.
            if await asyncio.to_thread(area.last_done, source) >= number:
                await asyncio.to_thread(area.discard, own, files)
                return False
            return await take_in(
                area,
                own,
                number,
                files=files,
                log_of=self._log_of,
                clock=self._engine.clock,
                kept_s=ONLY_S if is_only else DONE_S,
            )

    def _check_found(self, principal: Principal, found: dict[int, set[str]]) -> None:
        for topic_id, names in found.items():
            topic = self._engine.topics.by_id(topic_id)
            if topic is not None:  # else it was deleted, and its files count for nothing
                for name in names:
                    self._check_publish(principal, name, topic)

    def _check_publish(self, principal: Principal, name: str, topic: Topic) -> None:
        if not self._authorise(principal, PUBLISH, name, topic.key):
            self._engine.metrics.dropped["not_authorized"] += 1
            raise NotAuthorized(denial(principal, PUBLISH, name))

    async def discard(self, principal: Principal, source: str, files: list[StagedFile]) -> None:
        """Forget files that were staged and will not be handed over."""
        area = self._area()
        for file in files:
            check_part(file.part)
        own = _own(principal, check_source(source))
        async with self._turn(own):
            await asyncio.to_thread(area.discard, own, files)

    def _area(self) -> StagingArea:
        directory = self._engine.directory
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

    def _check_space(self, topic: Topic | None) -> None:
        if topic is not None:
            self._engine.check_room(topic, 1)

    async def _look_after(self) -> None:
        """Finish what was decided and then interrupted, by a full disk perhaps."""
        if self._engine.directory is None:
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


def _own(principal: Principal, source: str) -> str:
    """Sources belong to whoever uses them: two users may call theirs the same."""
    return f"{principal.tenant}\n{principal.user}\n{source}"  # no part contains a line feed


@dataclass(frozen=True, slots=True)
class _Keys:
    """What the marks of a file say: the source as its user calls it, and as it is kept."""

    source: str
    own: str
    number: int
    part: str


def _checked(data: bytes, keys: _Keys, payload_bytes_max: int) -> tuple[list[Batch], set[str]]:
    """The batches, and every name in them; refuses what nobody could publish either."""
    names: set[str] = set()
    batches: list[Batch] = []
    raw_bytes = 0
    try:
        for batch in read_batches(memoryview(data), keys.source, keys.number, keys.part):
            raw_bytes += batch.header.blob_raw_length
            if raw_bytes > STAGED_RAW_BYTES_MAX:
                raise TooLarge(
                    f"the file decompresses to more than {STAGED_RAW_BYTES_MAX} bytes: stage "
                    "several files"
                )
            names |= check_batch(batch, payload_bytes_max)
            # A new one, which does not hold the payloads that were decompressed for the check.
            key = mark_key(keys.own, keys.number, keys.part, len(batches))
            batches.append(with_mark(batch, key))
    except CorruptError as broken:
        raise RefusedError(f"batch {len(batches)} is invalid: {broken}") from None
    if not batches:
        raise RefusedError("the file contains no batch: stage files with records only")
    return batches, names
