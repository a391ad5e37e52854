"""Where a sink's records go: the seam between Spark's side and the broker's.

An intake is made on the driver and pickled into tasks. Tasks stage files of batches; the driver
hands over which of them count, and from then on they come into their topics exactly once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.log.files.commit import ThreadWorkers
from penstock.log.files.directory import DataDirectory
from penstock.log.files.layout import read_facts, tenant_root
from penstock.log.files.store import EmbeddedStore
from penstock.log.format.batch import Batch
from penstock.log.interface import KeptLog, LogIdentity
from penstock.log.staging.area import DONE_S, StagedFile, StagingArea, StagingFile, mark_key
from penstock.log.staging.intake import take_in
from penstock.model.clock import SystemClock
from penstock.model.errors import UnavailableError
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.pipeline.source.topics import DirectoryTopics

LOCK_S_MAX: Final = 10.0  # for another driver to finish its commit
LOCK_TRY_S: Final = 0.1


class Staging(Protocol):
    """What a task stages for one topic."""

    def next_key(self) -> bytes:
        """The key of the mark that the next batch must carry."""
        ...

    def add(self, batch: Batch) -> None: ...

    def finish(self) -> list[StagedFile]:
        """Make it durable; it counts once it is handed over."""
        ...

    def give_up(self) -> list[StagedFile]:
        """Stage nothing more; what has to be discarded."""
        ...


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic by its declared spelling; the id of partition n is n above its id."""

    declared: str
    topic_id: int
    partitions: int = 1


class Intake(Protocol):
    """The topics of one broker, as a sink sees them."""

    def find(self, topic: str) -> FoundTopic:
        """What a sink needs to know of a topic; TopicNotFound."""
        ...

    def stage(self, source: str, number: int, part: str, topic_id: int) -> Staging: ...

    def discard(self, source: str, files: list[StagedFile]) -> None:
        """Forget files that will not be handed over."""
        ...

    def hand_over(
        self, source: str, number: int, files: list[StagedFile], *, is_only: bool
    ) -> bool:
        """All of them come into their topics, once; False when that number had done so before."""
        ...


class DirectoryIntake:
    """Implements `Intake` on a data directory that nobody else holds while it is written to."""

    def __init__(self, path: Path, tenant: TenantId = DEFAULT_TENANT) -> None:
        self._path = path
        self._topics = DirectoryTopics(path, tenant)
        self._area = StagingArea(tenant_root(path, tenant))

    def __reduce__(self) -> tuple[Any, ...]:
        return DirectoryIntake, (self._path, self._topics.tenant)

    def check_free(self) -> None:
        """UnavailableError when the directory is held: better now than after the work is done."""
        self._topics.all()
        with self._held():
            pass

    def find(self, topic: str) -> FoundTopic:
        identity = self._topics.find(topic)
        return FoundTopic(self._topics.name_of(identity), identity.topic_id)

    def stage(self, source: str, number: int, part: str, topic_id: int) -> Staging:
        return _OneFile(self._area.begin(source, number, part, topic_id), source, number, part)

    def discard(self, source: str, files: list[StagedFile]) -> None:
        self._area.discard(source, files)

    def hand_over(
        self, source: str, number: int, files: list[StagedFile], *, is_only: bool
    ) -> bool:
        with self._held():
            return asyncio.run(self._take_in(source, number, files, is_only))

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The directory is ours; another driver is waited for."""
        directory = DataDirectory(self._path)
        deadline_s = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                directory.take()
                break
            except UnavailableError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(LOCK_TRY_S)
        try:
            yield
        finally:
            directory.release()

    async def _take_in(
        self, source: str, number: int, files: list[StagedFile], is_only: bool
    ) -> bool:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        workers = ThreadWorkers(loop)
        store = EmbeddedStore(self._path, self._topics.disk, clock, loop, workers)
        identities = {one.topic_id: one for one in self._topics.all().values()}
        logs: dict[int, KeptLog] = {}

        async def log_of(topic_id: int) -> KeptLog | None:
            identity = identities.get(topic_id)
            if identity is not None and topic_id not in logs:
                logs[topic_id] = await store.open(identity, self._settings(identity))
            return logs.get(topic_id)

        try:
            kept_s = 0.0 if is_only else DONE_S  # nobody else knows of a source that comes once
            return await take_in(
                self._area, source, number, files=files, log_of=log_of, clock=clock, kept_s=kept_s
            )
        finally:
            for log in logs.values():
                await log.close()
            workers.close()

    def _settings(self, identity: LogIdentity) -> Any:
        return read_facts(self._topics.disk, self._topics.directory_of(identity)).settings


class _OneFile:
    """Implements `Staging` with a file of the data directory."""

    def __init__(self, file: StagingFile, source: str, number: int, part: str) -> None:
        self._file = file
        self._key = (source, number, part)

    def next_key(self) -> bytes:
        return mark_key(*self._key, self._file.batches)

    def add(self, batch: Batch) -> None:
        self._file.add(batch)

    def finish(self) -> list[StagedFile]:
        return [self._file.finish()]

    def give_up(self) -> list[StagedFile]:
        return [self._file.close()]
