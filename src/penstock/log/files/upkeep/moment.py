"""One moment of a log for a backup: its files under second names, and how far they count.

Segments are never changed below what is committed, so a hard link is as good as a copy: trimming
removes the other name, sealing puts another file in its place, and the bytes stay here. Only the
newest segment goes on growing; `position` says how much of it belongs to the moment.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.log.files.disk import RealDisk
from penstock.log.files.endfile import End
from penstock.log.files.layout import FACTS_NAME
from penstock.log.files.segment import HEADER_BYTES, segment_path, unpack_segment_header
from penstock.log.files.upkeep.ordered import ERASE_NAME
from penstock.log.history.tier import LIFE_NAME
from penstock.model.errors import PenstockError
from penstock.model.limits import DIRECTORY_MODE

SNAPSHOTS: Final = ".snapshots"  # in a data directory; no log's name begins with a dot
DESCRIPTION: Final = "snapshot.json"
HELD: Final = "held"  # in a snapshot; locked by whoever copies it
SMALL_FILES: Final = (FACTS_NAME, LIFE_NAME, ERASE_NAME)  # what was ordered stays ordered


class Moved(PenstockError):
    """The files changed while they were linked: take another moment."""


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Where a log is on disk, and its committed end, at one moment."""

    directory: Path
    bases: list[int]
    end: End


class LogMoment(msgspec.Struct, frozen=True):
    """A log in a snapshot or in a backup; offsets [first_offset, end_offset)."""

    tenant: str
    directory: str  # slug and topic id
    first_offset: int
    end_offset: int
    epoch: int
    position: int  # bytes of the newest segment that belong to the moment
    bases: list[int]

    @property
    def end(self) -> End:
        return End(self.epoch, self.end_offset, self.bases[-1], self.position)


class Moment(msgspec.Struct, frozen=True):
    """All of a data directory at one moment."""

    taken_at: int  # µs since 1970, UTC
    version: str  # of Penstock
    logs: list[LogMoment]
    left_out: list[str] = []  # topics whose files cannot be used, and why


def link_log(root: Path, tenant: str, files: LogFiles) -> LogMoment:
    """Link the files of a log below the snapshot `root`; Moved if they are no longer the same.

    What retention removed meanwhile is left out. Blocking.
    """
    target = root / tenant / files.directory.name
    target.mkdir(mode=DIRECTORY_MODE, parents=True)
    bases: list[int] = []
    for base in files.bases:
        path = segment_path(files.directory, base)
        try:
            os.link(path, target / path.name)
        except FileNotFoundError:
            if bases:
                raise Moved(f"{path} is gone") from None
            continue
        bases.append(base)
    for name in SMALL_FILES:
        with suppress(FileNotFoundError):
            os.link(files.directory / name, target / name)
    end = files.end
    if bases[-1:] != [end.segment_base] or _is_sealed(segment_path(target, bases[-1])):
        raise Moved(f"{files.directory} was sealed or removed")
    return LogMoment(
        tenant=tenant,
        directory=files.directory.name,
        first_offset=bases[0],
        end_offset=end.durable_end,
        epoch=end.epoch,
        position=end.position,
        bases=bases,
    )


def _is_sealed(path: Path) -> bool:
    file = RealDisk().open(path, write=False)
    try:
        header = unpack_segment_header(file.read(0, HEADER_BYTES))
    finally:
        file.close()
    return header is None or header.is_sealed
