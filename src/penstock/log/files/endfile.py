"""The file `end`: how far a log is durable, for readers of files and for the next opening.

Written in place after each commit and not synced itself, so a stale value is only ever lower. A
torn or damaged value fails its checksum and counts as absent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.log.files.disk import Disk, File
from penstock.log.format.end_bytes import (
    CLEAN,
    END_BYTES,
    FENCED,
    LOOSE,
    VERSION,
    pack_end,
    unpack_fields,
)
from penstock.model.errors import CorruptError

NAME: Final = "end"


@dataclass(frozen=True, slots=True)
class End:
    """`position` is the byte in segment `segment_base` where the durable batches end."""

    epoch: int
    durable_end: int
    segment_base: int
    position: int
    flags: int = 0

    @property
    def is_clean(self) -> bool:
        return self.flags & CLEAN != 0

    @property
    def is_fenced(self) -> bool:
        return self.flags & FENCED != 0

    @property
    def is_loose(self) -> bool:
        return self.flags & LOOSE != 0

    def with_flags(self, flags: int) -> End:
        return replace(self, flags=self.flags | flags)

    def pack(self) -> bytes:
        place = self.segment_base, self.position
        return pack_end(self.epoch, self.durable_end, *place, self.flags)


def unpack_end(data: bytes) -> End | None:
    """The value, or None when the bytes are not a whole, intact one."""
    fields = unpack_fields(data)
    if fields is None:
        return None
    if fields[0] != VERSION:
        raise CorruptError(f"`end` of format version {fields[0]}: this Penstock reads {VERSION}")
    return End(*fields[1:])


def read_end(disk: Disk, directory: Path) -> End | None:
    """The value now on disk. A reader that meets a write in progress tries again."""
    try:
        file = disk.open(directory / NAME, write=False)
    except FileNotFoundError:
        return None
    try:
        for _ in range(100):  # a write of 44 bytes in place is over long before that
            end = unpack_end(file.read(0, END_BYTES))
            if end is not None:
                return end
        return None
    finally:
        file.close()


def open_end(disk: Disk, directory: Path) -> File:
    """The file itself, for writing; its entry is made durable if it was missing."""
    path = directory / NAME
    if NAME not in disk.list(directory):
        file = disk.open(path, create=True)
        disk.sync_dir(directory)
        return file
    return disk.open(path)
