"""A disk that replays a trace and says what a power loss at any point would have left.

The model is stricter than any one file system and never impossible:
- a file holds what was complete before its last successful fsync or fdatasync *started*;
- an entry of a directory (creation, removal, rename, link, mkdir) holds once the *directory* was
  synced; a synced file whose entry was not is gone; a rename between two directories is one change
  and needs both;
- a failed sync, sync_file_range, sync and close promise nothing.
What no sync covers is in the hands of a `Policy` (loss.py).

Invariant: after `seek(n)`, `_durable` and the files' bases hold exactly what syncs among events[:n]
cover, `_live` what the program itself saw, and the pending lists lead from the one to the other.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .image import Image
from .loss import EntryChange, Policy
from .trace import (
    Ack,
    Change,
    Create,
    Event,
    Link,
    MakeDirectory,
    Rename,
    SyncBegin,
    SyncEnd,
    SyncFilter,
    Trace,
    TraceError,
    Truncate,
    Unlink,
    Write,
    Zero,
)

ROOT = 0
Directory = dict[str, int]  # name → node


@dataclass(slots=True)
class _File:
    base: Image = field(default_factory=Image)
    pending: list[tuple[int, Change]] = field(default_factory=list)  # (index of the event, change)

    def settle(self, before: int) -> None:
        """The changes made before event `before` are on the disk now."""
        count = 0
        for at, change in self.pending:
            if at >= before:
                break
            self.base.apply(change)
            count += 1
        del self.pending[:count]


@dataclass(frozen=True, slots=True)
class Remains:
    """A directory tree as found after a power loss; two names may share a file."""

    directories: tuple[str, ...]  # parents first, without the root
    files: dict[str, Image]

    def read(self, path: str) -> bytes:
        return self.files[path].read()

    def key(self) -> int:
        """Equal for equal trees; cheap, since pages are shared between states and hash once."""
        files = ((p, i.size, frozenset(i.pages.items())) for p, i in self.files.items())
        return hash((self.directories, frozenset(files)))

    def save(self, into: Path) -> None:
        """Build the tree in a new directory."""
        top = os.fspath(into)
        os.mkdir(top)
        for directory in self.directories:
            os.mkdir(os.path.join(top, directory))
        names: dict[int, str] = {}
        for path, image in self.files.items():
            full = os.path.join(top, path)
            first = names.setdefault(id(image), full)
            if first is full:
                image.save(full)
            else:
                os.link(first, full)


class Disk:
    """Replays forwards cheaply; going back starts over. `ignore` takes syncs out of the trace."""

    def __init__(self, trace: Trace, ignore: SyncFilter = lambda sync: False) -> None:
        self._trace = trace
        self._ignore = ignore
        self._start()

    def remains(self, at: int, policy: Policy) -> Remains:
        """What is left if the power goes when events[:at] have happened."""
        self.seek(at)
        rng = random.Random(policy.seed * 1_000_003 + at)
        directories = self._surviving(policy.entries(self._pending, rng))
        kept: dict[int, Image] = {}
        files: dict[str, Image] = {}
        folders: list[str] = []
        for path, node in _walk(directories):
            if node in directories:
                folders.append(path)
                continue
            if node not in kept:
                file = self._files[node]
                kept[node] = policy.content(file.base, [c for _, c in file.pending], rng)
            files[path] = kept[node]
        return Remains(tuple(folders), files)

    def seek(self, at: int) -> None:
        if not 0 <= at <= len(self._trace):
            raise IndexError(f"crash point {at} outside the trace: 0 to {len(self._trace)}")
        if at < self._at:
            self._start()
        while self._at < at:
            self._play(self._at, self._trace.events[self._at])
            self._at += 1

    def _start(self) -> None:
        self._at = 0
        self._files: dict[int, _File] = {}
        self._durable: dict[int, Directory] = {ROOT: {}}
        self._live: dict[int, Directory] = {ROOT: {}}
        self._pending: list[EntryChange] = []
        self._nodes: dict[int, int] = {}  # inode → node; inodes are used again, nodes never
        self._syncing: dict[int, int] = {}  # index of a SyncBegin → node
        self._node_next = ROOT + 1
        for known in self._trace.existing:
            self._add_existing(known.path, known.inode, known.data)

    def _add_existing(self, path: str, inode: int, data: bytes | None) -> None:
        if path == ".":
            self._nodes[inode] = ROOT
            return
        if inode not in self._nodes:
            node = self._add_node(inode, is_dir=data is None)
            if data is not None:
                self._files[node].base = Image.of(data)
        directory, name = self._locate(path)
        for tree in (self._durable, self._live):
            tree[directory][name] = self._nodes[inode]

    def _play(self, at: int, event: Event) -> None:
        match event:
            case Write() | Zero() | Truncate():
                self._files[self._node(event.inode, event.path)].pending.append((at, event))
            case SyncBegin():
                self._syncing[at] = self._node(event.inode, event.path)
            case SyncEnd():
                self._sync(event)
            case Create() | MakeDirectory():
                node = self._add_node(event.inode, is_dir=isinstance(event, MakeDirectory))
                self._enter(at, (*self._locate(event.path), node))
            case Link():
                self._enter(at, (*self._locate(event.path_new), self._find(event.path)))
            case Unlink():
                self._find(event.path)
                self._enter(at, (*self._locate(event.path), None))
            case Rename():
                node = self._find(event.path)
                if self._find_maybe(event.path_new) != node:  # else POSIX does nothing
                    gone = (*self._locate(event.path), None)
                    self._enter(at, gone, (*self._locate(event.path_new), node))
            case Ack():
                pass

    # -- nodes and entries

    def _add_node(self, inode: int, *, is_dir: bool) -> int:
        node = self._node_next
        self._node_next += 1
        self._nodes[inode] = node
        if is_dir:
            self._durable[node], self._live[node] = {}, {}
        else:
            self._files[node] = _File()
        return node

    def _node(self, inode: int, path: str) -> int:
        if inode not in self._nodes:
            raise TraceError(f"{path!r} was made behind the shim's back")
        return self._nodes[inode]

    def _locate(self, path: str) -> tuple[int, str]:
        """The directory and the name of an entry, as the program saw them."""
        folder, _, name = path.rpartition("/")
        node = ROOT
        for part in folder.split("/") if folder else ():
            if self._live.get(node, {}).get(part) not in self._live:
                raise TraceError(f"directory {folder!r} was made behind the shim's back")
            node = self._live[node][part]
        return node, name

    def _find_maybe(self, path: str) -> int | None:
        directory, name = self._locate(path)
        return self._live[directory].get(name)

    def _find(self, path: str) -> int:
        node = self._find_maybe(path)
        if node is None:
            raise TraceError(f"{path!r} was made behind the shim's back")
        return node

    def _enter(self, at: int, *entries: tuple[int, str, int | None]) -> None:
        replaced = {self._live[directory].get(name) for directory, name, _ in entries}
        moved = {node for _, _, node in entries}
        removed = {node for node in replaced - moved if node in self._live}  # directories
        change = EntryChange(at, entries, {directory for directory, _, _ in entries})
        touched = {(directory, name) for directory, name, _ in entries}
        for earlier in self._pending:
            for directory, name, _ in earlier.entries:
                if (directory, name) in touched or directory in removed:
                    change.needs.append(earlier)
                    break
        self._pending.append(change)
        _apply((change,), self._live)

    # -- durability

    def _sync(self, event: SyncEnd) -> None:
        node = self._syncing.pop(event.begin)
        begin = self._trace.events[event.begin]
        assert isinstance(begin, SyncBegin)
        if event.error or self._ignore(begin):
            return
        if node in self._files:
            self._files[node].settle(event.begin)
            return
        for change in self._pending:
            if change.at < event.begin:
                change.unsynced.discard(node)
        settled = _closed(change for change in self._pending if not change.unsynced)
        _apply(settled, self._durable)
        self._pending = [change for change in self._pending if change not in settled]
        for change in self._pending:
            change.needs = [earlier for earlier in change.needs if earlier not in settled]

    def _surviving(self, changes: Iterable[EntryChange]) -> dict[int, Directory]:
        directories = {node: entries.copy() for node, entries in self._durable.items()}
        _apply(_closed(changes), directories)
        return directories


def _closed(changes: Iterable[EntryChange]) -> list[EntryChange]:
    """The changes and all that they need, in the order in which they were made."""
    found: dict[int, EntryChange] = {}
    waiting = list(changes)
    while waiting:
        change = waiting.pop()
        if change.at not in found:
            found[change.at] = change
            waiting.extend(change.needs)
    return [found[at] for at in sorted(found)]


def _apply(changes: Iterable[EntryChange], tree: dict[int, Directory]) -> None:
    for change in changes:
        for directory, name, node in change.entries:
            if node is None:
                tree[directory].pop(name, None)
            else:
                tree[directory][name] = node


def _walk(tree: dict[int, Directory]) -> Iterator[tuple[str, int]]:
    """Every entry reachable from the root, parents first, in the order of names."""
    waiting = [("", ROOT)]
    while waiting:
        prefix, directory = waiting.pop()
        for name in sorted(tree[directory]):
            node = tree[directory][name]
            yield prefix + name, node
            if node in tree:
                waiting.append((f"{prefix}{name}/", node))
