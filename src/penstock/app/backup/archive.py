"""A backup as one file, `.tar.zst`: what `tar --zstd` and `zstd` read, too.

The compressed frames are small, and a table of them ends the file (zstd's seekable format), so a
restore reads what it needs from anywhere in it. A file without that table is not whole.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import tarfile
from bisect import bisect_right
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from penstock.app.backup.layout import (
    ABOUT_NAME,
    CHUNK_BYTES,
    FORMAT,
    MOMENT_NAME,
    MOMENTS,
    About,
    Manifest,
    OnBytes,
    ReadAt,
    StoredFile,
)
from penstock.log.files.disk import RealDisk
from penstock.model.errors import CorruptError, RefusedError
from penstock.model.limits import FILE_MODE, MIB

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

SUFFIX: Final = ".tar.zst"
LEVEL: Final = 3  # sealed segments are compressed already
FRAME_BYTES: Final = 1 * MIB
SYNC_BYTES: Final = 8 * MIB
_SKIPPABLE: Final = 0x184D2A5E
_SEEKABLE: Final = 0x8F92EAB1
_HEAD: Final = struct.Struct("<II")
_ENTRY: Final = struct.Struct("<II")  # lengths of a frame: compressed, and not
_FOOT: Final = struct.Struct("<IBI")
_MOMENT: Final = re.compile(rf"{MOMENTS}/([^/]+)/{MOMENT_NAME}\Z")


def _zstd() -> Any:
    try:
        import cramjam
    except ImportError:
        raise RefusedError(
            f"{SUFFIX} needs the package cramjam, which is not installed: pip install "
            "'penstock[backup]', or give a directory"
        ) from None
    return cramjam.zstd


class _Frames(io.RawIOBase):
    """What is written becomes frames; `close` adds their table."""

    def __init__(self, path: Path) -> None:
        self._zstd = _zstd()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        self._waiting = bytearray()
        self._table: list[tuple[int, int]] = []
        self._unsynced = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return sum(length for _, length in self._table) + len(self._waiting)

    def write(self, data: ReadableBuffer, /) -> int:
        self._waiting += data
        while len(self._waiting) >= FRAME_BYTES:
            self._put(bytes(self._waiting[:FRAME_BYTES]))
            del self._waiting[:FRAME_BYTES]
        return memoryview(data).nbytes

    def _put(self, data: bytes) -> None:
        frame = bytes(self._zstd.compress(data, LEVEL))
        self._table.append((len(frame), len(data)))
        self._write(frame)

    def _write(self, data: bytes) -> None:
        os.write(self._fd, data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            os.fdatasync(self._fd)
            self._unsynced = 0

    def finish(self) -> None:
        """Everything is written, with the table, and synced."""
        if self._waiting:
            self._put(bytes(self._waiting))
            self._waiting.clear()
        entries = b"".join(_ENTRY.pack(*entry) for entry in self._table)
        foot = _FOOT.pack(len(self._table), 0, _SEEKABLE)
        self._write(_HEAD.pack(_SKIPPABLE, len(entries) + len(foot)) + entries + foot)
        os.fsync(self._fd)

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


class ArchiveSink:
    """Writes one moment; the file has its name only once it is whole."""

    def __init__(self, path: Path, origin: int, on_bytes: OnBytes) -> None:
        if path.exists():
            raise RefusedError(
                f"{str(path)!r} exists: give another file, or a directory, which grows by "
                "what is new"
            )
        self._path = path
        self._on_bytes = on_bytes
        self._origin = origin
        self._partial = path.with_name(path.name + ".partial")
        self._frames = _Frames(self._partial)
        self._tar = tarfile.TarFile(
            mode="w",
            fileobj=self._frames,
            format=tarfile.PAX_FORMAT,
        )

    def begin(self, moment: str) -> None:
        self._add(ABOUT_NAME, msgspec.json.encode(About(FORMAT, self._origin)) + b"\n")

    def _add(self, path: str, data: bytes) -> None:
        self._tar.addfile(_member(path, len(data)), io.BytesIO(data))

    def store(self, path: str, read_at: ReadAt, length: int) -> tuple[StoredFile, bool]:
        reading = _Reading(read_at, length, self._on_bytes)
        self._tar.addfile(_member(path, length), reading)  # type: ignore[arg-type]
        return StoredFile(path, length, reading.digest.hexdigest()), True

    def finish(self, manifest: Manifest) -> Path:
        path = f"{MOMENTS}/{manifest.name}/{MOMENT_NAME}"
        self._add(path, msgspec.json.encode(manifest))
        self._tar.close()
        self._frames.finish()
        os.rename(self._partial, self._path)
        RealDisk().sync_dir(self._path.parent)
        return self._path

    def prune(self, keep: int) -> int:
        return 0

    def close(self) -> None:
        self._frames.close()
        self._partial.unlink(missing_ok=True)


def _member(path: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size, member.mode = size, FILE_MODE
    return member


class _Reading:
    """A file as `tarfile` reads it, counted and checksummed on the way."""

    def __init__(self, read_at: ReadAt, length: int, on_bytes: OnBytes) -> None:
        self._read_at = read_at
        self._length = length
        self._position = 0
        self._on_bytes = on_bytes
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._read_at(self._position, min(size, self._length - self._position))
        self._position += len(data)
        self.digest.update(data)
        self._on_bytes(len(data))
        return data


class _Seekable(io.RawIOBase):
    """The uncompressed content, read from anywhere."""

    def __init__(self, path: Path) -> None:
        self._zstd = _zstd()
        self._file = open(path, "rb")  # noqa: SIM115 - closed with this object
        try:
            table = self._read_table(path)
        except BaseException:
            self._file.close()
            raise
        self._starts: list[int] = []  # of each frame's content
        self._places: list[tuple[int, int]] = []  # of each frame in the file: position, length
        self._lengths = [length for _, length in table]  # of each frame's content
        self._size = at = 0
        for packed, length in table:
            self._starts.append(self._size)
            self._places.append((at, packed))
            self._size += length
            at += packed
        self._position = 0
        self._number, self._frame = -1, b""

    def _read_table(self, path: Path) -> list[tuple[int, int]]:
        broken = CorruptError(
            f"{path} is not complete, or not an archive of `penstock backup`: use another backup"
        )
        size = self._file.seek(0, os.SEEK_END)
        if size < _FOOT.size:
            raise broken
        self._file.seek(size - _FOOT.size)
        count, flags, magic = _FOOT.unpack(self._file.read())
        length = count * _ENTRY.size
        if magic != _SEEKABLE or flags or size < _HEAD.size + length + _FOOT.size:
            raise broken
        self._file.seek(size - _FOOT.size - length)
        table = list(_ENTRY.iter_unpack(self._file.read(length)))
        if sum(packed for packed, _ in table) != size - _FOOT.size - length - _HEAD.size:
            raise broken
        if any(not 0 < length <= FRAME_BYTES for _, length in table):
            raise broken
        return table

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if self._position >= self._size:
            return 0
        number = bisect_right(self._starts, self._position) - 1
        if number != self._number:
            at, length = self._places[number]
            self._file.seek(at)
            # Into a buffer of the size that the table says: a frame may claim to be small and grow.
            frame = bytearray(self._lengths[number])
            try:
                self._zstd.decompress_into(self._file.read(length), frame)
            except Exception as broken:  # of cramjam, by no common name
                raise CorruptError(f"{self._file.name} is damaged: {broken}") from broken
            self._frame = bytes(frame)
            self._number = number
        view = memoryview(buffer).cast("B")
        inside = self._position - self._starts[number]
        data = self._frame[inside : inside + len(view)]
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class ArchiveSource:
    """Reads an archive."""

    def __init__(self, path: Path) -> None:
        self.shown = str(path)
        self._content = io.BufferedReader(_Seekable(path), CHUNK_BYTES)
        try:
            self._tar = tarfile.TarFile(fileobj=self._content)
            self._members = {one.name: one for one in self._tar.getmembers()}
        except (tarfile.TarError, ValueError, OverflowError) as broken:
            self._content.close()
            raise CorruptError(f"{path} is damaged ({broken}): use another backup") from broken

    def moments(self) -> list[str]:
        return sorted(found[1] for name in self._members if (found := _MOMENT.match(name)))

    def open(self, path: str) -> IO[bytes]:
        member = self._members.get(path)
        file = None if member is None else self._tar.extractfile(member)
        if file is None:
            raise FileNotFoundError(path)
        return file

    def close(self) -> None:
        self._tar.close()
        self._content.close()
