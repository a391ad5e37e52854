"""A directory of logs: `<data>/<tenant>/<slug>-<topic id>/`.

A log's directory is complete and synced before anybody is told of it, and it is renamed out of
the way before its files go. Files and directories that are not ours are left alone.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.log.broken import DamagedLog
from penstock.log.cache import CACHE_BYTES_MAX, ChunkCache
from penstock.log.files.active import create_segment
from penstock.log.files.commit import CommitJob, Workers
from penstock.log.files.disk import Disk, File, write_file
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.endfile import End, open_end, read_end
from penstock.log.files.layout import (
    FACTS_NAME,
    LOG_DIRECTORY,
    TopicFacts,
    encode_facts,
    find_logs,
    log_directory,
    read_facts,
)
from penstock.log.files.recovery import Recovered, continue_at, recover
from penstock.log.files.segment import SegmentHeader
from penstock.log.files.upkeep.ordered import read_erasures
from penstock.log.format.end_bytes import LOOSE
from penstock.log.history.reading.cold import ColdRecords
from penstock.log.history.reading.process import ANSWER_S_MAX, HistoryProcess
from penstock.log.history.tier import HistoryTier, LogHistory
from penstock.log.interface import FSYNC, OS, LogIdentity, LogSettings
from penstock.log.rounds import Committer
from penstock.model.clock import Clock
from penstock.model.errors import CorruptError, PenstockError, UnavailableError

T = TypeVar("T")

WAIT_S_MAX: Final = 5.0  # in vain for the store of histories, before logs are opened without it
_DELETED_SUFFIX: Final = ".deleted"
# What the whole machine lacks for the moment: no fault of the log that meets it first.
_SCARCE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class EmbeddedStore:
    """Implements `LogStore` on a directory, which the caller has locked."""

    durabilities = (FSYNC, OS)

    def __init__(
        self,
        root: Path,
        disk: Disk,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        workers: Workers,
        on_full: Callable[[], bool] = lambda: False,
        history: HistoryProcess | None = None,
        *,
        tier: HistoryTier | None = None,
    ) -> None:
        self.root = root
        self.history = history
        self.notes: list[str] = []  # what recovery found, for people
        self._disk = disk
        self._clock = clock
        self._loop = loop
        self._workers = workers
        self._on_full = on_full  # frees what it can on a full disk; True when it freed something
        self._committer: Committer[CommitJob] = Committer(loop, workers)
        self.cache = ChunkCache(CACHE_BYTES_MAX)
        self._history_trouble = ""  # why no file of it was found at the start
        self._waited_s = 0.0  # in vain, for the store of histories to answer
        self._tier = tier

    @property
    def partitions_max(self) -> int:
        return 1

    @property
    def has_history(self) -> bool:
        return self._tier is not None

    async def create(
        self, identity: LogIdentity, declared: str, settings: LogSettings
    ) -> EmbeddedLog:
        try:
            recovered, end_file = await self._workers.run(
                partial(self._create_files, identity, declared, settings)
            )
        except OSError as failed:
            with suppress(OSError):
                await self.delete(identity)
            raise UnavailableError(f"cannot create the log's files: {failed}") from failed
        log = self._log(recovered, end_file, settings)
        log.history = self._history(identity, declared)
        if self.history is not None:
            log.attach_history(identity, self.history).adopt([])
        return log

    async def open(self, identity: LogIdentity, settings: LogSettings) -> EmbeddedLog:
        directory = log_directory(self.root, identity)
        try:
            erasures = await self._workers.run(partial(read_erasures, self._disk, directory))
            recovered, end_file = await self._workers.run(
                partial(self._try_twice, partial(self._open_files, directory, settings))
            )
        except CorruptError as broken:
            raise await self._workers.run(partial(self._damaged, directory, broken)) from broken
        except OSError as failed:
            if failed.errno in _SCARCE:
                raise UnavailableError(f"{directory} cannot be opened: {failed}") from failed
            raise await self._workers.run(partial(self._damaged, directory, failed)) from failed
        self.notes += [f"{identity.slug}-{identity.topic_id}: {note}" for note in recovered.notes]
        declared = identity.slug
        with suppress(OSError):  # whatever it says, the catalog knows name and settings
            try:
                facts = await self._workers.run(partial(read_facts, self._disk, directory))
                declared = facts.topic
            except CorruptError as broken:
                self.notes.append(str(broken))
        history = self._history(identity, declared)
        if settings.history:
            recovered = await self._go_on_behind(history, recovered, end_file, settings)
        log = self._log(recovered, end_file, settings)
        log.history = history
        log.erasures = erasures
        if self.history is not None and (history is None or await history.has_table()):
            cold = log.attach_history(identity, self.history)
            if log.hot_first > 0:
                await self._learn_history(cold)
        elif self.history is not None and history is not None and history.is_new:
            log.attach_history(identity, self.history).adopt([])  # its first file may come soon
        return log

    def _history(self, identity: LogIdentity, declared: str) -> LogHistory | None:
        if self._tier is None:
            return None
        return LogHistory(self._tier, identity, declared, log_directory(self.root, identity))

    async def _go_on_behind(
        self,
        history: LogHistory | None,
        recovered: Recovered,
        end_file: File,
        settings: LogSettings,
    ) -> Recovered:
        """Ask the store what the history holds; a log that is behind it goes on at its end.

        Offsets are never given twice: a log restored from a backup may end before its history.
        """
        directory = recovered.active.path.parent
        if history is None:
            self.notes.append(
                f"{directory.name}: history is on and no [history] url is given: nothing is "
                "dropped from the log until there is one, or until history is off for the topic"
            )
            return recovered
        began_s = self._loop.time()
        try:
            if self._waited_s >= WAIT_S_MAX:  # else a broker with many topics would never start
                raise UnavailableError(
                    f"history {history.place.uri!r} is looked at later: the store does not answer"
                )
            await self._look(history, recovered)
        except (PenstockError, OSError) as trouble:  # upkeep tries again
            if isinstance(trouble, (UnavailableError, OSError)):
                self._waited_s += self._loop.time() - began_s
            history.note(trouble)
            self.notes.append(f"{directory.name}: {trouble}")
            return recovered
        self._waited_s = 0.0
        work = partial(
            continue_at, self._disk, directory, recovered, history.end, self._clock.now_us()
        )
        continued = await self._workers.run(work)
        if continued is not recovered:
            self.notes += [f"{directory.name}: {note}" for note in continued.notes]
            await self._workers.run(partial(self._write_end, end_file, continued, settings))
        return continued

    async def _look(self, history: LogHistory, recovered: Recovered) -> None:
        """As `LogHistory.look`; UnavailableError if the answer takes too long."""
        try:
            await asyncio.wait_for(history.look(recovered.segments), ANSWER_S_MAX)
        except TimeoutError:
            raise UnavailableError(
                f"history {history.place.uri!r} gave no answer within {ANSWER_S_MAX:g} s"
            ) from None

    async def _learn_history(self, cold: ColdRecords) -> None:
        """Ask which files there are. A store that is away holds up the first log only."""
        if self._history_trouble:
            return
        try:
            await cold.refresh()
        except (UnavailableError, CorruptError) as trouble:
            self._history_trouble = str(trouble)
            self.notes.append(f"readers of the history wait: {trouble}")

    async def delete(self, identity: LogIdentity) -> None:
        await self._workers.run(partial(self._delete_files, identity))

    async def declare(self, identity: LogIdentity, declared: str, settings: LogSettings) -> None:
        """Write topic.json anew after the settings changed."""
        directory = log_directory(self.root, identity)
        write = partial(self._write_facts, directory, declared, settings)
        try:
            await self._workers.run(partial(self._try_twice, write))
        except OSError as failed:
            raise UnavailableError(
                f"{directory}: the settings cannot be stored: {failed}"
            ) from failed

    async def describe(self, identity: LogIdentity) -> tuple[str, LogSettings]:
        directory = log_directory(self.root, identity)
        try:
            facts = await self._workers.run(partial(read_facts, self._disk, directory))
        except OSError as failed:
            raise CorruptError(f"{directory / FACTS_NAME} cannot be read: {failed}") from failed
        return facts.topic, facts.settings

    def list(self) -> list[LogIdentity]:
        return find_logs(self._disk, self.root)

    def _log(self, recovered: Recovered, end_file: File, settings: LogSettings) -> EmbeddedLog:
        return EmbeddedLog(
            recovered,
            settings,
            self._disk,
            end_file=end_file,
            clock=self._clock,
            loop=self._loop,
            committer=self._committer,
            workers=self._workers,
            cache=self.cache,
        )

    def _try_twice(self, work: Callable[[], T]) -> T:
        """Run blocking work; on a full disk once more, if some space can be given back."""
        try:
            return work()
        except OSError as failed:
            if failed.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._on_full():
                raise
        return work()

    def _create_files(
        self, identity: LogIdentity, declared: str, settings: LogSettings
    ) -> tuple[Recovered, File]:
        directory = log_directory(self.root, identity)
        self._disk.make_dir(directory)
        header = SegmentHeader(0, 1, 0, self._clock.now_us(), identity.topic_id)
        create_segment(self._disk, directory, header).close_file()
        # topic.json comes last: a directory without it was never finished and counts for nothing.
        self._write_facts(directory, declared, settings)
        return self._open_files(directory, settings, is_new=True)

    def _write_facts(self, directory: Path, declared: str, settings: LogSettings) -> None:
        facts = encode_facts(TopicFacts(declared, settings))
        write_file(self._disk, directory / FACTS_NAME, facts)

    def _open_files(
        self, directory: Path, settings: LogSettings, *, is_new: bool = False
    ) -> tuple[Recovered, File]:
        recovered = recover(
            self._disk,
            directory,
            self._clock.now_us(),
            may_have_lost=settings.durability == OS and not is_new,
        )
        end_file = open_end(self._disk, directory)
        self._write_end(end_file, recovered, settings)
        return recovered, end_file

    def _write_end(self, end_file: File, recovered: Recovered, settings: LogSettings) -> None:
        active = recovered.active
        end = End(
            recovered.epoch,
            recovered.segments[-1].end_offset,
            active.header.base_offset,
            active.position,
            LOOSE if settings.durability == OS else 0,
        )
        end_file.write(0, [end.pack()])
        end_file.sync()  # power loss must not bring back the word that all was clean, or fenced

    def _damaged(self, directory: Path, found: CorruptError | OSError) -> DamagedLog:
        """Why a log cannot be opened, and how far it had come as its file `end` says."""
        text = str(found)
        if isinstance(found, OSError):
            text = f"{directory} cannot be opened: {found}"
        with suppress(CorruptError, OSError):
            end = read_end(self._disk, directory)
            if end is not None:
                return DamagedLog(text, end.epoch, end.durable_end)
        return DamagedLog(text, 0, 0)

    def _delete_files(self, identity: LogIdentity) -> None:
        directory = log_directory(self.root, identity)
        doomed = directory.with_name(directory.name + _DELETED_SUFFIX)
        if directory.name in self._disk.list(directory.parent):
            self._disk.rename(directory, doomed)
            self._disk.sync_dir(directory.parent)
        for name in self._disk.list(doomed):
            self._disk.remove(doomed / name)
        if doomed.name in self._disk.list(doomed.parent):
            self._disk.remove(doomed)

    def finish_deletions(self) -> None:
        """Remove what a crash left of deleted logs. Blocking; called once at start."""
        for tenant in self._disk.list(self.root):
            for name in self._disk.list(self.root / tenant):
                if name.endswith(_DELETED_SUFFIX) and LOG_DIRECTORY.match(
                    name.removesuffix(_DELETED_SUFFIX)
                ):
                    # The rename may not be synced: a half emptied directory must not come back.
                    self._disk.sync_dir(self.root / tenant)
                    doomed = self.root / tenant / name
                    for file in self._disk.list(doomed):
                        self._disk.remove(doomed / file)
                    self._disk.remove(doomed)
