"""Restoring a backup into an empty directory, which is a data directory only when all is there.

Every log begins a new epoch when it is opened: a position that a reader took after the moment of
the backup is beyond the restored log, and is moved back instead of skipping what comes next.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.app.backup.layout import (
    Manifest,
    OnBytes,
    Source,
    StoredFile,
    StoredLog,
    read_checked,
    read_manifest,
)
from penstock.catalog.outside import CATALOG_NAME
from penstock.log.files.directory import LOCK_NAME, RESTORING_NAME, DataDirectory
from penstock.log.files.disk import RealDisk, write_file
from penstock.log.files.endfile import NAME as END_NAME
from penstock.log.files.segment import segment_path
from penstock.log.format.end_bytes import LOOSE
from penstock.model.errors import RefusedError

# What may be in a directory that counts as empty: the root of a file system has the first.
_NOTHING: Final = {"lost+found"}


def choose_moment(source: Source, name: str) -> Manifest:
    """The moment whose name begins so, or the newest one."""
    moments = source.moments()
    if not moments:
        raise RefusedError(
            f"{source.shown!r} holds no complete backup: the only one was interrupted; run "
            "`penstock backup` again"
        )
    found = [one for one in moments if one.startswith(name)] if name else moments[-1:]
    if len(found) != 1:
        problem = "no moment" if not found else f"{len(found)} moments"
        raise RefusedError(
            f"{source.shown!r} has {problem} {name!r}: see `penstock restore {source.shown} --list`"
        )
    return read_manifest(source, found[0])


def check(source: Source, manifest: Manifest, on_bytes: OnBytes) -> None:
    """Read every file of a moment; CorruptError names the first that is damaged."""
    for file in manifest.files:
        read_checked(source, file, lambda data: on_bytes(len(data)))


def restore(source: Source, manifest: Manifest, target: Path, on_bytes: OnBytes) -> None:
    """Make a data directory of a moment; if it fails, nothing is left of it."""
    with _empty_directory(target):
        for log in manifest.logs:
            _restore_log(source, log, target / log.moment.tenant / log.moment.directory, on_bytes)
        _restore_file(source, manifest.catalog, target / CATALOG_NAME, on_bytes)
        for directory in {target / log.moment.tenant for log in manifest.logs} | {target}:
            RealDisk().sync_dir(directory)


@contextmanager
def _empty_directory(target: Path) -> Iterator[None]:
    """Nobody opens the directory meanwhile, nor after a crash."""
    if target.exists() and not target.is_dir():
        raise RefusedError(f"{str(target)!r} is a file: give a directory to restore to")
    if target.is_dir() and set(os.listdir(target)) - _NOTHING:
        raise RefusedError(
            f"directory {str(target)!r} is not empty: restore into a new or empty directory"
        )
    directory = DataDirectory(target)
    directory.take()
    try:
        write_file(RealDisk(), target / RESTORING_NAME, b"")
        yield
        (target / RESTORING_NAME).unlink()
        RealDisk().sync_dir(target)
    except BaseException:
        for name in set(os.listdir(target)) - _NOTHING:
            path = target / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise
    finally:
        directory.release()
        (target / LOCK_NAME).unlink(missing_ok=True)


def _restore_log(source: Source, log: StoredLog, directory: Path, on_bytes: OnBytes) -> None:
    disk = RealDisk()
    disk.make_dir(directory)
    for base, file in zip(log.moment.bases, log.segments, strict=True):
        _restore_file(source, file, segment_path(directory, base), on_bytes)
    # Not clean, and perhaps not all of what was visible: recovery begins a new epoch.
    write_file(disk, directory / END_NAME, log.moment.end.with_flags(LOOSE).pack())
    for name, text in log.small.items():
        write_file(disk, directory / name, text.encode())


def _restore_file(source: Source, stored: StoredFile, path: Path, on_bytes: OnBytes) -> None:
    file = RealDisk().open(path, create=True)
    position = 0

    def write(data: bytes) -> None:
        nonlocal position
        file.write(position, [data])
        position += len(data)
        on_bytes(len(data))

    try:
        read_checked(source, stored, write)
        file.sync()
    finally:
        file.close()
