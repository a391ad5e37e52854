"""One log of the world, what outlives its processes, and the looks cast at its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock.core.delivery.run import Run
from penstock.log import appending
from penstock.log.files import active, commit, embedded, recovery, segment
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.endfile import read_end
from penstock.log.files.layout import log_directory
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import segment_bases
from penstock.log.files.upkeep import seal
from penstock.log.format.batch import Batch
from penstock.log.format.marks import NO_RECORD
from penstock.log.interface import FSYNC, OS, LogIdentity, LogSettings
from penstock.model.record import Record
from tests.sim.fake_disk import FakeDisk
from tests.sim.promises import Promises, demand

ROOT: Final = Path("/data")
FAR: Final = 1_000_000  # records; more than any history makes


@contextmanager
def small_bounds(rng: Random) -> Iterator[None]:
    """Make the bounds of the log so small that short histories reach all of them."""
    chunk = rng.choice((512, 4_096, 32_768))
    bounds: list[tuple[Any, str, object]] = [
        (active, "PREALLOCATE_FROM", rng.choice((64, 2_000, 16_384))),
        (active, "_ZEROS", bytes(rng.choice((100, 1_000, 4_096)))),
        (active, "PREALLOCATE_FREE_SHARE", 2),
        (commit, "INLINE_BYTES_MAX", rng.choice((0, 500, 65_536))),
        (commit, "SHORT_SYNCS_MIN", 1),
        (embedded, "LONE_RECORDS_MAX", 1_000),
        (embedded, "TAIL_READ_BYTES_MAX", chunk),
        (appending, "PENDING_BYTES_MAX", rng.choice((200, 5_000, 100_000))),
        (embedded, "TAIL_BYTES_MAX", rng.choice((1, 2_000, 20_000))),
        (recovery, "CHUNK_BYTES", chunk),
        (seal, "SEALED_RECORDS", rng.choice((3, 20, 1_000))),
        (seal, "SEALED_BLOB_BYTES", rng.choice((100, 5_000))),
        (segment, "CHUNK_BYTES", chunk),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in bounds]
    try:
        for module, name, value in bounds:
            assert hasattr(module, name)
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


class House:
    """One log of the world: what outlives its processes."""

    def __init__(self, number: int, settings: LogSettings) -> None:
        self.identity = LogIdentity("default", number, f"log{number}")
        self.directory = log_directory(ROOT, self.identity)
        self.settings = settings  # as the catalog would keep them
        self.declared = [settings]  # what topic.json may say: declared last, or tried since
        self.is_made = False
        self.promises = Promises(self.identity.slug)
        self.log: EmbeddedLog | None = None
        self.is_loose = settings.durability == OS  # something may be visible and not synced
        self.unsynced_credit = 0  # commits begun before the level rose: not proof of a sync
        # Since it was last opened:
        self.power_lost = False
        self.failed_syncs = 0
        self.was_closed = False  # in order

    def see_commit(self, batch: Batch, runs: list[tuple[int, Run]] | None) -> None:
        assert self.log is not None
        is_synced = self.log.settings.durability == FSYNC and self.unsynced_credit == 0
        if self.log.settings.durability == FSYNC and self.unsynced_credit:
            self.unsynced_credit -= 1
        self.promises.see_commit(batch, is_synced)
        self.is_loose = not is_synced


async def read_all(log: EmbeddedLog, slug: str) -> list[Record]:
    """Everything that the log shows, from its first offset to its end."""
    offset, end = log.bounds()
    records: list[Record] = []
    while offset < end:
        batches = await log.read(offset)
        demand(bool(batches), f"{slug}: nothing is read at {offset} before the end {end}")
        for batch in batches:
            records += batch.records(slug, offset, end)
            offset = max(offset, batch.end_offset)
    return records


def look_before_opening(disk: FakeDisk, house: House) -> None:
    """At level `fsync` the file `end` names nothing that is not there, whatever happened."""
    end = read_end(disk, house.directory)
    if end is None or end.is_loose:
        return
    bases = segment_bases(disk, house.directory)
    if bases and bases[0] > end.segment_base:
        return  # a power loss brought back an `end` from before the trimming
    look_from_outside(disk, house, FileReader(disk, house.directory))


def look_from_outside(disk: FakeDisk, house: House, reader: FileReader, back: int = FAR) -> None:
    """Another process reads the newest files: all that `end` names is there and right."""
    slug = house.identity.slug
    promises = house.promises
    with disk.healthy_reads():
        first, end = reader.bounds()
        first = max(first, end - back)
        records = [
            record
            for batch in reader.batches(first, end)
            for record in batch.records(slug, first, end)
        ]
    demand(first + len(records) == end, f"{slug}: `end` names {end}, files end before")
    known = min(len(promises.visible), end)
    if known > first:
        promises.see_records(records[: known - first], first)


def marks_on_disk(disk: FakeDisk, house: House) -> list[tuple[bytes, int, bool]]:
    """(key, offset, has a record) of every mark in the files."""
    found: list[tuple[bytes, int, bool]] = []
    for part in FileReader(disk, house.directory)._look()[0]:
        for number in range(len(part.body.index.positions)):
            for batch in part.read_chunk(number):
                for mark in batch.marks():
                    has_record = mark.index != NO_RECORD
                    offset = batch.base_offset + (mark.index if has_record else 0)
                    # Sealing gathers batches: where a mark without record stood is not kept.
                    if not has_record and mark.key in house.promises.marks:
                        offset = house.promises.marks[mark.key].offset
                    found.append((mark.key, offset, has_record))
    return found
