"""A disk in memory that keeps only what it promised: `penstock.log.files.disk.Disk`, at its worst.

Each file has a cached image, which the process sees, and a durable one. A power loss keeps, page
by page and in any combination, a state that the page had since its last sync; the last write may
be torn at any byte; lengths and directory entries that were not synced survive or not, each for
itself. A sync that fails leaves its pages marked clean although they may not be on disk, as Linux
does: a later sync says that all is well and does not write them. Being killed loses nothing that
was cached, and cuts the write under way at any byte.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

from penstock.log.files.disk import SyncError

PAGE: Final = 4096
ENDLESS: Final = 1 << 40  # bytes of a disk that is not full
_NO_PAGE: Final = bytes(PAGE)


class Crash(BaseException):
    """The machine or the process stopped here. Nothing may catch it and go on."""


class Inode:
    """One file: what is cached, what is on disk, and every state in between since the last sync."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.disk_pages: dict[int, bytes] = {}
        self.disk_size = 0
        self.states: dict[int, list[bytes]] = {}  # of each dirty page, oldest first
        self.sizes: list[int] = []  # since the last sync
        self.limbo: set[int] = set()  # look clean, and may not be on disk

    def page(self, number: int) -> bytes:
        return bytes(self.data[number * PAGE : (number + 1) * PAGE]).ljust(PAGE, b"\0")

    def put(self, position: int, data: bytes) -> None:
        if position > len(self.data):
            self.resize(position)
        if not data:
            return
        end = position + len(data)
        if end > len(self.data):
            self.sizes.append(end)
        self.data[position:end] = data
        for number in range(position // PAGE, (end - 1) // PAGE + 1):
            self._dirty(number)

    def resize(self, size: int) -> None:
        old = len(self.data)
        if size < old:
            del self.data[size:]
            for number in range(size // PAGE, -(-old // PAGE)):
                self._dirty(number)
        else:
            self.data.extend(bytes(size - old))
        self.sizes.append(size)

    def _dirty(self, number: int) -> None:
        self.states.setdefault(number, []).append(self.page(number))
        self.limbo.discard(number)

    def sync(self) -> None:
        for number, states in self.states.items():
            self.disk_pages[number] = states[-1]
        self.states.clear()
        self.disk_size = len(self.data)
        self.sizes.clear()

    def fail_sync(self, rng: Random) -> None:
        """Some pages reach the disk, some do not, and the cache calls all of them clean."""
        for number, states in self.states.items():
            survivor = rng.choice([None, *states])
            if survivor is not None:
                self.disk_pages[number] = survivor
            if survivor is not states[-1]:
                self.limbo.add(number)
        self.states.clear()

    def evict(self, number: int) -> None:
        """The cache forgets a page it believes clean: the next read comes from the disk."""
        self.limbo.discard(number)
        page = self.disk_pages.get(number, _NO_PAGE)
        end = min((number + 1) * PAGE, len(self.data))
        if end > number * PAGE:
            self.data[number * PAGE : end] = page[: end - number * PAGE]

    def lose_power(self, pick: Callable[[int], int]) -> None:
        """Keep one of its states of every page and of the length; `pick(n)` chooses in [0, n)."""
        for number, states in self.states.items():
            chosen = pick(len(states) + 1)
            if chosen:
                self.disk_pages[number] = states[chosen - 1]
        if self.sizes:
            chosen = pick(len(self.sizes) + 1)
            if chosen:
                self.disk_size = self.sizes[chosen - 1]
        self.states.clear()
        self.sizes.clear()
        self.limbo.clear()
        count = -(-self.disk_size // PAGE)
        pages = [self.disk_pages.get(number, _NO_PAGE) for number in range(count)]
        self.data = bytearray(b"".join(pages)[: self.disk_size])
        self.disk_pages = {number: self.page(number) for number in range(count)}


class Folder:
    """One directory, with the states of each entry since the last sync."""

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Folder] = {}
        self.disk_entries: dict[str, Inode | Folder] = {}
        self.states: dict[str, list[Inode | Folder | None]] = {}

    def put(self, name: str, entry: Inode | Folder | None) -> None:
        if entry is None:
            self.entries.pop(name, None)
        else:
            self.entries[name] = entry
        self.states.setdefault(name, []).append(entry)

    def sync(self) -> None:
        self.disk_entries = dict(self.entries)
        self.states.clear()

    def lose_power(self, pick: Callable[[int], int]) -> None:
        for name, states in self.states.items():
            chosen = pick(len(states) + 1)
            if chosen:
                entry = states[chosen - 1]
                if entry is None:
                    self.disk_entries.pop(name, None)
                else:
                    self.disk_entries[name] = entry
        self.states.clear()
        self.entries = dict(self.disk_entries)
        for entry in self.entries.values():
            entry.lose_power(pick)


class FakeFile:
    """Implements `File`; belongs to one life of the process."""

    def __init__(self, disk: FakeDisk, inode: Inode, name: str) -> None:
        self._disk = disk
        self._inode = inode
        self._name = name

    def read(self, position: int, length: int) -> bytes:
        return self._disk.read(self._inode, self._name, position, length)

    def write(self, position: int, buffers: Sequence[bytes | memoryview]) -> None:
        if self._disk.is_left_out("write", sys._getframe(1)):
            return
        self._disk.write(self._inode, self._name, position, b"".join(buffers))

    def truncate(self, length: int) -> None:
        if self._disk.is_left_out("truncate", sys._getframe(1)):
            return
        self._disk.step(f"truncate {self._name} to {length}")
        self._inode.resize(length)

    def sync(self) -> None:
        if self._disk.is_left_out("sync", sys._getframe(1)):
            return
        self._disk.step(f"sync {self._name}")
        if self._disk.is_sync_failing(self._name):
            self._inode.fail_sync(self._disk.rng)
            raise SyncError(errno.EIO, "simulated: the sync failed")
        self._inode.sync()

    def size(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        pass


class FakeDisk:
    """Implements `Disk`. A `Crash` comes out of the operation `crash_in` from now."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.root = Folder()
        self.life = 0  # of the process; raised by `restart`
        self.is_dead = False
        self.crash_in = -1  # operations left to live; negative: no crash is planned
        self.crash_on = ""  # count only those that begin with this
        self.on_crash: Callable[[], None] = lambda: None
        self.trace: Callable[[str], None] = lambda text: None
        self.sync_fails_in = -1  # syncs until one fails; negative: none does
        self.sync_kills = 0.0  # how likely it is that the process ends with a failed sync
        self.read_fails_in = -1
        self.failed_syncs = 0  # in this life
        self.failed_reads = 0
        self.fills = 0  # how often it got full
        self.sites: set[str] | None = None  # who called what, for those who leave one out
        self.left_out = ""
        self._capacity = ENDLESS
        self._last_write: tuple[Inode, int, bytes, bytes] | None = None

    def is_left_out(self, operation: str, caller: FrameType) -> bool:
        """Whether this run shows what happens without this line of the log."""
        if self.sites is None:
            return False
        site = f"{operation} in {caller.f_code.co_qualname}"
        self.sites.add(site)
        return site == self.left_out

    # Faults, and what follows them

    def step(self, what: str) -> None:
        """One operation that changes something is about to happen; or the crash does."""
        if self._is_last_step(what):
            self._die()

    def _is_last_step(self, what: str) -> bool:
        if self.is_dead:
            raise Crash
        self.trace(what)
        if self.crash_in < 0 or not what.startswith(self.crash_on):
            return False
        self.crash_in -= 1
        return self.crash_in < 0

    def _die(self) -> None:
        self.is_dead = True
        self.trace("crash")
        self.on_crash()
        raise Crash

    def is_sync_failing(self, name: str) -> bool:
        if self.sync_fails_in < 0:
            return False
        self.sync_fails_in -= 1
        if self.sync_fails_in >= 0:
            return False
        self.failed_syncs += 1
        self.trace(f"sync of {name} fails")
        if self.sync_kills and self.rng.random() < self.sync_kills:
            self.crash_on, self.crash_in = "", 0 if self.sync_kills == 1 else self.rng.randrange(3)
        return True

    def fill(self, slack_bytes: int) -> None:
        """Leave only this much space."""
        self.trace(f"disk is full but for {slack_bytes}")
        self.fills += 1
        self._capacity = self._used() + slack_bytes

    def empty(self) -> None:
        """Space is there again."""
        if self.is_full:
            self.trace("space is there again")
        self._capacity = ENDLESS

    @property
    def is_full(self) -> bool:
        return self._capacity < ENDLESS

    def restart(self, *, power_lost: bool, pick: Callable[[int], int] | None = None) -> None:
        """A new process begins on what the last one left; `pick` chooses what survives."""
        self.life += 1
        self.is_dead = False
        self.crash_on = ""
        self.sync_kills = 0.0
        self.crash_in = self.sync_fails_in = self.read_fails_in = -1
        self.failed_syncs = self.failed_reads = 0
        self.empty()
        if power_lost:
            self._tear_last_write()
            self.root.lose_power(pick or self._picker())
        else:
            for inode in self._inodes(self.root):
                for number in sorted(inode.limbo):
                    if self.rng.random() < 0.3:
                        inode.evict(number)
        self._last_write = None

    @contextmanager
    def healthy_reads(self) -> Iterator[None]:
        """For those who look at the disk and are not part of the history."""
        planned, self.read_fails_in = self.read_fails_in, -1
        try:
            yield
        finally:
            self.read_fails_in = planned

    def _picker(self) -> Callable[[int], int]:
        mood = self.rng.randrange(5)
        if mood == 0:
            return lambda count: 0  # nothing that was not synced
        if mood == 1:
            return lambda count: count - 1  # everything
        if mood == 2:
            return lambda count: self.rng.choice((0, count - 1))
        return self.rng.randrange

    def _tear_last_write(self) -> None:
        if self._last_write is None or self.rng.random() < 0.3:
            return
        inode, position, before, data = self._last_write
        end = position + self.rng.randrange(len(data) + 1)
        number = end // PAGE
        states = inode.states.get(number)
        if not states:
            return  # synced since, so it is whole
        page = bytearray(inode.page(number))
        for at in range(max(end, number * PAGE), min(position + len(data), (number + 1) * PAGE)):
            page[at - number * PAGE] = before[at - position] if at - position < len(before) else 0
        states.append(bytes(page))

    def _inodes(self, folder: Folder) -> Iterator[Inode]:
        for entry in folder.entries.values():
            if isinstance(entry, Inode):
                yield entry
            else:
                yield from self._inodes(entry)

    def _used(self) -> int:
        return sum(-(-len(inode.data) // PAGE) * PAGE for inode in self._inodes(self.root))

    # File

    def read(self, inode: Inode, name: str, position: int, length: int) -> bytes:
        if self.is_dead:
            raise Crash
        if self.read_fails_in >= 0:
            self.read_fails_in -= 1
            if self.read_fails_in < 0:
                self.failed_reads += 1
                self.trace(f"read of {name} fails")
                raise OSError(errno.EIO, "simulated: the read failed")
        return bytes(inode.data[position : position + length])

    def write(self, inode: Inode, name: str, position: int, data: bytes) -> None:
        last = self._is_last_step(f"write {name} at {position}, {len(data)} bytes")
        before = bytes(inode.data[position : position + len(data)])
        fitting = data
        if self.is_full:
            room = -(-len(inode.data) // PAGE) * PAGE + self.free_bytes(Path())[0]
            fitting = data[: max(room // PAGE * PAGE - position, 0)]
        if last:
            inode.put(position, fitting[: self.rng.randrange(len(fitting) + 1)])
            self._die()
        inode.put(position, fitting)
        if fitting:
            self._last_write = (inode, position, before[: len(fitting)], fitting)
        if len(fitting) < len(data):
            self.trace(f"no space: {len(fitting)} bytes written")
            raise OSError(errno.ENOSPC, "simulated: no space left")

    # Disk

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> FakeFile:
        folder = self._folder(path.parent)
        entry = folder.entries.get(path.name)
        assert not isinstance(entry, Folder), f"{path} is a directory"
        if create:
            self.step(f"create {path.name}")
            if self.is_full and self.free_bytes(path)[0] < PAGE and self.rng.random() < 0.3:
                raise OSError(errno.ENOSPC, "simulated: no space left")
            if entry is None:
                entry = Inode()
                folder.put(path.name, entry)
            else:
                entry.resize(0)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "simulated: no such file", str(path))
        return FakeFile(self, entry, path.name)

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(self._folder(directory).entries)
        except FileNotFoundError:
            return []

    def make_dir(self, directory: Path) -> None:
        folder = self.root
        for part in directory.parts[1:]:
            if part not in folder.entries:
                self.step(f"make {part}")
                folder.put(part, Folder())
            self.step(f"sync the parent of {part}")
            if self.is_sync_failing(part):
                raise SyncError(errno.EIO, "simulated: the sync failed")
            folder.sync()
            below = folder.entries[part]
            assert isinstance(below, Folder)
            folder = below

    def rename(self, old: Path, new: Path) -> None:
        self.step(f"rename {old.name} to {new.name}")
        entry = self._folder(old.parent).entries[old.name]
        self._folder(old.parent).put(old.name, None)
        self._folder(new.parent).put(new.name, entry)

    def remove(self, path: Path) -> None:
        self.step(f"remove {path.name}")
        folder = self._folder(path.parent)
        if path.name not in folder.entries:
            raise FileNotFoundError(errno.ENOENT, "simulated: no such file", str(path))
        folder.put(path.name, None)

    def sync_dir(self, directory: Path) -> None:
        if self.is_left_out("sync_dir", sys._getframe(1)):
            return
        self.step(f"sync directory {directory.name}")
        if self.is_sync_failing(directory.name):
            raise SyncError(errno.EIO, "simulated: the sync failed")
        self._folder(directory).sync()

    def free_bytes(self, directory: Path) -> tuple[int, int]:
        return max(self._capacity - self._used(), 0), self._capacity

    def _folder(self, directory: Path) -> Folder:
        folder = self.root
        for part in directory.parts[1:]:
            below = folder.entries.get(part)
            if not isinstance(below, Folder):
                raise FileNotFoundError(errno.ENOENT, "simulated: no such directory", part)
            folder = below
        return folder
