"""The disk as the log sees it: a few operations with stated durability, real or simulated.

Written bytes are durable after `File.sync`; a created, renamed or removed entry is durable after
`sync_dir` of its directory. Nothing else may be assumed, and the simulated disk assumes nothing
else. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mypy_extensions import mypyc_attr

from penstock.model.limits import DIRECTORY_MODE, FILE_MODE

IOV_MAX = 1024  # buffers one writev takes on Linux


@mypyc_attr(native_class=False)
class SyncError(OSError):
    """A sync failed: what it should have covered may be lost, and trying again proves nothing."""


class File(Protocol):
    """An open file, addressed by position."""

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""
        ...

    def write(self, position: int, buffers: Sequence[bytes | memoryview]) -> None:
        """All of the buffers, one after the other."""
        ...

    def truncate(self, length: int) -> None: ...

    def sync(self) -> None:
        """Data and length reach the disk; the call returns after they did, or SyncError."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Directory operations and opening files."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        """`create` makes an empty file or empties an existing one."""
        ...

    def list(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def make_dir(self, directory: Path) -> None:
        """Make the directory and its parents; existing ones are fine. Entries are synced."""
        ...

    def rename(self, old: Path, new: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """A file, or an empty directory."""
        ...

    def sync_dir(self, directory: Path) -> None: ...

    def free_bytes(self, directory: Path) -> tuple[int, int]:
        """(available to us, size of the file system)."""
        ...


class RealFile:
    """A file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < length:  # a signal or a 2 GiB bound may cut a read short
            data = os.pread(self._fd, length - got, position + got)
            if not data:
                break
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def write(self, position: int, buffers: Sequence[bytes | memoryview]) -> None:
        total = 0
        for buffer in buffers:
            total += len(buffer)
        written = 0
        if len(buffers) == 1:
            written = os.pwrite(self._fd, buffers[0], position)
        elif len(buffers) <= IOV_MAX:
            written = os.pwritev(self._fd, buffers, position)
        if written < total:  # rare: a signal, a bound, or the disk is about to be full
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwrite(self._fd, rest[written:], position + written)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as failed:
            raise SyncError(failed.errno, failed.strerror) from failed

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    """The operating system's file system."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> RealFile:
        flags = os.O_RDWR if write else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_TRUNC
        return RealFile(os.open(path, flags | os.O_CLOEXEC, FILE_MODE))

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_dir(self, directory: Path) -> None:
        missing = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for new in reversed(missing):
            new.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            self.sync_dir(new.parent)
        if not missing:  # it may stem from a run that was killed before it could sync
            self.sync_dir(directory.parent)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()

    def sync_dir(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as failed:
            raise SyncError(failed.errno, failed.strerror, str(directory)) from failed
        finally:
            os.close(fd)

    def free_bytes(self, directory: Path) -> tuple[int, int]:
        stat = os.statvfs(directory)
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize


def write_file(disk: Disk, path: Path, data: bytes | memoryview) -> None:
    """Put a whole small file in place: after a crash there is the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    file = disk.open(temporary, create=True)
    try:
        file.write(0, [data])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(path.parent)
