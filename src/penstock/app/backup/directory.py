"""A backup as a directory, which grows by what is new.

A file is under its name only when it is whole and synced, and a moment is a moment only once its
directory lost the suffix `.partial`. So a backup that was killed leaves all earlier ones intact,
and the next one removes what it left.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import msgspec

from penstock.app.backup.layout import (
    ABOUT_NAME,
    CHUNK_BYTES,
    FORMAT,
    MOMENT_NAME,
    MOMENTS,
    SEGMENTS,
    About,
    Manifest,
    OnBytes,
    ReadAt,
    StoredFile,
    read_manifest,
)
from penstock.log.files.disk import RealDisk, write_file
from penstock.model.errors import CorruptError, RefusedError, UnavailableError
from penstock.model.limits import FILE_MODE, MIB

PARTIAL: Final = ".partial"
LOCK_NAME: Final = "backup.lock"
SYNC_BYTES: Final = 8 * MIB  # little waits in memory: a broker on the same disk syncs, too
_MOMENT: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z\Z")


class DirectorySource:
    """Reads a backup directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shown = str(path)
        if not (path / ABOUT_NAME).is_file():
            raise RefusedError(
                f"{self.shown!r} is not a backup: it has no file {ABOUT_NAME}; give a directory or "
                "an archive that `penstock backup` wrote"
            )

    def moments(self) -> list[str]:
        names = RealDisk().list(self.path / MOMENTS)
        return [name for name in names if _MOMENT.match(name)]

    def open(self, path: str) -> IO[bytes]:
        return open(self.path / path, "rb")

    def close(self) -> None:
        pass


class DirectorySink:
    """Adds a moment to a backup directory; one program at a time."""

    def __init__(self, path: Path, origin: int, on_bytes: OnBytes) -> None:
        self.path = path
        self._on_bytes = on_bytes
        self._disk = RealDisk()
        if not (path / ABOUT_NAME).exists() and set(self._disk.list(path)) - {LOCK_NAME}:
            raise RefusedError(
                f"directory {str(path)!r} is not empty and not a backup: give a new directory, or "
                "one that `penstock backup` wrote"
            )
        self._disk.make_dir(path)
        self._lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UnavailableError(f"another backup is being written to {path}: wait") from None
        try:
            self._check_about(origin)
            self._remove_partial()
            self._known = self._read_known()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._lock)

    def _check_about(self, origin: int) -> None:
        """Begin a backup, or go on with one of the same data directory."""
        file = self.path / ABOUT_NAME
        if not file.exists():
            about = msgspec.json.encode(About(FORMAT, origin))
            write_file(self._disk, file, about + b"\n")
            return
        try:
            known = msgspec.json.decode(file.read_bytes(), type=About)
        except msgspec.DecodeError as broken:
            raise CorruptError(f"{file} is damaged ({broken}): use another directory") from broken
        if known.format != FORMAT or known.origin != origin:
            raise RefusedError(
                f"{str(self.path)!r} holds backups of another data directory or format: give each "
                "data directory a backup directory of its own"
            )

    def _remove_partial(self) -> None:
        for name in self._disk.list(self.path / MOMENTS):
            if name.endswith(PARTIAL):
                shutil.rmtree(self.path / MOMENTS / name)

    def _read_known(self) -> dict[str, StoredFile]:
        """What complete moments have stored, by path."""
        source = DirectorySource(self.path)
        known = {}
        for moment in source.moments():
            for file in read_manifest(source, moment).files:
                known[file.path] = file
        return known

    def begin(self, moment: str) -> None:
        self._partial = self.path / MOMENTS / f"{moment}{PARTIAL}"
        self._disk.make_dir(self._partial)

    def store(self, path: str, read_at: ReadAt, length: int) -> tuple[StoredFile, bool]:
        """Copy a file, unless an earlier moment has it: then False."""
        known = self._known.get(path)
        target = self.path / path
        if path.startswith(MOMENTS):
            target = self._partial / target.name
        elif known is not None:
            with suppress(FileNotFoundError):
                if target.stat().st_size == known.bytes:
                    return known, False
        self._disk.make_dir(target.parent)
        temporary = target.with_name(target.name + ".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            digest = self._copy(fd, read_at, length)
        finally:
            os.close(fd)
        os.rename(temporary, target)
        return StoredFile(path, length, digest), True

    def _copy(self, fd: int, read_at: ReadAt, length: int) -> str:
        digest, position, synced = hashlib.sha256(), 0, 0
        while position < length:
            data = read_at(position, min(CHUNK_BYTES, length - position))
            if not data:
                raise CorruptError(f"a segment ends at byte {position}, but {length} were stored")
            digest.update(data)
            os.write(fd, data)
            position += len(data)
            if position - synced >= SYNC_BYTES or position == length:
                os.fdatasync(fd)
                os.posix_fadvise(fd, synced, position - synced, os.POSIX_FADV_DONTNEED)
                synced = position
            self._on_bytes(len(data))
        return digest.hexdigest()

    def finish(self, manifest: Manifest) -> Path:
        """From here on the moment exists."""
        for directory in {(self.path / file.path).parent for file in manifest.files}:
            if directory.name != manifest.name:
                self._disk.sync_dir(directory)
        write_file(self._disk, self._partial / MOMENT_NAME, msgspec.json.encode(manifest))
        os.rename(self._partial, self._partial.with_name(manifest.name))
        self._disk.sync_dir(self.path / MOMENTS)
        return self.path

    def prune(self, keep: int) -> int:
        """Remove all but the newest moments, and files that no moment has; how many moments."""
        source = DirectorySource(self.path)
        moments = source.moments()
        old, kept = moments[:-keep], moments[-keep:]
        for moment in old:
            doomed = self.path / MOMENTS / f"{moment}{PARTIAL}"
            os.rename(self.path / MOMENTS / moment, doomed)
            self._disk.sync_dir(self.path / MOMENTS)  # before a file that it names goes
            shutil.rmtree(doomed)
        needed = {one.path for moment in kept for one in read_manifest(source, moment).files}
        for directory, _, names in os.walk(self.path / SEGMENTS):
            for name in names:
                file = Path(directory, name)
                if str(file.relative_to(self.path)) not in needed:
                    file.unlink()
        return len(old)
