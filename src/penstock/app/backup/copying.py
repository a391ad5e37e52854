"""Copying a snapshot of a data directory into a backup, at a bounded rate."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock.app.aio import AsyncBroker
from penstock.app.backup.archive import SUFFIX, ArchiveSink, ArchiveSource
from penstock.app.backup.directory import DirectorySink, DirectorySource
from penstock.app.backup.layout import (
    FORMAT,
    MOMENTS,
    Manifest,
    OnBytes,
    ReadAt,
    Source,
    StoredFile,
    StoredLog,
    moment_name,
    segment_name,
)
from penstock.catalog.outside import CATALOG_NAME
from penstock.log.files.disk import File, RealDisk
from penstock.log.files.segment import segment_path
from penstock.log.files.upkeep.moment import (
    DESCRIPTION,
    HELD,
    SMALL_FILES,
    SNAPSHOTS,
    LogMoment,
    Moment,
)
from penstock.model.errors import RefusedError, UnavailableError
from penstock.model.limits import MIB

RATE_BYTES_S: Final = 64 * MIB  # leaves a disk most of its time for the broker
OTHER_ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.lz4", ".zip", ".zst", ".gz")


class Sink(Protocol):
    """A backup to write: a directory or an archive."""

    def begin(self, moment: str) -> None: ...

    def store(self, path: str, read_at: ReadAt, length: int) -> tuple[StoredFile, bool]:
        """Copy a file, unless an earlier moment has it: then False."""
        ...

    def finish(self, manifest: Manifest) -> Path:
        """From here on the moment exists."""
        ...

    def prune(self, keep: int) -> int:
        """Remove all but the newest moments; how many went."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Copied:
    """What one backup did."""

    path: Path
    manifest: Manifest
    new_files: int
    new_bytes: int
    pruned: int


class Pace:
    """Counts bytes, and sleeps when they are more than the rate allows."""

    def __init__(self, rate_bytes_s: int, tell: Callable[[int], None]) -> None:
        self._rate = rate_bytes_s
        self._tell = tell
        self._started_s = time.monotonic()
        self._bytes = 0

    def __call__(self, count: int) -> None:
        self._bytes += count
        self._tell(self._bytes)
        early_s = self._started_s + self._bytes / self._rate - time.monotonic()
        if early_s > 0:
            time.sleep(early_s)


def open_source(path: Path) -> Source:
    """The backup at a path; RefusedError if it is none."""
    if path.is_dir():
        return DirectorySource(path)
    if not path.is_file():
        raise RefusedError(f"backup {str(path)!r} does not exist: give a directory or an archive")
    return ArchiveSource(path)


def check_target(path: Path) -> None:
    """RefusedError for an archive of a kind that is not written."""
    if path.name.endswith(SUFFIX) or path.is_dir():
        return
    if path.name.endswith(OTHER_ARCHIVES):
        raise RefusedError(
            f"{str(path)!r}: archives are written as {SUFFIX} only; for anything else give a "
            "directory"
        )


def _open_sink(path: Path, origin: int, on_bytes: OnBytes) -> Sink:
    if path.name.endswith(SUFFIX) and not path.is_dir():
        return ArchiveSink(path, origin, on_bytes)
    return DirectorySink(path, origin, on_bytes)


@contextmanager
def snapshot_here(data: Path, settings: dict[str, Any]) -> Iterator[tuple[Path, Sequence[str]]]:
    """Open a directory that nobody has open and take a snapshot; with what recovery found."""
    broker = AsyncBroker(data, **settings)
    with asyncio.Runner() as runner:
        runner.run(broker.open())
        try:
            name = runner.run(broker.tenants.snapshots.take())
            yield data / SNAPSHOTS / name, broker.notes
            runner.run(broker.tenants.snapshots.drop(name))
        finally:
            runner.run(broker.close())


@contextmanager
def held(snapshot: Path) -> Iterator[None]:
    """The broker keeps the snapshot meanwhile."""
    try:
        fd = os.open(snapshot / HELD, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as gone:
        raise UnavailableError(f"snapshot {snapshot} cannot be read: {gone.strerror}") from gone
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def copy_snapshot(snapshot: Path, target: Path, on_bytes: OnBytes, keep: int) -> Copied:
    """Add a snapshot to the backup at `target`, and remove all but the `keep` newest moments."""
    with held(snapshot):
        moment = msgspec.json.decode((snapshot / DESCRIPTION).read_bytes(), type=Moment)
        origin = _origin(snapshot / CATALOG_NAME)
        name = moment_name(moment.taken_at)
        sink = _open_sink(target, origin, on_bytes)
        try:
            sink.begin(name)
            copying = _Copying(snapshot, sink)
            logs = [copying.log(log) for log in moment.logs]
            path = f"{MOMENTS}/{name}/{CATALOG_NAME}"
            catalog = copying.file(path, snapshot / CATALOG_NAME)
            manifest = Manifest(
                format=FORMAT,
                origin=origin,
                taken_at=moment.taken_at,
                version=moment.version,
                catalog=catalog,
                logs=logs,
                left_out=moment.left_out,
            )
            where = sink.finish(manifest)
            pruned = sink.prune(keep)
            return Copied(where, manifest, copying.new_files, copying.new_bytes, pruned)
        finally:
            sink.close()


def _origin(catalog: Path) -> int:
    """Which data directory it is: when its catalog was made."""
    connection = sqlite3.connect(f"{catalog.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        sql = "select created_at from tenants where tenant = 'default'"
        ((created_at,),) = connection.execute(sql)
        return int(created_at)
    finally:
        connection.close()


class _Copying:
    """One moment on its way."""

    def __init__(self, snapshot: Path, sink: Sink) -> None:
        self._snapshot = snapshot
        self._sink = sink
        self.new_files = 0
        self.new_bytes = 0

    def file(self, name: str, path: Path) -> StoredFile:
        with _opened(path) as file:
            return self._store(name, file.read, file.size())

    def log(self, log: LogMoment) -> StoredLog:
        directory = self._snapshot / log.tenant / log.directory
        segments = []
        for base in log.bases:
            with _opened(segment_path(directory, base)) as file:
                length = log.position if base == log.bases[-1] else file.size()
                name = segment_name(log, base, length, file.read)
                segments.append(self._store(name, file.read, length))
        small = {}
        for one in SMALL_FILES:
            with suppress(FileNotFoundError):
                small[one] = (directory / one).read_text(encoding="utf-8")
        return StoredLog(log, segments, small)

    def _store(self, name: str, read_at: ReadAt, length: int) -> StoredFile:
        stored, is_new = self._sink.store(name, read_at, length)
        if is_new:
            self.new_files += 1
            self.new_bytes += length
        return stored


@contextmanager
def _opened(path: Path) -> Iterator[File]:
    file = RealDisk().open(path, write=False)
    try:
        yield file
    finally:
        file.close()
