"""A data directory: open once, by one process, and able to work when the disk is full.

The file `lock` is held for as long as the directory is open and says who holds it. The file
`reserve` is space set aside that positions and trimming may use when nothing else is left. The
file `storage.json` is there when the catalog, or the topics too, lie elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.log.files.disk import RealDisk, write_file
from penstock.model.errors import CorruptError, RefusedError, UnavailableError
from penstock.model.limits import FILE_MODE, KIB, MIB

STORAGE_NAME: Final = "storage.json"
FILES: Final = "files"
POSTGRES: Final = "postgres"
KAFKA: Final = "kafka"
SQLITE: Final = "sqlite"
LOCK_NAME: Final = "lock"
SOCKET_NAME: Final = "commands.sock"  # on which a broker takes the commands of its own user
LOCK_TRIES: Final = 20
LOCK_TRY_S: Final = 0.005  # a look at the lock takes microseconds
RESERVE_NAME: Final = "reserve"
RESTORING_NAME: Final = "restoring"  # there until a backup is restored completely
RESERVE_BYTES_MAX: Final = 4 * MIB  # a catalog transaction with thousands of positions
RESERVE_FREE_SHARE: Final = 16  # shrinks with free space, so that a tiny disk stays usable
RESERVE_STEP: Final = 64 * KIB


class Backends(msgspec.Struct, frozen=True):
    """Which kind of store holds the catalog of a directory, and which its topics."""

    catalog: str = SQLITE
    log: str = FILES
    owner: str | msgspec.UnsetType = msgspec.UNSET  # under which its topics in Kafka are claimed


def read_backends(path: Path) -> Backends | None:
    """The content of storage.json; None if the file does not exist."""
    file = path / STORAGE_NAME
    try:
        return msgspec.json.decode(file.read_bytes(), type=Backends)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as broken:
        raise CorruptError(
            f"{file}: {broken}: it must say where the catalog and the topics are stored, such as"
            f" {msgspec.json.encode(Backends(POSTGRES, POSTGRES)).decode()}; write it again"
        ) from broken


def write_backends(path: Path, backends: Backends) -> None:
    text = msgspec.json.format(msgspec.json.encode(backends))
    write_file(RealDisk(), path / STORAGE_NAME, text + b"\n")


def has_topic_files(path: Path) -> bool:
    """Whether this is a data directory whose topics are files."""
    backends = read_backends(path) if path.is_dir() else None
    return path.is_dir() and (backends is None or backends.log == FILES)


def check_has_files(path: Path) -> None:
    """Refuse work on the files of topics where topics are no files."""
    backends = read_backends(path)
    if backends is not None and backends.log == KAFKA:
        raise RefusedError(
            f"the topics of {path} are in Kafka and have no files here: read them through the "
            "broker or with any Kafka client"
        )
    if backends is not None and backends.log != FILES:
        raise RefusedError(
            f"the topics of {path} are tables in PostgreSQL and have no files: read them with SQL "
            "(schema topics) or through the broker; verify them with pg_amcheck and data checksums"
        )


def check_restored(path: Path) -> None:
    """Refuse a directory to which a backup was restored in part."""
    if (path / RESTORING_NAME).exists():
        raise RefusedError(
            f"{path} was not restored completely: the restore was interrupted; delete what is in "
            "it and run `penstock restore` again"
        )


class DataDirectory:
    """The lock and the reserve of one directory. Blocking; a few system calls each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._made: list[Path] = []  # by `take`: the directory and its parents, innermost first
        self._is_given_up = False
        self._reserving = threading.Lock()  # the catalog, the logs and upkeep share the reserve

    def take(self) -> None:
        """Lock the directory, making it if needed; UnavailableError names the holder."""
        path = self.path
        missing = [one for one in (path, *path.parents) if not one.exists()]
        try:
            RealDisk().make_dir(path)
            fd = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as failed:
            raise UnavailableError(f"{self.path} cannot be opened: {failed.strerror}") from failed
        if not _lock(fd):
            os.close(fd)
            raise UnavailableError(_taken_text(self.path))
        self._fd = fd
        self._made = missing
        self.announce([])

    def announce(self, addresses: list[str], socket_name: str = "") -> None:
        """Write down who holds the directory and where it can be reached.

        `socket_name` is the file in the directory on which it takes commands, if it does.
        """
        holder: dict[str, Any] = {"pid": os.getpid(), "addresses": addresses}
        if socket_name:
            holder["socket"] = socket_name
        with suppress(OSError):  # a full disk must not keep anybody from opening
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(holder) + b"\n", 0)

    def give_up(self) -> None:
        """The start failed before anybody was served: `release` removes what `take` made."""
        self._is_given_up = True

    def release(self) -> None:
        """Let somebody else open it. The lock also goes with the process, however it ends."""
        if self._fd >= 0:
            if self._is_given_up and self.path in self._made:
                self._remove()
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # a parent that somebody else uses by now stays
            for parent in self._made[1:]:
                parent.rmdir()

    def set_reserve(self) -> None:
        """Reserve space while there is plenty; what is already reserved stays."""
        stat = os.statvfs(self.path)
        with self._reserving:
            have = self._reserve_bytes()
            plenty = (stat.f_bavail * stat.f_frsize + have) // RESERVE_FREE_SHARE
            missing = _whole_steps(min(RESERVE_BYTES_MAX, plenty)) - have
            if missing > 0:
                with suppress(OSError), open(self.path / RESERVE_NAME, "ab", opener=_make) as file:
                    file.write(bytes(missing))

    def free_reserve(self) -> bool:
        """Give half of the reserve back to the file system; False if nothing was left of it.

        Half, because another process may take the space first: then half is left for the next time.
        """
        with self._reserving:
            have = self._reserve_bytes()
            if have == 0:
                return False
            os.truncate(self.path / RESERVE_NAME, _whole_steps(have // 2))
            return True

    def _reserve_bytes(self) -> int:
        try:
            return (self.path / RESERVE_NAME).stat().st_size
        except FileNotFoundError:
            return 0


def _make(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _whole_steps(size: int) -> int:
    return size // RESERVE_STEP * RESERVE_STEP


def _lock(fd: int) -> bool:
    """Take the lock, unless somebody holds it for longer than `read_holder` does to look."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_TRY_S)
        else:
            return True
    return False


@contextmanager
def keep_closed(path: Path) -> Iterator[bool]:
    """Nobody opens the directory meanwhile; False if somebody has it open, or nobody ever had."""
    try:
        fd = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _share(fd)
    finally:
        os.close(fd)


def _share(fd: int) -> bool:
    """Lock it together with others who only look; False if somebody has it for himself."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_holder(path: Path) -> dict[str, Any] | None:
    """Who holds the directory, or None when nobody does."""
    try:
        fd = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _share(fd):
            return None
        try:
            holder = msgspec.json.decode(os.pread(fd, 64 * KIB, 0))
        except msgspec.DecodeError:
            return {}
        return holder if isinstance(holder, dict) else {}
    finally:
        os.close(fd)


def _taken_text(path: Path) -> str:
    holder = read_holder(path) or {}
    pid = holder.get("pid", "unknown")
    where = "this process" if pid == os.getpid() else f"process {pid}"
    text = f"{path} is open in {where}: only one process at a time may open a data directory"
    addresses = holder.get("addresses") or []
    if addresses:
        return f"{text}; talk to that broker at {', '.join(addresses)} instead"
    return f"{text}; close it there first, or use another directory"
