"""Implements `Origin` on the files of a data directory, beside the broker that writes them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from penstock.core.names import quoted, topic_key
from penstock.log.files import RealDisk
from penstock.log.interface import LogIdentity
from penstock.log.reader import FileReader
from penstock.log.store import find_logs, log_directory, read_facts
from penstock.model.errors import CorruptError, RefusedError, TopicNotFound
from penstock.model.limits import MIB
from penstock.model.record import DEFAULT_TENANT
from penstock.pipeline.origin import DELETED, Range, TopicState, Wanted, lost

TASK_BYTES: Final = 64 * MIB  # of files, for one task: a second or so of work
TASK_RECORDS_MIN: Final = 50_000  # fewer are not worth a task of their own


class DirectoryOrigin:
    """The topics below a data directory. Pickles without what it has looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._disk = RealDisk()
        self._readers: dict[LogIdentity, FileReader] = {}
        self._declared: dict[LogIdentity, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return DirectoryOrigin, (self._path,)

    def states(self, topics: tuple[str, ...], *, missing_ok: bool = False) -> list[TopicState]:
        found = self._find()
        if not topics:
            return [state for state in map(self._state_if_there, found.values()) if state]
        states = []
        for topic in topics:
            identity = found.get(topic_key(topic))
            state = None if identity is None else self._state_if_there(identity)
            if state is not None:
                states.append(state)
            elif not missing_ok:
                raise TopicNotFound(self._missing(topic))
        return states

    def offset_at(self, topic: TopicState, timestamp_us: int) -> int:
        return self._reader_of(topic.topic_id).offset_at(timestamp_us)

    def clamp(self, topic: TopicState, epoch: int, offset: int) -> int:
        return self._reader_of(topic.topic_id).clamp(epoch, offset)

    def cut(self, wanted: Range, pieces_min: int) -> list[Range]:
        records = wanted.end - wanted.start
        reader = self._reader_of(wanted.topic_id)
        by_size = -(-reader.stored_bytes(wanted.start, wanted.end) // TASK_BYTES)
        by_cores = min(os.cpu_count() or 1, records // TASK_RECORDS_MIN)
        count = min(records, max(pieces_min, by_size, by_cores, 1))
        edges = [wanted.start, *reader.cuts(wanted.start, wanted.end, count), wanted.end]
        return [
            Range(wanted.topic, wanted.topic_id, wanted.epoch, start, end)
            for start, end in pairwise(edges)
        ]

    def scan(self, piece: Range, wanted: Wanted) -> Iterator[Any]:
        from penstock.pipeline.scan import scan_files  # pyarrow: only tasks need it

        try:
            reader = self._reader_of(piece.topic_id)
        except TopicNotFound:
            if wanted.fails_on_loss:
                raise lost(piece.topic, piece.start, piece.end, DELETED) from None
            return iter(())
        return scan_files(reader, piece, wanted)

    def _find(self) -> dict[str, LogIdentity]:
        """The declared topics by their key."""
        if not self._path.is_dir():
            raise RefusedError(
                f"path {quoted(str(self._path))} is no directory: give the broker's data directory"
            )
        found = {}
        for identity in find_logs(self._disk, self._path):
            if identity.tenant == DEFAULT_TENANT:
                with suppress(FileNotFoundError):  # it has just been deleted
                    found[topic_key(self._name_of(identity))] = identity
        return found

    def _name_of(self, identity: LogIdentity) -> str:
        if identity not in self._declared:
            facts = read_facts(self._disk, log_directory(self._path, identity))
            self._declared[identity] = facts.topic
        return self._declared[identity]

    def _missing(self, topic: str) -> str:
        known = sorted(self._declared[identity] for identity in self._find().values())
        near = difflib.get_close_matches(topic, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"topics there are {', '.join(known)}"
        where = f"in {str(self._path)!r}"
        if not known:
            return f"topic {quoted(topic)} is not declared {where}, nor is any other"
        return f"topic {quoted(topic)} is not declared {where}: {hint}"

    def _reader_of(self, topic_id: int) -> FileReader:
        for identity, reader in self._readers.items():
            if identity.topic_id == topic_id:
                return reader
        for identity in self._find().values():
            if identity.topic_id == topic_id:
                return self._reader(identity)
        raise TopicNotFound(f"no topic has the id {topic_id}: it was deleted")

    def _reader(self, identity: LogIdentity) -> FileReader:
        if identity not in self._readers:
            directory = log_directory(self._path, identity)
            self._readers[identity] = FileReader(self._disk, directory)
        return self._readers[identity]

    def _state(self, identity: LogIdentity) -> TopicState:
        reader = self._reader(identity)
        first, end = reader.bounds()
        return TopicState(self._name_of(identity), identity.topic_id, reader.epoch(), first, end)

    def _state_if_there(self, identity: LogIdentity) -> TopicState | None:
        try:
            return self._state(identity)
        except CorruptError:
            if log_directory(self._path, identity).is_dir():
                raise
            return None  # deleted while we looked
