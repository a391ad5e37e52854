"""A data directory: open once, by one process, and able to work when the disk is full.

The file `lock` is held for as long as the directory is open and says who holds it. The file
`reserve` is space set aside that positions and trimming may use when nothing else is left.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.log.files import RealDisk
from penstock.model.errors import UnavailableError
from penstock.model.limits import KIB, MIB

LOCK_NAME: Final = "lock"
LOCK_TRIES: Final = 20
LOCK_TRY_S: Final = 0.005  # a look at the lock takes microseconds
RESERVE_NAME: Final = "reserve"
RESERVE_BYTES_MAX: Final = 4 * MIB  # a catalog transaction with thousands of positions
RESERVE_FREE_SHARE: Final = 16  # shrinks with free space, so that a tiny disk stays usable
RESERVE_STEP: Final = 64 * KIB


class DataDirectory:
    """The lock and the reserve of one directory. Blocking; a few system calls each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._reserving = threading.Lock()  # the catalog, the logs and upkeep share the reserve

    def take(self) -> None:
        """Lock the directory, making it if needed; UnavailableError names the holder."""
        try:
            RealDisk().make_dir(self.path)
            fd = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as failed:
            raise UnavailableError(f"{self.path} cannot be opened: {failed.strerror}") from failed
        if not _lock(fd):
            os.close(fd)
            raise UnavailableError(_taken_text(self.path))
        self._fd = fd
        self.announce([])

    def announce(self, addresses: list[str]) -> None:
        """Write down who holds the directory and where it can be reached."""
        holder = {"pid": os.getpid(), "addresses": addresses}
        with suppress(OSError):  # a full disk must not keep anybody from opening
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(holder) + b"\n", 0)

    def release(self) -> None:
        """Let somebody else open it. The lock also goes with the process, however it ends."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def set_reserve(self) -> None:
        """Set space aside as far as there is plenty; what is there already stays."""
        stat = os.statvfs(self.path)
        with self._reserving:
            have = self._reserve_bytes()
            plenty = (stat.f_bavail * stat.f_frsize + have) // RESERVE_FREE_SHARE
            missing = _whole_steps(min(RESERVE_BYTES_MAX, plenty)) - have
            if missing > 0:
                with suppress(OSError), (self.path / RESERVE_NAME).open("ab") as file:
                    file.write(bytes(missing))

    def free_reserve(self) -> bool:
        """Give half of the reserve back to the file system; False if nothing was left of it.

        Half, because whoever is fastest takes the space: there is a next time.
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


def read_holder(path: Path) -> dict[str, Any] | None:
    """Who holds the directory, or None when nobody does."""
    try:
        fd = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            holder = msgspec.json.decode(os.pread(fd, 64 * KIB, 0))
        except msgspec.DecodeError:
            return {}
        return holder if isinstance(holder, dict) else {}
    else:
        return None
    finally:
        os.close(fd)


def _taken_text(path: Path) -> str:
    holder = read_holder(path) or {}
    pid = holder.get("pid", "unknown")
    where = "this process" if pid == os.getpid() else f"process {pid}"
    text = f"{path} is open in {where}: a data directory is open once at a time"
    addresses = holder.get("addresses") or []
    if addresses:
        return f"{text}; talk to that broker at {', '.join(addresses)} instead"
    return f"{text}; close it there first, or use another directory"
