"""A real disk on which chosen operations fail or wait: the faults that cannot be had for real."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.log.files.disk import Disk, File, SyncError

CALLS = (
    "open", "list", "rename", "remove", "sync_dir", "read", "write", "truncate", "sync",
    "answer",  # what was read is on its way: by the time it arrives it may be old
)  # fmt: skip


@dataclass
class Fault:
    """Calls of `call` on names that end with `suffix` fail with `code`, `times` times.

    A file keeps the name it was opened under. The first `after` such calls still succeed.
    """

    call: str
    suffix: str
    code: int
    times: int
    after: int
    written_first: bool  # the bytes are there all the same


@dataclass
class Gate:
    """A call that has `arrived` waits until it is `opened`."""

    call: str
    suffix: str
    arrived: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)


class FaultyDisk:
    """Implements `Disk` on another one; faults and gates apply to every thread."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.calls: list[tuple[str, str]] = []
        self._faults: list[Fault] = []
        self._gates: list[Gate] = []

    def fail(
        self,
        call: str,
        suffix: str,
        code: int,
        *,
        times: int = 1 << 30,
        after: int = 0,
        written_first: bool = False,
    ) -> None:
        assert call in CALLS
        self._faults.append(Fault(call, suffix, code, times, after, written_first))

    def heal(self) -> None:
        self._faults.clear()

    def hold(self, call: str, suffix: str) -> Gate:
        """The next such call waits until the gate is opened."""
        gate = Gate(call, suffix)
        self._gates.append(gate)
        return gate

    def count(self, call: str, suffix: str) -> int:
        return sum(1 for c, name in self.calls if c == call and name.endswith(suffix))

    def meet(self, call: str, path: Path) -> Fault | None:
        """Note the call, wait at a gate, and say whether it is to fail."""
        self.calls.append((call, path.name))
        for gate in self._gates:
            if gate.call == call and path.name.endswith(gate.suffix):
                self._gates.remove(gate)
                gate.arrived.set()
                assert gate.opened.wait(60), "nobody opened the gate"
                break
        for fault in self._faults:
            if fault.call != call or not path.name.endswith(fault.suffix) or not fault.times:
                continue
            if fault.after:
                fault.after -= 1
                continue
            fault.times -= 1
            return fault
        return None

    def check(self, call: str, path: Path) -> None:
        fault = self.meet(call, path)
        if fault is not None:
            raise error_of(fault, path)

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        self.check("open", path)
        return FaultyFile(self, path, self.disk.open(path, create=create, write=write))

    def list(self, directory: Path) -> list[str]:
        names = self.disk.list(directory)
        self.check("list", directory)
        return names

    def make_dir(self, directory: Path) -> None:
        self.disk.make_dir(directory)

    def rename(self, old: Path, new: Path) -> None:
        self.check("rename", old)
        self.disk.rename(old, new)

    def remove(self, path: Path) -> None:
        self.check("remove", path)
        self.disk.remove(path)

    def sync_dir(self, directory: Path) -> None:
        self.check("sync_dir", directory)
        self.disk.sync_dir(directory)

    def free_bytes(self, directory: Path) -> tuple[int, int]:
        return self.disk.free_bytes(directory)


def error_of(fault: Fault, path: Path) -> OSError:
    kind = SyncError if fault.call in ("sync", "sync_dir") else OSError
    return kind(fault.code, os.strerror(fault.code), str(path))


class FaultyFile:
    """Implements `File`."""

    def __init__(self, disk: FaultyDisk, path: Path, file: File) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def read(self, position: int, length: int) -> bytes:
        self._disk.check("read", self._path)
        data = self._file.read(position, length)
        self._disk.check("answer", self._path)
        return data

    def write(self, position: int, buffers: Sequence[bytes | memoryview]) -> None:
        fault = self._disk.meet("write", self._path)
        if fault is None:
            self._file.write(position, buffers)
            return
        whole = b"".join(buffers)
        self._file.write(position, [whole if fault.written_first else whole[: len(whole) // 2]])
        raise error_of(fault, self._path)

    def truncate(self, length: int) -> None:
        self._disk.check("truncate", self._path)
        self._file.truncate(length)

    def sync(self) -> None:
        self._disk.check("sync", self._path)
        self._file.sync()

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()
