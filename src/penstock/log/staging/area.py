"""Batches that somebody else encoded, on their way into logs: each exactly once.

A *source* (a streaming query, or one write) stages files of batches, then hands over a manifest
that names them. Once the manifest is on disk the outcome is decided: the process that holds the
directory appends the batches, now or after a crash, and says when it is done. Each batch carries a
mark, so what is in a log already is known; a source's last finished number is kept, so a manifest
that is handed over again changes nothing. Records of one number become visible log by log, batch by
batch.

All functions here block for as long as files take.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from penstock.log.files.disk import File, RealDisk, write_file
from penstock.log.files.layout import AREA as AREA
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.marks import MARK_SPARK_BATCH
from penstock.log.placing import check_placeable
from penstock.model.errors import CorruptError, RefusedError
from penstock.model.limits import DIRECTORY_MODE, MIB

T = TypeVar("T")

STAGED_BLOB_BYTES: Final = 4 * MIB  # a batch larger than this is only ever one large record
STAGED_RECORDS: Final = 50_000
ORPHAN_S: Final = 86_400.0  # files that no manifest names are removed at this age
DONE_S: Final = 90 * 86_400.0  # what a source finished is remembered for as long
ONLY_S: Final = 86_400.0  # or as long, where only a lost answer can make it come again
_SUFFIX: Final = ".staged"
PART_FORM: Final = "[0-9]{1,10}(-[0-9]{1,10}){0,3}"
NAME_FORM: Final = r"[0-9]{1,19}(\.[0-9-]{1,60}){1,2}\.[0-9a-f]{8}\.staged"
_PART: Final = re.compile(PART_FORM)
_NAME: Final = re.compile(NAME_FORM)
_MANIFEST: Final = "manifest.json"
_DONE: Final = "done.json"


class StagedFile(msgspec.Struct, frozen=True):
    """Batches for one topic, written by one task."""

    name: str  # in the directory of its source
    part: str  # which of the source's parts; marks are made from it
    topic_id: int
    batches: int
    records: int


class Manifest(msgspec.Struct, frozen=True):
    """What a source hands over under one number."""

    source: str
    number: int
    files: list[StagedFile]  # in the order in which they are appended
    ends: dict[int, int]  # of each topic's log when this was decided: the marks are not before
    kept_s: float = DONE_S  # how long it is remembered; 0 where it cannot come again


class Done(msgspec.Struct, frozen=True):
    """The last number of a source that is in the logs."""

    source: str
    number: int
    at_us: int
    kept_s: float = DONE_S


def mark_key(source: str, number: int, part: str, batch: int) -> bytes:
    """The key of the mark that a batch carries."""
    return f"{source}\0{number}\0{part}\0{batch}".encode()


class StagingArea:
    """The staged files, manifests and finished numbers of a data directory."""

    def __init__(self, data: Path) -> None:
        self._root = data / AREA
        self._disk = RealDisk()

    # What tasks do

    def begin(self, source: str, number: int, part: str, topic_id: int) -> StagingFile:
        """A new file; it counts once a manifest names it."""
        directory = self._directory(source)
        name = f"{number}.{part}.{secrets.token_hex(4)}{_SUFFIX}"
        while True:
            for one in (self._root, directory):
                one.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            try:
                file = self._disk.open(directory / name, create=True)
            except FileNotFoundError:
                continue  # somebody removed the directory, which was empty
            return StagingFile(file, name, part, topic_id)

    def keep(self, staged: StagedData) -> StagedFile:
        """Make a whole file durable that came over the network; its name tells what it holds."""
        batches, records = len(staged.batches), sum(one.header.count for one in staged.batches)
        facts = _facts(staged.part, staged.topic_id, batches, records)
        file = self.begin(staged.source, staged.number, facts, staged.topic_id)
        for batch in staged.batches:
            file.add(batch)
        return msgspec.structs.replace(file.finish(), part=staged.part)

    def discard(self, source: str, files: Iterable[StagedFile]) -> None:
        """Remove files, except those that a manifest has been decided to bring in."""
        directory = self._directory(source)
        decided = self.decided(source)
        needed = {file.name for file in decided.files} if decided is not None else set()
        for file in files:
            if file.name not in needed:
                (directory / _checked_name(file.name)).unlink(missing_ok=True)
        with suppress(OSError):  # others are still there
            directory.rmdir()

    # What the holder of the directory does

    def decide(self, manifest: Manifest) -> None:
        """Make the manifest durable: from here on it will be finished."""
        directory = self._directory(manifest.source)
        self._disk.make_dir(directory)
        self._disk.sync_dir(directory)  # the files' entries; their bytes are synced already
        write_file(self._disk, directory / _MANIFEST, msgspec.json.encode(manifest))

    def missing(self, source: str, files: Iterable[StagedFile]) -> list[str]:
        """The names of files that are not there."""
        directory = self._directory(source)
        names = [_checked_name(file.name) for file in files]
        return [name for name in names if not (directory / name).exists()]

    def decided(self, source: str) -> Manifest | None:
        """What was decided for a source and is not known to be finished."""
        return _read(self._directory(source) / _MANIFEST, Manifest)

    def all_decided(self) -> list[Manifest]:
        found = (_read(path, Manifest) for path in sorted(self._root.glob(f"*/{_MANIFEST}")))
        return [manifest for manifest in found if manifest is not None]

    def last_done(self, source: str) -> int:
        """The last number of the source that is in the logs; -1 if nothing is."""
        done = _read(self._directory(source) / _DONE, Done)
        return -1 if done is None else done.number

    def finish(self, manifest: Manifest, now_us: int) -> None:
        """All of it is in the logs: remember that, then forget the rest."""
        directory = self._directory(manifest.source)
        if manifest.kept_s:
            done = Done(manifest.source, manifest.number, now_us, manifest.kept_s)
            write_file(self._disk, directory / _DONE, msgspec.json.encode(done))
        (directory / _MANIFEST).unlink(missing_ok=True)
        self._disk.sync_dir(directory)
        for path in directory.glob(f"*{_SUFFIX}"):  # also what failed attempts left
            if int(path.name.split(".")[0]) <= manifest.number:
                path.unlink(missing_ok=True)
        with suppress(OSError):
            directory.rmdir()

    def take_over(self, other: StagingArea) -> None:
        """Remember what sources have finished in another data directory: they may ask here."""
        for path in sorted(other._root.glob(f"*/{_DONE}")):
            directory = self._root / path.parent.name
            for one in (self._root, directory):
                one.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            write_file(self._disk, directory / _DONE, path.read_bytes())

    def batches(self, manifest: Manifest, file: StagedFile) -> Iterator[Batch]:
        """The batches of a file, checked."""
        path = self._directory(manifest.source) / file.name
        try:
            data = memoryview(path.read_bytes())
        except FileNotFoundError:
            raise CorruptError(
                f"{path} is missing and must still be appended: restore the file, or remove "
                f"{path.parent / _MANIFEST} to give up its records"
            ) from None
        batches = records = 0
        try:
            for batch in read_batches(data, manifest.source, manifest.number, file.part):
                yield batch
                batches += 1
                records += batch.header.count
        except CorruptError as broken:
            raise CorruptError(f"{path} {broken}") from broken
        if (batches, records) != (file.batches, file.records):
            raise CorruptError(f"{path} holds {records} records, not {file.records}")

    def names(self, source: str, number: int, files: Iterable[StagedFile]) -> dict[int, set[str]]:
        """The names in files that came over the network, by topic id; none of a missing file."""
        found: dict[int, set[str]] = {}
        files = list(files)
        missing = set(self.missing(source, files))
        manifest = Manifest(source, number, files, {})
        for file in files:
            if file.name not in missing:
                names = found.setdefault(file.topic_id, set())
                for batch in self.batches(manifest, file):
                    names.update(batch.strings)
        return found

    def clean(self, age_us: Callable[[int], int]) -> None:
        """Remove what nobody will ask for: old orphans, and sources that ended long ago."""
        for directory in self._root.glob("*"):
            if (directory / _MANIFEST).exists():
                continue
            done = _read(directory / _DONE, Done)
            for path in directory.glob(f"*{_SUFFIX}"):
                # What a killed attempt left of a number that is done will never count.
                is_done = done is not None and int(path.name.split(".")[0]) <= done.number
                with suppress(FileNotFoundError):
                    if is_done or age_us(path.stat().st_mtime_ns // 1_000) / 1e6 > ORPHAN_S:
                        path.unlink()
            if done is not None and age_us(done.at_us) / 1e6 > done.kept_s:
                (directory / _DONE).unlink(missing_ok=True)
            with suppress(OSError):
                directory.rmdir()

    def _directory(self, source: str) -> Path:
        """A source may be called anything; its directory is named by a hash."""
        return self._root / hashlib.sha256(source.encode()).hexdigest()[:32]


class StagingFile:
    """A file that is being staged. `finish` makes it durable."""

    def __init__(self, file: File, name: str, part: str, topic_id: int) -> None:
        self._file = file
        self._name = name
        self._part = part
        self._topic_id = topic_id
        self._length = 0
        self._is_open = True
        self.batches = 0
        self._records = 0

    def add(self, batch: Batch) -> None:
        buffers = batch.to_bytes()
        self._file.write(self._length, buffers)
        self._length += sum(map(len, buffers))
        self.batches += 1
        self._records += batch.header.count

    def finish(self) -> StagedFile:
        try:
            self._file.sync()
        finally:
            self.close()
        return self._facts()

    def close(self) -> StagedFile:
        """As `finish`, for a file that is going to be discarded. Safe to call again."""
        if self._is_open:
            self._is_open = False
            self._file.close()
        return self._facts()

    def _facts(self) -> StagedFile:
        return StagedFile(self._name, self._part, self._topic_id, self.batches, self._records)


@dataclass(frozen=True, slots=True)
class StagedData:
    """A file that came over the network: its batches are checked, and not yet on disk."""

    source: str
    number: int
    part: str
    topic_id: int
    batches: list[Batch]


def read_batches(data: memoryview, source: str, number: int, part: str) -> Iterator[Batch]:
    """The batches of a file, checked; CorruptError names the byte at which one is wrong."""
    at = count = 0
    while at < len(data):
        try:
            batch = decode_batch(data, at)
            check_placeable(batch)
            _check_mark(batch, mark_key(source, number, part, count))
        except CorruptError as broken:
            raise CorruptError(f"at byte {at}: {broken}") from broken
        yield batch
        at += batch.header.stored_length
        count += 1


def check_part(part: str) -> str:
    """Parts are numbers with hyphens between them: they are found in the names of files."""
    if not _PART.fullmatch(part):
        raise RefusedError(f"part {part[:200]!r} is not of the form 0 or 0-7-1")
    return part


def check_kept(number: int, file: StagedFile) -> None:
    """Refuse a file that `keep` did not give out just like this."""
    facts = _facts(file.part, file.topic_id, file.batches, file.records)
    if not file.name.startswith(f"{number}.{facts}."):
        raise RefusedError(
            f"{file.name[:200]!r} was staged with other values than it is handed over with"
        )


def _facts(part: str, topic_id: int, batches: int, records: int) -> str:
    return f"{part}.{topic_id}-{batches}-{records}"


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise RefusedError(f"{name[:200]!r} is not the name of a staged file")
    return name


def _check_mark(batch: Batch, key: bytes) -> None:
    if not any(mark.kind == MARK_SPARK_BATCH and mark.key == key for mark in batch.marks()):
        raise CorruptError("the batch has no mark, so it could be appended twice")


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as broken:
        raise CorruptError(f"{path}: {broken}: restore the file from a backup") from broken
