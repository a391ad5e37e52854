"""Reports of pipeline runs as files, for the catalog to take over.

A job runs in another process and may not write the broker's catalog, so it keeps one small file in
the data directory, replaced as a whole, and holds a lock on another for as long as it lives.
Whoever holds the data directory copies what the files say into the catalog. All functions block.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from penstock.model.limits import DIRECTORY_MODE, FILE_MODE
from penstock.model.runs import INTERRUPTED, RUNNING, PipelineRun

REPORTS: Final = ".runs"  # in a tenant's root; no log's name begins with a dot
KEPT_S: Final = 7 * 86_400.0  # a file of a run that ended stays for those who only read files


class RunReport:
    """The report of a run that is going on; used by its process only."""

    def __init__(self, data: Path, run: PipelineRun) -> None:
        self.run = run
        self._path = data / REPORTS / f"{run.run_id}.json"
        self._lock = -1

    def __enter__(self) -> Self:
        self._path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        self._lock = os.open(self._path.with_suffix(".alive"), os.O_RDWR | os.O_CREAT, FILE_MODE)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.tell(self.run)
        return self

    def tell(self, run: PipelineRun) -> None:
        """Replace what is reported."""
        self.run = run
        temporary = self._path.with_suffix(".tmp")
        temporary.touch(FILE_MODE)
        temporary.write_bytes(msgspec.json.encode(run))
        os.replace(temporary, self._path)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(FileNotFoundError):
            self._path.with_suffix(".alive").unlink()
        os.close(self._lock)


def read_reports(data: Path) -> list[PipelineRun]:
    """All runs that are reported, oldest first; those whose process is gone are interrupted."""
    found = [run for path in _files(data) if (run := _read(path)) is not None]
    return sorted(found, key=lambda run: (run.started_at, run.run_id))


def remove_old_reports(data: Path, age_us: Callable[[int], int]) -> None:
    """Forget files of runs that ended long ago; the catalog has them."""
    for path in _files(data):
        run = _read(path)
        if run is not None and run.state != RUNNING and age_us(run.updated_at) / 1e6 > KEPT_S:
            path.with_suffix(".alive").unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def _files(data: Path) -> Iterator[Path]:
    return (data / REPORTS).glob("*.json")


def _read(path: Path) -> PipelineRun | None:
    try:
        run = msgspec.json.decode(path.read_bytes(), type=PipelineRun)
    except (FileNotFoundError, msgspec.DecodeError):
        return None  # removed meanwhile, or not ours
    if run.state == RUNNING and not _is_alive(path.with_suffix(".alive")):
        return msgspec.structs.replace(run, state=INTERRUPTED, ended_at=run.updated_at)
    return run


def _is_alive(lock: Path) -> bool:
    try:
        fd = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
