"""Implements `Origin` on the files of a data directory, also while a broker writes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.core.names import topic_key
from penstock.log.files.reader import FileReader
from penstock.log.interface import LogIdentity
from penstock.model.errors import CorruptError, Gap, TopicNotFound
from penstock.pipeline.source.origin import DELETED, Range, TopicState, Wanted, lost, piece_count
from penstock.pipeline.source.topics import DirectoryTopics


class DirectoryOrigin:
    """The topics below a data directory. Pickles without what it has looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._topics = DirectoryTopics(path)
        self._readers: dict[int, FileReader] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return DirectoryOrigin, (self._path,)

    def states(self, topics: tuple[str, ...], *, missing_ok: bool = False) -> list[TopicState]:
        found = self._topics.all()
        if topics:
            wanted = {topic_key(topic): topic for topic in topics}
            if not missing_ok:
                for topic in wanted.values():
                    self._topics.find(topic)
            found = {key: found[key] for key in wanted if key in found}
        return [state for state in map(self._state, found.values()) if state is not None]

    def offset_at(self, topic: TopicState, timestamp_us: int) -> int:
        return self._reader(topic.topic_id).offset_at(timestamp_us)

    def stamp_at(self, topic: TopicState, offset: int) -> int | None:
        try:
            batches = self._reader(topic.topic_id).read(offset)
        except (Gap, TopicNotFound):
            return None
        for batch in batches:
            if batch.base_offset <= offset < batch.end_offset:
                return batch.timestamp(offset - batch.base_offset)
        return None

    def clamp(self, topic: TopicState, epoch: int, offset: int) -> int:
        return self._reader(topic.topic_id).clamp(epoch, offset)

    def cut(self, wanted: Range, pieces_min: int) -> list[Range]:
        records = wanted.end - wanted.start
        reader = self._reader(wanted.topic_id)
        stored = reader.stored_bytes(wanted.start, wanted.end)
        count = piece_count(records, stored, pieces_min)
        edges = [wanted.start, *reader.cuts(wanted.start, wanted.end, count), wanted.end]
        return [
            Range(wanted.topic, wanted.topic_id, wanted.epoch, start, end)
            for start, end in pairwise(edges)
        ]

    def scan(self, piece: Range, wanted: Wanted) -> Iterator[Any]:
        from penstock.pipeline.source.scan import scan_files  # pyarrow: only tasks need it

        try:
            reader = self._reader(piece.topic_id)
        except TopicNotFound:
            if wanted.fails_on_loss:
                raise lost(piece.topic, piece.start, piece.end, DELETED) from None
            return iter(())
        return scan_files(reader, piece, wanted)

    def _reader(self, topic_id: int) -> FileReader:
        if topic_id not in self._readers:
            for identity in self._topics.all().values():
                if identity.topic_id == topic_id:
                    self._open(identity)
                    break
            else:
                raise TopicNotFound(f"no topic has the id {topic_id}: it was deleted")
        return self._readers[topic_id]

    def _open(self, identity: LogIdentity) -> FileReader:
        directory = self._topics.directory_of(identity)
        return self._readers.setdefault(identity.topic_id, FileReader(self._topics.disk, directory))

    def _state(self, identity: LogIdentity) -> TopicState | None:
        """None when the topic is deleted while we look."""
        try:
            reader = self._open(identity)
            first, end = reader.bounds()
            topic = self._topics.name_of(identity)
            return TopicState(topic, identity.topic_id, reader.epoch(), first, end)
        except CorruptError:
            if self._topics.directory_of(identity).is_dir():
                raise
            return None
