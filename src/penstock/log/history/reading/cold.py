"""The records of one log that only its history holds.

Invariant: [first, end) is without a hole, and so is what follows it in the log. What is read goes
into the cache that all readers share: a group of rows, or a part of one for those who want few.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from penstock.log.format.batch import Batch, up_to
from penstock.log.history.reading.orders import INDEX, LIST, READ, ColdFacts
from penstock.log.history.reading.process import ALL_ROWS, HistoryMissing, HistoryProcess
from penstock.log.interface import LogIdentity
from penstock.log.loading import ChunkLoader, Read
from penstock.model.errors import CorruptError, Gap
from penstock.model.limits import MIB

if TYPE_CHECKING:
    from penstock.log.history.tier import LogHistory

READ_BYTES_MAX: Final = 8 * MIB  # of memory for one read; a single batch may take more
PART_ROWS: Final = 512  # of a group; as many as a page of payloads has
PARTS_MAX: Final = 2  # one after the other, because a page may be in two; then come whole groups
AHEAD_GROUPS: Final = 1  # asked for before a reader that goes on from group to group wants it
READERS_MAX: Final = 64  # of one log, whose next offset is remembered


class ColdFile:
    """One file of the table, and where its groups of rows begin, once somebody asked."""

    def __init__(self, facts: ColdFacts) -> None:
        self.facts = facts
        self.offsets: list[int] = []
        self.times: list[int] = []

    def bounds(self, group: int) -> tuple[int, int]:
        """The first offset of a group, and one past its last."""
        following = self.offsets[group + 1 : group + 2]
        return self.offsets[group], following[0] if following else self.facts.end_offset


class ColdRecords:
    """Used on the event loop only."""

    def __init__(
        self,
        identity: LogIdentity,
        process: HistoryProcess,
        loader: ChunkLoader,
        history: LogHistory | None = None,
    ) -> None:
        self.is_known = False  # which files there are
        self._history = history  # None: whatever table is there is the log's
        self._identity = identity
        self._process = process
        self._loader = loader
        self._files: list[ColdFile] = []
        self._following: OrderedDict[int, int] = OrderedDict()  # next offset of a reader: reads

    @property
    def first(self) -> int:
        return self._files[0].facts.base_offset if self._files else 0

    @property
    def end(self) -> int:
        """One past the last record."""
        return self._files[-1].facts.end_offset if self._files else 0

    async def refresh(self) -> None:
        """Learn which files there are."""
        life = "" if self._history is None else self._history.life
        if self._history is not None and not life:  # the log has written no table
            self.adopt([])
            return
        answer, _ = await self._process.ask(LIST, self._identity, life=life)
        self.adopt(answer.files)

    async def _learn(self) -> None:
        if not self.is_known:
            await self.refresh()

    def adopt(self, files: list[ColdFacts]) -> None:
        """These are the files now, in the order of their offsets; before a hole none counts."""
        before = {file.facts: file for file in self._files}
        self._files = [before.get(facts) or ColdFile(facts) for facts in _joined(files)]
        for gone in set(before.values()).difference(self._files):
            self._loader.forget(gone)
        self.is_known = True

    def first_before(self, hot_first: int) -> int:
        """The first offset that can be read, if the log itself has those from `hot_first` on.

        0 as long as nobody knows: a reader from there on waits for the store, and loses nothing.
        """
        if not self.is_known:
            return 0
        return min(self.first, hot_first) if self.end >= hot_first else hot_first

    async def read(self, offset: int, hot_first: int) -> list[Batch]:
        """As `Log.read`, below the first offset of the log itself; Gap if no file has it."""
        await self._learn()
        if offset >= self.end:
            await self.refresh()  # something was written meanwhile
        for _ in range(2):
            first = self.first_before(hot_first)
            if offset < first:
                raise Gap(f"offset {offset} is no longer in the history: the first is {first}")
            try:
                return await self._read(offset)
            except HistoryMissing:
                pass
            await self.refresh()  # it was removed because of its age
        raise self._lacking()

    async def _read(self, offset: int) -> list[Batch]:
        file = self._file_of(offset)
        await self._index(file)
        group = bisect_right(file.offsets, offset) - 1
        reads = self._following.pop(offset, 0)
        if reads < PARTS_MAX and self._process.root.is_directory:
            loading = asyncio.ensure_future(self._load_part(file, group, offset))
        else:
            loading = asyncio.ensure_future(self._load(file, group))
            if reads:
                self._read_ahead(file, group)
        batches = await loading
        rest = up_to([batch for batch in batches if batch.end_offset > offset], READ_BYTES_MAX)
        self._note(rest[-1].end_offset, reads + 1)
        return rest

    def _note(self, offset: int, reads: int) -> None:
        """Somebody who has read so many times, one after the other, may go on there."""
        self._following[offset] = max(reads, self._following.pop(offset, 0))
        while len(self._following) > READERS_MAX:
            self._following.popitem(last=False)

    def _read_ahead(self, file: ColdFile, group: int) -> None:
        """Ask for the next groups, for a reader that goes on.

        So the store and its process work while the reader uses what it has.
        """
        if self._process.has_room:
            for following in range(group + 1, min(group + 1 + AHEAD_GROUPS, len(file.offsets))):
                self._loader.prepare(file, following, self._reading(file, following))

    def _file_of(self, offset: int) -> ColdFile:
        at = bisect_right(self._files, offset, key=lambda file: file.facts.base_offset) - 1
        if at < 0 or offset >= self._files[at].facts.end_offset:
            raise Gap(
                f"offset {offset} is not in the history, which holds {self.first} to {self.end}"
            )
        return self._files[at]

    async def _index(self, file: ColdFile) -> None:
        if not file.offsets:
            answer, _ = await self._process.ask(INDEX, self._identity, file.facts.name)
            file.offsets, file.times = answer.offsets, answer.times

    async def _load(self, file: ColdFile, group: int) -> list[Batch]:
        return await self._loader.load(file, group, self._reading(file, group))

    async def _load_part(self, file: ColdFile, group: int, offset: int) -> list[Batch]:
        """The part of a group with this offset; the whole group if that is in memory.

        From a store far away a part would take as long as the group.
        """
        first, end = file.bounds(group)
        if end - first <= PART_ROWS or self._loader.has(file, group):
            return await self._load(file, group)
        part = (offset - first) // PART_ROWS
        rows = range(part * PART_ROWS, min((part + 1) * PART_ROWS, end - first))
        # No group has such a number.
        number = -1 - (first - file.facts.base_offset + rows.start)
        return await self._loader.load(file, number, self._reading(file, group, rows))

    def _reading(self, file: ColdFile, group: int, rows: range = ALL_ROWS) -> Read:
        async def read() -> list[Batch]:
            _, batches = await self._process.ask(READ, self._identity, file.facts.name, group, rows)
            return batches

        return read

    async def offset_at(self, timestamp: int) -> int:
        """The first offset stamped at or after `timestamp` (µs); the end if all are older."""
        await self._learn()
        for _ in range(2):
            try:
                return await self._offset_at(timestamp)
            except HistoryMissing:
                pass
            await self.refresh()
        raise self._lacking()

    async def _offset_at(self, timestamp: int) -> int:
        # A table may know times to the millisecond only, cut off.
        at = bisect_right(
            self._files, timestamp - 1_000, key=lambda file: file.facts.last_timestamp
        )
        for file in self._files[at:]:
            await self._index(file)
            first = max(bisect_right(file.times, timestamp - 1) - 1, 0)
            for group in range(first, len(file.offsets)):
                for batch in await self._load(file, group):
                    if batch.header.last_timestamp >= timestamp:
                        return batch.base_offset + batch.index_at(timestamp)
        return self.end

    def _lacking(self) -> CorruptError:
        log = f"{self._identity.slug}-{self._identity.topic_id}"
        return CorruptError(
            f"the history of {log} lacks a file that its table names: `penstock history verify` "
            "shows which one"
        )


def _joined(files: list[ColdFacts]) -> list[ColdFacts]:
    """The newest of them, back to where one does not follow the other."""
    at = len(files)
    while at > 0 and (at == len(files) or files[at - 1].end_offset == files[at].base_offset):
        at -= 1
    return files[at:]
