"""What a backup consists of, as a directory and as an archive: the same names in both.

`backup.json` says what it is. `segments/` holds the files of the logs, each under a name that only
this content has, so several moments share them. `moments/<time>/` holds the catalog of a moment and
`moment.json`, which names every file of the moment with its length and checksum and is written
last: without it there is no moment.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Final, Protocol

import msgspec

from penstock.core.naming.names import check_tenant
from penstock.log.files.layout import LOG_DIRECTORY
from penstock.log.files.segment import HEADER_BYTES
from penstock.log.files.upkeep.moment import SMALL_FILES, LogMoment
from penstock.model.errors import CorruptError, RefusedError
from penstock.model.limits import KIB, MIB

FORMAT: Final = 1
ABOUT_NAME: Final = "backup.json"
MOMENTS: Final = "moments"
SEGMENTS: Final = "segments"
MOMENT_NAME: Final = "moment.json"
CHUNK_BYTES: Final = 1 * MIB
TAKEN_AT_END: Final = 253_402_300_800_000_000  # the year 10000
TAIL_BYTES: Final = 64 * KIB  # a segment's last batches, or its footer, with times and checksums
_PATH: Final = re.compile(r"[^/\0]+(/[^/\0]+)*\Z")

OnBytes = Callable[[int], None]  # how many were just read or written
ReadAt = Callable[[int, int], bytes]  # position, length


class About(msgspec.Struct, frozen=True):
    """The file backup.json."""

    format: int
    origin: int  # which data directory: when its catalog was made, µs since 1970


class StoredFile(msgspec.Struct, frozen=True):
    path: str  # in the backup
    bytes: int
    sha256: str


class StoredLog(msgspec.Struct, frozen=True):
    """A log of a moment: its segments in order, and its small files by name."""

    moment: LogMoment
    segments: list[StoredFile]
    small: dict[str, str]


class Manifest(msgspec.Struct, frozen=True):
    """The file moment.json."""

    format: int
    origin: int
    taken_at: int  # µs since 1970, UTC
    version: str  # of Penstock
    catalog: StoredFile
    logs: list[StoredLog]
    left_out: list[str] = []  # topics whose files could not be used, and why

    @property
    def files(self) -> list[StoredFile]:
        return [self.catalog, *(file for log in self.logs for file in log.segments)]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def records(self) -> int:
        return sum(log.moment.end_offset - log.moment.first_offset for log in self.logs)

    @property
    def name(self) -> str:
        return moment_name(self.taken_at)


def moment_name(taken_at: int) -> str:
    """Sorts by time: 20260102T030405.678901Z."""
    return datetime.fromtimestamp(taken_at / 1e6, UTC).strftime("%Y%m%dT%H%M%S.%fZ")


class Source(Protocol):
    """A backup to read: a directory or an archive."""

    shown: str

    def moments(self) -> list[str]:
        """The complete moments, oldest first."""
        ...

    def open(self, path: str) -> IO[bytes]: ...

    def close(self) -> None: ...


def segment_name(log: LogMoment, base: int, length: int, read_at: ReadAt) -> str:
    """The path of a segment in a backup; another content has another one."""
    digest = hashlib.sha256(read_at(0, HEADER_BYTES))
    digest.update(read_at(max(0, length - TAIL_BYTES), min(length, TAIL_BYTES)))
    name = f"{base:020d}-{length}-{digest.hexdigest()[:16]}.log"
    return f"{SEGMENTS}/{log.tenant}/{log.directory}/{name}"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """CorruptError if it is damaged, or of a format that this Penstock does not know."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise CorruptError(f"{where} is damaged ({broken}): use another backup") from broken
    if manifest.format != FORMAT:
        raise CorruptError(
            f"{where} has format {manifest.format}, but this Penstock reads format {FORMAT}: "
            "restore it with the Penstock that wrote it, or with a newer one"
        )
    for file in manifest.files:
        if not _PATH.match(file.path) or ".." in file.path.split("/"):
            raise CorruptError(
                f"{where} is damaged: {file.path!r} is not the path of a file in it; use another "
                "backup"
            )
    for log in manifest.logs:
        problem = _problem_of(log)
        if problem:
            raise CorruptError(f"{where} is damaged: {problem}; use another backup")
    if not 0 <= manifest.taken_at < TAKEN_AT_END:
        raise CorruptError(
            f"{where} is damaged: taken_at {manifest.taken_at} is not a time; use another backup"
        )
    return manifest


def _problem_of(log: StoredLog) -> str:
    """What is wrong with it, or ''. Its names become paths: none may lead out of a directory."""
    moment = log.moment
    try:
        check_tenant(moment.tenant)
    except RefusedError as wrong:
        return str(wrong)
    name = moment.directory
    if "/" in name or "\0" in name or name.startswith(".") or not LOG_DIRECTORY.match(name):
        return f"{name!r} is not the directory of a topic"
    unknown = set(log.small) - set(SMALL_FILES)
    if unknown:
        return f"{sorted(unknown)[0]!r} is not a file of a topic"
    if not moment.bases or len(moment.bases) != len(log.segments) or min(moment.bases) < 0:
        return f"topic {name!r} has {len(log.segments)} segments for the offsets {moment.bases[:3]}"
    try:
        moment.end.pack()
    except (struct.error, OverflowError):
        return f"the end of topic {name!r} is {moment.end}"
    return ""


def read_manifest(source: Source, moment: str) -> Manifest:
    path = f"{MOMENTS}/{moment}/{MOMENT_NAME}"
    with source.open(path) as file:
        return decode_manifest(file.read(), f"{source.shown}: {path}")


def read_checked(source: Source, stored: StoredFile, write: Callable[[bytes], None]) -> None:
    """Hand over all bytes of a file; CorruptError if they are not what was stored."""
    digest, length = hashlib.sha256(), 0
    where = f"{source.shown}: {stored.path}"
    try:
        with source.open(stored.path) as file:
            while data := file.read(CHUNK_BYTES):
                digest.update(data)
                length += len(data)
                if length > stored.bytes:  # perhaps without an end
                    break
                write(data)
    except FileNotFoundError:
        raise CorruptError(f"{where} is missing: use another backup") from None
    if length != stored.bytes or digest.hexdigest() != stored.sha256:
        raise CorruptError(
            f"{where} is damaged: its checksum is not the one in {MOMENT_NAME}; use another backup"
        )
