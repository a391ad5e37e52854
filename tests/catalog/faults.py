"""Real faults and plain witnesses for the catalog's tests."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.catalog.database.interface import Database, Row, Value

OpenDatabase = Callable[[], Database]

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
ALLOW, FAIL = 0x7FFF0000, 0x00050000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
AT_CALL, AT_FIRST_ARGUMENT = 0, 16  # what a filter sees: struct seccomp_data
SYNC_CALLS = {"x86_64": (74, 75), "aarch64": (82, 83)}  # fsync, fdatasync


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def fail_syncs_of_this_thread(path: Path | None = None) -> None:
    """From now on the kernel answers fsync and fdatasync of the calling thread with EIO.

    With a path, only for that file as it is open now. For good: a thread cannot take its filter
    off. Other threads are not touched.
    """
    fsync, fdatasync = SYNC_CALLS[platform.machine()]
    steps = [
        (LOAD, 0, 0, AT_CALL),
        (JUMP_IF_EQUAL, 1, 0, fsync),
        (JUMP_IF_EQUAL, 0, 3, fdatasync),
        (LOAD, 0, 0, AT_FIRST_ARGUMENT),
        (JUMP_IF_EQUAL, 0, 1, _descriptor(path)) if path else (JUMP_IF_EQUAL, 0, 0, 0),
        (RETURN, 0, 0, FAIL | errno.EIO),
        (RETURN, 0, 0, ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = _Program(len(steps), ctypes.cast(code, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def _descriptor(path: Path) -> int:
    (entry,) = (entry for entry in Path("/proc/self/fd").iterdir() if _leads_to(entry, path))
    return int(entry.name)


def _leads_to(entry: Path, path: Path) -> bool:
    try:
        return entry.readlink() == path
    except FileNotFoundError:  # the descriptor of the listing itself
        return False


class CountingDatabase:
    """A database that counts the transactions it committed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._depth = 0
        self.commits = 0

    def execute(self, sql: str, *args: Value) -> int:
        return self._database.execute(sql, *args)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> int:
        return self._database.execute_many(sql, rows)

    def fetch(self, sql: str, *args: Value) -> list[Row]:
        return self._database.fetch(sql, *args)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._depth += 1
        try:
            with self._database.transaction():
                yield
        finally:
            self._depth -= 1
        if self._depth == 0:
            self.commits += 1

    def close(self) -> None:
        self._database.close()
