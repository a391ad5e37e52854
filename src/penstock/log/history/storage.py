"""Where the files of one history table lie: a directory of this machine, or an object store.

`put` returns when the file is durable under its name; before, nothing is there under that name.
Paths are names within the table. Errors are OSError.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from deltalake._internal import DeltaFileSystemHandler
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, PyFileSystem

from penstock.log.files.disk import Disk, RealDisk
from penstock.log.history.place import HistoryRoot, TablePlace
from penstock.model.limits import KIB

LOG_NAME: Final = "_delta_log"
_COMMIT: Final = re.compile(r"[0-9]{20}\.json\Z")
_DRAWN: Final = re.compile("\x1b\\[[0-9;]*m|\u21b3")  # colours and arrows in errors of the library
_LEVELS: Final = 3  # above a table: its tenant, the root, and where the root is
_SYNCED_BYTES: Final = 512 * KIB  # of a file in a directory at once: a few milliseconds
_PUT_BYTES: Final = 8 * 1024 * 1024  # given to an object store at once


class TableStorage(Protocol):
    """The files of one table."""

    uri: str
    options: dict[str, str] | None  # of the object store

    def put(self, name: str, data: pa.Buffer) -> None: ...

    def open(self, name: str) -> pa.NativeFile: ...

    def names(self) -> list[str]:
        """The files next to the Delta log, that is, without it."""
        ...

    def remove(self, name: str) -> None:
        """It is gone for good on return."""
        ...

    def remove_all(self) -> None:
        """The table itself."""
        ...

    def sync_log(self) -> None:
        """Make the commits of the table durable, which the library that writes them does not."""
        ...

    def repair_log(self) -> None:
        """Remove a newest commit that power loss tore before it was synced: nobody relied on it."""
        ...


class DirectoryStorage:
    """A directory of this machine."""

    options: dict[str, str] | None = None

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path = path.absolute()
        self.uri = str(self.path)
        self._disk = disk or RealDisk()
        self._is_anchored = False  # the entries of the directories above are durable

    def put(self, name: str, data: pa.Buffer) -> None:
        temporary = self.path / f"{name}.tmp"
        view = memoryview(data)
        file = self._disk.open(temporary, create=True)
        try:
            # Synced at once, a large file would hold up the syncs of logs on the same disk.
            for at in range(0, len(view), _SYNCED_BYTES):
                file.write(at, [view[at : at + _SYNCED_BYTES]])
                file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, self.path / name)
        self._disk.sync_dir(self.path)

    def open(self, name: str) -> pa.NativeFile:
        return pa.OSFile(str(self.path / name))

    def names(self) -> list[str]:
        return [name for name in self._disk.list(self.path) if name != LOG_NAME]

    def remove(self, name: str) -> None:
        self._disk.remove(self.path / name)
        self._disk.sync_dir(self.path)

    def remove_all(self) -> None:
        log = self.path / LOG_NAME
        # Without its log the directory is no table: a crash never leaves half of one.
        for folder in (log, self.path):
            for name in self._disk.list(folder):
                self._disk.remove(folder / name)
        self._disk.sync_dir(self.path)
        self._disk.remove(self.path)

    def sync_log(self) -> None:
        log = self.path / LOG_NAME
        for name in self._disk.list(log):
            _sync(log / name)
        self._disk.sync_dir(log)
        if not self._is_anchored:
            # The library made the directories of the table, its tenant and the root, and synced
            # none of them: power loss would take the whole table.
            for folder in (self.path, *list(self.path.parents)[:_LEVELS]):
                self._disk.sync_dir(folder)
            self._is_anchored = True

    def repair_log(self) -> None:
        log = self.path / LOG_NAME
        commits = [name for name in self._disk.list(log) if _COMMIT.match(name)]
        if commits and not _is_whole((log / commits[-1]).read_bytes()):
            self._disk.remove(log / commits[-1])
            self._disk.sync_dir(log)


class ObjectStorage:
    """A prefix of an object store, with the options and the client of the Delta library."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.uri = uri
        self.options: dict[str, str] | None = dict(options)
        self._handler = DeltaFileSystemHandler(uri, self.options)
        self._files = PyFileSystem(DeltaStorageHandler(uri, self.options))

    def put(self, name: str, data: pa.Buffer) -> None:
        stream = self._handler.open_output_stream(name, None)
        for at in range(0, data.size, _PUT_BYTES):
            stream.write(data.slice(at, min(_PUT_BYTES, data.size - at)).to_pybytes())
        stream.close()  # type: ignore[attr-defined]  # only this makes the object visible

    def open(self, name: str) -> pa.NativeFile:
        return self._files.open_input_file(name)

    def names(self) -> list[str]:
        found = self._files.get_file_info(FileSelector("", allow_not_found=True))
        return sorted([one.path for one in found if one.is_file])

    def remove(self, name: str) -> None:
        self._files.delete_file(name)

    def remove_all(self) -> None:
        for folder in (LOG_NAME, ""):
            for one in self._files.get_file_info(FileSelector(folder, allow_not_found=True)):
                if one.is_file:
                    self._files.delete_file(one.path)

    def sync_log(self) -> None:
        """An object is durable when the store has answered."""

    def repair_log(self) -> None:
        """An object is there as a whole or not at all."""


def storage_of(place: TablePlace) -> TableStorage:
    """The storage behind a place."""
    if place.is_directory:
        return DirectoryStorage(Path(place.uri))
    return ObjectStorage(place.uri, place.options)


def said(failed: Exception) -> str:
    """What an error says, in one line: the library draws its own on several, in colours.

    Some are followed by the calls that led to them, numbered from 0.
    """
    text = str(failed).partition("\n   0: ")[0]
    return " ".join(_DRAWN.sub("", text).split())


def _is_whole(commit: bytes) -> bool:
    """Whether every line is JSON; a file that was not synced may be empty, cut, or zeros."""
    try:
        return bool([json.loads(line) for line in commit.splitlines()])
    except ValueError:
        return False


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def find_tables(root: HistoryRoot) -> list[str]:
    """The tables below a root, as `tenant/slug-id`, sorted."""
    if not root.is_directory:
        files = PyFileSystem(DeltaStorageHandler(root.url, root.place_options))
        found = files.get_file_info(FileSelector("", allow_not_found=True, recursive=True))
        mark = f"/{LOG_NAME}/"
        return sorted({one.path.partition(mark)[0] for one in found if mark in one.path})
    top = Path(root.url)
    return sorted([str(log.parent.relative_to(top)) for log in top.glob(f"*/*/{LOG_NAME}")])
