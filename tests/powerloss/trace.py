"""What a traced program did to its directory, as typed events in one order.

Invariant: `Trace.events[:n]` is exactly what had happened, over all threads and programs that
share the trace, at crash point `n`. A `SyncEnd` names its `SyncBegin`; only what was complete
before the beginning is covered. Paths are relative to the root, which is ".".
"""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

HEADER = struct.Struct("<IBBHIIIIQQQQ")  # recorder.h: struct header
MAGIC = 0x31544C50
SYNC_DATA_ONLY = 1
SYNC_DIRECTORY = 2


class TraceError(Exception):
    """The trace cannot be trusted: torn apart, incomplete, or holding what we cannot replay."""


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Zero:
    """A write of nothing but zeros, kept without its bytes: preallocation writes megabytes."""

    path: str
    inode: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """The file has this size from now on; it may have grown."""

    path: str
    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    path_new: str


@dataclass(frozen=True, slots=True)
class Link:
    path: str
    path_new: str


@dataclass(frozen=True, slots=True)
class Unlink:
    """An entry was removed: of a file, or of an empty directory."""

    path: str


@dataclass(frozen=True, slots=True)
class SyncBegin:
    index: int  # of this event in the trace
    kind: str  # "fsync" or "fdatasync"
    is_dir: bool
    path: str
    inode: int

    @property
    def site(self) -> str:
        """The class this sync belongs to: `fdatasync default/t-1/#.log`, `fsync-dir default`."""
        return f"{self.kind}{'-dir' if self.is_dir else ''} {pattern_of(self.path)}"


@dataclass(frozen=True, slots=True)
class SyncEnd:
    begin: int  # index of the SyncBegin
    error: int  # errno, 0 when the sync succeeded


@dataclass(frozen=True, slots=True)
class Ack:
    data: bytes


Change = Write | Zero | Truncate
Event = Create | MakeDirectory | Change | Rename | Link | Unlink | SyncBegin | SyncEnd | Ack
SyncFilter = Callable[[SyncBegin], bool]


@dataclass(frozen=True, slots=True)
class Existing:
    """A file or directory (`data` is None) that was there, durably, before the program started."""

    path: str
    inode: int
    data: bytes | None


@dataclass(frozen=True)
class Trace:
    """All events of one recording. At crash point `n` events[:n] had happened."""

    existing: tuple[Existing, ...]
    events: tuple[Event, ...]
    _ack_ends: list[int] = field(init=False, repr=False)
    _ack_bytes: list[int] = field(init=False, repr=False)
    _acks: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        acks = [(n, e.data) for n, e in enumerate(self.events, 1) if isinstance(e, Ack)]
        sizes = [0]
        for _, data in acks:
            sizes.append(sizes[-1] + len(data))
        object.__setattr__(self, "_ack_ends", [n for n, _ in acks])
        object.__setattr__(self, "_ack_bytes", sizes)
        object.__setattr__(self, "_acks", b"".join(data for _, data in acks))

    def __len__(self) -> int:
        return len(self.events)

    def acked(self, at: int) -> bytes:
        """Every acknowledged byte that had left the program at crash point `at`."""
        return self._acks[: self._ack_bytes[bisect_right(self._ack_ends, at)]]

    def acked_lines(self, at: int) -> list[str]:
        """The complete lines among `acked(at)`."""
        return self.acked(at).decode().split("\n")[:-1]

    def syncs(self) -> Iterator[SyncBegin]:
        """Syncs that succeeded, in the order in which they ended."""
        for event in self.events:
            if isinstance(event, SyncEnd) and event.error == 0:
                begin = self.events[event.begin]
                assert isinstance(begin, SyncBegin)
                yield begin

    def sync_sites(self) -> Counter[str]:
        """How often each class of sync succeeded: what `ignoring` can take out."""
        return Counter(sync.site for sync in self.syncs())

    def worst_points(self) -> list[int]:
        """Crash points that dominate the others when nothing unsynced survives.

        The durable state changes only where a sync ends; just before, the most has been acked.
        """
        ends = [n for n, e in enumerate(self.events) if isinstance(e, SyncEnd) and e.error == 0]
        return [*ends, len(self.events)]


def ignoring(*sites: str) -> SyncFilter:
    """Take whole classes of syncs out of a replay, as if the program had never called them."""
    return lambda sync: sync.site in sites


def pattern_of(path: str) -> str:
    """A path with numbered names made equal: parts between dots that are all digits become `#`."""
    folder, slash, name = path.rpartition("/")
    return folder + slash + re.sub(r"(?<![^.])\d+(?![^.])", "#", name)


def read_trace(file: Path, existing: tuple[Existing, ...] = ()) -> Trace:
    """Parse what the shim wrote; refuses what the laboratory cannot replay."""
    return Trace(existing, tuple(_events(file.read_bytes())))


class Op(IntEnum):  # recorder.h: enum op
    CREATE = 1
    MKDIR = 2
    WRITE = 3
    ZERO = 4
    TRUNCATE = 5
    RENAME = 6
    UNLINK = 7
    LINK = 8
    SYNC_BEGIN = 9
    SYNC_END = 10
    ACK = 11
    UNMODELLED = 12


@dataclass(frozen=True, slots=True)
class _Record:
    op: int
    flag: int
    thread: int
    inode: int
    a: int
    b: int
    path: str
    path2: str
    data: bytes


def _events(raw: bytes) -> Iterator[Event]:
    begins: dict[int, int] = {}  # thread → index of its sync under way
    for index, record in enumerate(_records(raw)):
        if record.op == Op.SYNC_BEGIN:
            begins[record.thread] = index
            kind = "fdatasync" if record.flag & SYNC_DATA_ONLY else "fsync"
            is_dir = bool(record.flag & SYNC_DIRECTORY)
            yield SyncBegin(index, kind, is_dir, record.path, record.inode)
        elif record.op == Op.SYNC_END:
            yield SyncEnd(begins.pop(record.thread), record.a)
        elif record.op == Op.UNMODELLED:
            raise TraceError(
                f"the program used {record.path2} on {record.path!r}, which the laboratory cannot "
                "replay: use plain writes below the traced root, or teach shim.c and disk.py"
            )
        else:
            yield _EVENTS[Op(record.op)](record)


_EVENTS: dict[Op, Callable[[_Record], Event]] = {
    Op.CREATE: lambda r: Create(r.path, r.inode),
    Op.MKDIR: lambda r: MakeDirectory(r.path, r.inode),
    Op.WRITE: lambda r: Write(r.path, r.inode, r.a, r.data),
    Op.ZERO: lambda r: Zero(r.path, r.inode, r.a, r.b),
    Op.TRUNCATE: lambda r: Truncate(r.path, r.inode, r.a),
    Op.RENAME: lambda r: Rename(r.path, r.path2),
    Op.UNLINK: lambda r: Unlink(r.path),
    Op.LINK: lambda r: Link(r.path, r.path2),
    Op.ACK: lambda r: Ack(r.data),
}


def _records(raw: bytes) -> Iterator[_Record]:
    at = 0
    while at + HEADER.size <= len(raw):
        magic, op, flag, _, thread, path_bytes, path2_bytes, _, inode, a, b, data_bytes = (
            HEADER.unpack_from(raw, at)
        )
        if magic != MAGIC:
            raise TraceError(f"no record at byte {at} of the trace")
        path_at = at + HEADER.size
        path2_at = path_at + path_bytes
        data_at = path2_at + path2_bytes
        at = data_at + data_bytes
        if at > len(raw):
            return  # the program was killed while it wrote its last record
        path = os.fsdecode(raw[path_at:path2_at]) or "."
        path2 = os.fsdecode(raw[path2_at:data_at]) or "."
        yield _Record(op, flag, thread, inode, a, b, path, path2, raw[data_at:at])
