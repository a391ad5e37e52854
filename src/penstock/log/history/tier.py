"""Histories as the broker's process knows them; the work is done in a process of its own.

Invariants: retention takes only what is in the history (`LogHistory.may_go`), so the log's first
offset never exceeds the history's end; only sealed segments enter. A store that is away or full
pins segments and stops nothing else.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.erasure import Erasure
from penstock.core.naming.names import quoted
from penstock.log.files.disk import Disk, write_file
from penstock.log.files.segment import Segment, stamp_at
from penstock.log.history.child import HistoryWriter
from penstock.log.history.orders import (
    Erase,
    Expire,
    Look,
    Order,
    SegmentSpan,
    TableFacts,
    TableState,
    Write,
)
from penstock.log.history.place import HistoryRoot, TablePlace
from penstock.log.interface import LogIdentity
from penstock.model.errors import CorruptError, PenstockError, RefusedError
from penstock.model.limits import MIB
from penstock.model.record import HistoryInfo

WRITE_BYTES: Final = 64 * MIB  # sealed and not in the history: worth a file of its own
LIFE_NAME: Final = "history.json"  # in the log's directory
LOCK_NAME: Final = "history.lock"  # in the data directory


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file history.json: which table is this log's, and how far that was written."""

    life: str
    end: int = 0
    import_end: int = 0  # an archive is being copied into the table, up to this offset


def read_known(disk: Disk, directory: Path) -> Known | None:
    """None if the log never had a history; CorruptError if the file is damaged."""
    path = directory / LIFE_NAME
    try:
        file = disk.open(path, write=False)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(file.read(0, file.size()), type=Known)
    except msgspec.DecodeError as broken:
        raise CorruptError(f"{path} is damaged ({broken}): restore it from a backup") from broken
    finally:
        file.close()


def refuse_known(disk: Disk, directory: Path) -> None:
    """RefusedError if the log has a history, and so somebody has to know where that is."""
    known = read_known(disk, directory)
    if known is not None and known.end:
        raise RefusedError(
            f"the records of {directory.name} up to offset {known.end} are also in a history, and "
            "this broker does not know where that is: start it with the same [history] url"
        )


class HistoryTier:
    """All histories of a broker: where they are, and who writes them."""

    def __init__(self, root: HistoryRoot, data: Path, disk: Disk) -> None:
        self.root = root
        self.disk = disk
        self.lock = str(data.absolute() / LOCK_NAME)
        self._writer = HistoryWriter()
        # One thread: a store that is slow holds up other histories and nothing else.
        self._thread = ThreadPoolExecutor(1, "penstock-history")

    async def ask(self, order: Order) -> TableState | None:
        """As HistoryWriter.ask, elsewhere."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(self._writer.ask, order))

    async def store_known(self, directory: Path, known: Known) -> None:
        data = msgspec.json.encode(known) + b"\n"
        work = partial(write_file, self.disk, directory / LIFE_NAME, data)
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._writer.close()
        self._thread.shutdown()


class LogHistory:
    """The history of one log, as of the last answer of the store. On the event loop."""

    def __init__(
        self, tier: HistoryTier, identity: LogIdentity, topic: str, directory: Path
    ) -> None:
        self.place: TablePlace = tier.root.place(identity)
        self.first = self.end = self.epoch = 0  # it holds the records [first, end)
        self.is_known = False  # the store has answered since the log was opened
        self.trouble = ""  # why nothing is written
        self.waiting_bytes = 0  # sealed and not in it
        self.failures = 0
        self._files = self._bytes = 0
        self._tier = tier
        self._topic = topic
        self._topic_id = identity.topic_id
        self._directory = directory
        self._known: Known | None = None
        self._is_foreign = False  # the table is not this log's

    async def look(self, segments: Sequence[Segment]) -> None:
        """Ask the store what the table holds, when the log has been opened or the store was away.

        `segments`: all of the log. RefusedError if the table is not this log's, as the newest
        record tells that both have.
        """
        segments, log_end = [*segments], segments[-1].end_offset
        newest = await _stamp_at(segments, log_end - 1)
        self._known = read_known(self._tier.disk, self._directory)
        if self._known is None and log_end:
            await self._recognise(log_end, newest)
        elif self._known is not None:
            self._refuse_half_an_import()
            state = await self._tier.ask(Look(self.place, log_end - 1))
            if state is None and self._known.end:
                raise self._missing()
            if state is not None:
                border = await _stamp_at(segments, state.end - 1)
                self._is_foreign = True
                self._check_life(state)
                self._check_record(log_end - 1, newest, state.probe_timestamp)
                self._check_record(state.end - 1, border, state.last_timestamp)
                self._is_foreign = False
                self._take(state)
        self.is_known = True

    async def _recognise(self, log_end: int, newest: int | None) -> None:
        """Take a table that this log wrote after the backup from which it was restored.

        The backup is from before the first write, so it does not say which table is the log's. The
        table is, if it goes beyond the log and has its newest record, to the microsecond.
        """
        state = await self._tier.ask(Look(self.place, log_end - 1))
        if state is None or newest is None or state.probe_timestamp != newest:
            return
        if self._is_of_topic(state):
            self._known = Known(state.facts.life, state.end)
            await self._tier.store_known(self._directory, self._known)
            self._take(state)

    def _refuse_half_an_import(self) -> None:
        assert self._known is not None
        if self._known.import_end:
            raise RefusedError(
                f"the import of an archive into the history {self.place.uri!r} of topic "
                f"{quoted(self._topic)} was interrupted: stop the broker and run `penstock history "
                "import` again, or `penstock history drop`"
            )

    def _missing(self) -> RefusedError:
        assert self._known is not None
        return RefusedError(
            f"the history {self.place.uri!r} of topic {quoted(self._topic)} is missing; it held "
            f"the records up to offset {self._known.end}: make it reachable again, or forget it "
            "with `penstock history drop`"
        )

    async def has_table(self) -> bool:
        """Whether this log has written a table, and none of another topic is in its place."""
        if self._known is None:
            work = partial(read_known, self._tier.disk, self._directory)
            self._known = await asyncio.get_running_loop().run_in_executor(None, work)
        return self._known is not None and not self._is_foreign

    @property
    def is_new(self) -> bool:
        """Whether the log has no table yet; known once somebody asked for it."""
        return self._known is None

    @property
    def life(self) -> str:
        """Which table is the log's; empty if it has written none, or nobody has looked yet."""
        return "" if self._known is None else self._known.life

    def _check_life(self, state: TableState) -> None:
        assert self._known is not None
        if state.facts.life != self._known.life:
            raise RefusedError(
                f"table {self.place.uri!r} is the history of another topic of this name and "
                "id: give another [history] url, or remove it with `penstock history drop`"
            )

    def _check_record(self, offset: int, in_log: int | None, in_table: int | None) -> None:
        """By their times, if both have it, the record is the same in both."""
        if in_log is not None and in_table is not None and in_log != in_table:
            raise RefusedError(
                f"the record at offset {offset} of topic {quoted(self._topic)} is not the one that "
                f"its history {self.place.uri!r} has there: the log was restored and then "
                "written to; drop the history, or restore the log that belongs to it"
            )

    def _take(self, state: TableState) -> None:
        self.first, self.end, self.epoch = state.first, state.end, state.epoch
        self._files, self._bytes = state.files, state.bytes

    def may_go(self, segments: Sequence[Segment], count: int) -> int:
        """How many of the first `count` segments retention may take: those in the history."""
        if not self.is_known:
            return 0
        in_it = [segment for segment in segments[:count] if segment.end_offset <= self.end]
        return len(in_it)

    async def write(self, segments: Sequence[Segment]) -> None:
        """Add sealed segments, oldest first, which go on where the history ends."""
        base = self.end or segments[0].base_offset
        if segments[0].base_offset > base:
            raise RefusedError(
                f"the history {self.place.uri!r} of topic {quoted(self._topic)} ends at "
                f"offset {base} and the log begins at {segments[0].base_offset}: retention took "
                "records while history was off; drop the history to begin a new one"
            )
        if self._known is None:
            self._known = Known(uuid.uuid4().hex)
            await self._tier.store_known(self._directory, self._known)
        facts = TableFacts(self._topic, self._topic_id, self._known.life)
        spans = [SegmentSpan(str(s.path.absolute()), s.base_offset, s.end_offset) for s in segments]
        end, epoch = segments[-1].end_offset, segments[-1].body.header.epoch
        state = await self._tier.ask(
            Write(
                place=self.place,
                facts=facts,
                segments=spans,
                base=base,
                end=end,
                epoch=epoch,
                lock=self._tier.lock,
            )
        )
        assert state is not None
        self._known = Known(self._known.life, state.end)
        await self._tier.store_known(self._directory, self._known)
        self._take(state)

    async def expire(self, before_us: int) -> None:
        """Take whole files out of the table whose records are all older."""
        if self._files and self.is_known:
            state = await self._tier.ask(Expire(self.place, before_us, self._tier.lock))
            if state is not None:
                self._take(state)

    async def erase(self, erasure: Erasure, *, dry_run: bool) -> int:
        """Erase records of the table, if there is one; how many it found."""
        has_table = await self.has_table()
        if self._known is None:
            await self._refuse_stranger()
            return 0
        if not (has_table or self._known.end):
            return 0
        if not has_table:
            raise RefusedError(
                f"topic {quoted(self._topic)} does not have the history that it wrote up to offset "
                f"{self._known.end} at {self.place.uri!r}, and what is to be erased is in there: "
                "give the [history] url of that one, or forget it with `penstock history drop`"
            )
        order = Erase(self.place, self._known.life, erasure, self._tier.lock, dry_run)
        state = await self._tier.ask(order)
        if state is None:
            if self._known.end:
                raise self._missing()
            return 0
        self._take(state)
        return state.erased

    async def _refuse_stranger(self) -> None:
        """The log has written no table: RefusedError if it may have, before it was restored."""
        state = await self._tier.ask(Look(self.place, probe=-1))
        if state is not None and self._is_of_topic(state):
            raise RefusedError(
                f"{self.place.uri!r} is a history of topic {quoted(self._topic)} up to offset "
                f"{state.end} which its log does not know, so the log was restored from before it "
                "and then written to, or another broker has the same [history] url: remove the "
                "history with `penstock history drop`, or give another url"
            )

    def _is_of_topic(self, state: TableState) -> bool:
        return (state.facts.topic, state.facts.topic_id) == (self._topic, self._topic_id)

    def note(self, trouble: PenstockError | OSError | None) -> None:
        """The newest attempt failed, or did not."""
        self.failures += trouble is not None
        self.trouble = "" if trouble is None else str(trouble)

    def describe(self, age_s: float | None) -> HistoryInfo:
        return HistoryInfo(
            url=self.place.uri,
            first_offset=self.first,
            end_offset=self.end,
            files=self._files,
            bytes=self._bytes,
            waiting_bytes=self.waiting_bytes,
            age=age_s,
            trouble=self.trouble,
        )


async def _stamp_at(segments: Sequence[Segment], offset: int) -> int | None:
    """As `stamp_at`, elsewhere."""
    work = partial(stamp_at, segments, offset)
    return await asyncio.get_running_loop().run_in_executor(None, work)
